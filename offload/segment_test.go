package offload

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"taprouter/offload/offloadtest"
	"taprouter/packet"
)

// flat gives p's frame in one piece.
func flat(p *packet.Packet) []byte {
	f := make([]byte, p.Len())
	p.CopyOut(f, 0)
	return f
}

// twin gives p as its plain twin knows it.
func twin(p *packet.Packet) offloadtest.Frame {
	return offloadtest.Frame{Vnet: p.Vnet, B: flat(p), Raw: p.Flags&packet.Raw != 0, FixedID: p.Flags&packet.FixedID != 0}
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
		for i, want := range twin(p).Wire() {
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
