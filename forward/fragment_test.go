package forward

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/gopacket/layers"

	"taprouter/packet"
)

// reassemble is the slow receiver: it puts the fragments' payload where they
// say and gives the datagram's payload, or why it cannot.
func reassemble(frames [][]byte, l2 int) ([]byte, error) {
	var data, have []byte
	end := -1
	for _, b := range frames {
		h := b[l2:]
		ihl, total := int(h[0]&15)*4, int(binary.BigEndian.Uint16(h[2:]))
		if total != len(h) || sum(h[:ihl]) != 0xffff {
			return nil, fmt.Errorf("length %d of %d, header sum %04x", total, len(h), sum(h[:ihl]))
		}
		word := binary.BigEndian.Uint16(h[6:])
		at, part := int(word&0x1fff)*8, h[ihl:]
		if need := at + len(part); need > len(data) {
			data, have = append(data, make([]byte, need-len(data))...), append(have, make([]byte, need-len(have))...)
		}
		for i := range part {
			if have[at+i] != 0 {
				return nil, fmt.Errorf("byte %d twice", at+i)
			}
			data[at+i], have[at+i] = part[i], 1
		}
		if word&0x2000 == 0 {
			if end >= 0 {
				return nil, errors.New("two last fragments")
			}
			end = at + len(part)
		} else if len(part)%8 != 0 {
			return nil, fmt.Errorf("%d bytes in a fragment that is not the last", len(part))
		}
	}
	if end != len(data) || slices.Contains(have, 0) {
		return nil, fmt.Errorf("incomplete: end %d of %d", end, len(data))
	}
	return data, nil
}

func TestFragment(t *testing.T) {
	for _, n := range []int{1373, 1400, 1444, 1445, 1472, 4000, 8000, 20001, 60000} {
		for _, dst := range []string{"10.0.1.2", "10.0.3.2"} {
			for _, partial := range []bool{false, true} {
				w := newWorld(t)
				frame := udp4(0, "10.0.0.9", dst, n, nil)
				want := bytes.Clone(frame[34:])
				var v packet.Vnet
				if partial { // the sender left the checksum to the device
					pseudo := append(bytes.Clone(frame[26:34]), 0, 17, frame[38], frame[39])
					binary.BigEndian.PutUint16(frame[40:], sum(pseudo))
					v = packet.Vnet{Flags: packet.NeedsCsum, CsumStart: 34, CsumOffset: 6}
				}
				l2, out := 14, uint16(1)
				if dst == "10.0.3.2" {
					l2, out = 0, 5
					w.s.Ifaces[5].MTU = mtu1
				}
				var frames [][]byte
				for _, g := range w.sendGSO(0, frame, v) {
					if g.where != "tx" || g.out != out || len(g.frame)-l2 > mtu1 || g.p.Vnet != (packet.Vnet{}) || g.p.Segs != 1 {
						t.Errorf("%d bytes to %s: %v of %d bytes, vnet %+v", n, dst, g, len(g.frame), g.p.Vnet)
					}
					frames = append(frames, g.frame)
				}
				got, err := reassemble(frames, l2)
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%d bytes to %s in %d fragments, partial checksum %v: %v, or the payload differs", n, dst, len(frames), partial, err)
				}
				if len(frames) < 2 || frames[0][l2+8] != 63 {
					t.Errorf("%d fragments, TTL %d", len(frames), frames[0][l2+8])
				}
			}
		}
	}
}

// A fragment is cut again: offsets continue, and MF of all but the very last
// piece of the datagram stays.
func TestRefragment(t *testing.T) {
	w := newWorld(t)
	whole := udp4(0, "10.0.0.9", "10.0.1.2", 2900, nil)
	part := func(from, to int, word uint16) []byte {
		b := append(bytes.Clone(whole[:34]), whole[34+from:34+to]...)
		binary.BigEndian.PutUint16(b[16:], uint16(20+to-from))
		binary.BigEndian.PutUint16(b[20:], word|uint16(from/8))
		return sum4(b)
	}
	var frames [][]byte
	for _, g := range w.send(0, part(0, 1480, 0x2000), part(1480, 2908, 0)) {
		if late := g.frame[21] != 0 || g.frame[20]&0x1f != 0; g.p.Flags&packet.Fragment == 0 || (g.p.Flags&packet.LaterFrag != 0) != late || late != (g.p.L4 == 0) {
			t.Errorf("flags %x, L4 %d of fragment %x", g.p.Flags, g.p.L4, g.frame[20:22])
		}
		frames = append(frames, g.frame)
	}
	got, err := reassemble(frames, 14)
	if err != nil || !bytes.Equal(got, whole[34:]) || len(frames) != 4 {
		t.Errorf("%d fragments: %v, or the payload differs", len(frames), err)
	}
	if w.f.Created != 2 {
		t.Errorf("Created = %d, want 2", w.f.Created)
	}
	w.is("ends beyond 64 KiB", w.send(0, part(0, 1480, 0x2000|8100)), "drop malformed")
}

// All fragments carry the hash and priority that the datagram had, so that
// they take one queue.
func TestFragmentsKeepHash(t *testing.T) {
	w := newWorld(t)
	gs := w.send(0, udp4(0, "10.0.0.9", "10.0.1.2", 1472, func(h *layers.IPv4) { h.TOS = 0x10 }))
	if len(gs) != 2 || gs[0].p.Hash != gs[1].p.Hash || gs[0].p.Hash == 0 || gs[0].p.Priority != gs[1].p.Priority || gs[1].p.In != 0 {
		t.Errorf("fragments %v differ in what decides their queue", gs)
	}
}

func TestLaterHeader(t *testing.T) {
	base := make([]byte, 20)
	for _, tt := range []struct{ options, want []byte }{
		{nil, nil},
		{[]byte{1, 1, 1, 0}, nil},
		{[]byte{7, 4, 0, 0}, nil},                                // record route: first fragment only
		{[]byte{148, 4, 0, 0}, []byte{148, 4, 0, 0}},             // router alert: copied
		{[]byte{1, 131, 3, 4, 7, 3, 4, 0}, []byte{131, 3, 4, 0}}, // source route, padded
		{[]byte{148, 0, 148, 4}, nil},                            // length 0 ends it
		{[]byte{148, 9, 0, 0}, nil},                              // length beyond the header
		{[]byte{148}, nil},                                       // no length
		{[]byte{0, 148, 4, 0, 0}, nil},                           // behind the end
		{bytes.Repeat([]byte{148, 4, 0, 0}, 10), bytes.Repeat([]byte{148, 4, 0, 0}, 10)},
	} {
		var dst [60]byte
		n := laterHeader(dst[:], append(bytes.Clone(base), tt.options...))
		if !bytes.Equal(dst[20:n], tt.want) {
			t.Errorf("options %v: later fragments have %v, want %v", tt.options, dst[20:n], tt.want)
		}
	}
}

func TestFragmentOptions(t *testing.T) {
	w := newWorld(t)
	b := udp4(0, "10.0.0.9", "10.0.1.2", 1440, nil)
	b = slices.Insert(b, 34, 148, 4, 0, 0, 7, 3, 4, 0) // router alert, record route
	b[14] = 0x47
	binary.BigEndian.PutUint16(b[16:], uint16(len(b)-14))
	gs := w.send(0, sum4(b))
	w.is("with options", gs, "tx 1", "tx 1")
	if gs[0].frame[14] != 0x47 || gs[1].frame[14] != 0x46 {
		t.Errorf("header lengths %x, %x; want 47, 46", gs[0].frame[14], gs[1].frame[14])
	}
	if got, err := reassemble([][]byte{gs[0].frame, gs[1].frame}, 14); err != nil || !bytes.Equal(got, b[42:]) {
		t.Errorf("%v, or the payload differs", err)
	}
}

// Fragments for a neighbour that does not answer: one error, to the sender.
func TestFragmentsUnreachable(t *testing.T) {
	w := newWorld(t)
	gs := w.send(0, udp4(0, "10.0.0.9", "10.0.1.3", 1472, nil))
	w.is("two fragments", gs, "tx 0", "drop neigh_failed", "drop neigh_failed")
	if m := decode(t, gs[0].frame, false); m.ether.DstMAC.String() != hw(hostMAC).String() || m.typ != 3 || m.code != 1 {
		t.Errorf("%+v", m)
	}
}

func TestFragmentWithoutBuffers(t *testing.T) {
	w := newWorld(t)
	p := w.load(0, udp4(0, "10.0.0.9", "10.0.1.2", 8000, nil), packet.Vnet{})
	var held packet.List
	for q := w.cache.Get(); q != nil; q = w.cache.Get() {
		held.Push(q)
	}
	for range 2 { // six are needed
		w.cache.Put(held.Pop())
	}
	w.is("no room", w.forward([]*packet.Packet{p}), "drop no_buffer")
	w.cache.PutList(&held)
	if w.f.Created != 0 {
		t.Errorf("Created = %d", w.f.Created)
	}
}

// Random datagrams and MTUs, large ones included that need tails.
func TestFragmentRandom(t *testing.T) {
	rnd := rand.New(rand.NewPCG(11, 12))
	w := newWorld(t)
	for range 200 {
		mtu := 68 + rnd.IntN(9000)
		n := mtu - 27 + rnd.IntN(5*mtu)
		if n > 65000 {
			continue
		}
		w.s.Ifaces[1].MTU, w.s.Ports[1].MTU = mtu, mtu
		frame := udp4(0, "10.0.0.9", "10.0.1.2", n, nil)
		var frames [][]byte
		for _, g := range w.send(0, frame) {
			frames = append(frames, g.frame)
			if g.where != "tx" || len(g.frame) > 14+mtu {
				t.Fatalf("%d bytes, MTU %d: %v of %d bytes", n, mtu, g, len(g.frame))
			}
		}
		if got, err := reassemble(frames, 14); err != nil || !bytes.Equal(got, frame[34:34+8+n]) {
			t.Fatalf("%d bytes, MTU %d: %v, or the payload differs", n, mtu, err)
		}
	}
}

// superpacket is one of n bytes of payload with DF clear, its checksum that of
// the pseudo header.
func superpacket(proto layers.IPProtocol, n, size int) ([]byte, packet.Vnet) {
	h := v4("10.0.0.9", "10.0.1.2", proto)
	h.Id = 0xfffe // the ids of the segments wrap
	v := packet.Vnet{Flags: packet.NeedsCsum, GSOType: packet.GSOUDPL4, GSOSize: uint16(size), HdrLen: 42, CsumStart: 34, CsumOffset: 6}
	if proto == layers.IPProtocolUDP {
		return build(ether(mac(0), hostA, layers.EthernetTypeIPv4), h, udp(h), payload(n)), v
	}
	v.GSOType, v.HdrLen, v.CsumOffset = packet.GSOTCPv4, 54, 16
	tcp := &layers.TCP{SrcPort: 1, DstPort: 2, Seq: 7, ACK: true, PSH: true}
	_ = tcp.SetNetworkLayerForChecksum(h)
	return build(ether(mac(0), hostA, layers.EthernetTypeIPv4), h, tcp, payload(n)), v
}

// loadMerged is load of a superpacket as GRO would have put it together.
func (w *world) loadMerged(frame []byte, v packet.Vnet) *packet.Packet {
	end := func(from int) int { return min(from+int(v.GSOSize), len(frame)) }
	at := end(int(v.HdrLen))
	p := w.load(0, frame[:at], v)
	for ; at < len(frame); at = end(at) {
		p.Append(w.load(0, frame[at:end(at)], packet.Vnet{}), 0)
	}
	return p
}

// A superpacket whose segments do not fit and may be cut leaves as fragments
// of its segments, each a datagram of its own with the right checksum.
func TestFragmentSegments(t *testing.T) {
	rnd := rand.New(rand.NewPCG(13, 14))
	for range 100 {
		w := newWorld(t)
		mtu := 68 + rnd.IntN(mtu1-67)
		w.s.Ifaces[1].MTU, w.s.Ports[1].MTU = mtu, mtu
		proto, l4 := layers.IPProtocolUDP, 8
		if rnd.IntN(2) == 0 {
			proto, l4 = layers.IPProtocolTCP, 20
		}
		size := mtu - 20 - l4 + 1 + rnd.IntN(3000)
		n := size + 1 + rnd.IntN(min(6*size, 60000-size))
		frame, v := superpacket(proto, n, size)
		p := w.load(0, frame, v)
		if size < 1900 && rnd.IntN(2) == 0 {
			w.cache.Put(p)
			p = w.loadMerged(frame, v)
		}
		var whole []byte
		var datagram [][]byte
		gs := w.forward([]*packet.Packet{p})
		for i, g := range gs {
			if g.where != "tx" || len(g.frame) > 14+mtu || g.p.Vnet != (packet.Vnet{}) || g.p.Segs != 1 || g.p.Hash != gs[0].p.Hash || g.frame[22] != 63 {
				t.Fatalf("MTU %d, %d bytes in segments of %d: %v of %d bytes, %+v", mtu, n, size, g, len(g.frame), g.p)
			}
			datagram = append(datagram, g.frame)
			if i+1 < len(gs) && bytes.Equal(gs[i+1].frame[18:20], g.frame[18:20]) {
				continue
			}
			seg := len(whole) / size
			data, err := reassemble(datagram, 14)
			if err != nil || binary.BigEndian.Uint16(g.frame[18:]) != 0xfffe+uint16(seg) {
				t.Fatalf("segment %d, id %x: %v", seg, g.frame[18:20], err)
			}
			if sum(append(append(bytes.Clone(g.frame[26:34]), 0, byte(proto), byte(len(data)>>8), byte(len(data))), data...)) != 0xffff {
				t.Fatalf("segment %d: wrong checksum", seg)
			}
			whole, datagram = append(whole, data[l4:]...), nil
		}
		if !bytes.Equal(whole, payload(n)) {
			t.Fatalf("MTU %d, %d bytes in segments of %d: payload of %d bytes differs", mtu, n, size, len(whole))
		}
	}
}

// All or nothing: without buffers for every piece the superpacket is dropped.
func TestFragmentSegmentsWithoutBuffers(t *testing.T) {
	w := newWorld(t)
	frame, v := superpacket(layers.IPProtocolUDP, 20000, 1472)
	p := w.load(0, frame, v)
	var held packet.List
	for q := w.cache.Get(); q != nil; q = w.cache.Get() {
		held.Push(q)
	}
	for range 20 { // 27 are needed
		w.cache.Put(held.Pop())
	}
	gs := w.forward([]*packet.Packet{p})
	w.is("no room", gs, "drop no_buffer")
	if gs[0].p.Segs != 14 || w.f.Created != 0 {
		t.Errorf("%d segments dropped, Created = %d", gs[0].p.Segs, w.f.Created)
	}
	w.cache.PutList(&held)
}

func TestFragmentSegmentsAllocatesNothing(t *testing.T) {
	w := newWorld(t)
	frame, v := superpacket(layers.IPProtocolUDP, 20000, 1472)
	if n := testing.AllocsPerRun(20, func() {
		p := w.load(0, frame, v)
		w.cls.Batch([]*packet.Packet{p})
		var cut packet.List
		if why := w.f.cut(p, mtu1, &cut); why != 0 || cut.Len() != 27 {
			t.Fatalf("%v, %d pieces", why, cut.Len())
		}
		w.cache.PutList(&cut)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	w.in, w.ended = 0, w.f.Created // not counted here
}
