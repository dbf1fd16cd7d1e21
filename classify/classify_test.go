package classify

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"taprouter/packet"
)

var seed = Seed{1, 2, 3, 5}

func cache(t testing.TB) *packet.Cache {
	pool, err := packet.NewPool(packet.Memory{Heads: 256, Tails: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool.NewCache()
}

// dissect classifies one frame; the packet is good until the next call.
func dissect(c *packet.Cache, opts Options, frame []byte, change func(*packet.Packet)) packet.Packet {
	p := c.Get()
	p.Set(frame)
	if change != nil {
		change(p)
	}
	New(seed, opts).Batch([]*packet.Packet{p})
	copied := *p
	c.Put(p)
	return copied
}

// build serialises layers to a frame with right lengths and checksums.
func build(t testing.TB, ls ...gopacket.SerializableLayer) []byte {
	t.Helper()
	for i, l := range ls {
		var network gopacket.NetworkLayer
		for _, below := range ls[:i] {
			if n, ok := below.(gopacket.NetworkLayer); ok {
				network = n
			}
		}
		switch l := l.(type) {
		case *layers.TCP:
			_ = l.SetNetworkLayerForChecksum(network)
		case *layers.UDP:
			_ = l.SetNetworkLayerForChecksum(network)
		case *layers.ICMPv6:
			_ = l.SetNetworkLayerForChecksum(network)
		}
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

var (
	macA = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	macB = net.HardwareAddr{2, 0, 0, 0, 0, 2}
)

func eth(et layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{SrcMAC: macA, DstMAC: macB, EthernetType: et}
}

func ip4(src, dst string, proto layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: net.ParseIP(src), DstIP: net.ParseIP(dst)}
}

func ip6(src, dst string, next layers.IPProtocol, label uint32) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: next, SrcIP: net.ParseIP(src), DstIP: net.ParseIP(dst), FlowLabel: label}
}

func udp(src, dst int) *layers.UDP {
	return &layers.UDP{SrcPort: layers.UDPPort(src), DstPort: layers.UDPPort(dst)}
}

func tcp(src, dst int) *layers.TCP {
	return &layers.TCP{SrcPort: layers.TCPPort(src), DstPort: layers.TCPPort(dst), SYN: true}
}

func vlan(id uint16, pcp uint8, et layers.EthernetType) *layers.Dot1Q {
	return &layers.Dot1Q{VLANIdentifier: id, Priority: pcp, Type: et}
}

var payload = gopacket.Payload("some bytes of payload")

func udp4(t testing.TB, src, dst string, sp, dp int) []byte {
	return build(t, eth(layers.EthernetTypeIPv4), ip4(src, dst, layers.IPProtocolUDP), udp(sp, dp), payload)
}

// What is one flow has one hash, what is not has another (spec: the
// equivalence classes of the kernel's flow dissector, and our deviations).
func TestHashClasses(t *testing.T) {
	c := cache(t)
	u := udp4(t, "10.0.0.1", "10.0.0.2", 1000, 2000)
	frag := func(off, id uint16, more bool) []byte {
		ip := ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolUDP)
		ip.Id, ip.FragOffset = id, off
		if more {
			ip.Flags = layers.IPv4MoreFragments
		}
		return build(t, eth(layers.EthernetTypeIPv4), ip, gopacket.Payload(make([]byte, 64)))
	}
	ext6 := func(next layers.IPProtocol, hdr ...byte) []byte {
		return build(t, eth(layers.EthernetTypeIPv6), ip6("fd00::1", "fd00::2", next, 0), gopacket.Payload(append(hdr, udp4(t, "1.1.1.1", "1.1.1.2", 1000, 2000)[34:]...)))
	}
	u6 := func(label uint32, sp int) []byte {
		return build(t, eth(layers.EthernetTypeIPv6), ip6("fd00::1", "fd00::2", layers.IPProtocolUDP, label), udp(sp, 2000), payload)
	}
	tagged := func(id uint16, pcp uint8) []byte {
		return build(t, eth(layers.EthernetTypeDot1Q), vlan(id, pcp, layers.EthernetTypeIPv4), ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolUDP), udp(1000, 2000), payload)
	}
	ipip := func(sp int) []byte {
		return build(t, eth(layers.EthernetTypeIPv4), ip4("9.9.9.9", "8.8.8.8", layers.IPProtocolIPv4), ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolUDP), udp(sp, 2000), payload)
	}
	gre := func(key uint32, sp int) []byte {
		return build(t, eth(layers.EthernetTypeIPv4), ip4("9.9.9.9", "8.8.8.8", layers.IPProtocolGRE),
			&layers.GRE{Protocol: layers.EthernetTypeIPv4, KeyPresent: true, Key: key}, ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolUDP), udp(sp, 2000), payload)
	}
	icmp := func(id uint16) []byte {
		return build(t, eth(layers.EthernetTypeIPv4), ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: id}, payload)
	}
	mpls := func(label uint32) []byte {
		return build(t, eth(layers.EthernetTypeMPLSUnicast), &layers.MPLS{Label: label, StackBottom: true, TTL: 9}, payload)
	}
	gre0 := func(flags byte, et uint16, inner []byte) []byte {
		return build(t, eth(layers.EthernetTypeIPv4), ip4("9.9.9.9", "8.8.8.8", layers.IPProtocolGRE), gopacket.Payload(append([]byte{flags, 0, byte(et >> 8), byte(et)}, inner...)))
	}
	over4 := func(proto layers.IPProtocol, b ...byte) []byte {
		return build(t, eth(layers.EthernetTypeIPv4), ip4("10.0.0.1", "10.0.0.2", proto), gopacket.Payload(b))
	}
	pppoe := func(sp int) []byte {
		return build(t, eth(layers.EthernetTypePPPoESession), &layers.PPPoE{Version: 1, Type: 1}, &layers.PPP{PPPType: layers.PPPTypeIPv4},
			ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolUDP), udp(sp, 2000), payload)
	}
	// Options behind the fragment header: only the first fragment has them.
	first := ext6(layers.IPProtocolIPv6Fragment, 60, 0, 0, 1, 0, 0, 0, 7, 17, 0, 1, 4, 0, 0, 0, 0)
	later := ext6(layers.IPProtocolIPv6Fragment, 60, 0, 1, 0, 0, 0, 0, 7)
	llc := func(n int) []byte {
		return append(udp4(t, "1.1.1.1", "1.1.1.2", 1, 2)[:12], append([]byte{0, byte(n)}, make([]byte, n)...)...)
	}
	other := udp4(t, "10.0.0.1", "10.0.0.2", 1001, 2000)
	arp := func(ip byte) []byte {
		return build(t, eth(layers.EthernetTypeARP), &layers.ARP{AddrType: 1, Protocol: 0x0800, HwAddressSize: 6, ProtAddressSize: 4, Operation: 1,
			SourceHwAddress: macA, SourceProtAddress: []byte{10, 0, 0, ip}, DstHwAddress: macB, DstProtAddress: []byte{10, 0, 0, 9}})
	}
	for _, tt := range []struct {
		name string
		a, b []byte
		opts Options
		same bool
	}{
		{"the other direction", u, udp4(t, "10.0.0.2", "10.0.0.1", 2000, 1000), Options{}, true},
		{"ports swapped alone", u, udp4(t, "10.0.0.1", "10.0.0.2", 2000, 1000), Options{}, true},
		{"the other direction, asymmetric", u, udp4(t, "10.0.0.2", "10.0.0.1", 2000, 1000), Options{Asymmetric: true}, false},
		{"another port", u, udp4(t, "10.0.0.1", "10.0.0.2", 1000, 2001), Options{}, false},
		{"another address", u, udp4(t, "10.0.0.1", "10.0.0.3", 1000, 2000), Options{}, false},
		{"another protocol", u, build(t, eth(layers.EthernetTypeIPv4), ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolTCP), tcp(1000, 2000), payload), Options{}, false},
		{"first and later fragment", frag(0, 7, true), frag(100, 7, false), Options{}, true},
		{"fragments of two datagrams", frag(0, 7, true), frag(0, 8, true), Options{}, true},
		{"fragment and whole", frag(0, 7, true), u, Options{}, false},
		{"another VLAN", tagged(5, 0), tagged(6, 0), Options{}, false},
		{"another PCP", tagged(5, 0), tagged(5, 6), Options{}, true},
		{"another PCP, asked for", tagged(5, 0), tagged(5, 6), Options{PCP: true}, false},
		{"another flow label", u6(1, 1000), u6(2, 1000), Options{}, true},
		{"another flow label, asked for, but there are ports", u6(1, 1000), u6(2, 1000), Options{FlowLabel: true}, true},
		{"another flow label without ports", build(t, eth(layers.EthernetTypeIPv6), ip6("fd00::1", "fd00::2", layers.IPProtocolNoNextHeader, 1)),
			build(t, eth(layers.EthernetTypeIPv6), ip6("fd00::1", "fd00::2", layers.IPProtocolNoNextHeader, 2)), Options{FlowLabel: true}, false},
		{"IPv6 with and without options", u6(0, 1000), ext6(layers.IPProtocolIPv6Destination, 17, 0, 1, 4, 0, 0, 0, 0), Options{}, true},
		{"IPv6 first and later fragment", ext6(layers.IPProtocolIPv6Fragment, 17, 0, 0, 1, 0, 0, 0, 7), ext6(layers.IPProtocolIPv6Fragment, 17, 0, 1, 0, 0, 0, 0, 7), Options{}, true},
		{"inner ports of IPIP", ipip(1000), ipip(1001), Options{}, false},
		{"inner ports of GRE", gre(1, 1000), gre(1, 1001), Options{}, false},
		{"GRE key", gre(1, 1000), gre(2, 1000), Options{}, false},
		{"ICMP id", icmp(1), icmp(2), Options{}, true},
		{"MPLS label", mpls(16), mpls(17), Options{}, false},
		{"any ARP", arp(1), arp(2), Options{}, true},
		{"IPv6 fragments with options behind the fragment header", first, later, Options{}, true},
		{"IPv6 fragments of another protocol", later, ext6(layers.IPProtocolIPv6Fragment, 17, 0, 1, 0, 0, 0, 0, 7), Options{}, false},
		{"IPv6 AH is skipped", u6(0, 1000), ext6(layers.IPProtocolAH, 17, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1), Options{}, true},
		{"IPv4 AH: another SPI", over4(51, 17, 1, 0, 0, 0, 0, 0, 1), over4(51, 17, 1, 0, 0, 0, 0, 0, 2), Options{}, false},
		{"ESP: another SPI", over4(50, 0, 0, 0, 1, 9), over4(50, 0, 0, 0, 2, 9), Options{}, false},
		{"ESP: one SPI", over4(50, 0, 0, 0, 1, 9), over4(50, 0, 0, 0, 1, 8), Options{}, true},
		{"IPv6 ESP: another SPI", ext6(layers.IPProtocolESP, 0, 0, 0, 1), ext6(layers.IPProtocolESP, 0, 0, 0, 2), Options{}, false},
		{"SCTP: another port", over4(132, 0, 1, 0, 2), over4(132, 0, 1, 0, 3), Options{}, false},
		{"DCCP: another port", over4(33, 0, 1, 0, 2), over4(33, 0, 1, 0, 3), Options{}, false},
		{"UDP-Lite: another port", over4(136, 0, 1, 0, 2), over4(136, 0, 1, 0, 3), Options{}, false},
		{"inner ports of PPPoE", pppoe(1000), pppoe(1001), Options{}, false},
		{"inner ports of Ethernet in GRE", gre0(0, 0x6558, u), gre0(0, 0x6558, other), Options{}, false},
		{"GRE with routing is not followed", gre0(0x40, 0x0800, u[14:]), gre0(0x40, 0x0800, other[14:]), Options{}, true},
		{"LLC of another length", llc(40), llc(60), Options{}, true},
	} {
		a, b := dissect(c, tt.opts, tt.a, nil), dissect(c, tt.opts, tt.b, nil)
		if (a.Hash == b.Hash) != tt.same || a.Hash == 0 || b.Hash == 0 {
			t.Errorf("%s: hashes %08x and %08x, want same: %v", tt.name, a.Hash, b.Hash, tt.same)
		}
	}
}

func TestOffsetsAndFlags(t *testing.T) {
	c := cache(t)
	u4 := udp4(t, "10.0.0.1", "10.0.0.2", 1000, 2000)
	qinq := build(t, eth(layers.EthernetTypeQinQ), vlan(5, 3, layers.EthernetTypeDot1Q), vlan(6, 0, layers.EthernetTypeIPv6),
		ip6("fd00::1", "fd00::2", layers.IPProtocolTCP, 0), tcp(1, 2), payload)
	options := build(t, eth(layers.EthernetTypeIPv4), &layers.IPv4{Version: 4, TTL: 3, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{1, 1, 1, 1}, DstIP: net.IP{1, 1, 1, 2},
		Options: []layers.IPv4Option{{OptionType: 1}}}, udp(1, 2), payload)
	group := append([]byte(nil), u4...)
	group[0] = 1
	for _, tt := range []struct {
		name         string
		frame        []byte
		raw          bool
		l3, l4, et   uint16
		vlans, proto uint8
		flags        packet.Flags
		bad, drop    packet.Reason
	}{
		{"UDP", u4, false, 14, 34, EtherIPv4, 0, 17, packet.IPv4 | packet.L4Hash, 0, 0},
		{"UDP from a TUN", u4[14:], true, 0, 20, EtherIPv4, 0, 17, packet.Raw | packet.IPv4 | packet.L4Hash, 0, 0},
		{"QinQ, IPv6, TCP", qinq, false, 22, 62, EtherIPv6, 2, 6, packet.IPv6 | packet.L4Hash, 0, 0},
		{"IPv4 options", options, false, 14, 38, EtherIPv4, 0, 17, packet.IPv4 | packet.IPOptions | packet.L4Hash, 0, 0},
		{"to a group", group, false, 14, 34, EtherIPv4, 0, 17, packet.IPv4 | packet.L4Hash | packet.Mcast, 0, 0},
		{"no IP header", u4[:20], false, 14, 0, EtherIPv4, 0, 0, 0, packet.DropMalformed, 0},
		{"no Ethernet header", u4[:13], false, 0, 0, 0, 0, 0, 0, packet.DropTruncated, packet.DropTruncated},
		{"a TUN's nonsense", []byte{0x50, 1, 2}, true, 0, 0, 0, 0, 0, packet.Raw, packet.DropMalformed, 0},
		{"a TUN's nothing", nil, true, 0, 0, 0, 0, 0, packet.Raw, packet.DropTruncated, packet.DropTruncated},
	} {
		p := dissect(c, Options{}, tt.frame, func(p *packet.Packet) {
			if tt.raw {
				p.Flags = packet.Raw
			}
		})
		if p.L3 != tt.l3 || p.L4 != tt.l4 || p.EtherType != tt.et || p.VLANs != tt.vlans || p.Proto != tt.proto || p.Flags != tt.flags || p.Bad != tt.bad || p.Drop != tt.drop {
			t.Errorf("%s: L3 %d L4 %d type %04x vlans %d proto %d flags %b bad %v drop %v, want %+v", tt.name, p.L3, p.L4, p.EtherType, p.VLANs, p.Proto, p.Flags, p.Bad, p.Drop, tt)
		}
	}
}

// Priorities are those of the kernel's table for every TOS byte; ECN and the
// upper DSCP bits change nothing.
func TestPriority(t *testing.T) {
	c := cache(t)
	for tos := range 256 {
		ip := ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolUDP)
		ip.TOS = uint8(tos)
		f4 := build(t, eth(layers.EthernetTypeIPv4), ip, udp(1, 2), payload)
		v6 := ip6("fd00::1", "fd00::2", layers.IPProtocolUDP, 0)
		v6.TrafficClass = uint8(tos)
		f6 := build(t, eth(layers.EthernetTypeIPv6), v6, udp(1, 2), payload)
		want := [4]uint8{0, 2, 6, 4}[tos>>3&3]
		for _, f := range [][]byte{f4, f6} {
			if p := dissect(c, Options{}, f, nil); p.Priority != want {
				t.Errorf("TOS %#x: priority %d, want %d", tos, p.Priority, want)
			}
		}
	}
	arp := build(t, eth(layers.EthernetTypeDot1Q), vlan(1, 5, layers.EthernetTypeARP), payload)
	if p := dissect(c, Options{}, arp, nil); p.Priority != 5 {
		t.Errorf("PCP 5: priority %d", p.Priority)
	}
}

// with12 gives a TCP/IPv4 frame another data offset.
func with12(f []byte, b byte) []byte {
	f = set16(f, 16, uint16(len(f)-14))
	f[34+12] = b
	return f
}

func set16(f []byte, at int, v uint16) []byte {
	f = append([]byte(nil), f...)
	binary.BigEndian.PutUint16(f[at:], v)
	return f
}

// gso makes p a superpacket with this header.
func gso(v packet.Vnet) func(*packet.Packet) { return func(p *packet.Packet) { p.Vnet = v } }

func TestVnetHeader(t *testing.T) {
	c := cache(t)
	data := gopacket.Payload(make([]byte, 1000))
	t4 := build(t, eth(layers.EthernetTypeIPv4), ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolTCP), tcp(1, 2), data)
	u6 := build(t, eth(layers.EthernetTypeIPv6), ip6("fd00::1", "fd00::2", layers.IPProtocolUDP, 0), udp(1, 2), data)
	ok4 := packet.Vnet{Flags: 1, GSOType: packet.GSOTCPv4, HdrLen: 1, GSOSize: 300, CsumStart: 34, CsumOffset: 16}
	okU := packet.Vnet{Flags: 1, GSOType: packet.GSOUDPL4, GSOSize: 400, CsumStart: 54, CsumOffset: 6}
	with := func(v packet.Vnet, f func(*packet.Vnet)) packet.Vnet { f(&v); return v }
	for _, tt := range []struct {
		name  string
		frame []byte
		vnet  packet.Vnet
		segs  uint16
		wire  int
		drop  packet.Reason
	}{
		{"TCPv4", t4, ok4, 4, len(t4) + 3*54, 0},
		{"TCPv4 with ECN", t4, with(ok4, func(v *packet.Vnet) { v.GSOType |= packet.GSOECN }), 4, len(t4) + 3*54, 0},
		{"UDP", u6, okU, 3, len(u6) + 2*62, 0},
		{"one segment", t4, with(ok4, func(v *packet.Vnet) { v.GSOSize = 1000 }), 1, len(t4), 0},
		{"checksum only", t4, packet.Vnet{Flags: 1, CsumStart: 34, CsumOffset: 16}, 1, len(t4), 0},
		{"size 0", t4, with(ok4, func(v *packet.Vnet) { v.GSOSize = 0 }), 0, 0, packet.DropVnet},
		{"by frags", t4, with(ok4, func(v *packet.Vnet) { v.GSOSize = 0xffff }), 0, 0, packet.DropVnet},
		{"TCPv6 over IPv4", t4, with(ok4, func(v *packet.Vnet) { v.GSOType = packet.GSOTCPv6 }), 0, 0, packet.DropVnet},
		{"UDP type over TCP", t4, with(ok4, func(v *packet.Vnet) { v.GSOType = packet.GSOUDPL4 }), 0, 0, packet.DropVnet},
		{"TCP type over UDP", u6, with(okU, func(v *packet.Vnet) { v.GSOType = packet.GSOTCPv6 }), 0, 0, packet.DropVnet},
		{"unknown type", t4, with(ok4, func(v *packet.Vnet) { v.GSOType = 7 }), 0, 0, packet.DropVnet},
		{"ECN alone", t4, with(ok4, func(v *packet.Vnet) { v.GSOType = packet.GSOECN }), 0, 0, packet.DropVnet},
		{"UDP without checksum", u6, with(okU, func(v *packet.Vnet) { v.Flags = 0 }), 0, 0, packet.DropVnet},
		{"UDP, wrong field", u6, with(okU, func(v *packet.Vnet) { v.CsumOffset = 16 }), 0, 0, packet.DropVnet},
		{"TCP, wrong field", t4, with(ok4, func(v *packet.Vnet) { v.CsumOffset = 6 }), 0, 0, packet.DropVnet},
		{"checksum beyond the frame", t4, packet.Vnet{Flags: 1, CsumStart: 2000, CsumOffset: 16}, 0, 0, packet.DropVnet},
		{"checksum in the link header", t4, packet.Vnet{Flags: 1, CsumStart: 2, CsumOffset: 1}, 0, 0, packet.DropVnet},
		{"checksum in the network header", t4, packet.Vnet{Flags: 1, CsumStart: 33, CsumOffset: 16}, 0, 0, packet.DropVnet},
		{"checksum in the IPv6 header", u6, packet.Vnet{Flags: 1, CsumStart: 53, CsumOffset: 6}, 0, 0, packet.DropVnet},
		{"total length 0 of a superpacket", set16(t4, 16, 0), ok4, 4, len(t4) + 3*54, 0},
		{"total length within the header", set16(t4, 16, 19), ok4, 0, 0, packet.DropVnet},
		{"a fragment", set16(t4, 20, 0x2000), ok4, 0, 0, packet.DropVnet},
		{"checksum cut off", t4, packet.Vnet{Flags: 1, CsumStart: 34, CsumOffset: uint16(len(t4) - 34 - 1)}, 0, 0, packet.DropVnet},
		{"TCP data offset too small", with12(t4, 0x40), ok4, 0, 0, packet.DropVnet},
		{"TCP data offset beyond the frame", with12(t4[:70], 0xf0), ok4, 0, 0, packet.DropVnet},
		{"hdr_len of no superpacket", t4, packet.Vnet{Flags: 1, HdrLen: 0xffff, CsumStart: 34, CsumOffset: 16}, 1, len(t4), 0},
		{"more than 128 UDP segments", u6, with(okU, func(v *packet.Vnet) { v.GSOSize = 7 }), 0, 0, packet.DropVnet},
		{"headers cut off", t4[:40], ok4, 0, 0, packet.DropVnet},
	} {
		p := dissect(c, Options{}, tt.frame, gso(tt.vnet))
		if p.Drop != tt.drop || tt.drop == 0 && (p.Segs != tt.segs || int(p.WireLen) != tt.wire) {
			t.Errorf("%s: drop %v, %d segments, %d bytes, want %v, %d, %d", tt.name, p.Drop, p.Segs, p.WireLen, tt.drop, tt.segs, tt.wire)
		}
		if tt.segs == 1 && p.Vnet.HdrLen|p.Vnet.GSOSize|uint16(p.Vnet.GSOType) != 0 {
			t.Errorf("%s: vnet header %+v of a frame that is no superpacket", tt.name, p.Vnet)
		}
		if tt.segs > 1 && p.Vnet.HdrLen != uint16(map[bool]int{true: 54, false: 62}[p.Proto == ProtoTCP]) {
			t.Errorf("%s: header length %d", tt.name, p.Vnet.HdrLen)
		}
	}
}

// Hashes spread evenly, for random flows and for consecutive ports, over
// queues (high bits) and buckets (low bits).
func TestHashSpreads(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const n, cells = 100000, 64
	for _, kind := range []string{"random", "ports"} {
		var high, low [cells]int
		for i := range n {
			k := key{ethertype: EtherIPv4, proto: 17, l4: true, ports: uint32(i)}
			k.src[1], k.dst[1] = 0x0a000001, 0x0a000002
			if kind == "random" {
				k.src[1], k.dst[1], k.ports = uint64(rng.Uint32()), uint64(rng.Uint32()), rng.Uint32()
			} else {
				k.ports = uint32(i)<<16 | 80
				k.src[1] = uint64(i >> 16)
			}
			h := k.hash(&seed, true)
			high[uint64(h)*cells>>32]++
			low[h%cells]++
		}
		for name, counts := range map[string][cells]int{"high": high, "low": low} {
			chi := 0.0
			for _, c := range counts {
				d := float64(c) - float64(n)/cells
				chi += d * d / (float64(n) / cells)
			}
			if chi > 130 { // 63 degrees of freedom: 130 is beyond 1 in 10^6
				t.Errorf("%s flows, %s bits: chi square %.0f", kind, name, chi)
			}
		}
	}
}

func TestBatchAllocatesNothing(t *testing.T) {
	c := cache(t)
	p := c.Get()
	p.Set(udp4(t, "10.0.0.1", "10.0.0.2", 1, 2))
	cl, pkts := New(seed, Options{}), []*packet.Packet{p}
	if n := testing.AllocsPerRun(100, func() { cl.Batch(pkts) }); n != 0 {
		t.Errorf("Batch allocates %v times", n)
	}
}

// Whatever comes in: no panic, and offsets that lie in the head.
func FuzzDissect(f *testing.F) {
	f.Add(udp4(f, "10.0.0.1", "10.0.0.2", 1, 2), []byte{1, 1, 54, 0, 100, 0, 34, 0, 16, 0}, false)
	f.Add([]byte{0x60, 0, 0, 0, 0, 8, 0, 1}, []byte{}, true)
	c := cache(f)
	f.Fuzz(func(t *testing.T, frame, vnet []byte, raw bool) {
		if len(frame) > packet.HeadLen-packet.Headroom {
			return
		}
		p := dissect(c, Options{FlowLabel: true, PCP: true}, frame, func(p *packet.Packet) {
			if raw {
				p.Flags = packet.Raw
			}
			if len(vnet) >= 10 {
				p.Vnet = packet.Vnet{Flags: vnet[0], GSOType: vnet[1], HdrLen: binary.LittleEndian.Uint16(vnet[2:]), GSOSize: binary.LittleEndian.Uint16(vnet[4:]),
					CsumStart: binary.LittleEndian.Uint16(vnet[6:]), CsumOffset: binary.LittleEndian.Uint16(vnet[8:])}
			}
		})
		if p.Drop != 0 {
			return
		}
		if int(p.L3) > len(frame) || int(p.L4) > len(frame) || p.Hash == 0 || p.Segs == 0 || int(p.WireLen) < len(frame) {
			t.Errorf("L3 %d L4 %d of %d bytes, hash %x, %d segments, %d bytes", p.L3, p.L4, len(frame), p.Hash, p.Segs, p.WireLen)
		}
		if p.Flags&packet.IPv4 != 0 && p.HeadLength() < int(p.L3)+20 || p.Flags&packet.IPv6 != 0 && p.HeadLength() < int(p.L3)+40 {
			t.Error("an IP header that is not there")
		}
	})
}

func BenchmarkDissect(b *testing.B) {
	c := cache(b)
	for _, bm := range []struct {
		name  string
		frame []byte
	}{
		{"pkt=tcp4", build(b, eth(layers.EthernetTypeIPv4), ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolTCP), tcp(1, 2), payload)},
		{"pkt=udp6", build(b, eth(layers.EthernetTypeIPv6), ip6("fd00::1", "fd00::2", layers.IPProtocolUDP, 0), udp(1, 2), payload)},
	} {
		b.Run(bm.name, func(b *testing.B) {
			p := c.Get()
			p.Set(bm.frame)
			cl, pkts := New(seed, Options{}), []*packet.Packet{p}
			b.ReportAllocs()
			for b.Loop() { // headers, hash and priority of one packet in cache
				p.Flags = 0
				cl.Batch(pkts)
			}
			c.Put(p)
		})
	}
}
