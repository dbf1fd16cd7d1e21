package dataplane

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/packet"
	"taprouter/qdisc"
	"taprouter/tun"
	"taprouter/tun/tuntest"
)

// shapeRig is a bridge of two ports whose second has a fault.
func shapeRig(t *testing.T, fault Shape, line LineConfig) (r *rig, src, dst *tuntest.Peer) {
	in, src := tuntest.Pair(t, tuntest.VnetLen)
	out, dst := tuntest.Pair(t, tuntest.VnetLen)
	port := func(name string, q *tun.Queue, fault Shape, line LineConfig) PortConfig {
		return PortConfig{Name: name, Queues: []*tun.Queue{q}, TxQueueLen: 100, Qdisc: qdisc.Spec{Kind: "pfifo_fast"}, Accept: AcceptAll, Fault: fault, Line: line}
	}
	dp := must(New(Config{Workers: 1, Memory: packet.Memory{Heads: 512, Tails: 64}, Ports: []PortConfig{port("p0", in, 0, LineConfig{}), port("p1", out, fault, line)}}))
	dp.Publish(bridge(2))
	if err := dp.Start(); err != nil {
		t.Fatal(err)
	}
	r = &rig{t: t, dp: dp, queue: [][]*tun.Queue{{in}, {out}}}
	t.Cleanup(r.stop)
	return r, src, dst
}

// arrives reads one superpacket of n bytes of payload, whole or in segments,
// and tells in how many frames it came.
func arrives(t *testing.T, dst *tuntest.Peer, n int) (frames int) {
	t.Helper()
	for got := 0; got < n; frames++ {
		b := dst.Recv(2 * time.Second)
		if b == nil {
			t.Fatalf("nothing after %d of %d bytes", got, n)
		}
		f := b[tuntest.VnetLen:]
		if b[1] == 0 && !valid(f) {
			t.Fatalf("at %d: wrong checksum", got)
		}
		if seq := binary.BigEndian.Uint32(f[38:]); int(seq) != 7+got {
			t.Fatalf("sequence number %d, want %d", seq, 7+got)
		}
		for i, c := range f[54:] {
			if k := got + i; c != byte(k)^byte(k>>8) {
				t.Fatalf("byte %d is %x", k, c)
			}
		}
		got += len(f) - 54
	}
	return frames
}

// What the device refuses arrives in segments; after maxRefusals in a row it
// is not tried any more, until the port is told to.
func TestRefusedShape(t *testing.T) {
	const payload, mss, segs = 10000, 1400, 8
	for name, line := range map[string]LineConfig{"direct": {}, "line": {Rate: 10e9, Ring: 64}, "pieces": {Rate: 1e9, Ring: 64}} {
		t.Run(name, func(t *testing.T) {
			r, src, dst := shapeRig(t, ShapeTCPv4|ShapeUDP, line)
			p := r.dp.Ports()[1]
			for round := uint64(1); round <= 2; round++ {
				for i := range maxRefusals + 3 {
					src.Send(superpacket(payload, mss))
					if n := arrives(t, dst, payload); n != segs {
						t.Fatalf("superpacket %d came in %d frames, want %d", i, n, segs)
					}
				}
				if got := p.QueueStats()[0].GSORefused; got != round*maxRefusals || p.Refused() != ShapeTCPv4 {
					t.Errorf("round %d: %d refused, off %v, want %d and tcp4", round, got, p.Refused().Names(), round*maxRefusals)
				}
				for _, off := range []bool{false, true} {
					var e *RefusedError
					if ev := <-r.dp.Events(); ev.Port != 1 || !errors.As(ev.Err, &e) || e.Shape != ShapeTCPv4 || e.Off != off {
						t.Errorf("event %+v, want tcp4 refused, off %v", ev, off)
					}
				}
				if err := r.dp.SetGSO("p1"); err != nil || p.Refused() != 0 {
					t.Errorf("SetGSO: %v, off %v", err, p.Refused().Names())
				}
			}
		})
	}
}

// A broken superpacket says nothing about its shape, and nor do refusals
// between others that are taken.
func TestRefusalsThatDoNotCount(t *testing.T) {
	const payload, mss = 10000, 1400
	r, src, dst := shapeRig(t, ShapeTCPv4, LineConfig{})
	port := r.dp.Ports()[1]
	broken := superpacket(payload, mss)
	broken[0] = 0 // the checksum is said to be complete
	for range 2 * maxRefusals {
		src.Send(broken)
		arrives(t, dst, payload)
	}
	if port.Refused() != 0 || port.QueueStats()[0].GSORefused != 2*maxRefusals {
		t.Errorf("broken superpackets turned off %v, %+v", port.Refused().Names(), port.QueueStats()[0])
	}
	for range maxRefusals {
		for range maxRefusals - 1 {
			src.Send(superpacket(payload, mss))
			arrives(t, dst, payload)
		}
		_ = r.dp.quiesce(func() error { port.shapes.fault = 0; return nil })
		src.Send(superpacket(payload, mss))
		if n := arrives(t, dst, payload); n != 1 {
			t.Fatalf("without the fault a superpacket came in %d frames", n)
		}
		_ = r.dp.quiesce(func() error { port.shapes.fault = ShapeTCPv4; return nil })
	}
	if port.Refused() != 0 {
		t.Errorf("refusals with successes between turned off %v", port.Refused().Names())
	}
}

// A superpacket that was refused, and then stopped by a full device in the
// middle, goes on in segments even if the device would take it whole by now.
func TestRefusedGoesOnInSegments(t *testing.T) {
	const payload, mss, segs = 30000, 1400, 22
	r, src, dst := shapeRig(t, ShapeTCPv4, LineConfig{})
	if err := unix.SetsockoptInt(r.queue[1][0].FD(), unix.SOL_SOCKET, unix.SO_SNDBUF, 8<<10); err != nil {
		t.Fatal(err)
	}
	p := r.dp.Ports()[1]
	src.Send(superpacket(payload, mss))
	for end := time.Now().Add(5 * time.Second); p.QueueStats()[0].DriverStops == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the device was never full")
		}
	}
	_ = r.dp.quiesce(func() error { p.shapes.fault = 0; return nil })
	if n := arrives(t, dst, payload); n != segs {
		t.Errorf("came in %d frames, want %d", n, segs)
	}
}
