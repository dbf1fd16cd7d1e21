package tun

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A socketDriver is the driver of a queue whose other side is a process that
// comes and goes: frames go over a socket, which the control plane connects.
// Unlike a device, a socket that is full says so, and the queue stops.
type socketDriver interface {
	driver
	// connect begins to use connected non-blocking sockets, or one for both
	// directions, and forgets what is left of the last one.
	connect(rx, tx int)
}

// A link is what a socket queue knows of its connection.
type link struct {
	failed atomic.Bool // there is none, or an error was seen
}

// NewStreamQueue makes a queue without a connection that speaks the protocol
// of QEMU's -netdev stream: each frame follows its length, 32 bits in network
// byte order (net/stream.c).
func NewStreamQueue() *Queue { return newSocketQueue(newStreamQueue()) }

// NewDgramQueue makes a queue without a connection that speaks the protocol
// of QEMU's -netdev dgram: a datagram is a frame (net/dgram.c).
func NewDgramQueue() (*Queue, error) {
	d, err := newDgramQueue()
	if err != nil {
		return nil, err
	}
	return newSocketQueue(d), nil
}

func newSocketQueue(d socketDriver) *Queue {
	q := &Queue{fd: -1, waitFD: -1, driver: d, link: &link{}}
	q.link.failed.Store(true)
	return q
}

// Connect gives a socket queue its connection: a socket to read from and one
// to write to, which may be the same. The queue owns them. Nobody may use the
// queue meanwhile.
func (q *Queue) Connect(rx, tx int) error {
	if rx == tx { // rx and tx readiness sit in different pollers
		dup, err := unix.FcntlInt(uintptr(rx), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			unix.Close(rx)
			return fmt.Errorf("tun: %w", err)
		}
		tx = dup
	}
	q.fd, q.waitFD, q.rx.frames = rx, tx, nil
	q.driver.(socketDriver).connect(rx, tx)
	q.link.failed.Store(false)
	return nil
}

// Disconnect closes the connection, if there is one. Nobody may use the queue
// meanwhile, and what is watched for it must not be any more.
func (q *Queue) Disconnect() {
	q.link.failed.Store(true) // nobody is told of this end
	for _, fd := range [2]int{q.fd, q.waitFD} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	q.fd, q.waitFD, q.rx.frames = -1, -1, nil
	q.driver.(socketDriver).connect(-1, -1)
}

// Connected reports whether there is something to read from: false for a
// socket queue before Connect.
func (q *Queue) Connected() bool { return q.fd >= 0 }

// IsSocket reports whether q is a socket queue.
func (q *Queue) IsSocket() bool { return q.link != nil }

// Fail turns an error of reading or writing q into what the control plane is
// told: nil if it was told already. ErrGone for a device, a *ClosedError for
// a connection.
func (q *Queue) Fail(errno unix.Errno) error {
	if q.link == nil {
		return ErrGone
	}
	if q.link.failed.Swap(true) {
		return nil
	}
	return &ClosedError{errno}
}

// A ClosedError says why a connection is of no use any more.
type ClosedError struct{ Errno unix.Errno }

// What a driver gives for ends that the kernel has no error for.
const (
	errPeerClosed = unix.ESHUTDOWN // between two frames
	errCutOff     = unix.EBADMSG   // within a frame
	errBadLength  = unix.EPROTO    // a length that no frame has
)

func (e *ClosedError) Error() string {
	switch e.Errno {
	case errPeerClosed:
		return "the peer closed the connection"
	case errCutOff:
		return "the peer closed the connection in the middle of a frame"
	case errBadLength:
		return fmt.Sprintf("the peer announced a frame of more than %d bytes", maxFrame)
	}
	return e.Errno.Error()
}
