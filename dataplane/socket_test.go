package dataplane

import (
	"encoding/binary"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/packet"
	"taprouter/tun"
	"taprouter/tun/tuntest"
)

// newSocketRig is a rig whose port 1 is a stream socket's, with a small send
// buffer; 0 and 2 are devices.
func newSocketRig(t *testing.T) (*rig, *tuntest.StreamPeer) {
	t.Helper()
	r := newRig(t, 2, 3, 1, func(pc *PortConfig) {
		if pc.Name == "p1" {
			_ = pc.Queues[0].Close()
			pc.Queues[0] = tun.NewStreamQueue()
		}
	})
	peer := r.plug()
	r.meet(peer)
	return r, peer
}

// plug connects port 1 to a new peer.
func (r *rig) plug() *tuntest.StreamPeer {
	r.t.Helper()
	fd, peer := tuntest.StreamPair(r.t)
	peer.SetSendBuffer(fd, 8<<10)
	if err := r.dp.Connect(1, fd, fd); err != nil {
		r.t.Fatal(err)
	}
	return peer
}

// meet makes the bridge know all three.
func (r *rig) meet(peer *tuntest.StreamPeer) {
	r.t.Helper()
	r.peers[0][0].Send(frame(0xff, 1, 0, 0))
	r.peers[2][0].Send(frame(0xff, 3, 0, 0))
	peer.Write(onStream(frame(0xff, 2, 0, 0)))
	if n := len(r.take(peer, 2)); n != 2 {
		r.t.Fatalf("%d of 2 floods came to the stream", n)
	}
	for _, port := range []int{0, 2} {
		for i := range 2 {
			if r.peers[port][0].Recv(5*time.Second) == nil {
				r.t.Fatalf("port %d: %d of 2 floods", port, i)
			}
		}
	}
}

func onStream(f []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(f))), f...)
}

// take reads frames from the peer until it has n, or nothing comes for a while.
func (r *rig) take(peer *tuntest.StreamPeer, n int) (frames [][]byte) {
	r.t.Helper()
	var b []byte
	for last := time.Now(); len(frames) < n && time.Since(last) < 2*time.Second; {
		had := len(b)
		if b = peer.Read(b, 4000); len(b) > had { // slowly, and not by frames
			last = time.Now()
		} else {
			time.Sleep(100 * time.Microsecond)
		}
		for len(b) >= 4 && len(b)-4 >= int(binary.BigEndian.Uint32(b)) {
			k := 4 + int(binary.BigEndian.Uint32(b))
			frames, b = append(frames, b[4:k]), b[k:]
		}
	}
	return frames
}

// event waits for an event of a port.
func (r *rig) event(port int) error {
	r.t.Helper()
	select {
	case e := <-r.dp.Events():
		if e.Port != port {
			r.t.Fatalf("event %+v, want one of port %d", e, port)
		}
		return e.Err
	case <-time.After(5 * time.Second):
		r.t.Fatal("no event")
	}
	return nil
}

// pass has port 0 send to port 2, which must get everything.
func (r *rig) pass(n uint32) {
	r.t.Helper()
	go func() {
		for seq := range n {
			for r.peers[0][0].TrySend(frame(3, 1, 9, seq)) != nil {
				time.Sleep(50 * time.Microsecond)
			}
		}
	}()
	for seq := range n {
		b := r.peers[2][0].Recv(5 * time.Second)
		if b == nil {
			r.t.Fatalf("between other ports: %d of %d came", seq, n)
		}
		if _, got := flowSeq(b); got != seq {
			r.t.Fatalf("between other ports: %d instead of %d", got, seq)
		}
	}
}

// A peer that does not read stops its queue, and no other; one that reads
// slowly gets everything once and in order.
func TestSlowPeer(t *testing.T) {
	r, peer := newSocketRig(t)
	const n = 900 // fits the queue of 1000
	r.send(0, 1, 7, n)
	deadline := time.Now().Add(5 * time.Second)
	stats := func() QueueStats { return r.dp.Ports()[1].QueueStats()[0] }
	for st := stats(); st.DriverStops == 0 || !st.Stopped; st = stats() {
		if time.Now().After(deadline) {
			t.Fatalf("the queue did not stop: %+v", st)
		}
		time.Sleep(time.Millisecond)
	}
	r.pass(500)
	got := r.take(peer, n)
	for i, f := range got {
		if _, seq := flowSeq(f); seq != uint32(i) {
			t.Fatalf("%d came as number %d", seq, i)
		}
	}
	st := stats()
	if len(got) != n || st.TxPackets != n+2 || st.TxBytes != 60*(n+2) || st.Stopped {
		t.Errorf("%d of %d came; counted: %+v", len(got), n, st)
	}
	t.Logf("stopped %d times", st.DriverStops)
	if tot := r.dp.Totals(); !tot.Balanced() || tot.Dropped != 0 || r.dp.Ports()[1].Reordered() != 0 {
		t.Errorf("%+v, %d reordered", tot, r.dp.Ports()[1].Reordered())
	}
}

// A connection ends in any way: it is told once, the port's packets are
// counted, other ports run on, and the next connection is as good as new.
func TestPeerEndsAndComesBack(t *testing.T) {
	r, peer := newSocketRig(t)
	for _, tt := range []struct {
		name string
		say  []byte
		want unix.Errno
	}{
		{"between frames", nil, unix.ESHUTDOWN},
		{"in the middle of a frame", []byte{0, 0, 0, 60, 2, 0}, unix.EBADMSG},
		{"an oversized length", []byte{0x7f, 0xff, 0xff, 0xff, 2, 0}, unix.EPROTO},
	} {
		before := r.dp.Totals()
		r.send(0, 1, 7, 300)
		peer.Write(tt.say)
		if tt.want != unix.EPROTO {
			peer.Close()
		}
		var closed *tun.ClosedError
		if err := r.event(1); !errors.As(err, &closed) || closed.Errno != tt.want && closed.Errno != unix.ECONNRESET && closed.Errno != unix.EPIPE {
			t.Fatalf("%s: event %v, want %v", tt.name, err, tt.want)
		}
		r.pass(100)
		r.dp.Disconnect(1, packet.DropLinkDown)
		peer.Close()
		r.dp.Disconnect(1, packet.DropLinkDown) // a second time is harmless
		r.send(0, 1, 7, 5)                      // into nothing
		r.pass(100)
		tot := r.dp.Totals()
		if sent, dropped := tot.Sent-before.Sent-200, tot.Dropped-before.Dropped; sent+dropped != 305 || !tot.Balanced() {
			t.Errorf("%s: of 305 packets %d were sent and %d dropped: %+v", tt.name, sent, dropped, tot)
		}
		select {
		case e := <-r.dp.Events():
			t.Errorf("%s: a second event: %+v", tt.name, e)
		default:
		}
		peer = r.plug()
		r.send(0, 1, 7, 50)
		for i, f := range r.take(peer, 50) {
			if _, seq := flowSeq(f); seq != uint32(i) {
				t.Fatalf("%s: %d came as number %d of the next connection", tt.name, seq, i)
			}
		}
	}
}

// A peer that floods takes nothing from the others.
func TestPeerFloods(t *testing.T) {
	r, peer := newSocketRig(t)
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		sent, small := 0, onStream(frame(2, 2, 5, 0)) // to itself: dropped
		for {
			select {
			case <-stop:
				done <- sent
				return
			default:
				if peer.Write(small) == len(small) {
					sent++
				}
			}
		}
	}()
	r.pass(3000)
	close(stop)
	if n := <-done; n < 1000 {
		t.Errorf("the flood was of %d frames", n)
	}
}

// A datagram peer that is gone is found out by writing; what it was to get is
// counted.
func TestDgramPeerGone(t *testing.T) {
	dir := t.TempDir()
	bound := func(name string) int {
		fd := must(unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0))
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, name)}); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	r := newRig(t, 2, 3, 1, func(pc *PortConfig) {
		if pc.Name == "p1" {
			_ = pc.Queues[0].Close()
			pc.Queues[0] = must(tun.NewDgramQueue())
		}
	})
	rx := bound("us")
	for i := range 2 {
		peer := tuntest.NewPeer(t, bound("peer"))
		tx := must(unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0))
		if err := unix.Connect(tx, &unix.SockaddrUnix{Name: filepath.Join(dir, "peer")}); err != nil {
			t.Fatal(err)
		}
		if err := r.dp.Connect(1, must(unix.Dup(rx)), tx); err != nil {
			t.Fatal(err)
		}
		if err := unix.Sendto(peer.FD, frame(0xff, 2, 0, 0), 0, &unix.SockaddrUnix{Name: filepath.Join(dir, "us")}); err != nil {
			t.Fatal(err)
		}
		if r.peers[0][0].Recv(5*time.Second) == nil || r.peers[2][0].Recv(5*time.Second) == nil {
			t.Fatal("the peer's first frame was not flooded")
		}
		const n = 200 // more than a datagram socket's queue
		r.send(0, 1, 7, n)
		for seq := range uint32(n) {
			if f := peer.Recv(5 * time.Second); f == nil {
				t.Fatalf("%d of %d came", seq, n)
			} else if _, got := flowSeq(f); got != seq {
				t.Fatalf("%d came instead of %d", got, seq)
			}
		}
		peer.Close()
		before := r.dp.Totals()
		r.send(0, 1, 7, 10)
		var closed *tun.ClosedError
		if err := r.event(1); !errors.As(err, &closed) || closed.Errno != unix.ECONNREFUSED {
			t.Fatalf("connection %d: event %v, want ECONNREFUSED", i, err)
		}
		r.dp.Disconnect(1, packet.DropLinkDown)
		r.hasRead(before.Received + 10)
		if tot := r.dp.Totals(); tot.Dropped-before.Dropped != 10 || !tot.Balanced() {
			t.Errorf("of 10 packets %d were counted: %+v", tot.Dropped-before.Dropped, tot)
		}
		if err := unix.Unlink(filepath.Join(dir, "peer")); err != nil {
			t.Fatal(err)
		}
	}
	unix.Close(rx)
}

// hasRead waits until that many packets were read.
func (r *rig) hasRead(received uint64) {
	for end := time.Now().Add(5 * time.Second); r.dp.Totals().Received < received && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// A peer that never reads is owed more than the pool has: its queue drops what
// it has no room for, the other ports find buffers, and what was kept comes in
// order when the peer reads after all.
func TestPeerNeverReads(t *testing.T) {
	r, peer := newSocketRig(t)
	const n = 20_000 // of 8192 heads
	r.send(0, 1, 7, n)
	until := time.Now().Add(10 * time.Second)
	dropped := func() uint64 { return r.dp.Drops(1)[packet.DropQdisc] }
	for dropped() < n-4000 { // 1000 are queued, some are in the socket
		if time.Now().After(until) {
			t.Fatalf("%d of %d dropped", dropped(), n)
		}
		time.Sleep(time.Millisecond)
	}
	r.pass(2000)
	for r.dp.Totals().Received < n+2000+3 {
		if time.Now().After(until) {
			t.Fatal("reading ended")
		}
		time.Sleep(time.Millisecond)
	}
	left := n - int(dropped())
	last := -1
	for _, f := range r.take(peer, left) {
		_, seq := flowSeq(f)
		if int(seq) <= last {
			t.Fatalf("%d came after %d", seq, last)
		}
		last = int(seq)
		left--
	}
	if tot := r.dp.Totals(); left != 0 || !tot.Balanced() || tot.Dropped != dropped() {
		t.Errorf("%d are missing; %+v", left, tot)
	}
}
