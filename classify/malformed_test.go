package classify

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"taprouter/packet"
)

// What a router must not forward has a reason; a bridge may pass it on.
func TestMalformed(t *testing.T) {
	c := cache(t)
	u4 := udp4(t, "10.0.0.1", "10.0.0.2", 1, 2)
	u6 := build(t, eth(layers.EthernetTypeIPv6), ip6("fd00::1", "fd00::2", layers.IPProtocolUDP, 0), udp(1, 2), payload)
	set := func(f []byte, at int, b ...byte) []byte {
		f = bytes.Clone(f)
		copy(f[at:], b)
		return f
	}
	// exts is an IPv6 packet with n empty destination options, then UDP.
	exts := func(n int) []byte {
		b := bytes.Repeat([]byte{60, 0, 1, 4, 0, 0, 0, 0}, n)
		b[len(b)-8] = 17
		return build(t, eth(layers.EthernetTypeIPv6), ip6("fd00::1", "fd00::2", layers.IPProtocolIPv6Destination, 0), gopacket.Payload(append(b, 0, 1, 0, 2, 0, 8, 0, 0)))
	}
	tags := func(n int) []byte {
		f := bytes.Clone(u4[:12])
		for range n {
			f = append(f, 0x81, 0, 0, 5)
		}
		return append(f, u4[12:]...)
	}
	long := append(bytes.Clone(u4), make([]byte, 60)...)
	for _, tt := range []struct {
		name  string
		frame []byte
		want  packet.Reason
		l4    uint16
	}{
		{"IPv4", u4, 0, 34},
		{"IPv4, padded", long, 0, 34},
		{"IHL 4", set(u4, 14, 0x44), packet.DropMalformed, 0},
		{"IHL 15 that is there", set(long, 14, 0x4f, 0, 0, 100), 0, 74},
		{"IHL 15 beyond the frame", set(u4, 14, 0x4f), packet.DropMalformed, 0},
		{"version 5", set(u4, 14, 0x55), packet.DropMalformed, 0},
		{"total length 0", set(u4, 16, 0, 0), packet.DropMalformed, 0},
		{"total length within the header", set(u4, 16, 0, 19), packet.DropMalformed, 0},
		{"total length beyond the frame", set(u4, 16, 0xff, 0xff), packet.DropMalformed, 0},
		{"IPv6", u6, 0, 54},
		{"IPv6, version 4", set(u6, 14, 0x40), packet.DropMalformed, 0},
		{"payload length beyond the frame", set(u6, 18, 0xff, 0xff), packet.DropMalformed, 0},
		{"payload length shorter than the frame", set(u6, 18, 0, 8), 0, 54},
		{"an extension header beyond the frame", set(exts(1), 55, 255), packet.DropMalformed, 0},
		{"14 extension headers", exts(14), 0, 54 + 14*8},
		{"15 extension headers", exts(15), packet.DropMalformed, 0},
		{"230 extension headers", exts(230), packet.DropMalformed, 0},
		{"14 tags", tags(14), 0, 34 + 14*4},
		{"a tag cut off", tags(1)[:16], packet.DropTruncated, 0},
		{"16 tags", tags(16), packet.DropTruncated, 0},
	} {
		if p := dissect(c, Options{}, tt.frame, nil); p.Bad != tt.want || p.L4 != tt.l4 || p.Drop != 0 || p.Hash == 0 {
			t.Errorf("%s: bad %v, L4 %d, drop %v, hash %x, want %v, %d", tt.name, p.Bad, p.L4, p.Drop, p.Hash, tt.want, tt.l4)
		}
	}
}

// Every truncation of every shape is taken without a panic, its headers lie
// in the frame, and a router forwards none that says it is longer.
func TestTruncations(t *testing.T) {
	c := cache(t)
	chain := gopacket.Payload{60, 0, 0, 0, 0, 0, 0, 0, 44, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 1, 1, 2}
	v6 := func(next layers.IPProtocol) *layers.IPv6 { return ip6("fd00::1", "fd00::2", next, 0) }
	for name, f := range map[string][]byte{
		"arp":    build(t, eth(layers.EthernetTypeARP), gopacket.Payload(make([]byte, 28))),
		"udp":    udp4(t, "10.0.0.1", "10.0.0.2", 1, 2),
		"tcp":    build(t, eth(layers.EthernetTypeIPv4), ip4("10.0.0.1", "10.0.0.2", layers.IPProtocolTCP), tcp(1, 2)),
		"tags":   build(t, eth(layers.EthernetTypeQinQ), vlan(1, 2, layers.EthernetTypeDot1Q), vlan(3, 4, layers.EthernetTypeIPv6), v6(layers.IPProtocolTCP), tcp(1, 2)),
		"nd":     build(t, eth(layers.EthernetTypeIPv6), v6(layers.IPProtocolICMPv6), gopacket.Payload(append([]byte{135, 0, 0, 0}, make([]byte, 28)...))),
		"chain":  build(t, eth(layers.EthernetTypeIPv6), v6(layers.IPProtocolIPv6HopByHop), chain),
		"ah":     build(t, eth(layers.EthernetTypeIPv6), v6(layers.IPProtocolAH), gopacket.Payload{50, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 1}),
		"gre":    build(t, eth(layers.EthernetTypeIPv4), ip4("9.9.9.9", "8.8.8.8", layers.IPProtocolGRE), &layers.GRE{Protocol: layers.EthernetTypeIPv6, KeyPresent: true}, v6(layers.IPProtocolTCP), tcp(1, 2)),
		"6in4":   build(t, eth(layers.EthernetTypeIPv4), ip4("9.9.9.9", "8.8.8.8", layers.IPProtocolIPv6), v6(layers.IPProtocolIPv6HopByHop), chain),
		"pppoe":  build(t, eth(layers.EthernetTypePPPoESession), &layers.PPPoE{Version: 1, Type: 1}, &layers.PPP{PPPType: layers.PPPTypeIPv4}, ip4("1.1.1.1", "1.1.1.2", layers.IPProtocolSCTP), gopacket.Payload{0, 1, 0, 2}),
		"mpls":   build(t, eth(layers.EthernetTypeMPLSUnicast), &layers.MPLS{Label: 9, StackBottom: true}, payload),
		"frag":   build(t, eth(layers.EthernetTypeIPv4), &layers.IPv4{Version: 4, TTL: 9, FragOffset: 3, Protocol: 17, SrcIP: macIP, DstIP: macIP}, payload),
		"icmpv6": build(t, eth(layers.EthernetTypeIPv6), v6(layers.IPProtocolICMPv6), gopacket.Payload{128, 0, 0, 0, 0, 1, 0, 1}),
	} {
		if f[12] == 8 && f[13] == 0 { // without the padding that gopacket appends
			f = f[:14+binary.BigEndian.Uint16(f[16:])]
		}
		for n := range len(f) + 1 {
			for _, raw := range []bool{false, true} {
				p := dissect(c, Options{FlowLabel: true, PCP: true}, f[:n], func(p *packet.Packet) {
					if raw {
						p.Flags = packet.Raw
					}
				})
				if int(p.L3) > n || int(p.L4) > n {
					t.Errorf("%s: L3 %d and L4 %d in %d of %d bytes", name, p.L3, p.L4, n, len(f))
				}
				if !raw && p.Bad == 0 && p.Flags&(packet.IPv4|packet.IPv6) != 0 && n < len(f) {
					t.Errorf("%s: %d of %d bytes are good enough for a router", name, n, len(f))
				}
			}
		}
	}
}

var macIP = []byte{10, 0, 0, 1}

// Both directions of any flow hash alike, unless told apart on purpose.
func TestHashIsSymmetric(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range 20000 {
		k := key{ethertype: EtherIPv6, proto: 6, l4: true, ports: rng.Uint32()}
		k.src, k.dst = [2]uint64{rng.Uint64N(2), rng.Uint64()}, [2]uint64{rng.Uint64N(2), rng.Uint64()}
		if i%2 == 0 {
			k.src[0], k.dst[0] = 0, 0
		}
		r := k
		r.src, r.dst, r.ports = k.dst, k.src, k.ports<<16|k.ports>>16
		a, b := k, r
		if x, y := a.hash(&seed, false), b.hash(&seed, false); x != y || x == 0 {
			t.Fatalf("%+v hashes to %08x, its reverse to %08x", k, x, y)
		}
		if x, y := k.hash(&seed, true), r.hash(&seed, true); x == y {
			t.Fatalf("%+v and its reverse hash to %08x though told apart", k, x)
		}
	}
}

// FuzzOffsets: where gopacket sees a well-formed TCP or UDP packet, we see
// its headers in the same places and its ports.
func FuzzOffsets(f *testing.F) {
	f.Add(udp4(f, "10.0.0.1", "10.0.0.2", 1, 2))
	f.Add(build(f, eth(layers.EthernetTypeQinQ), vlan(1, 2, layers.EthernetTypeDot1Q), vlan(3, 4, layers.EthernetTypeIPv4), ip4("1.1.1.1", "1.1.1.2", 6), tcp(3, 4), payload))
	f.Add(build(f, eth(layers.EthernetTypeDot1Q), vlan(1, 2, layers.EthernetTypeIPv6), ip6("fd00::1", "fd00::2", layers.IPProtocolTCP, 7), tcp(3, 4), payload))
	f.Add(build(f, eth(layers.EthernetTypeIPv6), ip6("fd00::1", "fd00::2", layers.IPProtocolIPv6Destination, 0), gopacket.Payload{17, 0, 1, 4, 0, 0, 0, 0, 0, 1, 0, 2, 0, 8, 0, 0}))
	c := cache(f)
	f.Fuzz(func(t *testing.T, frame []byte) {
		l3, l4, proto := oracle(frame)
		if l4 == 0 || len(frame) > packet.HeadLen-packet.Headroom {
			return
		}
		p := dissect(c, Options{}, frame, nil)
		if p.Bad != 0 || int(p.L3) != l3 || int(p.L4) != l4 || p.Proto != proto {
			t.Errorf("L3 %d L4 %d protocol %d bad %v, gopacket says %d, %d, %d", p.L3, p.L4, p.Proto, p.Bad, l3, l4, proto)
		}
		if p.Flags&packet.Fragment != 0 || p.Flags&packet.L4Hash == 0 {
			t.Errorf("flags %b of a whole packet with ports", p.Flags)
		}
	})
}

// oracle gives what gopacket thinks of a frame; l4 is 0 if that is not a
// well-formed, unfragmented TCP or UDP packet in plain Ethernet.
func oracle(frame []byte) (l3, l4 int, proto uint8) {
	pkt := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy)
	if pkt.Metadata().Truncated {
		return 0, 0, 0
	}
	off, n := 0, 0
	for _, l := range pkt.Layers() {
		switch l := l.(type) {
		case *layers.Ethernet:
			if binary.BigEndian.Uint16(frame[12:]) < 0x600 {
				return 0, 0, 0
			}
		case *layers.Dot1Q, *layers.IPv6Destination, *layers.IPv6HopByHop:
		case *layers.IPv4:
			if l3 != 0 || l.Version != 4 || binary.BigEndian.Uint16(frame[off+2:]) == 0 || l.FragOffset != 0 || l.Flags&layers.IPv4MoreFragments != 0 {
				return 0, 0, 0
			}
			l3 = off
		case *layers.IPv6:
			if l3 != 0 || l.Version != 6 || l.Length == 0 {
				return 0, 0, 0
			}
			l3 = off
		case *layers.TCP:
			return l3, off, 6
		case *layers.UDP:
			return l3, off, 17
		default:
			return 0, 0, 0
		}
		off += len(l.LayerContents())
		if n++; n > maxHeaders {
			return 0, 0, 0
		}
	}
	return 0, 0, 0
}
