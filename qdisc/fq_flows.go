package qdisc

import "slices"

// The flows are in buckets by their key, each bucket an array ordered by key.
// The kernel has a tree in each bucket; with as many buckets as there are bits
// in orphan_mask most have one flow, and an array of a few is one cache line.

// fqSlab is how many flows are allocated at a time.
const fqSlab = 64

type fqSlot struct {
	key  uint32
	flow *fqFlow
}

// flow gives the flow with this key, a new one if there is none, and collects
// the dead that it meets on the way. fq_classify, fq_gc.
func (f *FQ) flow(key uint32) *fqFlow {
	b := &f.buckets[f.bucket(key)]
	lo, hi, dead := 0, len(*b), false
	for lo < hi {
		mid := (lo + hi) / 2
		s := &(*b)[mid]
		if s.key == key {
			w := s.flow
			if dead {
				f.collect(b) // moves the slots
			}
			return w
		}
		if f.stale(s.flow) {
			s.flow.state, dead = collected, true
		}
		if s.key < key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if dead {
		f.collect(b)
		lo, _ = slices.BinarySearchFunc(*b, key, func(s fqSlot, key uint32) int { return int(int64(s.key) - int64(key)) })
	}
	w := f.newFlow()
	*b = slices.Insert(*b, lo, fqSlot{key, w})
	return w
}

// bucket spreads keys that follow each other.
func (f *FQ) bucket(key uint32) uint32 { return key * 0x9e3779b1 >> f.shift }

// stale reports whether w has been without packets for so long that it need
// not be remembered. The kernel also wants it to be on no list; but flows
// without packets stay on their lists while packets of ever new flows arrive,
// each before the one before has been looked at again.
func (f *FQ) stale(w *fqFlow) bool {
	return w.packets.Len() == 0 && f.now-w.age > int64(fqFlowAge)
}

// collect removes the flows of b that are marked as dead. They have no
// packets.
func (f *FQ) collect(b *[]fqSlot) {
	*b = slices.DeleteFunc(*b, func(s fqSlot) bool {
		if s.flow.state != collected {
			return false
		}
		f.freeFlow(s.flow)
		f.stats.GCFlows++
		return true
	})
}

func (f *FQ) newFlow() *fqFlow {
	w := f.free
	if w == nil {
		slab := make([]fqFlow, fqSlab)
		for i := range slab {
			slab[i].next, f.free = f.free, &slab[i]
		}
		w = f.free
	}
	f.free = w.next
	*w = fqFlow{credit: int32(f.cfg.InitialQuantum), age: f.now}
	f.flows++
	f.inactive++
	return w
}

func (f *FQ) freeFlow(w *fqFlow) {
	if w.prev != nil {
		w.unlink()
	}
	w.next, f.free = f.free, w
	f.flows--
	f.inactive--
}

// rehash puts the flows of other buckets into those of f; the dead ones are
// collected.
func (f *FQ) rehash(old [][]fqSlot) {
	for _, b := range old {
		for _, s := range b {
			if f.stale(s.flow) {
				f.freeFlow(s.flow)
				f.stats.GCFlows++
				continue
			}
			to := &f.buckets[f.bucket(s.key)]
			i, _ := slices.BinarySearchFunc(*to, s.key, func(s fqSlot, key uint32) int { return int(int64(s.key) - int64(key)) })
			*to = slices.Insert(*to, i, s)
		}
	}
}

// forget frees every flow; none has packets.
func (f *FQ) forget() {
	for i := range f.buckets {
		for _, s := range f.buckets[i] {
			f.freeFlow(s.flow)
		}
		clear(f.buckets[i])
		f.buckets[i] = f.buckets[i][:0]
	}
	for i := range f.bands {
		f.bands[i] = fqBand{}
	}
	f.band = 0
}
