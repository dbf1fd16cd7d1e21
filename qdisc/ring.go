package qdisc

import (
	"taprouter/internal/step"
	"taprouter/packet"
)

// cacheLine is the distance between words that different threads write: two
// lines, as the prefetcher fetches pairs.
const cacheLine = 128

// A ring is a bounded FIFO of packets with many producers and one consumer at
// a time (the holder of the run bit). A producer reserves places for a whole
// burst with one CAS and then fills them; the consumer stops at a place that
// is reserved and not yet filled. Whoever filled it tries to run the qdisc
// afterwards, so nothing is left behind.
//
// Indexes run freely: differences stay right when they wrap.
type ring struct {
	slots []step.Pointer[packet.Packet] // a power of two; nil = free
	limit uint32                        // packets, exact
	_     [cacheLine]byte
	head  step.Uint32 // next place to reserve; producers
	_     [cacheLine]byte
	tail  step.Uint32 // next place to take; written by the consumer
	_     [cacheLine]byte
}

func (r *ring) init(limit int) {
	size := 1
	for size < limit {
		size *= 2
	}
	r.slots = make([]step.Pointer[packet.Packet], size)
	r.limit = uint32(limit)
}

// A Sum is what a number of packets add to the counters.
type Sum struct {
	n          int // packet objects
	segs       int // wire packets still to be sent
	bytes, mem int // qdisc bytes, and bytes of pool memory
}

func (s *Sum) add(p *packet.Packet) {
	s.n++
	s.segs += int(p.Segs - p.SegNext)
	s.bytes += int(p.WireLen)
	s.mem += memory(p)
}

// sumOf adds up a list.
func sumOf(l *packet.List) (s Sum) {
	for p := l.Front(); p != nil; p = p.Next {
		s.add(p)
	}
	return s
}

// memory is what p holds of the pool, in bytes.
func memory(p *packet.Packet) int {
	if p.HasTail() {
		return packet.HeadLen + packet.TailLen
	}
	return packet.HeadLen
}

// push takes packets from the front of l for as long as there is room, and
// adds them to s. What is left in l was refused.
func (r *ring) push(l *packet.List, s *Sum) {
	var h, n uint32
	for {
		h = r.head.Load()
		// A tail that is newer than h can only make the CAS fail.
		n = min(uint32(l.Len()), r.limit-(h-r.tail.Load()))
		if n == 0 {
			return
		}
		if r.head.CompareAndSwap(h, h+n) {
			break
		}
	}
	mask := uint32(len(r.slots) - 1)
	for i := range n {
		p := l.Pop()
		s.add(p)                     // read before it is published: then it is the consumer's
		r.slots[(h+i)&mask].Store(p) // O1: release, pairs with the load in pop
	}
}

// pop takes the oldest packet; nil if there is none. Run bit holder only.
func (r *ring) pop() *packet.Packet {
	t := r.tail.Load()
	slot := &r.slots[t&uint32(len(r.slots)-1)]
	p := slot.Load()
	if p == nil {
		return nil
	}
	slot.Store(nil)     // O9: the place is free before a producer can see that it is
	r.tail.Store(t + 1) // release, pairs with the load in push
	return p
}

// len is the number of places that are reserved.
func (r *ring) len() int { return int(r.head.Load() - r.tail.Load()) }
