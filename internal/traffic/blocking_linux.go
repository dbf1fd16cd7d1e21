package traffic

import (
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A blocking is a socket whose calls block their thread. Round trips through
// the runtime's poller cost two more system calls and a wake-up at each end,
// which is more than what there is to measure.
type blocking struct {
	f  *os.File // owns fd
	fd int
}

// newBlocking takes the socket of a connection and closes the connection. A
// read that waits for longer than patience fails with EAGAIN.
func newBlocking(c interface {
	io.Closer
	File() (*os.File, error)
}, patience time.Duration) (b blocking, err error) {
	defer c.Close()
	if b.f, err = c.File(); err != nil {
		return b, err
	}
	b.fd = int(b.f.Fd())
	tv := unix.NsecToTimeval(patience.Nanoseconds())
	if err = unix.SetNonblock(b.fd, false); err == nil {
		err = unix.SetsockoptTimeval(b.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	}
	if err != nil {
		_ = b.f.Close()
	}
	return b, err
}

func (b blocking) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(b.fd, p)
		switch {
		case err == unix.EINTR: // a wait with SO_RCVTIMEO is not restarted, signal(7)
			continue
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

func (b blocking) Write(p []byte) (int, error) { return unix.Write(b.fd, p) }

// shut lets a read of a TCP connection return.
func (b blocking) shut() { _ = unix.Shutdown(b.fd, unix.SHUT_RDWR) }

func (b blocking) close() { _ = b.f.Close() }
