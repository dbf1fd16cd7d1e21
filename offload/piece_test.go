package offload

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"taprouter/offload/offloadtest"
	"taprouter/packet"
)

// received is frame f with vnet header v as its reader finds it: where the
// headers are is what classify found of p.
func received(c *packet.Cache, p *packet.Packet, f []byte, v packet.Vnet) *packet.Packet {
	q := c.Get()
	lay(c, q, f, int(p.Vnet.HdrLen), nil)
	q.L3, q.L4, q.Proto, q.Flags, q.Vnet, q.Segs = p.L3, p.L4, p.Proto, p.Flags, v, 1
	if v.GSOType != packet.GSONone {
		q.Segs = uint16((len(f) - int(v.HdrLen) + int(v.GSOSize) - 1) / int(v.GSOSize))
	}
	return q
}

// Pieces of any size are superpackets with a right partial checksum, and cut
// again they are the segments of the superpacket, byte by byte. A piece of one
// segment is that segment when its checksum is completed.
func TestPiecesAreTheSegments(t *testing.T) {
	c := cache(t)
	var s Segmenter
	rapid.Check(t, func(t *rapid.T) {
		p := anySuper(t, c)
		defer c.Put(p)
		want := twin(p).Wire()
		p.SegNext = uint16(rapid.IntRange(0, len(want)-1).Draw(t, "from"))
		k := rapid.IntRange(1, len(want)+1).Draw(t, "segments a piece")
		if why := s.Init(p); why != 0 {
			t.Fatalf("Init: %v", why)
		}
		for i := int(p.SegNext); i < len(want); i += k {
			segs := want[i:min(i+k, len(want))]
			var hdr [MaxHeaders]byte
			v, n, payload := s.Piece(k, hdr[:])
			f := append(hdr[:n:n], bytes.Join(payload, nil)...)
			if wire := len(slices.Concat(segs...)); s.Wire(i, len(segs)) != wire {
				t.Fatalf("Wire(%d, %d) = %d, want %d", i, len(segs), s.Wire(i, len(segs)), wire)
			}
			checkPiece(t, c, p, i, segs, v, f)
		}
	})
}

// checkPiece checks the frame f of segments segs of p, of which the first is
// segment i.
func checkPiece(t *rapid.T, c *packet.Cache, p *packet.Packet, i int, segs [][]byte, v packet.Vnet, f []byte) {
	q := received(c, p, f, v)
	defer c.Put(q)
	if int(q.Segs) != len(segs) {
		t.Fatalf("a piece of %d segments is one of %d", len(segs), q.Segs)
	}
	if ecn := v.GSOType&packet.GSOECN != 0; ecn != (p.Vnet.GSOType&packet.GSOECN != 0 && i == 0 && len(segs) > 1) {
		t.Fatalf("piece at %d: GSO type %#x", i, v.GSOType)
	}
	if len(segs) > 1 {
		var again Segmenter
		var hdr [MaxHeaders]byte
		if why := again.Init(q); why != 0 {
			t.Fatalf("the piece at %d is no superpacket: %v", i, why)
		}
		for j, want := range segs {
			n, payload := again.Next(hdr[:])
			if got := append(hdr[:n:n], bytes.Join(payload, nil)...); !bytes.Equal(got, want) {
				t.Fatalf("segment %d of the piece at %d:\n%x, want\n%x", j, i, got, want)
			}
		}
	}
	if why := Checksum(q); why != 0 {
		t.Fatalf("the checksum of the piece at %d: %v", i, why)
	}
	got := flat(q)
	if len(segs) == 1 && !bytes.Equal(got, segs[0]) {
		t.Fatalf("the piece at %d:\n%x, want\n%x", i, got, segs[0])
	}
	l := twin(q).Layout()
	if sum := offloadtest.Sum(append(offloadtest.Pseudo(got, l), got[l.L4:]...)); sum != 0xffff {
		t.Fatalf("the sum over the piece at %d is %x", i, sum)
	}
}
