package peer

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"taprouter/control/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fakeSource has a connection, or fails, each time it is asked; the last
// time it calls end.
type fakeSource struct {
	asked []time.Time
	last  int
	end   func()
	err   error
}

func (f *fakeSource) waits() bool  { return true }
func (f *fakeSource) close() error { return nil }

func (f *fakeSource) next(context.Context) (rx, tx int, err error) {
	if f.asked = append(f.asked, time.Now()); len(f.asked) == f.last {
		f.end()
	}
	return -1, -1, f.err
}

// A fakePort loses each connection after it has lasted.
type fakePort struct {
	p      *Peer
	lasts  time.Duration
	states []string
}

func (f *fakePort) Connect(rx, tx int) error {
	time.AfterFunc(f.lasts, func() { f.p.Lost(errors.New("lost")) })
	return nil
}
func (f *fakePort) Disconnect()                  { f.states = append(f.states, "disconnect") }
func (f *fakePort) State(s State, reason string) { f.states = append(f.states, string(s)+" "+reason) }

// Connections that end at once, or cannot be had, come ever more slowly; after
// a long one it begins anew.
func TestBackoff(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lasts time.Duration
		err   error
		want  []time.Duration // between two connections
	}{
		{"fails", 0, errors.New("nobody there"), []time.Duration{100, 200, 400, 800, 1600, 3200, 5000, 5000}},
		{"short", 10 * time.Millisecond, nil, []time.Duration{110, 210, 410, 810, 1610, 3210, 5010, 5010}},
		{"long", time.Minute, nil, []time.Duration{60100, 60100}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				src := &fakeSource{err: tt.err, last: len(tt.want) + 1, end: cancel}
				p := &Peer{source: src, lost: make(chan error, 1), delay: firstDelay}
				p.Run(ctx, &fakePort{p: p, lasts: tt.lasts})
				for i, want := range tt.want {
					if got := src.asked[i+1].Sub(src.asked[i]); got != want*time.Millisecond {
						t.Errorf("connection %d came %v after the last, want %v", i+1, got, want*time.Millisecond)
					}
				}
				time.Sleep(time.Hour) // timers of the fake
			})
		})
	}
}

// What is to be seen of a port, in order, and that Disconnect comes after Down.
func TestStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Peer{source: &fakeSource{}, lost: make(chan error, 1), delay: firstDelay}
		ctx, cancel := context.WithTimeout(t.Context(), 1150*time.Millisecond)
		defer cancel()
		port := &fakePort{p: p, lasts: time.Second}
		p.Run(ctx, port)
		got := strings.Join(port.states, "; ")
		if want := "listening ; connected ; down lost; again in 100ms; disconnect; listening lost; connected "; got != want {
			t.Errorf("states: %s\nwant:   %s", got, want)
		}
		time.Sleep(time.Hour)
	})
}

// Sockets of each kind are non-blocking, joined with what the test holds, and
// have the send buffer that was asked for.
func TestSources(t *testing.T) {
	dir := t.TempDir()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	dial := func(addr string) func() net.Conn {
		return func() net.Conn {
			c, err := net.Dial(network(addr), addr)
			if err != nil {
				t.Error(err)
			}
			return c
		}
	}
	remote := filepath.Join(dir, "remote")
	gram, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: remote, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer gram.Close()
	for _, tt := range []struct {
		conf  config.Socket
		other func() net.Conn
	}{
		{config.Socket{Listen: filepath.Join(dir, "listen")}, dial(filepath.Join(dir, "listen"))},
		{config.Socket{Connect: tcp.Addr().String()}, func() net.Conn { c, _ := tcp.Accept(); return c }},
		{config.Socket{Local: filepath.Join(dir, "local"), Remote: remote}, func() net.Conn { return gram }},
	} {
		p, err := Open(tt.conf, 100_000)
		if err != nil {
			t.Fatal(err)
		}
		other := make(chan net.Conn, 1)
		go func() { other <- tt.other() }()
		if err := p.connect(t.Context(), checkPort{t, other}); err != nil {
			t.Errorf("%v: %v", tt.conf, err)
		}
		if err := p.Close(); err != nil {
			t.Errorf("%v: close: %v", tt.conf, err)
		}
	}
}

// A checkPort looks at the sockets that it gets, and closes them.
type checkPort struct {
	t     *testing.T
	other chan net.Conn
}

func (c checkPort) Disconnect()         {}
func (c checkPort) State(State, string) {}

func (c checkPort) Connect(rx, tx int) error {
	for _, fd := range []int{rx, tx} {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
			c.t.Errorf("flags %#x, %v: it blocks", flags, err)
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			c.t.Errorf("flags %#x, %v: a child would keep it", flags, err)
		}
	}
	if n, err := unix.GetsockoptInt(tx, unix.SOL_SOCKET, unix.SO_SNDBUF); err != nil || n != 200_000 { // the kernel doubles it
		c.t.Errorf("send buffer of %d bytes, %v", n, err)
	}
	if _, err := unix.Write(tx, []byte("frame")); err != nil {
		c.t.Error(err)
	}
	other := <-c.other
	defer other.Close()
	b := make([]byte, 10)
	_ = other.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := other.Read(b); string(b[:n]) != "frame" {
		c.t.Errorf("the other side read %q, %v", b[:n], err)
	}
	return closeBoth(rx, tx)
}

// Run ends while it waits for a peer, and leaves a connection that there is.
func TestRunEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	p, err := Open(config.Socket{Listen: path}, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	port := &fakePort{p: p}
	go func() { p.Run(ctx, port); close(done) }()
	time.AfterFunc(20*time.Millisecond, cancel)
	<-done
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
