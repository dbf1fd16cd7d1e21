package gro

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"taprouter/offload"
	"taprouter/packet"
)

// A wire is what is known of a packet before Merge.
type wire struct {
	b      []byte        // as the next host sees it: checksums completed
	meta   packet.Packet // a copy, to see that nothing changed
	flow   string        // ports and addresses; of a fragment, and what is neither TCP nor UDP, addresses
	frag   bool
	single bool // it can't be merged, whatever is before or behind it
}

func look(p *packet.Packet) wire {
	w := wire{b: bytesOf(p), meta: *p, frag: p.Flags&packet.Fragment != 0}
	w.flow = flow(p, w.b)
	w.single = !slowMergeable(p, w.b)
	if !w.single && p.Vnet.Flags != 0 { // the device vouches for it, or completes it
		finishSum(w.b, int(p.L3), int(p.L4), p.Proto)
	}
	return w
}

func flow(p *packet.Packet, b []byte) string {
	l3, l4, addrs := int(p.L3), int(p.L4), []byte(nil)
	switch {
	case p.Flags&packet.IPv4 != 0:
		addrs = b[l3+12 : l3+20]
	case p.Flags&packet.IPv6 != 0:
		addrs = b[l3+8 : l3+40]
	default:
		return "none"
	}
	vlan := -1
	if p.VLANs > 0 {
		vlan = int(p.TCI & 0xfff)
	}
	s := fmt.Sprintf("%x, VLAN %d, ", addrs, vlan)
	if p.Flags&packet.Fragment == 0 && l4 != 0 && len(b) >= l4+4 {
		s += fmt.Sprintf("%d %x", p.Proto, b[l4:l4+4])
	}
	return s
}

// slowMergeable says whether a packet can be in a train, read from its bytes.
func slowMergeable(p *packet.Packet, b []byte) bool {
	if p.Drop != 0 || p.Bad != 0 || p.Vnet.GSOType != 0 {
		return false
	}
	l3, l4 := int(p.L3), int(p.L4)
	switch {
	case p.Flags&packet.IPv4 != 0:
		ip := b[l3:]
		if ip[0] != 0x45 || binary.BigEndian.Uint16(ip[6:])&^0x4000 != 0 || int(binary.BigEndian.Uint16(ip[2:])) != len(ip) || slowSum(ip[:20]) != 0xffff {
			return false
		}
	case p.Flags&packet.IPv6 != 0:
		if ip := b[l3:]; ip[6] != protoTCP && ip[6] != protoUDP || int(binary.BigEndian.Uint16(ip[4:])) != len(ip)-40 {
			return false
		}
	default:
		return false
	}
	h := b[l4:]
	hdr, field := 8, 6
	switch {
	case p.Proto == protoTCP && len(h) >= 20:
		hdr, field = int(h[12]>>4)*4, 16
		if hdr < 20 || h[13]&0x37 != tcpACK {
			return false
		}
	case p.Proto == protoUDP && len(h) >= 8:
		if int(binary.BigEndian.Uint16(h[4:])) != len(h) || h[6] == 0 && h[7] == 0 {
			return false
		}
	default:
		return false
	}
	if len(h) <= hdr {
		return false
	}
	if p.Vnet.Flags&packet.NeedsCsum != 0 {
		return p.Vnet.CsumStart == p.L4 && int(p.Vnet.CsumOffset) == field
	}
	return p.Vnet.Flags&packet.DataValid != 0 || slowSum(append(slowPseudo(b[l3:l4], p.Proto, len(h)), h...)) == 0xffff
}

// A slowTrain is the twin of a train: the wire forms of its packets.
type slowTrain struct {
	hdr, l3, l4 int
	proto       byte
	v4          bool
	pkts        [][]byte
	at          []int
	fixed       bool
}

// header is what cutting makes of the first packet's headers for a packet of
// size bytes of payload that starts n packets and off bytes behind it, if like
// is what it should become.
func (t *slowTrain) header(n, off, size int, fixed bool, like []byte) []byte {
	h := bytes.Clone(t.pkts[0][:t.hdr])
	if t.v4 {
		binary.BigEndian.PutUint16(h[t.l3+2:], uint16(t.hdr-t.l3+size))
		if !fixed {
			binary.BigEndian.PutUint16(h[t.l3+4:], binary.BigEndian.Uint16(h[t.l3+4:])+uint16(n))
		}
		h[t.l3+10], h[t.l3+11] = 0, 0
		binary.BigEndian.PutUint16(h[t.l3+10:], ^slowSum(h[t.l3:t.l3+20]))
	} else {
		binary.BigEndian.PutUint16(h[t.l3+4:], uint16(t.hdr-t.l3-40+size))
	}
	if t.proto == protoUDP {
		binary.BigEndian.PutUint16(h[t.l4+4:], uint16(8+size))
		copy(h[t.l4+6:t.l4+8], like[t.l4+6:])
		return h
	}
	binary.BigEndian.PutUint32(h[t.l4+4:], binary.BigEndian.Uint32(h[t.l4+4:])+uint32(off))
	h[t.l4+13] = h[t.l4+13]&^tcpCWR | like[t.l4+13]&tcpPSH
	copy(h[t.l4+16:t.l4+18], like[t.l4+16:])
	return h
}

// takes says whether w fits behind the train: cutting would give it back.
func (t *slowTrain) takes(w *wire) bool {
	size := len(t.pkts[0]) - t.hdr
	mine := len(w.b) - t.hdr
	off := 0
	for _, b := range t.pkts {
		off += len(b) - t.hdr
	}
	last := t.pkts[len(t.pkts)-1]
	switch {
	case mine <= 0 || mine > size || len(last)-t.hdr < size: // the last one was a short one
		return false
	case t.proto == protoTCP && last[t.l4+13]&tcpPSH != 0:
		return false
	case t.proto == protoUDP && len(t.pkts) == 64:
		return false
	case t.hdr-t.l3+off+mine > 65535:
		return false
	case int(w.meta.L4) != t.l4 || w.meta.Proto != t.proto:
		return false
	}
	fixed := t.fixed
	if len(t.pkts) == 1 && t.v4 && w.b[t.l3+6] == 0x40 && bytes.Equal(w.b[t.l3+4:t.l3+6], last[t.l3+4:t.l3+6]) {
		fixed = true
	}
	if !bytes.Equal(sameSum(t.header(len(t.pkts), off, mine, fixed, w.b), t.v4, t.l3), sameSum(bytes.Clone(w.b[:t.hdr]), t.v4, t.l3)) {
		return false
	}
	t.fixed = fixed
	return true
}

// sameSum makes one of the two zeros of an IPv4 header checksum.
func sameSum(h []byte, v4 bool, l3 int) []byte {
	if v4 && h[l3+10] == 0xff && h[l3+11] == 0xff {
		h[l3+10], h[l3+11] = 0, 0
	}
	return h
}

// slowMerge gives the places in the batch of the packets of each train; a
// packet by itself is a train of one.
func slowMerge(ws []wire) (groups [][]int) {
	open := map[uint32]*slowTrain{}
	flush := func(t *slowTrain) {
		if t != nil {
			groups = append(groups, t.at)
		}
	}
	for i := range ws {
		w := &ws[i]
		h := w.meta.Hash
		switch t := open[h]; {
		case w.frag:
			for h, t := range open {
				flush(t)
				delete(open, h)
			}
			groups = append(groups, []int{i})
		case w.meta.Proto != protoTCP && w.meta.Proto != protoUDP:
			groups = append(groups, []int{i})
		case w.single:
			flush(t)
			delete(open, h)
			groups = append(groups, []int{i})
		case t != nil && t.takes(w):
			t.pkts, t.at = append(t.pkts, w.b), append(t.at, i)
		default:
			flush(t)
			t = &slowTrain{l3: int(w.meta.L3), l4: int(w.meta.L4), proto: w.meta.Proto, v4: w.meta.Flags&packet.IPv4 != 0, pkts: [][]byte{w.b}, at: []int{i}}
			t.hdr = t.l4 + 8
			if t.proto == protoTCP {
				t.hdr = t.l4 + int(w.b[t.l4+12]>>4)*4
			}
			open[h] = t
		}
	}
	for _, t := range open {
		flush(t)
	}
	slices.SortFunc(groups, func(a, b []int) int { return a[0] - b[0] })
	return groups
}

// cut is a slow segmenter: what the next host sees of p.
func cut(p *packet.Packet) (all [][]byte) {
	b := bytesOf(p)
	l3, l4, hdr, size := int(p.L3), int(p.L4), int(p.Vnet.HdrLen), int(p.Vnet.GSOSize)
	for i, off := 0, 0; off < len(b)-hdr; i, off = i+1, off+size {
		n := min(size, len(b)-hdr-off)
		s := append(bytes.Clone(b[:hdr]), b[hdr+off:hdr+off+n]...)
		if p.Flags&packet.IPv4 != 0 {
			binary.BigEndian.PutUint16(s[l3+2:], uint16(len(s)-l3))
			if p.Flags&packet.FixedID == 0 {
				binary.BigEndian.PutUint16(s[l3+4:], binary.BigEndian.Uint16(s[l3+4:])+uint16(i))
			}
			s[l3+10], s[l3+11] = 0, 0
			binary.BigEndian.PutUint16(s[l3+10:], ^slowSum(s[l3:l3+20]))
		} else {
			binary.BigEndian.PutUint16(s[l3+4:], uint16(len(s)-l3-40))
		}
		if p.Proto == protoTCP {
			binary.BigEndian.PutUint32(s[l4+4:], binary.BigEndian.Uint32(s[l4+4:])+uint32(off))
			if off+n < len(b)-hdr {
				s[l4+13] &^= tcpPSH
			}
			if i > 0 || p.Vnet.GSOType&packet.GSOECN == 0 {
				s[l4+13] &^= tcpCWR
			}
		} else {
			binary.BigEndian.PutUint16(s[l4+4:], uint16(len(s)-l4))
		}
		finishSum(s, l3, l4, p.Proto)
		all = append(all, s)
	}
	return all
}

// judge merges pkts and holds the result against everything that is promised
// of it. It ends the packets.
func judge(t interface{ Fatalf(string, ...any) }, c *packet.Cache, m *Merger, pkts []*packet.Packet) Stats {
	ws := make([]wire, len(pkts))
	place := map[*packet.Packet]int{}
	segs, length := 0, 0
	for i, p := range pkts {
		ws[i], place[p] = look(p), i
		segs, length = segs+int(p.Segs), length+int(p.WireLen)
	}
	want := slowMerge(ws)
	var st Stats
	out := m.Merge(pkts, &st)
	var groups [][]int
	var seen []wire // what leaves, in order
	for _, p := range out {
		i := place[p]
		g := []int{i}
		for f := p.FirstFrag(); f != nil; f = p.NextFrag(f) {
			g = append(g, place[f])
		}
		groups = append(groups, g)
		segs, length = segs-int(p.Segs), length-int(p.WireLen)
		if !p.Merged() {
			if *p != ws[i].meta {
				t.Fatalf("packet %d was not merged but changed", i)
			}
			w := look(p)
			if !bytes.Equal(w.b, ws[i].b) {
				t.Fatalf("packet %d was not merged but its bytes changed", i)
			}
			seen = append(seen, w)
			continue
		}
		super(t, c, p, ws[i].meta)
		parts := cut(p)
		if len(parts) != len(g) {
			t.Fatalf("%d packets were merged, cutting gives %d", len(g), len(parts))
		}
		for k, b := range parts {
			w := ws[g[k]]
			if orig := equalZeros(w, bytes.Clone(b)); !bytes.Equal(orig, b) {
				t.Fatalf("packet %d of the batch, %d of its train of %d:\n%x\nbecomes\n%x", g[k], k, len(g), w.b, b)
			}
			seen = append(seen, w)
		}
	}
	if fmt.Sprint(groups) != fmt.Sprint(want) {
		t.Fatalf("merged %v, want %v", groups, want)
	}
	if segs != 0 || length != 0 {
		t.Fatalf("%d packets and %d bytes on the wire are missing", segs, length)
	}
	if st.Trains != uint64(len(out))-uint64(count(out, func(p *packet.Packet) bool { return !p.Merged() })) || st.Merged != uint64(len(ws)-len(out)) {
		t.Fatalf("%+v for %d of %d packets", st, len(out), len(ws))
	}
	inOrder(t, ws, seen)
	for _, p := range out {
		c.Put(p)
	}
	return st
}

func count(pkts []*packet.Packet, f func(*packet.Packet) bool) (n int) {
	for _, p := range pkts {
		if f(p) {
			n++
		}
	}
	return n
}

// equalZeros gives w's bytes with the spelling that b has of checksums that
// are zero, where w has the other one.
func equalZeros(w wire, b []byte) []byte {
	out := bytes.Clone(w.b)
	fields := []int{int(w.meta.L4) + 16}
	if w.meta.Proto == protoUDP {
		fields[0] = int(w.meta.L4) + 6
	}
	if w.meta.Flags&packet.IPv4 != 0 {
		fields = append(fields, int(w.meta.L3)+10)
	}
	for _, f := range fields {
		if x := binary.BigEndian.Uint16(out[f:]); (x == 0 || x == 0xffff) && (binary.BigEndian.Uint16(b[f:])+1)&0xfffe == 0 {
			copy(out[f:f+2], b[f:])
		}
	}
	return out
}

// super holds what is known of a superpacket against what classify says of the
// same bytes, and cuts it with the router's own segmenter.
func super(t interface{ Fatalf(string, ...any) }, c *packet.Cache, p *packet.Packet, first packet.Packet) {
	flat := c.Clone(p)
	if flat == nil {
		t.Fatalf("no memory for a clone")
	}
	defer c.Put(flat)
	flat.Flags &= packet.Raw
	flat.VLANs, flat.Proto, flat.L4 = 0, 0, 0
	v := flat.Vnet
	cls.Batch([]*packet.Packet{flat})
	if flat.Drop != 0 || flat.Bad != 0 || flat.Vnet != v || flat.Segs != p.Segs || flat.WireLen != p.WireLen ||
		flat.Flags != p.Flags&^packet.FixedID || flat.L3 != p.L3 || flat.L4 != p.L4 || flat.Hash != first.Hash || flat.Priority != first.Priority {
		t.Fatalf("classify says of a superpacket drop %v bad %v, vnet %+v, %d segments, %d bytes on the wire, flags %x; it has %+v, %d, %d, %x",
			flat.Drop, flat.Bad, flat.Vnet, flat.Segs, flat.WireLen, flat.Flags, v, p.Segs, p.WireLen, p.Flags)
	}
	if p.Hash != first.Hash || p.Priority != first.Priority || p.In != first.In || p.TCI != first.TCI {
		t.Fatalf("a superpacket is not what its first packet was")
	}
	b := bytesOf(p)
	if l3 := int(p.L3); p.Flags&packet.IPv4 != 0 && slowSum(b[l3:l3+20]) != 0xffff {
		t.Fatalf("the IPv4 header checksum of a superpacket is wrong")
	}
	field := int(p.Vnet.CsumStart) + int(p.Vnet.CsumOffset)
	if pseudo := slowSum(slowPseudo(b[p.L3:p.L4], p.Proto, len(b)-int(p.L4))); binary.BigEndian.Uint16(b[field:]) != pseudo {
		t.Fatalf("a superpacket has %x for the sum of its pseudo header, want %x", b[field:field+2], pseudo)
	}
	var seg offload.Segmenter
	if why := seg.Init(p); why != 0 {
		t.Fatalf("offload does not cut it: %v", why)
	}
	var hdr [offload.MaxHeaders]byte
	for i, want := range cut(p) {
		n, pieces := seg.Next(hdr[:])
		got := bytes.Join(append([][]byte{hdr[:n]}, pieces...), nil)
		if w := (wire{b: want, meta: *p}); !bytes.Equal(equalZeros(w, got), got) {
			t.Fatalf("segment %d is cut to\n%x by offload, to\n%x here", i, got, want)
		}
	}
}

// inOrder: with the packets of each flow, and the fragments that may be of it,
// nothing has changed its place.
func inOrder(t interface{ Fatalf(string, ...any) }, in, out []wire) {
	flows := map[string]bool{}
	for _, w := range in {
		flows[w.flow] = true
	}
	for f := range flows {
		of := func(ws []wire) (all []string) {
			for _, w := range ws {
				if w.flow == f || w.frag && strings.HasPrefix(f, w.flow) {
					all = append(all, string(w.b))
				}
			}
			return all
		}
		if !slices.Equal(of(in), of(out)) {
			t.Fatalf("flow %s was reordered, or packets of it are lost", f)
		}
	}
}
