package tuntest

import (
	"golang.org/x/sys/unix"
)

// A T is what a test gives: testing.TB or rapid's.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// A StreamPeer is the other end of a stream queue: what QEMU is to a port.
type StreamPeer struct {
	t  T
	FD int
}

// StreamPair makes a connected pair of stream sockets: the queue's, which the
// caller closes, and the peer.
func StreamPair(t T) (fd int, peer *StreamPeer) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("socketpair: %v", err)
	}
	p := &StreamPeer{t: t, FD: fds[1]}
	if c, ok := t.(interface{ Cleanup(func()) }); ok {
		c.Cleanup(p.Close)
	}
	return fds[0], p
}

// SetSendBuffer bounds what the queue's socket fd takes, in bytes of the
// kernel's memory.
func (p *StreamPeer) SetSendBuffer(fd, n int) {
	p.t.Helper()
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, n); err != nil {
		p.t.Fatalf("send buffer: %v", err)
	}
}

// Close ends the connection; a second time it does nothing.
func (p *StreamPeer) Close() {
	if p.FD >= 0 {
		unix.Close(p.FD)
		p.FD = -1
	}
}

// Write sends bytes and gives how many the socket took.
func (p *StreamPeer) Write(b []byte) int {
	p.t.Helper()
	n, err := unix.Write(p.FD, b)
	if err == unix.EAGAIN {
		return 0
	}
	if err != nil {
		p.t.Fatalf("write: %v", err)
	}
	return n
}

// Read appends up to n bytes of what has come to b.
func (p *StreamPeer) Read(b []byte, n int) []byte {
	p.t.Helper()
	buf := make([]byte, n)
	n, err := unix.Read(p.FD, buf)
	if err == unix.EAGAIN {
		return b
	}
	if err != nil {
		p.t.Fatalf("read: %v", err)
	}
	return append(b, buf[:n]...)
}

// Drain appends everything that has come to b.
func (p *StreamPeer) Drain(b []byte) []byte {
	p.t.Helper()
	for {
		had := len(b)
		if b = p.Read(b, 1<<18); len(b) == had {
			return b
		}
	}
}
