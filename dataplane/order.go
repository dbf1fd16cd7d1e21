package dataplane

import (
	"sync/atomic"

	"taprouter/packet"
)

// orderBuckets is the number of flows that an orderWatch tells apart, more or
// less.
const (
	orderBits    = 12
	orderBuckets = 1 << orderBits
)

// An orderWatch counts the packets of a port that were handed to the device
// after a packet of the same flow and priority that got its tx queue later.
// It remembers, in one word a bucket, a tag of the flow that was seen last
// and the stamp of its latest packet:
//
//	63   48 47                                0
//	[ tag  | low bits of the stamp, ns        ]
//
// Stamps are a worker's own count, so a flow that two workers read at the
// same time has no order that could be kept, or watched.
type orderWatch struct {
	_         [64]byte
	slots     [orderBuckets]atomic.Uint64
	reordered atomic.Uint64 // wire packets
	_         [64]byte
}

const stampBits = 48

// see takes note of packets that were handed over, before their flow table
// bucket is released: then nobody is ahead of them who should not be.
func (o *orderWatch) see(pkts []*packet.Packet) {
	for i := 0; i < len(pkts); {
		p := pkts[i]
		i++
		if p.Hash == 0 {
			continue // no flow
		}
		key := (uint64(p.Hash) | uint64(p.Priority)<<32) * 0x9e3779b97f4a7c15
		slot, tag := &o.slots[key>>(64-orderBits)], key<<orderBits>>stampBits<<stampBits
		last, late := uint64(p.Stamp), uint64(0)
		if w := slot.Load(); w&^(1<<stampBits-1) == tag && older(last, w) {
			last, late = w, uint64(p.Segs)
		}
		for ; i < len(pkts) && pkts[i].Hash == p.Hash && pkts[i].Priority == p.Priority; i++ {
			if q := pkts[i]; older(uint64(q.Stamp), last) {
				late += uint64(q.Segs)
			} else {
				last = uint64(q.Stamp)
			}
		}
		slot.Store(tag | last&(1<<stampBits-1))
		if late > 0 {
			o.reordered.Add(late)
		}
	}
}

// older compares the low bits of two stamps.
func older(a, b uint64) bool { return int64((a-b)<<(64-stampBits)) < 0 }
