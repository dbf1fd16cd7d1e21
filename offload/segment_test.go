package offload

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"taprouter/packet"
)

// flat gives p's frame in one piece.
func flat(p *packet.Packet) []byte {
	f := make([]byte, p.Len())
	p.CopyOut(f, 0)
	return f
}

// plainSum is RFC 1071 word by word.
func plainSum(parts ...[]byte) uint16 {
	b := bytes.Join(parts, nil)
	if len(b)&1 != 0 {
		b = append(b, 0)
	}
	var sum uint64
	for ; len(b) > 0; b = b[2:] {
		sum += uint64(binary.BigEndian.Uint16(b))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// l4Sum is the checksum of a segment whose field is 0: the pseudo header's of
// frame f, and l4.
func l4Sum(f []byte, p *packet.Packet, l4 []byte) uint16 {
	ip := f[p.L3:p.L4]
	addrs := ip[min(12, len(ip)):min(20, len(ip))]
	if p.Flags&packet.IPv6 != 0 {
		addrs = ip[8:40]
		if ip[6] == 43 { // the last address of a routing header is the destination
			addrs = append(bytes.Clone(ip[8:24]), ip[len(ip)-16:]...)
		}
	}
	length := binary.BigEndian.AppendUint32(nil, uint32(len(l4)))
	if sum := ^plainSum(addrs, []byte{0, p.Proto}, length, l4); sum != 0 {
		return sum
	}
	return 0xffff
}

// slow is the plain twin of Segmenter: the frames that p stands for.
func slow(p *packet.Packet) (all [][]byte) {
	whole := flat(p)
	hdr, payload := whole[:p.Vnet.HdrLen], whole[p.Vnet.HdrLen:]
	for off, i := 0, 0; off < len(payload); off, i = off+int(p.Vnet.GSOSize), i+1 {
		end := min(off+int(p.Vnet.GSOSize), len(payload))
		f := append(bytes.Clone(hdr), payload[off:end]...)
		ip, l4 := f[p.L3:], f[p.L4:]
		if p.Flags&packet.IPv4 != 0 {
			id := binary.BigEndian.Uint16(ip[4:])
			if p.Flags&packet.FixedID == 0 {
				id += uint16(i)
			}
			binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
			binary.BigEndian.PutUint16(ip[4:], id)
			binary.BigEndian.PutUint16(ip[10:], 0)
			binary.BigEndian.PutUint16(ip[10:], ^plainSum(ip[:p.L4-p.L3]))
		} else {
			binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40))
		}
		field := l4[6:8]
		if p.Proto == protoTCP {
			field = l4[16:18]
			binary.BigEndian.PutUint32(l4[4:], binary.BigEndian.Uint32(l4[4:])+uint32(off))
			if end < len(payload) {
				l4[13] &^= 0x09 // FIN and PSH belong to the last,
			}
			if i > 0 {
				l4[13] &^= 0x80 // CWR to the first
			}
		} else {
			binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
		}
		copy(field, []byte{0, 0})
		binary.BigEndian.PutUint16(field, l4Sum(f, p, l4))
		all = append(all, f)
	}
	return all
}

// Segments of any superpacket, in whatever pieces it lies, are those of the
// plain twin; from any segment on.
func TestSegmentsAreRight(t *testing.T) {
	c := cache(t)
	var s Segmenter
	rapid.Check(t, func(t *rapid.T) {
		p := anySuper(t, c)
		defer c.Put(p)
		p.SegNext = uint16(rapid.IntRange(0, int(p.Segs)-1).Draw(t, "from"))
		if why := s.Init(p); why != 0 {
			t.Fatalf("Init: %v", why)
		}
		for i, want := range slow(p) {
			if i < int(p.SegNext) {
				continue
			}
			var hdr [MaxHeaders]byte
			n, data := s.Next(hdr[:])
			if got := append(hdr[:n:n], bytes.Join(data, nil)...); !bytes.Equal(got, want) {
				t.Fatalf("segment %d of %d:\n%x, want\n%x", i, p.Segs, got, want)
			}
			if s.Len(i) != len(want) {
				t.Fatalf("segment %d: Len %d, want %d", i, s.Len(i), len(want))
			}
		}
	})
}

// anySuper draws a superpacket.
func anySuper(t *rapid.T, c *packet.Cache) *packet.Packet {
	sh := shape{
		proto: rapid.SampledFrom([]uint8{protoTCP, protoUDP}).Draw(t, "proto"), v6: rapid.Bool().Draw(t, "v6"),
		options: rapid.IntRange(0, 3).Draw(t, "options"), ecn: rapid.Bool().Draw(t, "ecn"), routed: rapid.Bool().Draw(t, "routed"),
		fixedID: rapid.Bool().Draw(t, "fixed id"), raw: rapid.Bool().Draw(t, "raw"),
	}
	if !sh.raw {
		sh.vlans = rapid.IntRange(0, 2).Draw(t, "vlans")
	}
	size := rapid.IntRange(1, 9000).Draw(t, "size")
	payload := rapid.IntRange(size+1, max(min(60000, size*128), size+1)).Draw(t, "payload")
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	p := super(c, rng, sh, payload, size, pieces(t, payload, size)...)
	if !sh.routed && rapid.Bool().Draw(t, "spoilt") { // nobody relies on a guest's sum
		p.Bytes()[p.Vnet.CsumStart+p.Vnet.CsumOffset] ^= 0x55
	}
	return p
}

// pieces draws how a frame lies in memory: in head and tail, segment by
// segment behind the headers, or in any pieces.
func pieces(t *rapid.T, payload, size int) (parts []int) {
	switch rapid.IntRange(0, 2).Draw(t, "memory") {
	case 0:
		return []int{rapid.IntRange(0, packet.HeadLen).Draw(t, "head")}
	case 1:
		for n := 0; n <= payload && len(parts) < 120; n += size {
			head := min(size, 1500)
			parts = append(parts, head, size-head)
		}
		parts[0], parts[1] = 0, 0
		return parts
	}
	return rapid.SliceOfN(rapid.IntRange(0, 2000), 0, 100).Draw(t, "parts")
}

// Payload is shared: pieces lie in the superpacket's memory.
func TestSegmentsShareMemory(t *testing.T) {
	c := cache(t)
	p := super(c, rand.New(rand.NewPCG(1, 2)), shape{proto: protoTCP}, 3000, 1400, merged(3000, 1400)...)
	var s Segmenter
	var hdr [MaxHeaders]byte
	s.Init(p)
	_, first := s.Next(hdr[:])
	if len(first) != 1 || &first[0][0] != &p.Bytes()[54] {
		t.Errorf("the first segment is not the head's, but %d pieces", len(first))
	}
	_, second := s.Next(hdr[:])
	if len(second) != 1 || &second[0][0] != &p.FirstFrag().Bytes()[0] {
		t.Errorf("the second segment is not the first that was appended, but %d pieces", len(second))
	}
}
