package neigh

import (
	"net/netip"
	"time"
)

// Bounds of putting fragments of pings together.
const (
	asmMax     = 16 // datagrams at a time
	asmTimeout = int64(15 * time.Second)
	asmLargest = 65535
)

type fragID struct {
	src, dst netip.Addr
	id       uint32
	proto    uint8
}

// A reassembly holds datagrams of which fragments are missing.
type reassembly struct{ open map[fragID]*datagram }

type datagram struct {
	since int64
	total int // -1 until the last fragment came
	data  []byte
	have  []bool // by unit of 8 bytes
}

// add takes a fragment. It gives the datagram once it is complete, else nil.
// Fragments that overlap others spoil the datagram (RFC 5722).
func (r *reassembly) add(id fragID, off int, b []byte, last bool, now int64) []byte {
	if r.open == nil {
		r.open = map[fragID]*datagram{}
	}
	for k, d := range r.open {
		if now-d.since > asmTimeout {
			delete(r.open, k)
		}
	}
	d := r.open[id]
	if d == nil {
		if len(r.open) >= asmMax {
			return nil
		}
		d = &datagram{since: now, total: -1, data: make([]byte, asmLargest+8), have: make([]bool, asmLargest/8+1)}
		r.open[id] = d
	}
	if len(b) == 0 || off+len(b) > asmLargest || !last && len(b)%8 != 0 || d.total >= 0 && (last || off+len(b) > d.total) {
		delete(r.open, id)
		return nil
	}
	for u := off / 8; u < (off+len(b)+7)/8; u++ {
		if d.have[u] {
			delete(r.open, id)
			return nil
		}
		d.have[u] = true
	}
	copy(d.data[off:], b)
	if last {
		d.total = off + len(b)
	}
	if d.total < 0 {
		return nil
	}
	for u := range (d.total + 7) / 8 {
		if !d.have[u] {
			return nil
		}
	}
	delete(r.open, id)
	return d.data[:d.total]
}
