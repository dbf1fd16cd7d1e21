package forward

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"taprouter/fib"
	"taprouter/packet"
)

func seeds() [][]byte {
	return [][]byte{
		udp4(0, "10.0.0.9", "10.0.1.2", 20, nil), udp4(0, "10.0.0.9", "10.0.1.2", 1472, nil), udp4(0, "10.0.0.9", "10.0.1.2", 1472, df),
		udp4(0, "10.0.0.9", "192.0.2.1", 20, ttl(1)), udp4(2, "10.0.2.9", "10.0.1.3", 20, nil), udp4(5, "10.0.3.9", "10.0.0.1", 20, nil),
		udp6(0, "fd00::9", "fd01::2", 20, nil), udp6(0, "fd00::9", "fd01::2", 1452, nil), udp6(5, "fd03::9", "2001:db8::1", 20, hops(1)),
		udp4(0, "10.0.0.9", "10.0.1.77", 20, nil), udp4(0, "10.0.0.9", "10.0.2.77", 20, nil),
		arp(1, bcast, hostA, "10.0.2.9", "10.0.2.1"), ns(0x3333ff000001, hostA, "fd02::9", "ff02::1:ff00:1", "fd02::1"),
		echo4(mac(0), hostA, "10.0.0.9", "10.0.0.1"), icmp6(mac(0), hostA, "fd00::9", "fd01::2", 2, 0),
		udp4(0, "127.0.0.1", "10.0.1.2", 20, nil), udp6(0, "::1", "fd01::2", 20, nil),
		frame60(bcast, hostA), frame60(hostB, hostA), tagged(hostA, hostB, 60), {}, {0x45}, {0x60},
	}
}

// Whatever comes in, nothing panics and every packet is accounted for.
func FuzzForward(f *testing.F) {
	for _, b := range seeds() {
		for _, in := range []uint8{0, 2, 5, 6} {
			f.Add(b, in, uint8(0), uint8(0), uint16(0), uint16(0), uint16(0), uint16(0))
			f.Add(b, in, uint8(1), uint8(1), uint16(54), uint16(100), uint16(34), uint16(16))
			f.Add(b, in, uint8(1), uint8(5), uint16(42), uint16(100), uint16(34), uint16(6))
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte, in, flags, gso uint8, hdrLen, gsoSize, start, offset uint16) {
		if len(frame) > 65535 {
			return
		}
		w := newWorld(t)
		v := packet.Vnet{Flags: flags, GSOType: gso, HdrLen: hdrLen, GSOSize: gsoSize, CsumStart: start, CsumOffset: offset}
		for range 2 {
			w.sendGSO(uint16(in%9), frame, v)
		}
		w.now += parkTime
		w.retry(w.s)
		p := w.load(packet.NoPort, frame, v)
		w.cls.Batch([]*packet.Packet{p})
		w.injected += uint64(p.Segs)
		w.f.Inject(w.s, uint16(in%10), p, w.now, &w.out)
		w.take()
	})
}

// Seeded random: good frames with bytes changed, cut and stretched, through
// changing snapshots, with a pool that runs dry now and then.
func TestConservation(t *testing.T) {
	rnd := rand.New(rand.NewPCG(21, 22))
	w := newWorld(t)
	all := seeds()
	snaps := []*Snapshot{w.s, snapshot(t, fib.Neigh{Iface: 1, Addr: ip("10.0.1.77"), MAC: [6]byte{2}}), snapshot(t, fib.Neigh{Iface: ifBridge, Addr: ip("10.0.2.77"), Failed: true}), {}}
	n := 20_000
	if testing.Short() {
		n = 2000
	}
	why := map[packet.Reason]int{}
	var held packet.List
	for i := range n {
		w.now += rnd.Int64N(50e6)
		var pkts []*packet.Packet
		for range rnd.IntN(8) {
			b := bytes.Clone(all[rnd.IntN(len(all))])
			for range rnd.IntN(4) {
				if len(b) > 0 {
					b[rnd.IntN(min(len(b), 80))] = byte(rnd.Uint32())
				}
			}
			if rnd.IntN(2) == 0 && len(b) > 34 && b[12] == 8 && len(b) >= 14+int(b[14]&15)*4 {
				sum4(b)
			}
			if rnd.IntN(8) == 0 {
				b = b[:rnd.IntN(len(b)+1)]
			}
			if rnd.IntN(16) == 0 {
				b = append(b, make([]byte, rnd.IntN(3000))...)
			}
			var v packet.Vnet
			if rnd.IntN(4) == 0 {
				v = packet.Vnet{Flags: uint8(rnd.UintN(3)), GSOType: uint8(rnd.UintN(6)), HdrLen: uint16(rnd.UintN(100)), GSOSize: uint16(rnd.UintN(1600)), CsumStart: uint16(rnd.UintN(60)), CsumOffset: uint16(rnd.UintN(20))}
			}
			pkts = append(pkts, w.load(uint16(rnd.IntN(9)), b, v))
		}
		if rnd.IntN(50) == 0 {
			for q := w.cache.Get(); q != nil; q = w.cache.Get() {
				held.Push(q)
			}
		}
		for _, g := range w.forward(pkts) {
			why[g.why]++
		}
		w.cache.PutList(&held)
		w.out.Resolves = 0
		if rnd.IntN(30) == 0 {
			w.retry(snaps[rnd.IntN(len(snaps))])
		}
		if t.Failed() {
			t.Fatalf("at step %d", i)
		}
	}
	for _, r := range []packet.Reason{0, packet.DropTruncated, packet.DropVnet, packet.DropMalformed, packet.DropIPChecksum, packet.DropVLAN, packet.DropNotForUs, packet.DropProtocol,
		packet.DropSamePort, packet.DropTTL, packet.DropMartian, packet.DropNoRoute, packet.DropNeighFailed, packet.DropTooBig, packet.DropNoBuffer, packet.DropLinkDown} {
		if why[r] == 0 {
			t.Errorf("no packet ended as %v", r)
		}
	}
}
