package peer

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dialTimeout bounds one try to reach a peer.
const dialTimeout = 5 * time.Second

// fileMode is the mode of a unix socket: who may write to it may send frames.
const fileMode = 0o660

// network says what kind of address addr is: a path, or host:port.
func network(addr string) string {
	if strings.HasPrefix(addr, "/") {
		return "unix"
	}
	return "tcp"
}

// A dialer goes to the peer's address.
type dialer string

func (d dialer) waits() bool  { return false }
func (d dialer) close() error { return nil }

func (d dialer) next(ctx context.Context) (rx, tx int, err error) {
	nd := net.Dialer{Timeout: dialTimeout}
	conn, err := nd.DialContext(ctx, network(string(d)), string(d))
	if err != nil {
		return -1, -1, err
	}
	return take(conn)
}

// A listener waits for the peer at an address of ours. One is connected at a
// time; the next waits for its end.
type listener struct{ net.Listener }

func listen(addr string) (source, error) {
	if network(addr) == "unix" {
		if err := removeStale(addr, unix.SOCK_STREAM); err != nil {
			return nil, err
		}
	}
	// A unix socket takes its mode from the descriptor when it is bound.
	lc := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) (err error) {
		if network == "unix" {
			cerr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), fileMode) })
			err = errors.Join(err, cerr)
		}
		return err
	}}
	l, err := lc.Listen(context.Background(), network(addr), addr)
	if err != nil {
		return nil, err
	}
	return &listener{l}, nil
}

func (l *listener) waits() bool { return true }

func (l *listener) close() error {
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func (l *listener) next(ctx context.Context) (rx, tx int, err error) {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	conn, err := l.Accept()
	if err != nil {
		return -1, -1, err
	}
	return take(conn)
}

// take takes the socket out of conn. It stays non-blocking.
func take(conn net.Conn) (rx, tx int, err error) {
	defer conn.Close()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return -1, -1, err
	}
	cerr := raw.Control(func(fd uintptr) { rx, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	return rx, rx, errors.Join(err, cerr)
}

// removeStale removes a unix socket that nobody listens on any more.
func removeStale(path string, kind int) error {
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if unix.Connect(fd, &unix.SockaddrUnix{Name: path}) != unix.ECONNREFUSED {
		return nil // it is not there, or it is somebody's: then listening says so
	}
	if st, err := os.Lstat(path); err != nil || st.Mode().Type() != os.ModeSocket {
		return err // connecting to a plain file is refused, too
	}
	return os.Remove(path)
}
