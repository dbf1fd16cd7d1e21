package forward

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/gopacket/layers"

	"taprouter/fib"
	"taprouter/packet"
)

// seq is a datagram with a number in its payload.
func seq(dst string, n int) []byte {
	b := udp4(0, "10.0.0.9", dst, 20, nil)
	binary.BigEndian.PutUint32(b[42:], uint32(n))
	return b
}

func number(b []byte) int { return int(binary.BigEndian.Uint32(b[42:])) }

func (w *world) retry(s *Snapshot) []got {
	w.t.Helper()
	w.s = s
	w.out.Resolves = 0
	w.f.Retry(s, w.now, &w.out)
	return w.take()
}

func TestParkAndResolve(t *testing.T) {
	w := newWorld(t)
	for i := range 5 {
		w.is("unknown neighbour", w.send(0, seq("10.0.1.50", 2*i), seq("10.0.1.50", 2*i+1)))
	}
	if w.f.Parked() != 10 {
		t.Errorf("%d parked, want 10", w.f.Parked())
	}
	if w.out.Resolves != 1 || w.out.Resolve[0] != (Resolve{1, ip("10.0.1.50")}) {
		t.Errorf("asked for %v, want 10.0.1.50 on interface 1 once", w.out.Resolve[:w.out.Resolves])
	}
	w.is("a snapshot that says nothing of it", w.retry(snapshot(t)))
	gs := w.retry(snapshot(t, fib.Neigh{Iface: 1, Addr: ip("10.0.1.50"), MAC: [6]byte{2, 0xaa, 5: 0x50}}))
	if len(gs) != 10 {
		t.Fatalf("%d sent, want 10", len(gs))
	}
	for i, g := range gs {
		if g.String() != "tx 1" || number(g.frame) != i || fib.MAC(g.frame) != hostMAC|0x50 || fib.MAC(g.frame[6:]) != mac(1) || g.frame[22] != 63 {
			t.Errorf("%d: %v, number %d, %x", i, g, number(g.frame), g.frame[:23])
		}
	}
	w.is("then it is known", w.send(0, seq("10.0.1.50", 0)), "tx 1")
}

func TestParkByGatewayAndBridge(t *testing.T) {
	w := newWorld(t)
	w.s.Neigh = fib.BuildNeighbours(nil)
	w.is("two hosts by one gateway", w.send(0, seq("192.0.2.1", 1), seq("192.0.2.2", 2)))
	w.is("IPv6", w.send(0, udp6(0, "fd00::9", "2001:db8::5", 20, nil)))
	w.is("into the bridge", w.send(0, seq("10.0.2.2", 3)))
	want := []Resolve{{1, ip("10.0.1.254")}, {1, ip("fe80::254")}, {ifBridge, ip("10.0.2.2")}}
	if got := w.out.Resolve[:w.out.Resolves]; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("asked for %v, want %v", got, want)
	}
	s := snapshot(t)
	s.Bridges[0].FDB.Learn(hostMAC|0x22, 4, 0)
	w.is("resolved", w.retry(s), "tx 1", "tx 1", "tx 4", "tx 1")
}

func TestParkFails(t *testing.T) {
	w := newWorld(t)
	w.send(0, seq("10.0.1.50", 0), seq("10.0.1.50", 1))
	gs := w.retry(snapshot(t, fib.Neigh{Iface: 1, Addr: ip("10.0.1.50"), Failed: true}))
	w.is("did not answer", gs, "tx 0", "tx 0", "drop neigh_failed", "drop neigh_failed")
	if m := decode(t, gs[0].frame, false); m.src != "10.0.0.1" || m.dst != "10.0.0.9" || m.typ != 3 || m.code != 1 {
		t.Errorf("%+v, want host unreachable", m)
	}
}

// A request that was lost is made again; what nobody resolves has an end even
// if no snapshot comes.
func TestParkExpires(t *testing.T) {
	w := newWorld(t)
	w.send(0, seq("10.0.1.50", 0))
	for i := range 5 {
		w.out.Resolves = 0
		w.now += second
		gs := w.send(0, seq("10.0.1.2", 0))
		if i < 4 && (len(gs) != 1 || w.out.Resolves != 1) {
			t.Errorf("%d s: %v, asked %d times; want 1, 1", i+1, gs, w.out.Resolves)
		}
		if i == 4 {
			w.is("after 5 s", gs, "tx 0", "tx 1", "drop neigh_failed")
		}
	}
	if w.f.park.used != 0 {
		t.Errorf("%d neighbours still waited for", w.f.park.used)
	}
}

func TestParkBounds(t *testing.T) {
	w := newWorld(t)
	for i := range parkPackets {
		w.is("within bounds", w.send(0, seq("10.0.1.50", i)))
	}
	gs := w.send(0, seq("10.0.1.50", parkPackets))
	w.is("one more", gs, "drop neigh_queue")
	if number(gs[0].frame) != 0 {
		t.Errorf("dropped number %d, want the oldest, 0", number(gs[0].frame))
	}
	for i := 0; w.f.park.n < parkAll; i++ {
		w.send(0, seq(fmt.Sprintf("10.0.1.%d", 100+i%40), i))
	}
	w.is("the worker's bound, another neighbour", w.send(0, seq("10.0.1.99", 0)), "drop neigh_queue")
	gs = w.send(0, seq("10.0.1.100", 5000))
	w.is("the worker's bound, a neighbour that has some", gs, "drop neigh_queue")
	if number(gs[0].frame) != 0 {
		t.Errorf("dropped number %d, want the oldest, 0", number(gs[0].frame))
	}
	if w.f.Parked() != parkAll {
		t.Errorf("%d parked, want %d", w.f.Parked(), parkAll)
	}
	gs = w.send(0) // a batch without packets
	w.is("nothing", gs)
	for i := range 100 {
		w.send(0, seq(fmt.Sprintf("10.0.1.%d", 150+i), i))
	}
	if w.f.park.used != parkSlots || w.out.Resolves > len(w.out.Resolve) {
		t.Errorf("%d neighbours, %d requests", w.f.park.used, w.out.Resolves)
	}
	w.f.Purge(&w.out, packet.DropShutdown)
	if gs := w.take(); len(gs) != parkAll || gs[0].String() != "drop shutdown" || w.f.Parked() != 0 || w.f.park.n != 0 || w.f.park.used != 0 {
		t.Errorf("%d purged, %d parked", len(gs), w.f.Parked())
	}
}

// Packets that wait must not hold all the memory of superpackets.
func TestParkTails(t *testing.T) {
	w := newWorld(t)
	w.s.Ifaces[1].MTU, w.s.Ports[1].MTU = 9000, 9000
	for i := range parkLarge + 3 {
		want := []string{"drop neigh_queue"}
		if i < parkLarge {
			want = nil
		}
		w.is("jumbo", w.send(0, udp4(0, "10.0.0.9", "10.0.1.50", 5000, nil)), want...)
	}
	w.is("small ones still may", w.send(0, seq("10.0.1.50", 0)))
	w.f.Purge(&w.out, packet.DropShutdown)
	if w.take(); w.f.park.large != 0 {
		t.Errorf("%d large packets counted when all are gone", w.f.park.large)
	}
}

// Parked counts wire packets.
func TestParkSuperpacket(t *testing.T) {
	h := v4("10.0.0.9", "10.0.1.50", layers.IPProtocolTCP)
	tcp := &layers.TCP{SrcPort: 1, DstPort: 2, ACK: true}
	_ = tcp.SetNetworkLayerForChecksum(h)
	b := build(ether(mac(0), hostA, layers.EthernetTypeIPv4), h, tcp, payload(10000))
	w := newWorld(t)
	w.is("superpacket", w.sendGSO(0, b, packet.Vnet{Flags: packet.NeedsCsum, GSOType: packet.GSOTCPv4, GSOSize: 1000, HdrLen: 54, CsumStart: 34, CsumOffset: 16}))
	if w.f.Parked() != 10 {
		t.Errorf("%d parked, want 10", w.f.Parked())
	}
}

// The interface of a waiting packet may go with a new snapshot.
func TestParkInterfaceGone(t *testing.T) {
	w := newWorld(t)
	w.send(0, seq("10.0.2.50", 0))
	s := *snapshot(t)
	s.Ifaces = s.Ifaces[:2]
	w.is("a while", w.retry(&s))
	w.now += parkTime
	w.is("no more", w.retry(&s), "tx 0", "drop neigh_failed")
	w.send(0, seq("10.0.1.50", 0))
	w.now += parkTime
	w.is("nothing left at all", w.retry(&Snapshot{}), "drop neigh_failed")
}
