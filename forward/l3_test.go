package forward

import (
	"bytes"
	"sync/atomic"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"taprouter/fib"
	"taprouter/packet"
)

func ns(dst, src uint64, from, to, target string) []byte {
	h := v6(from, to, layers.IPProtocolICMPv6)
	h.HopLimit = 255
	c := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(135, 0)}
	_ = c.SetNetworkLayerForChecksum(h)
	return build(ether(dst, src, layers.EthernetTypeIPv6), h, c, &layers.ICMPv6NeighborSolicitation{TargetAddress: ip(target).AsSlice()})
}

func icmp4(dst, src uint64, from, to string, typ, code uint8, rest []byte) []byte {
	return build(ether(dst, src, layers.EthernetTypeIPv4), v4(from, to, layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(typ, code)}, gopacket.Payload(rest))
}

func icmp6(dst, src uint64, from, to string, typ, code uint8) []byte {
	h := v6(from, to, layers.IPProtocolICMPv6)
	c := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(typ, code)}
	_ = c.SetNetworkLayerForChecksum(h)
	return build(ether(dst, src, layers.EthernetTypeIPv6), h, c, payload(40))
}

func echo4(dst, src uint64, from, to string) []byte {
	return icmp4(dst, src, from, to, 8, 0, payload(20))
}

// with changes bytes of a frame.
func with(b []byte, at int, v ...byte) []byte {
	b = bytes.Clone(b)
	copy(b[at:], v)
	return b
}

// sum4 puts the IPv4 header checksum right again.
func sum4(b []byte) []byte {
	h := b[14:]
	n := int(h[0]&15) * 4
	h[10], h[11] = 0, 0
	s := uint32(0)
	for i := 0; i < n && i+1 < len(h); i += 2 {
		s += uint32(h[i])<<8 | uint32(h[i+1])
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	h[10], h[11] = byte(^s>>8), byte(^s)
	return b
}

func TestRouted(t *testing.T) {
	ok4, ok6 := udp4(0, "10.0.0.9", "10.0.1.2", 20, nil), udp6(0, "fd00::9", "fd01::2", 20, nil)
	src4 := func(a string) []byte { return udp4(0, a, "10.0.1.2", 20, nil) }
	dst4 := func(a string) []byte { return udp4(0, "10.0.0.9", a, 20, nil) }
	src6 := func(a string) []byte { return udp6(0, a, "fd01::2", 20, nil) }
	dst6 := func(a string) []byte { return udp6(0, "fd00::9", a, 20, nil) }
	group := func(b []byte, dst uint64) []byte { b = bytes.Clone(b); putMAC(b, dst); return b }
	for _, tt := range []struct {
		name  string
		in    uint16
		frame []byte
		want  []string // the answers to drops are in TestICMP
	}{
		{"connected", 0, ok4, []string{"tx 1"}},
		{"by a gateway", 0, dst4("192.0.2.7"), []string{"tx 1"}},
		{"IPv6 connected", 0, ok6, []string{"tx 1"}},
		{"IPv6 by a link-local gateway", 0, dst6("2001:db8::7"), []string{"tx 1"}},
		{"to a TUN", 0, dst4("10.0.3.9"), []string{"tx 5"}},
		{"IPv6 to a TUN", 0, dst6("fd03::9"), []string{"tx 5"}},
		{"from a TUN", 5, udp4(5, "10.0.3.9", "10.0.1.2", 20, nil), []string{"tx 1"}},
		{"TUN to TUN", 5, udp4(5, "10.0.3.9", "10.0.3.8", 20, nil), []string{"tx 5"}},
		{"from a bridge", 2, udp4(2, "10.0.2.9", "10.0.1.2", 20, nil), []string{"tx 1"}},
		{"TTL 2", 0, udp4(0, "10.0.0.9", "10.0.1.2", 20, ttl(2)), []string{"tx 1"}},

		{"tagged", 0, tagged(mac(0), hostA, 60), []string{"drop vlan"}},
		{"tagged, not for us", 0, tagged(hostB, hostA, 60), []string{"drop vlan"}},
		{"another MAC", 0, group(ok4, hostB), []string{"drop not_for_us"}},
		{"IPv4 broadcast frame", 0, group(dst4("10.0.0.255"), bcast), []string{"drop not_for_us"}},
		{"IPv4 multicast frame", 0, group(dst4("224.0.0.1"), 0x01005e000001), []string{"drop not_for_us"}},
		{"IPv6 multicast frame", 0, group(dst6("ff02::1"), 0x333300000001), []string{"drop not_for_us"}},
		{"unknown ethertype", 0, frame60(mac(0), hostA), []string{"drop protocol"}},
		{"ARP for us", 0, arp(1, bcast, hostA, "10.0.0.9", "10.0.0.1"), []string{"punt 0"}},
		{"ARP for another", 0, arp(1, bcast, hostA, "10.0.0.9", "10.0.0.7"), []string{"drop not_for_us"}},
		{"unicast ARP", 0, arp(2, mac(0), hostA, "10.0.0.9", "10.0.0.1"), []string{"punt 0"}},
		{"NS for us", 0, ns(0x3333ff000001, hostA, "fd00::9", "ff02::1:ff00:1", "fd00::1"), []string{"punt 0"}},
		{"NS from nobody (DAD)", 0, ns(0x3333ff000001, hostA, "::", "ff02::1:ff00:1", "fe80::1"), []string{"punt 0"}},
		{"NS for another", 0, ns(0x3333ff000002, hostA, "fd00::9", "ff02::1:ff00:2", "fd00::2"), []string{"drop not_for_us"}},
		{"NS to our link-local address", 0, ns(mac(0), hostA, "fe80::9", "fe80::1", "fe80::1"), []string{"punt 0"}},
		{"ping to us", 0, echo4(mac(0), hostA, "10.0.0.9", "10.0.0.1"), []string{"punt 0"}},
		{"ping to our far address", 0, echo4(mac(0), hostA, "10.0.0.9", "10.0.1.1"), []string{"punt 0"}},
		{"ping6 to us", 0, icmp6(mac(0), hostA, "fd00::9", "fd00::1", 128, 0), []string{"punt 0"}},
		{"ping6 to all nodes", 0, icmp6(0x333300000001, hostA, "fe80::9", "ff02::1", 128, 0), []string{"punt 0"}},
		{"MLD report", 0, icmp6(0x333300000016, hostA, "fe80::9", "ff02::16", 143, 0), []string{"drop not_for_us"}},
		{"fragment of a ping to us", 0, sum4(with(echo4(mac(0), hostA, "10.0.0.9", "10.0.0.1"), 20, 0x20)), []string{"punt 0"}},

		{"source in net 0", 0, src4("0.1.2.3"), []string{"drop martian"}},
		{"source loopback", 0, src4("127.0.0.1"), []string{"drop martian"}},
		{"source multicast", 0, src4("224.1.1.1"), []string{"drop martian"}},
		{"source broadcast", 0, src4("255.255.255.255"), []string{"drop martian"}},
		{"source link-local", 0, src4("169.254.1.1"), []string{"drop martian"}},
		{"to loopback", 0, dst4("127.0.0.1"), []string{"drop martian"}},
		{"to broadcast", 0, dst4("255.255.255.255"), []string{"drop martian"}},
		{"to a subnet's broadcast", 0, dst4("10.0.1.255"), []string{"drop martian"}},
		{"to multicast in a unicast frame", 0, dst4("224.1.1.1"), []string{"drop martian"}},
		{"to link-local", 0, dst4("169.254.1.1"), []string{"drop martian"}},
		{"IPv6 source loopback", 0, src6("::1"), []string{"drop martian"}},
		{"IPv6 source multicast", 0, src6("ff02::1"), []string{"drop martian"}},
		{"IPv6 source unspecified", 0, src6("::"), []string{"drop martian"}},
		{"IPv6 source link-local", 0, src6("fe80::9"), []string{"drop martian"}},
		{"IPv6 source IPv4-mapped", 0, src6("::ffff:10.0.0.9"), []string{"drop martian"}},
		{"IPv6 to loopback", 0, dst6("::1"), []string{"drop martian"}},
		{"IPv6 to a link-local neighbour", 0, dst6("fe80::77"), []string{"drop martian"}},
		{"IPv6 to IPv4-mapped", 0, dst6("::ffff:10.0.1.2"), []string{"drop martian"}},
		{"IPv6 to multicast in a unicast frame", 0, dst6("ff05::2"), []string{"drop not_for_us"}},
		{"blackhole", 0, dst4("198.51.100.1"), []string{"drop blackhole"}},

		{"wrong header checksum", 0, with(ok4, 24, 0xde, 0xad), []string{"drop ip_checksum"}},
		{"IHL 4", 0, sum4(with(ok4, 14, 0x44)), []string{"drop malformed"}},
		{"IHL 15, too short for it", 0, with(ok4, 14, 0x4f)[:50], []string{"drop malformed"}},
		{"version 5", 0, with(ok4, 14, 0x55), []string{"drop malformed"}},
		{"total length 0", 0, sum4(with(ok4, 16, 0, 0)), []string{"drop malformed"}},
		{"total length beyond the frame", 0, sum4(with(ok4, 16, 5, 0)), []string{"drop malformed"}},
		{"IPv6 payload beyond the frame", 0, with(ok6, 18, 5, 0), []string{"drop malformed"}},
		{"IPv6 version 4", 0, with(ok6, 14, 0x40), []string{"drop malformed"}},
		{"short ARP", 0, arp(2, mac(0), hostA, "10.0.0.9", "10.0.0.1")[:30], []string{"drop malformed"}},
	} {
		w := newWorld(t)
		w.is(tt.name, w.send(tt.in, tt.frame), tt.want...)
	}
}

// Every truncation of good frames ends in a named drop, a punt of what is
// whole, or (cut behind the headers) nothing worse than that.
func TestTruncations(t *testing.T) {
	for _, frame := range [][]byte{
		udp4(0, "10.0.0.9", "10.0.1.2", 4, nil)[:46], udp6(0, "fd00::9", "fd01::2", 4, nil),
		arp(1, bcast, hostA, "10.0.0.9", "10.0.0.1")[:42], ns(0x3333ff000001, hostA, "fd00::9", "ff02::1:ff00:1", "fd00::1"),
		echo4(mac(0), hostA, "10.0.0.9", "10.0.0.1"), tagged(mac(0), hostA, 20),
	} {
		w := newWorld(t)
		for n := range len(frame) {
			gs := w.send(0, frame[:n])
			if len(gs) != 1 || gs[0].where != "drop" {
				t.Errorf("%d bytes of %x: %v, want one drop", n, frame, gs)
			}
			w.send(2, frame[:n])
		}
	}
}

// 255 extension headers, lengths that overflow, options of length 0.
func TestExtensionHeaders(t *testing.T) {
	w := newWorld(t)
	ext := func(n int, length byte) []byte {
		h := v6("fd00::9", "fd01::2", layers.IPProtocolIPv6HopByHop)
		b := make([]byte, 0, 8*n)
		for range n {
			b = append(b, 60, length, 1, 4, 0, 0, 0, 0)
		}
		return build(ether(mac(0), hostA, layers.EthernetTypeIPv6), h, gopacket.Payload(b))
	}
	for _, b := range [][]byte{ext(180, 0), ext(1, 255), ext(3, 1), ext(2, 0)} {
		w.is("extension headers", w.send(0, b), "drop malformed")
	}
}

// What leaves is the datagram with TTL - 1, a right checksum, new MACs, and
// nothing else changed; padding is gone.
func TestRewrite(t *testing.T) {
	for _, tt := range []struct {
		name    string
		in, out uint16
		frame   []byte
		dst     uint64
	}{
		{"Ethernet to Ethernet", 0, 1, udp4(0, "10.0.0.9", "10.0.1.2", 20, nil), hostMAC | 0x12},
		{"by the gateway", 0, 1, udp4(0, "10.0.0.9", "192.0.2.1", 20, nil), hostMAC | 0xfe},
		{"IPv6", 0, 1, udp6(0, "fd00::9", "fd01::2", 20, nil), hostMAC | 0x12},
		{"IPv6 by the gateway", 0, 1, udp6(0, "fd00::9", "2001:db8::2", 20, nil), hostMAC | 0xfe},
		{"to TUN", 0, 5, udp4(0, "10.0.0.9", "10.0.3.2", 20, nil), 0},
		{"from TUN", 5, 1, udp4(5, "10.0.3.9", "10.0.1.2", 20, nil), hostMAC | 0x12},
		{"IPv6 from TUN", 5, 1, udp6(5, "fd03::9", "fd01::2", 20, nil), hostMAC | 0x12},
		{"checksum that carries", 0, 1, udp4(0, "10.0.0.9", "10.0.1.2", 20, func(h *layers.IPv4) { h.Id = carry() }), hostMAC | 0x12},
		{"padded", 0, 1, append(udp4(0, "10.0.0.9", "10.0.1.2", 1, nil), make([]byte, 17)...), hostMAC | 0x12},
	} {
		w := newWorld(t)
		gs := w.send(tt.in, tt.frame)
		if len(gs) != 1 || gs[0].where != "tx" || gs[0].out != tt.out {
			t.Errorf("%s: %v", tt.name, gs)
			continue
		}
		have, want := gs[0].frame, bytes.Clone(tt.frame)
		if tt.in != 5 {
			want = want[14:]
		}
		if want[0]>>4 == 4 {
			want[8]--
			want = want[:int(want[2])<<8|int(want[3])]
			want = sum4(append(make([]byte, 14), want...))[14:]
		} else {
			want[7]--
		}
		if tt.out != 5 {
			eth := make([]byte, 14)
			putMAC(eth, tt.dst)
			putMAC(eth[6:], mac(byte(tt.out)))
			eth[12], eth[13] = 8, 0
			if want[0]>>4 == 6 {
				eth[12], eth[13] = 0x86, 0xdd
			}
			want = append(eth, want...)
		}
		if !bytes.Equal(have, want) {
			t.Errorf("%s:\n got %x\nwant %x", tt.name, have, want)
		}
		raw, l3 := packet.Raw, uint16(0)
		if tt.out != 5 {
			raw, l3 = 0, 14
		}
		if p := gs[0].p; p.Flags&packet.Raw != raw || p.L3 != l3 {
			t.Errorf("%s: flags %x, L3 %d; want Raw %x, L3 %d", tt.name, p.Flags, p.L3, raw, l3)
		}
	}
}

// carry finds an identification with which the header checksum is 0xff..,
// so that adding 0x0100 carries.
func carry() uint16 {
	for id := range uint16(0xffff) {
		b := udp4(0, "10.0.0.9", "10.0.1.2", 20, func(h *layers.IPv4) { h.Id = id })
		if b[24] == 0xff {
			return id
		}
	}
	panic("no such identification")
}

// Superpackets are forwarded whole while their segments fit; the vnet header
// moves with the Ethernet header.
func TestRoutedGSO(t *testing.T) {
	h := v4("10.0.0.9", "10.0.1.2", layers.IPProtocolTCP)
	tcp := &layers.TCP{SrcPort: 1, DstPort: 2, ACK: true}
	_ = tcp.SetNetworkLayerForChecksum(h)
	b := build(ether(mac(0), hostA, layers.EthernetTypeIPv4), h, tcp, payload(20000))
	v := packet.Vnet{Flags: packet.NeedsCsum, GSOType: packet.GSOTCPv4, HdrLen: 54, CsumStart: 34, CsumOffset: 16}
	w := newWorld(t)
	v.GSOSize = mtu1 - 40
	gs := w.sendGSO(0, b, v)
	w.is("fits", gs, "tx 1")
	if gs[0].p.Segs != 15 || gs[0].p.Vnet != v {
		t.Errorf("Segs %d, vnet %+v; want 15, %+v", gs[0].p.Segs, gs[0].p.Vnet, v)
	}
	v.GSOSize++
	if gs = w.sendGSO(0, b, v); len(gs) != 29 || gs[0].p.Flags&packet.Fragment == 0 {
		t.Errorf("does not fit, may be cut: %v, want two fragments of each full segment", gs)
	}
	h.Flags = layers.IPv4DontFragment
	b = build(ether(mac(0), hostA, layers.EthernetTypeIPv4), h, tcp, payload(20000))
	gs = w.sendGSO(0, b, v)
	w.is("does not fit, must not be cut", gs, "tx 0", "drop too_big")
	if m := decode(t, gs[0].frame, false); m.typ != 3 || m.code != 4 || m.info != mtu1 || gs[1].p.Segs != 15 {
		t.Errorf("%+v and %d segments dropped, want fragmentation needed with MTU %d, and 15", m, gs[1].p.Segs, mtu1)
	}
	h.DstIP = ip("10.0.3.2").AsSlice()
	_ = tcp.SetNetworkLayerForChecksum(h)
	b = build(ether(mac(0), hostA, layers.EthernetTypeIPv4), h, tcp, payload(20000))
	gs = w.sendGSO(0, b, v)
	w.is("to the TUN", gs, "tx 5")
	if got := gs[0].p.Vnet; got.HdrLen != 40 || got.CsumStart != 20 || got.CsumOffset != 16 {
		t.Errorf("vnet %+v, want HdrLen 40, CsumStart 20", got)
	}
	gs = w.sendGSO(0, udp4(0, "10.0.0.9", "10.0.3.2", 20, nil), packet.Vnet{HdrLen: 3})
	if got := gs[0].p.Vnet; got != (packet.Vnet{}) {
		t.Errorf("a header length that means nothing became %+v", got)
	}
}

// Nothing that was remembered survives a new snapshot.
func TestNewSnapshot(t *testing.T) {
	w := newWorld(t)
	b := udp4(0, "10.0.0.9", "10.0.1.2", 20, nil)
	w.is("old", w.send(0, b), "tx 1")
	w.s = snapshot(t, fib.Neigh{Iface: 1, Addr: ip("10.0.1.2"), MAC: [6]byte{2, 5: 0x99}})
	if gs := w.send(0, b); len(gs) != 1 || fib.MAC(gs[0].frame) != mac(0x99) {
		t.Errorf("%v, want the neighbour's new address", gs)
	}
	w.s = snapshot(t)
	w.s.Routes, _ = fib.Build([]fib.Route{{Prefix: pfx("10.0.0.0/8"), Iface: 5}})
	w.is("a new route", w.send(0, b), "tx 5")
}

func TestNeighUsed(t *testing.T) {
	w := newWorld(t)
	var used atomic.Int64
	w.s = snapshot(t, fib.Neigh{Iface: 1, Addr: ip("10.0.1.9"), MAC: [6]byte{2}, Used: &used})
	for _, tt := range []struct{ now, want int64 }{{second, second}, {second + usedGrain, second}, {2 * second, 2 * second}} {
		w.now = tt.now
		w.is("to the neighbour", w.send(0, udp4(0, "10.0.0.9", "10.0.1.9", 20, nil)), "tx 1")
		if got := used.Load(); got != tt.want {
			t.Errorf("at %d: Used = %d, want %d", tt.now, got, tt.want)
		}
	}
}

func TestForwardAllocs(t *testing.T) {
	w := newWorld(t)
	frames := [][]byte{
		udp4(0, "10.0.0.9", "10.0.1.2", 20, nil), udp6(0, "fd00::9", "fd01::2", 20, nil),
		udp4(0, "10.0.0.9", "10.0.1.2", 20, ttl(1)), udp6(0, "fd00::9", "fd01::2", 20, hops(1)),
		udp4(0, "10.0.0.9", "10.0.1.2", 1440, nil), udp4(0, "10.0.0.9", "10.0.1.77", 20, nil), udp4(0, "10.0.0.9", "10.0.3.2", 20, nil),
		arp(1, bcast, hostA, "10.0.0.9", "10.0.0.1"), frame60(bcast, hostA),
	}
	pkts := make([]*packet.Packet, 0, len(frames))
	out := &w.out
	run := func() {
		w.now += 200e6
		for _, in := range []uint16{0, 2} {
			pkts = pkts[:0]
			for _, b := range frames {
				pkts = append(pkts, w.load(in, b, packet.Vnet{}))
			}
			w.cls.Batch(pkts)
			w.f.Forward(w.s, pkts, w.now, out)
			out.Resolves = 0
			w.cache.PutList(&out.Tx)
			w.cache.PutList(&out.Punts)
			w.cache.PutList(&out.Drops)
		}
	}
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("%v allocations for a batch", n)
	}
	w.in, w.injected, w.ended = 0, 0, w.f.Created // not counted here
	w.ended -= uint64(w.f.Parked())
}

func BenchmarkForward(b *testing.B) {
	for _, bm := range []struct {
		name  string
		in    uint16
		frame []byte
	}{
		{"route=ipv4", 0, udp4(0, "10.0.0.9", "10.0.1.2", 20, nil)},
		{"route=ipv6", 0, udp6(0, "fd00::9", "fd01::2", 20, nil)},
		{"bridge=unicast", 2, frame60(hostB, hostA)},
	} {
		b.Run(bm.name, func(b *testing.B) { // loading, dissecting and forwarding 64 packets, and freeing them
			w := newWorld(b)
			w.s.Bridges[0].FDB.Learn(hostB, 3, 0)
			pkts := make([]*packet.Packet, 64)
			b.ReportAllocs()
			for b.Loop() {
				for i := range pkts {
					pkts[i] = w.load(bm.in, bm.frame, packet.Vnet{})
				}
				w.cls.Batch(pkts)
				w.f.Forward(w.s, pkts, w.now, &w.out)
				w.cache.PutList(&w.out.Tx)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/pkt")
		})
	}
}
