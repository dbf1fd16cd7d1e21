package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"taprouter/control/api"
	"taprouter/control/config"
)

// sockets runs a router whose ports are sockets, which needs no right.
func sockets(t testing.TB, conf string) *router {
	t.Helper()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	c, err := config.Parse("x.yaml", []byte(conf))
	if err != nil {
		t.Fatal(err)
	}
	procs := runtime.GOMAXPROCS(0)
	r, err := newRouter(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "api.sock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- r.run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil { // packets that do not add up, too
			t.Error(err)
		}
		runtime.GOMAXPROCS(procs)
	})
	return r
}

// wait waits until a port is as cond wants it.
func (r *router) wait(t testing.TB, port int, what string, cond func(l *api.Link) bool) {
	t.Helper()
	var l api.Link
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if l = r.Links()[port]; cond(&l) {
			return
		}
	}
	t.Fatalf("port %s is not %s: %s %s %q", l.Name, what, l.OperState, l.SocketState, l.Reason)
}

func (r *router) connected(t testing.TB, port int) {
	t.Helper()
	r.wait(t, port, "connected", func(l *api.Link) bool {
		return l.OperState == "UP" && l.SocketState == "connected" && l.Reason == ""
	})
}

// A guest is a peer: frames go over a stream or as datagrams.
type guest struct {
	t      testing.TB
	conn   net.Conn
	stream bool
	to     net.Addr // of datagrams
}

func (g *guest) send(frame []byte) {
	g.t.Helper()
	var err error
	if g.stream {
		_, err = g.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
	} else {
		_, err = g.conn.(*net.UnixConn).WriteTo(frame, g.to)
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

// recv gives the next frame, nil if none comes within that time.
func (g *guest) recv(within time.Duration) []byte {
	_ = g.conn.SetReadDeadline(time.Now().Add(within))
	if !g.stream {
		b := make([]byte, 1<<17)
		n, err := g.conn.Read(b)
		if err != nil {
			return nil
		}
		return b[:n]
	}
	var length [4]byte
	if _, err := io.ReadFull(g.conn, length[:]); err != nil {
		return nil
	}
	b := make([]byte, binary.BigEndian.Uint32(length[:]))
	if _, err := io.ReadFull(g.conn, b); err != nil {
		return nil
	}
	return b
}

// ether makes a frame of a protocol that the router passes on untouched.
func ether(dst, src byte, n int, text string) []byte {
	f := make([]byte, max(n, 14+len(text)))
	f[0], f[5], f[6], f[11], f[12], f[13] = 2, dst, 2, src, 0x88, 0xb5
	copy(f[14:], text)
	return f
}

const three = `
version: 1
workers: 2
ports:
  - {name: s, type: socket, stream: {listen: %[1]s/s.sock}}
  - {name: c, type: socket, stream: {connect: "%[2]s"}, sndbuf: 64KiB}
  - {name: d, type: socket, dgram: {local: %[1]s/d.sock, remote: %[1]s/peer.sock}, mtu: 9000}
bridges:
  - {name: br0, ports: [s, c, d]}
`

// Three guests, one of each kind, reach each other; each may go in any way and
// come back, and the others do not notice.
func TestSocketPorts(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := sockets(t, fmt.Sprintf(three, dir, l.Addr()))
	r.wait(t, 0, "listening", func(l *api.Link) bool { return l.OperState == "DOWN" && l.SocketState == "listening" })
	r.wait(t, 2, "down", func(l *api.Link) bool {
		return l.SocketState == "down" && strings.Contains(l.Reason, "no such file") && strings.Contains(l.Reason, "again in")
	})
	if st, err := os.Stat(dir + "/s.sock"); err != nil || st.Mode().Perm() != 0o660 & ^umask() {
		t.Errorf("the socket's mode is %v, %v", st.Mode(), err)
	}
	plug := []func() *guest{
		func() *guest {
			conn, err := net.Dial("unix", dir+"/s.sock")
			if err != nil {
				t.Fatal(err)
			}
			return &guest{t, conn, true, nil}
		},
		func() *guest {
			conn, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			return &guest{t, conn, true, nil}
		},
		func() *guest {
			_ = os.Remove(dir + "/peer.sock")
			conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: dir + "/peer.sock", Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			return &guest{t, conn, false, &net.UnixAddr{Name: dir + "/d.sock", Net: "unixgram"}}
		},
	}
	var guests []*guest
	for i, p := range plug {
		guests = append(guests, p())
		r.connected(t, i)
	}
	defer func() {
		for _, g := range guests {
			g.conn.Close()
		}
	}()
	hear := func(from int, what string) { // all others, and not itself, or everyone would find it
		t.Helper()
		want := ether(0xff, byte(from+1), 60, what)
		guests[from].send(want)
		for k, g := range guests {
			if k == from {
				continue
			}
			if f := g.recv(5 * time.Second); !bytes.Equal(f, want) {
				t.Fatalf("guest %d got %x of %d's %q", k, f, from, what)
			}
		}
	}
	for i := range guests {
		hear(i, "hello")
	}
	everyone := func(what string) {
		t.Helper()
		for i, g := range guests {
			for k, other := range guests {
				if i == k {
					continue
				}
				want := ether(byte(k+1), byte(i+1), 1514, what)
				g.send(want)
				if f := other.recv(5 * time.Second); !bytes.Equal(f, want) {
					t.Fatalf("%s: guest %d got %d bytes from %d, want %d", what, k, len(f), i, len(want))
				}
			}
		}
	}
	everyone("first")
	for i := range guests {
		switch i {
		case 0:
			_, _ = guests[0].conn.Write([]byte{0, 0, 5}) // the middle of a length
		case 1:
			_, _ = guests[1].conn.Write([]byte{1, 0, 0, 0, 0}) // of 16 MiB
		}
		guests[i].conn.Close()
		if i == 2 { // datagrams: found out by writing
			guests[0].send(ether(3, 1, 60, "into nothing"))
		}
		want := []string{"in the middle of a frame", "more than 65557 bytes", "refused"}[i]
		r.wait(t, i, "down for "+want, func(l *api.Link) bool { return l.OperState == "DOWN" && strings.Contains(l.Reason, want) })
		guests[i] = plug[i]()
		r.connected(t, i)
		hear(i, "back") // its address was forgotten
		everyone(fmt.Sprint("again ", i))
	}
	if err := r.SetQueues("s", 1); err == nil || !strings.Contains(err.Error(), "socket") {
		t.Errorf("SetQueues of a socket: %v", err)
	}
	if err := r.SetSteering("s", "hash"); err == nil || !strings.Contains(err.Error(), "socket") {
		t.Errorf("SetSteering of a socket: %v", err)
	}
}

func umask() os.FileMode {
	f, _ := os.ReadFile("/proc/self/status")
	var m os.FileMode
	_, after, _ := strings.Cut(string(f), "Umask:\t")
	_, _ = fmt.Sscanf(after, "%o", &m)
	return m
}

// An address that somebody has is refused at start; one that a crash left is
// taken.
func TestSocketAddressTaken(t *testing.T) {
	dir := t.TempDir()
	path := dir + "/x.sock"
	conf, err := config.Parse("x.yaml", []byte(fmt.Sprintf("version: 1\nworkers: 1\nports:\n  - {name: s, type: socket, stream: {listen: %s}, addresses: [10.0.0.1/24]}\n", path)))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newRouter(conf, nil); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("an address in use: %v", err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	procs := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(procs)
	r, err := newRouter(conf, nil)
	if err != nil {
		t.Fatalf("an address that a crash left: %v", err)
	}
	if err := r.close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newRouter(conf, nil); err == nil {
		t.Error("a file was taken for a socket")
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Errorf("the file has %q", b)
	}
}

// A port that listens has one peer at a time: the next one waits with what it
// has sent, and is served when the first has gone.
func TestSecondPeerWaits(t *testing.T) {
	dir := t.TempDir()
	r := sockets(t, fmt.Sprintf("version: 1\nworkers: 1\nports:\n  - {name: a, type: socket, stream: {listen: %[1]s/a.sock}}\n"+
		"  - {name: b, type: socket, stream: {listen: %[1]s/b.sock}}\nbridges: [{name: br0, ports: [a, b]}]\n", dir))
	dial := func(name string) *guest {
		conn, err := net.Dial("unix", dir+"/"+name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return &guest{t, conn, true, nil}
	}
	first, b := dial("a.sock"), dial("b.sock")
	r.connected(t, 0)
	r.connected(t, 1)
	second := dial("a.sock")
	waiting := ether(0xff, 9, 60, "waiting")
	second.send(waiting)
	for i := range 20 {
		want := ether(0xff, 1, 60, fmt.Sprint("first ", i))
		first.send(want)
		if f := b.recv(5 * time.Second); !bytes.Equal(f, want) {
			t.Fatalf("%x came of the first peer's %q", f, want)
		}
	}
	if f := b.recv(50 * time.Millisecond); f != nil {
		t.Fatalf("%x came while the first peer was there", f)
	}
	b.conn.SetReadDeadline(time.Time{})
	first.conn.Close()
	if f := b.recv(5 * time.Second); !bytes.Equal(f, waiting) {
		t.Fatalf("%x came of the second peer", f)
	}
	r.connected(t, 0)
}

// QEMU itself is the peer: a hub of its own joins a port that listens, one
// that connects, and one of datagrams, and passes frames on between them.
func TestQEMUHub(t *testing.T) {
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	conf := "version: 1\nworkers: 2\nports:\n"
	netdevs := []string{"stream,id=n0,server=off,addr.type=unix,addr.path=%s/q0.sock", "stream,id=n1,server=on,addr.type=unix,addr.path=%s/q1.sock",
		"dgram,id=n2,local.type=unix,local.path=%s/q2-peer.sock,remote.type=unix,remote.path=%s/q2.sock"}
	sides := []string{"stream: {listen: %s/q0.sock}", "stream: {connect: %s/q1.sock}", "dgram: {local: %s/q2.sock, remote: %s/q2-peer.sock}"}
	args := []string{"-M", "none", "-nodefaults", "-display", "none", "-monitor", "none", "-serial", "none"}
	for i := range 3 {
		conf += fmt.Sprintf("  - {name: q%d, type: socket, mtu: 9000, %s}\n  - {name: g%d, type: socket, mtu: 9000, stream: {listen: %s/g%d.sock}}\n", i, strings.ReplaceAll(sides[i], "%s", dir), i, dir, i)
		args = append(args, "-netdev", strings.ReplaceAll(netdevs[i], "%s", dir), "-netdev", fmt.Sprintf("hubport,id=h%d,hubid=0,netdev=n%d", i, i))
	}
	conf += "bridges:\n"
	for i := range 3 {
		conf += fmt.Sprintf("  - {name: br%d, ports: [q%d, g%d]}\n", i, i, i)
	}
	r := sockets(t, conf)
	var guests []*guest
	for i := range 3 {
		conn, err := net.Dial("unix", fmt.Sprintf("%s/g%d.sock", dir, i))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		guests = append(guests, &guest{t, conn, true, nil})
	}
	for round := range 2 { // QEMU ends and comes back
		ctx, cancel := context.WithCancel(t.Context())
		cmd := exec.CommandContext(ctx, qemu, args...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			r.wait(t, 2*i, "connected to QEMU", func(l *api.Link) bool {
				if cmd.ProcessState != nil {
					t.Fatalf("QEMU ended: %s", out.String())
				}
				return l.SocketState == "connected"
			})
			r.connected(t, 2*i+1)
		}
		// QEMU lets frames overtake those that a full datagram socket has
		// refused, so no more are sent at a time than fit in one.
		for n := range 60 {
			for i, g := range guests {
				want := ether(0xff, byte(i+1), []int{60, 1514, 9014}[n%3], fmt.Sprint("round ", round, " frame ", n))
				for range 8 {
					g.send(want)
				}
				for k := range 3 * 8 {
					if k /= 8; k == i {
						continue
					}
					if f := guests[k].recv(5 * time.Second); !bytes.Equal(f, want) {
						t.Fatalf("guest %d got %q of %d bytes as frame %d of %d bytes from %d\n%s", k, f[:min(len(f), 60)], len(f), n, len(want), i, out.String())
					}
				}
			}
		}
		cancel()
		_ = cmd.Wait()
		guests[2].send(ether(0xff, 3, 60, "to nobody")) // how a datagram peer's end is found out
		for i := range 3 {
			r.wait(t, 2*i, "disconnected", func(l *api.Link) bool { return l.SocketState != "connected" })
		}
	}
}
