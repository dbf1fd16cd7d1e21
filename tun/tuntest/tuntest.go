// Package tuntest (tests) gives queues that need no root and no device: one
// end of a socket pair on which, as on a TAP, one read or write is one frame.
package tuntest

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/tun"
)

// VnetLen is the length of the virtio-net header of a Pair's queue.
const VnetLen = 10

// A Peer is the other end of a queue: what the kernel is to a TAP.
type Peer struct {
	t  testing.TB
	FD int
}

// Pair makes a queue with the given vnet header length and its peer. Both are
// closed at the end of the test; the queue only if the test did not.
func Pair(t testing.TB, vnetLen int) (*tun.Queue, *Peer) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("socketpair: %v", err)
	}
	for _, fd := range fds {
		for _, opt := range []int{unix.SO_SNDBUF, unix.SO_RCVBUF} {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt, 1<<20); err != nil {
				t.Fatalf("socket buffer: %v", err)
			}
		}
	}
	return tun.NewQueue(fds[0], vnetLen), NewPeer(t, fds[1])
}

// NewPeer makes a peer of a non-blocking socket, which is closed at the end of
// the test.
func NewPeer(t testing.TB, fd int) *Peer {
	p := &Peer{t: t, FD: fd}
	t.Cleanup(p.Close)
	return p
}

// Close ends the peer; a second time it does nothing.
func (p *Peer) Close() {
	if p.FD >= 0 {
		unix.Close(p.FD)
		p.FD = -1
	}
}

// Send writes one frame, its vnet header included, into the queue's rx ring.
func (p *Peer) Send(frame []byte) {
	p.t.Helper()
	if err := p.TrySend(frame); err != nil {
		p.t.Fatalf("send %d bytes: %v", len(frame), err)
	}
}

// TrySend is Send that reports a full ring as EAGAIN.
func (p *Peer) TrySend(frame []byte) error {
	_, err := unix.Write(p.FD, frame)
	return err
}

// Recv gives the next frame that was written to the queue, vnet header
// included, or nil if none comes within the time.
func (p *Peer) Recv(within time.Duration) []byte {
	p.t.Helper()
	fds := []unix.PollFd{{Fd: int32(p.FD), Events: unix.POLLIN}}
	deadline := time.Now().Add(within)
	for {
		n, err := unix.Poll(fds, int(max(time.Until(deadline).Milliseconds(), 0)))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			p.t.Fatalf("poll: %v", err)
		}
		if n == 0 {
			return nil
		}
		b := make([]byte, 1<<17)
		k, err := unix.Read(p.FD, b)
		if err == unix.EAGAIN || err == unix.EINTR {
			continue
		}
		if err != nil {
			p.t.Fatalf("read: %v", err)
		}
		return b[:k]
	}
}
