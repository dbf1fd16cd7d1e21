package gro

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"taprouter/packet"
)

var times = []byte{1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9} // no-op, no-op, timestamps

func data(n int) []byte { return bytes.Repeat([]byte("payload."), n/8+1)[:n] }

// tcp and udp are the k-th packet of a flow.
func tcp(k int) frame {
	return frame{ttl: 64, port: 1000, id: uint16(0xfffe + k), frag: 0x4000, seq: 0xffffff00 + uint32(k)*1000, ack: 77,
		flags: tcpACK, window: 500, tcpOpt: times, payload: data(1000)}
}

func udp(k int) frame {
	return frame{udp: true, ttl: 64, port: 1000, id: uint16(0xfffe + k), payload: data(100)}
}

func each(fs []frame, change func(*frame)) []frame {
	for i := range fs {
		change(&fs[i])
	}
	return fs
}

func tcps(n int) (fs []frame) {
	for k := range n {
		fs = append(fs, tcp(k))
	}
	return fs
}

// tcpsOf is tcps with another payload size.
func tcpsOf(n, size int) []frame {
	fs := tcps(n)
	for k := range fs {
		fs[k].payload, fs[k].seq = data(size), uint32(k*size)
	}
	return fs
}

func udps(n int) (fs []frame) {
	for k := range n {
		fs = append(fs, udp(k))
	}
	return fs
}

func with(fs []frame, k int, change func(*frame)) []frame {
	change(&fs[k])
	return fs
}

// Every rule, by what it makes of a few packets: the sizes of the trains.
func TestRules(t *testing.T) {
	v6 := func(f *frame) { f.v6 = true }
	for _, tt := range []struct {
		name   string
		frames []frame
		want   []int
	}{
		{"TCP", tcps(3), []int{3}},
		{"TCP over IPv6", each(tcps(3), v6), []int{3}},
		{"UDP", udps(3), []int{3}},
		{"UDP over IPv6", each(udps(3), v6), []int{3}},
		{"two VLAN tags", each(tcps(3), func(f *frame) { f.vlans = []uint16{1, 0xa002} }), []int{3}},
		{"a TUN", each(tcps(3), func(f *frame) { f.raw = true }), []int{3}},
		{"a TUN, UDP over IPv6", each(udps(3), func(f *frame) { f.raw, f.v6 = true, true }), []int{3}},
		{"payload beyond the head", tcpsOf(2, 8948), []int{2}},

		{"Ethernet header differs", with(tcps(2), 1, func(f *frame) { f.dst = 9 }), []int{1, 1}},
		{"VLAN differs", with(each(tcps(2), func(f *frame) { f.vlans = []uint16{1} }), 1, func(f *frame) { f.vlans = []uint16{2} }), []int{1, 1}},
		{"PCP differs", with(each(tcps(2), func(f *frame) { f.vlans = []uint16{1} }), 1, func(f *frame) { f.vlans = []uint16{0x2001} }), []int{1, 1}},
		{"inner VLAN differs", with(each(tcps(2), func(f *frame) { f.vlans = []uint16{1, 1} }), 1, func(f *frame) { f.vlans = []uint16{1, 2} }), []int{1, 1}},
		{"a tag more", with(tcps(2), 1, func(f *frame) { f.vlans = []uint16{1} }), []int{1, 1}},

		{"TOS differs", with(tcps(2), 1, func(f *frame) { f.tos = 8 }), []int{1, 1}},
		{"CE differs", with(each(tcps(2), func(f *frame) { f.tos = 2 }), 1, func(f *frame) { f.tos = 3 }), []int{1, 1}},
		{"CE on all", each(tcps(2), func(f *frame) { f.tos = 3 }), []int{2}},
		{"TTL differs", with(tcps(2), 1, func(f *frame) { f.ttl = 63 }), []int{1, 1}},
		{"source differs", with(tcps(2), 1, func(f *frame) { f.host = 1 }), []int{1, 1}},
		{"IPv6: traffic class differs", with(each(tcps(2), v6), 1, func(f *frame) { f.tos = 8 }), []int{1, 1}},
		{"IPv6: hop limit differs", with(each(tcps(2), v6), 1, func(f *frame) { f.ttl = 1 }), []int{1, 1}},
		{"IPv6: flow label differs", with(each(tcps(2), v6), 1, func(f *frame) { f.label = 5 }), []int{1, 1}},
		{"IPv6: source differs", with(each(tcps(2), v6), 1, func(f *frame) { f.host = 1 }), []int{1, 1}},
		{"DF differs", with(tcps(2), 1, func(f *frame) { f.frag = 0 }), []int{1, 1}},
		{"reserved IPv4 flag", each(tcps(2), func(f *frame) { f.frag = 0xc000 }), []int{1, 1}},
		{"IPv4 options", each(tcps(2), func(f *frame) { f.ipOpt = []byte{1, 1, 1, 0} }), []int{1, 1}},
		{"IPv4 options that add nothing to a sum", each(tcps(2), func(f *frame) { f.ipOpt = make([]byte, 4) }), []int{1, 1}},
		{"IPv6 extension header", each(each(tcps(2), v6), func(f *frame) { f.ext = true }), []int{1, 1}},
		{"and as many bytes behind", with(each(each(tcps(2), v6), func(f *frame) { f.ext, f.pad, f.vnet = true, 8, 2 }), 1, func(f *frame) { f.seq += 8 }), []int{1, 1}},
		{"bytes behind the IP packet", each(udps(2), func(f *frame) { f.pad = 4 }), []int{1, 1}},
		{"bytes behind the second, TCP", with(each(tcps(2), func(f *frame) { f.vnet = 2 }), 1, func(f *frame) { f.payload, f.pad = data(900), 4 }), []int{1, 1}},
		{"bytes behind the second, IPv6", with(each(tcps(2), func(f *frame) { f.v6, f.vnet = true, 2 }), 1, func(f *frame) { f.payload, f.pad = data(900), 4 }), []int{1, 1}},
		{"bytes behind the UDP datagram", each(udps(2), func(f *frame) { f.behind, f.vnet = 4, 2 }), []int{1, 1}},
		{"bytes behind the second only", with(udps(2), 1, func(f *frame) { f.pad = 4 }), []int{1, 1}},

		{"constant id with DF", each(tcps(4), func(f *frame) { f.id = 7 }), []int{4}},
		{"constant id without DF", each(tcps(4), func(f *frame) { f.id, f.frag = 7, 0 }), []int{1, 1, 1, 1}},
		{"incrementing id without DF", each(tcps(4), func(f *frame) { f.frag = 0 }), []int{4}},
		{"an id left out", with(tcps(3), 2, func(f *frame) { f.id++ }), []int{2, 1}},
		{"ids that stop", with(tcps(3), 2, func(f *frame) { f.id-- }), []int{2, 1}},
		{"ids that stand and catch up", with(tcps(3), 1, func(f *frame) { f.id-- }), []int{2, 1}},
		{"ids that start", with(with(tcps(3), 1, func(f *frame) { f.id-- }), 2, func(f *frame) { f.id-- }), []int{2, 1}},

		{"hole in the sequence", with(tcps(3), 1, func(f *frame) { f.seq++ }), []int{1, 1, 1}},
		{"sent again", []frame{tcp(0), tcp(1), tcp(1)}, []int{2, 1}},
		{"out of order", []frame{tcp(0), tcp(2), tcp(1)}, []int{1, 1, 1}},
		{"shorter one ends it", with(tcps(3), 1, func(f *frame) { f.payload = data(999) }), []int{2, 1}},
		{"longer one", with(tcps(3), 1, func(f *frame) { f.payload = data(1001) }), []int{1, 1, 1}},
		{"PSH ends it", with(tcps(4), 1, func(f *frame) { f.flags |= tcpPSH }), []int{2, 2}},
		{"PSH of the first", with(tcps(3), 0, func(f *frame) { f.flags |= tcpPSH }), []int{1, 2}},
		{"PSH on all", each(tcps(3), func(f *frame) { f.flags |= tcpPSH }), []int{1, 1, 1}},
		{"ECE on all", each(tcps(3), func(f *frame) { f.flags |= 0x40 }), []int{3}},
		{"ECE differs", with(tcps(3), 1, func(f *frame) { f.flags |= 0x40 }), []int{1, 1, 1}},
		{"CWR of the first", with(tcps(3), 0, func(f *frame) { f.flags |= tcpCWR }), []int{3}},
		{"CWR of the second", with(tcps(3), 1, func(f *frame) { f.flags |= tcpCWR }), []int{1, 2}},
		{"SYN on all", each(tcps(2), func(f *frame) { f.flags |= tcpSYN }), []int{1, 1}},
		{"SYN", with(tcps(3), 0, func(f *frame) { f.flags |= tcpSYN }), []int{1, 2}},
		{"FIN on all", each(tcps(2), func(f *frame) { f.flags |= tcpFIN }), []int{1, 1}},
		{"FIN", with(tcps(3), 2, func(f *frame) { f.flags |= tcpFIN }), []int{2, 1}},
		{"RST on all", each(tcps(2), func(f *frame) { f.flags |= tcpRST }), []int{1, 1}},
		{"RST", with(tcps(3), 2, func(f *frame) { f.flags |= tcpRST }), []int{2, 1}},
		{"URG on all", each(tcps(2), func(f *frame) { f.flags |= tcpURG }), []int{1, 1}},
		{"URG", with(tcps(3), 1, func(f *frame) { f.flags |= tcpURG }), []int{1, 1, 1}},
		{"no ACK on all", each(tcps(2), func(f *frame) { f.flags = 0 }), []int{1, 1}},
		{"no ACK", with(tcps(3), 2, func(f *frame) { f.flags = 0 }), []int{2, 1}},
		{"acknowledgement differs", with(tcps(3), 2, func(f *frame) { f.ack++ }), []int{2, 1}},
		{"window differs", with(tcps(3), 2, func(f *frame) { f.window++ }), []int{2, 1}},
		{"urgent pointer differs", with(tcps(3), 2, func(f *frame) { f.urg++ }), []int{2, 1}},
		{"timestamp differs", with(tcps(3), 2, func(f *frame) { f.tcpOpt = append(slices.Clone(times[:11]), 8) }), []int{2, 1}},
		{"an option more", with(tcps(3), 2, func(f *frame) { f.tcpOpt = append(slices.Clone(times), 1, 1, 1, 0) }), []int{2, 1}},
		{"headers longer than the first packet", with(each(tcpsOf(2, 1), func(f *frame) { f.tcpOpt = nil }), 1, func(f *frame) { f.tcpOpt = make([]byte, 40) }), []int{1, 1}},
		{"no options", each(tcps(3), func(f *frame) { f.tcpOpt = nil }), []int{3}},
		{"acknowledgements without data", each(tcps(3), func(f *frame) { f.payload = nil }), []int{1, 1, 1}},
		{"one of them ends the train", append(with(tcps(3), 2, func(f *frame) { f.payload = nil }), tcp(2)), []int{2, 1, 1}},

		{"UDP: port differs", with(udps(2), 1, func(f *frame) { f.port = 9 }), []int{1, 1}},
		{"UDP: no checksum", each(udps(3), func(f *frame) { f.noSum = true }), []int{1, 1, 1}},
		{"UDP: one without ends the train", with(udps(4), 1, func(f *frame) { f.noSum = true }), []int{1, 1, 2}},
		{"UDP: no payload", each(udps(3), func(f *frame) { f.payload = nil }), []int{1, 1, 1}},
		{"UDP: shorter one ends it", with(udps(4), 1, func(f *frame) { f.payload = data(99) }), []int{2, 2}},
		{"UDP: longer one", with(udps(4), 1, func(f *frame) { f.payload = data(101) }), []int{1, 2, 1}},
		{"UDP: 64 at most", udps(130), []int{64, 64, 2}},
		{"UDP: 65535 bytes at most", each(udps(64), func(f *frame) { f.payload = data(1400) }), []int{46, 18}},
		{"TCP: 65535 bytes at most", tcps(100), []int{65, 35}},
		{"TCP of one byte: no such limit", tcpsOf(250, 1), []int{250}},

		{"wrong L4 checksum of the first", with(tcps(3), 0, func(f *frame) { f.badSum = true }), []int{1, 2}},
		{"of the second", with(tcps(4), 1, func(f *frame) { f.badSum = true }), []int{1, 1, 2}},
		{"of the last", with(tcps(3), 2, func(f *frame) { f.badSum = true }), []int{2, 1}},
		{"of all", each(tcps(3), func(f *frame) { f.badSum = true }), []int{1, 1, 1}},
		{"in a tail", with(tcpsOf(2, 3001), 1, func(f *frame) { f.badSum = true }), []int{1, 1}},
		{"right in a tail at an odd place", each(tcpsOf(2, 3001), func(f *frame) { f.head = 101 }), []int{2}},
		{"UDP", with(udps(4), 1, func(f *frame) { f.badSum = true }), []int{1, 1, 2}},
		{"IPv4 header checksum", with(tcps(4), 1, func(f *frame) { f.badIP = true }), []int{1, 1, 2}},
		{"IPv4 header checksum, partial L4", with(each(tcps(4), func(f *frame) { f.vnet = packet.NeedsCsum }), 1, func(f *frame) { f.badIP = true }), []int{1, 1, 2}},
		{"partial checksums", each(tcps(3), func(f *frame) { f.vnet = packet.NeedsCsum }), []int{3}},
		{"partial and full", with(tcps(3), 1, func(f *frame) { f.vnet = packet.NeedsCsum }), []int{3}},
		{"full and partial, UDP", with(udps(3), 0, func(f *frame) { f.vnet = packet.NeedsCsum }), []int{3}},
		{"wrong, but the device vouches for it", with(tcps(3), 1, func(f *frame) { f.badSum, f.vnet = true, packet.DataValid }), []int{3}},

		{"fragments", each(udps(2), func(f *frame) { f.frag = 0x2000 }), []int{1, 1}},
		{"a fragment ends all trains", []frame{tcp(0), udp(0), tcp(1), {udp: true, host: 9, frag: 1, payload: data(9)}, udp(1), tcp(2), udp(2)}, []int{2, 1, 1, 2, 1}},
		{"flows interleaved", []frame{udp(0), tcp(0), udp(1), tcp(1), udp(2), tcp(2)}, []int{3, 3}},
		{"one packet", udps(1), []int{1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := cache(t)
			var pkts []*packet.Packet
			for i := range tt.frames {
				pkts = append(pkts, tt.frames[i].packet(c))
			}
			var m Merger
			var st Stats
			var got []int
			out := m.Merge(slices.Clone(pkts), &st)
			for _, p := range out {
				n := 1
				for f := p.FirstFrag(); f != nil; f = p.NextFrag(f) {
					n++
				}
				got = append(got, n)
				c.Put(p)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("trains of %v, want %v", got, tt.want)
			}
			pkts = pkts[:0]
			for i := range tt.frames {
				pkts = append(pkts, tt.frames[i].packet(c))
			}
			judge(t, c, &m, pkts)
		})
	}
}

// What classify or the device says of a packet keeps it out, and ends the
// train of its flow.
func TestMetadataEndsTrain(t *testing.T) {
	c := cache(t)
	big := packet.Vnet{Flags: packet.NeedsCsum, GSOType: packet.GSOTCPv4, GSOSize: 100, HdrLen: 66, CsumStart: 34, CsumOffset: 16}
	for _, tt := range []struct {
		name  string
		spoil func(p *packet.Packet)
	}{
		{"a superpacket", func(p *packet.Packet) { p.Vnet, p.Segs = big, 10 }},
		{"not fit for a router", func(p *packet.Packet) { p.Bad = packet.DropMalformed }},
		{"to be dropped", func(p *packet.Packet) { p.Drop = packet.DropVnet }},
		{"a partial checksum from elsewhere", func(p *packet.Packet) { p.Vnet = packet.Vnet{Flags: packet.NeedsCsum, CsumStart: 38, CsumOffset: 16} }},
		{"a partial checksum to elsewhere", func(p *packet.Packet) { p.Vnet = packet.Vnet{Flags: packet.NeedsCsum, CsumStart: 34, CsumOffset: 6} }},
	} {
		for bad := range 4 {
			var pkts []*packet.Packet
			for k := range 4 {
				f := tcp(k)
				f.id = 7
				pkts = append(pkts, f.packet(c))
			}
			p := pkts[bad]
			tt.spoil(p)
			meta := *p
			var got []int
			for _, p := range new(Merger).Merge(pkts, &Stats{}) {
				got = append(got, 1)
				for f := p.FirstFrag(); f != nil; f = p.NextFrag(f) {
					got[len(got)-1]++
				}
			}
			if want := [][]int{{1, 3}, {1, 1, 2}, {2, 1, 1}, {3, 1}}[bad]; !slices.Equal(got, want) || *p != meta {
				t.Errorf("%s as number %d of 4: trains of %v, want %v", tt.name, bad, got, want)
			}
		}
	}
}

// The fields of a superpacket, one by one.
func TestSuperpacketFields(t *testing.T) {
	c := cache(t)
	var m Merger
	for _, tt := range []struct {
		name   string
		frames []frame
		want   packet.Vnet
		flags  packet.Flags
		tcp    byte
		wire   uint32
	}{
		{"TCP", with(tcps(3), 2, func(f *frame) { f.flags |= tcpPSH }), packet.Vnet{Flags: 1, GSOType: 1, HdrLen: 66, GSOSize: 1000, CsumStart: 34, CsumOffset: 16}, packet.IPv4 | packet.L4Hash, tcpACK | tcpPSH, 3 * 1066},
		{"TCP with CWR, IPv6", with(each(tcps(3), func(f *frame) { f.v6 = true }), 0, func(f *frame) { f.flags |= tcpCWR }), packet.Vnet{Flags: 1, GSOType: 0x84, HdrLen: 86, GSOSize: 1000, CsumStart: 54, CsumOffset: 16}, packet.IPv6 | packet.L4Hash, tcpACK | tcpCWR, 3 * 1086},
		{"TCP, one id", each(tcps(3), func(f *frame) { f.id = 0 }), packet.Vnet{Flags: 1, GSOType: 1, HdrLen: 66, GSOSize: 1000, CsumStart: 34, CsumOffset: 16}, packet.IPv4 | packet.L4Hash | packet.FixedID, tcpACK, 3 * 1066},
		{"UDP", with(udps(3), 2, func(f *frame) { f.payload = data(1) }), packet.Vnet{Flags: 1, GSOType: 5, HdrLen: 42, GSOSize: 100, CsumStart: 34, CsumOffset: 6}, packet.IPv4 | packet.L4Hash, 0, 2*142 + 43},
	} {
		var pkts []*packet.Packet
		for i := range tt.frames {
			pkts = append(pkts, tt.frames[i].packet(c))
		}
		out := m.Merge(pkts, &Stats{})
		p := out[0]
		b := p.Bytes()
		if len(out) != 1 || p.Vnet != tt.want || p.Flags != tt.flags || p.Segs != 3 || p.WireLen != tt.wire || tt.tcp != 0 && b[p.L4+13] != tt.tcp {
			t.Errorf("%s: %d packets, %+v, flags %x, %d segments, %d bytes on the wire", tt.name, len(out), p.Vnet, p.Flags, p.Segs, p.WireLen)
		}
		n := p.Len() - int(p.L3)
		if p.Flags&packet.IPv4 != 0 && int(binary.BigEndian.Uint16(b[p.L3+2:])) != n || p.Flags&packet.IPv6 != 0 && int(binary.BigEndian.Uint16(b[p.L3+4:])) != n-40 {
			t.Errorf("%s: the IP header does not say %d bytes", tt.name, n)
		}
		c.Put(p)
	}
}

// draw makes a batch of a few flows of which anything may change at any time.
func draw(t *rapid.T) (fs []frame) {
	n := rapid.SampledFrom([]int{1, 2, 3, 5, 8, 20, 64, 256}).Draw(t, "packets")
	flows := make([]frame, rapid.IntRange(1, 5).Draw(t, "flows"))
	steady := rapid.IntRange(3, 60).Draw(t, "steady") // a change every so many packets
	raw := rapid.Bool().Draw(t, "raw")
	for i := range flows {
		f := &flows[i]
		*f = frame{raw: raw, udp: rapid.Bool().Draw(t, "udp"), v6: rapid.Bool().Draw(t, "v6"), host: byte(i / 2), port: uint16(i), ttl: 64,
			id: rapid.Uint16().Draw(t, "id"), frag: rapid.SampledFrom([]uint16{0, 0x4000}).Draw(t, "df"),
			seq: rapid.Uint32().Draw(t, "seq"), flags: tcpACK, vnet: rapid.SampledFrom([]uint8{0, 0, 1, 2}).Draw(t, "vnet"),
			tcpOpt: rapid.SampledFrom([][]byte{nil, times}).Draw(t, "options"), vlans: rapid.SampledFrom([][]uint16{nil, {1}, {1, 2}}).Draw(t, "vlans"),
			payload: data(rapid.SampledFrom([]int{1, 7, 18, 100, 1000, 1448, 3001}).Draw(t, "size"))}
	}
	same := rapid.SampledFrom([]uint16{0, 1, 1}).Draw(t, "id step")
	byte1 := rapid.Byte()
	for range n {
		f := &flows[rapid.IntRange(0, len(flows)-1).Draw(t, "flow")]
		g := *f
		if rapid.IntRange(0, steady).Draw(t, "change") == 0 {
			change(t, f, &g, byte1)
		}
		if g.payload = slices.Clone(g.payload); len(g.payload) > 0 { // no two packets are alike
			g.payload[0] = byte(len(fs))
		}
		fs = append(fs, g)
		f.id += same
		f.seq += uint32(len(g.payload))
	}
	return fs
}

// change alters the next packet g of a flow, or the flow f from now on.
func change(t *rapid.T, f, g *frame, b *rapid.Generator[byte]) {
	switch x := b.Draw(t, "how"); x % 24 {
	case 0:
		g.payload = g.payload[:len(g.payload)/2]
	case 1:
		g.payload = append(slices.Clone(g.payload), 1)
	case 2:
		g.flags |= tcpPSH
	case 3:
		g.flags = b.Draw(t, "flags")
	case 4:
		f.flags ^= 0x40
	case 5:
		g.flags |= tcpCWR
	case 6:
		f.ack++
	case 7:
		f.window++
	case 8:
		g.seq += uint32(x)
	case 9:
		g.id += uint16(x)
	case 10:
		g.badSum = true
	case 11:
		g.badIP = true
	case 12:
		g.noSum = true
	case 13:
		g.vnet = x / 24 % 3
	case 14:
		g.frag = 0x2000
	case 15:
		g.frag = uint16(x)
	case 16:
		f.tos = x
	case 17:
		g.ttl--
	case 18:
		g.pad = int(x)
	case 19:
		g.ipOpt = []byte{1, 1, 1, 0}
	case 20:
		g.ext = true
	case 21:
		f.tcpOpt = append(slices.Clone(times[:11]), x)
	case 22:
		f.label++
	case 23:
		g.vlans = []uint16{uint16(x)}
	}
}

// Cutting what was merged gives the same packets, and what is merged is what
// the twin would merge.
func TestMergeAndCut(t *testing.T) {
	c := cache(t)
	var m Merger
	merged := map[bool]uint64{}
	rapid.Check(t, func(t *rapid.T) {
		var pkts []*packet.Packet
		fs := draw(t)
		for i := range fs {
			pkts = append(pkts, fs[i].packet(c))
		}
		st := judge(t, c, &m, pkts)
		merged[fs[0].udp] += st.Merged
	})
	if merged[true] == 0 || merged[false] == 0 {
		t.Errorf("merged packets by whether UDP comes first: %v", merged)
	}
}

// More flows than there are trains, twice as many packets, and one hash for
// two flows.
func TestCrowd(t *testing.T) {
	c := cache(t)
	var m Merger
	var pkts []*packet.Packet
	for k := range 2 {
		for i := range maxTrains + 50 {
			f := udp(k)
			f.port = uint16(i)
			pkts = append(pkts, f.packet(c))
		}
	}
	var st Stats
	out := m.Merge(pkts, &st)
	if st.Trains != maxTrains || st.Merged != maxTrains || len(out) != maxTrains+100 {
		t.Errorf("%d flows of two packets: %+v, %d left", maxTrains+50, st, len(out))
	}
	for _, p := range out {
		c.Put(p)
	}
	pkts = pkts[:0]
	for k := range 4 {
		f := udp(k / 2)
		f.port = uint16(k % 2)
		p := f.packet(c)
		p.Hash = 7
		pkts = append(pkts, p)
	}
	for _, p := range judgeAll(t, c, &m, pkts) {
		if p != 1 {
			t.Errorf("a train of %d though another flow of the same hash came between", p)
		}
	}
}

func judgeAll(t *testing.T, c *packet.Cache, m *Merger, pkts []*packet.Packet) (sizes []uint16) {
	for _, p := range m.Merge(pkts, &Stats{}) {
		sizes = append(sizes, p.Segs)
		c.Put(p)
	}
	return sizes
}

func TestMergeAllocatesNothing(t *testing.T) {
	c := cache(t)
	var m Merger
	var st Stats
	pkts := make([]*packet.Packet, 64)
	if n := testing.AllocsPerRun(100, func() {
		for k := range pkts {
			pkts[k] = ready[k].again(c)
		}
		for _, p := range m.Merge(pkts, &st) {
			c.Put(p)
		}
	}); n != 0 || st.Merged == 0 {
		t.Errorf("Merge allocates %v times, %+v", n, st)
	}
}

// FuzzMerge takes four bytes a packet: the flow that it is the next one of, a
// byte of its headers to change and by what, and how: vnet flags, and whether
// the checksums are made right afterwards.
func FuzzMerge(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, false)
	f.Add([]byte{1, 0, 0, 0, 3, 0, 0, 1, 1, 0, 0, 0, 3, 0, 0, 1}, true)
	f.Add([]byte{0, 47, 8, 4, 0, 0, 0, 0, 2, 22, 255, 6, 2, 0, 0, 0}, false)
	c := cache(f)
	var m Merger
	f.Fuzz(func(t *testing.T, in []byte, raw bool) {
		var pkts []*packet.Packet
		var next [4]int
		for ; len(in) >= 4 && len(pkts) < 300; in = in[4:] {
			flow := in[0] & 3
			g := tcp(next[flow])
			if flow > 1 {
				g = udp(next[flow])
			}
			next[flow]++
			g.raw, g.v6 = raw, flow&1 != 0
			pkts = append(pkts, spoilt(c, &g, int(in[1]), in[2], in[3]))
		}
		judge(t, c, &m, pkts)
	})
}

func spoilt(c *packet.Cache, f *frame, at int, by, how byte) *packet.Packet {
	f.vnet = how & 3
	b, l4 := f.build()
	b[at%(l4+tcpLen)] ^= by
	if how&4 != 0 {
		l3 := l4 - ipv4Len
		proto := byte(protoTCP)
		if f.udp {
			proto = protoUDP
		}
		if f.v6 {
			l3 = l4 - ipv6Len
		} else {
			b[l3+10], b[l3+11] = 0, 0
			binary.BigEndian.PutUint16(b[l3+10:], ^slowSum(b[l3:l4]))
		}
		finishSum(b, l3, l4, proto)
	}
	return load(c, b, f.head, f.raw, f.header(l4))
}

// A made frame is ready to be a packet again and again.
type made struct {
	b []byte
	p packet.Packet
}

func make64(change func(int, *frame), fs []frame) (all []made) {
	pool, err := packet.NewPool(packet.Memory{Heads: 512, Tails: 64})
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	c := pool.NewCache()
	for i := range fs {
		change(i, &fs[i])
		p := fs[i].packet(c)
		all = append(all, made{bytesOf(p), *p})
		c.Put(p)
	}
	return all
}

var ready = make64(func(int, *frame) {}, append(udps(32), tcps(32)...))

func (m *made) again(c *packet.Cache) *packet.Packet {
	p := c.Get()
	if !p.Set(m.b) {
		panic("too long")
	}
	p.Hash, p.WireLen, p.Flags, p.L3, p.L4, p.EtherType = m.p.Hash, m.p.WireLen, m.p.Flags, m.p.L3, m.p.L4, m.p.EtherType
	p.VLANs, p.Proto, p.Vnet = m.p.VLANs, m.p.Proto, m.p.Vnet
	return p
}

// BenchmarkMerge reports ns a packet of Merge alone; the packets are made
// again, and the time for that taken off, batch by batch.
func BenchmarkMerge(b *testing.B) {
	for _, bm := range []struct {
		name  string
		batch int
		frame func(k int) frame
	}{
		{"udp=64/flows=1", 64, func(k int) frame { f := udp(k); f.payload = data(22); return f }},
		{"udp=64/flows=1/csum=partial", 64, func(k int) frame { f := udp(k); f.payload, f.vnet = data(22), packet.NeedsCsum; return f }},
		{"udp=64/flows=64", 64, func(k int) frame { f := udp(0); f.payload, f.port = data(22), uint16(k); return f }},
		{"udp=64/flows=64", 256, func(k int) frame { f := udp(k / 64); f.payload, f.port = data(22), uint16(k%64); return f }},
		{"tcp=1448/flows=1", 64, func(k int) frame { return tcpsOf(64, 1448)[k] }},
		{"tcp=1448/flows=1/csum=partial", 64, func(k int) frame {
			f := tcp(k)
			f.payload, f.seq, f.vnet = data(1448), uint32(k*1448), packet.NeedsCsum
			return f
		}},
		{"tcp=1448/flows=4", 64, func(k int) frame {
			f := tcp(k / 4)
			f.payload, f.seq, f.port = data(1448), uint32(k/4*1448), uint16(k%4)
			return f
		}},
		{"ack", 64, func(k int) frame { f := tcp(0); f.payload, f.ack = nil, uint32(k); return f }},
		{"fragments", 64, func(k int) frame { f := udp(k); f.frag = 0x2000; return f }},
		{"one", 1, func(k int) frame { return udp(0) }},
	} {
		b.Run(fmt.Sprintf("%s/batch=%d", bm.name, bm.batch), func(b *testing.B) {
			fs := make([]frame, bm.batch)
			all := make64(func(k int, f *frame) { *f = bm.frame(k) }, fs)
			c := cache(b)
			var m Merger
			var st Stats
			pkts := make([]*packet.Packet, len(all))
			run := func(merge bool) int64 {
				start := now()
				for k := range pkts {
					pkts[k] = all[k].again(c)
				}
				out := pkts
				if merge {
					out = m.Merge(pkts, &st)
				}
				for _, p := range out {
					c.Put(p)
				}
				return now() - start
			}
			var with, without int64
			for b.Loop() {
				without += run(false)
				with += run(true)
			}
			b.ReportMetric(float64(with-without)/float64(b.N*bm.batch), "ns/pkt")
			b.ReportMetric(float64(st.Merged)/float64(b.N*bm.batch), "merged/pkt")
		})
	}
}

var epoch = time.Now()

func now() int64 { return int64(time.Since(epoch)) }
