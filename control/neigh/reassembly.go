package neigh

import (
	"net/netip"
	"time"
)

// Bounds of putting fragments of pings together: 16 datagrams of 72 KiB.
const (
	asmMax     = 16 // datagrams at a time
	asmTimeout = int64(15 * time.Second)
	asmLargest = 65535
)

type fragID struct {
	iface    uint16
	src, dst netip.Addr
	id       uint32
	proto    uint8
}

// A reassembly holds datagrams of which fragments are missing. The zero
// value holds none.
type reassembly struct {
	open map[fragID]*datagram
	free []*datagram // to be used again: a flood of fragments allocates nothing
}

type datagram struct {
	since int64
	got   int // bytes
	end   int // of what we have
	total int // -1 until the last fragment came
	data  []byte
	have  []bool // by unit of 8 bytes
}

// add takes a fragment. It gives the datagram once it is complete, else nil.
// Fragments that overlap others spoil the datagram (RFC 5722). What it gives
// is valid until the next add.
func (r *reassembly) add(id fragID, off int, b []byte, last bool, now int64) []byte {
	if off == 0 && last {
		return b // alone: RFC 6946
	}
	d := r.datagram(id, now)
	if !d.put(off, b, last) {
		r.end(id)
		return nil
	}
	if d.got != d.total {
		return nil
	}
	r.end(id)
	return d.data[:d.total]
}

// end closes a datagram. Its bytes stay as they are until it is used again.
func (r *reassembly) end(id fragID) {
	r.free = append(r.free, r.open[id])
	delete(r.open, id)
}

// datagram finds the one that a fragment belongs to. A new one takes the
// place of the oldest if there are too many.
func (r *reassembly) datagram(id fragID, now int64) *datagram {
	var oldest fragID
	for k, d := range r.open {
		if now-d.since > asmTimeout {
			r.end(k)
		} else if o := r.open[oldest]; o == nil || d.since < o.since {
			oldest = k
		}
	}
	if d := r.open[id]; d != nil {
		return d
	}
	if len(r.open) >= asmMax {
		r.end(oldest)
	}
	if r.open == nil {
		r.open = map[fragID]*datagram{}
	}
	d := &datagram{}
	if n := len(r.free); n > 0 {
		d, r.free = r.free[n-1], r.free[:n-1]
		clear(d.have)
	} else {
		d.data, d.have = make([]byte, asmLargest), make([]bool, asmLargest/8+1)
	}
	d.since, d.got, d.end, d.total = now, 0, 0, -1
	r.open[id] = d
	return d
}

// put stores a fragment; false if it contradicts the others.
func (d *datagram) put(off int, b []byte, last bool) bool {
	end := off + len(b)
	switch {
	case len(b) == 0, end > asmLargest, !last && len(b)%8 != 0:
		return false
	case d.total >= 0 && (last || end > d.total), last && end < d.end:
		return false
	}
	for u := off / 8; u < (end+7)/8; u++ {
		if d.have[u] {
			return false
		}
		d.have[u] = true
	}
	copy(d.data[off:], b)
	d.got += len(b)
	d.end = max(d.end, end)
	if last {
		d.total = end
	}
	return true
}
