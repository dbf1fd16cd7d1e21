package qdisc

import (
	"math"

	"taprouter/internal/step"
	"taprouter/packet"
)

// cacheLine is the distance between words that different threads write: two
// lines, as the prefetcher fetches pairs.
const cacheLine = 128

// A ring is a bounded FIFO of packets with many producers and one consumer at
// a time (the holder of the run bit). A producer reserves places for a whole
// burst with one CAS, fills them, and publishes them with one store; the
// consumer stops at a burst that is not published yet. Whoever published it
// tries to run the qdisc afterwards, so nothing is left behind.
//
// Indexes run freely: differences stay right when they wrap.
type ring struct {
	slots []*packet.Packet              // a power of two; belongs to who has reserved or may take it
	first []step.Pointer[packet.Packet] // likewise: the first packet of a burst that begins here, nil = not published
	limit uint32                        // packets
	_     [cacheLine]byte
	head  step.Uint32 // next place to reserve; producers
	_     [cacheLine]byte
	tail  step.Uint32 // places before it are free; written by the consumer
	_     [cacheLine]byte

	// The consumer's own.
	next uint32 // place to take
	left uint32 // packets of the burst there that are not taken yet
}

// freeBatch is how many places the consumer frees at a time, unless a burst
// ends: each store costs as much as taking a packet (ptr_ring does the same).
const freeBatch = 16

func (r *ring) init(limit int) {
	size := 1
	for size < limit {
		size *= 2
	}
	r.slots, r.first = make([]*packet.Packet, size), make([]step.Pointer[packet.Packet], size)
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
	s.mem += p.Memory()
}

// sumOf adds up a list.
func sumOf(l *packet.List) (s Sum) {
	for p := l.Front(); p != nil; p = p.Next {
		s.add(p)
	}
	return s
}

// push takes packets from the front of l for as long as there is room, and
// adds them to s. What is left in l was refused.
func (r *ring) push(l *packet.List, s *Sum) {
	var h, n uint32
	for {
		h = r.head.Load()
		// A tail that is newer than h can only make the CAS fail.
		n = min(uint32(l.Len()), r.limit-(h-r.tail.Load()), math.MaxUint16)
		if n == 0 {
			return
		}
		if r.head.CompareAndSwap(h, h+n) {
			break
		}
	}
	mask := uint32(len(r.slots) - 1)
	begin := l.Front()
	begin.Burst = uint16(n)
	for i := range n {
		p := l.Pop()
		s.add(p) // read before they are published: then they are the consumer's
		r.slots[(h+i)&mask] = p
	}
	r.first[h&mask].Store(begin) // O1: release, pairs with the load in pop
}

// pop takes the oldest packet; nil if there is none. Run bit holder only.
func (r *ring) pop() *packet.Packet {
	mask := uint32(len(r.slots) - 1)
	if r.left == 0 {
		first := &r.first[r.next&mask]
		p := first.Load()
		if p == nil {
			return nil
		}
		first.Store(nil) // O9: the place is empty before a producer can see that it is free
		r.left = uint32(p.Burst)
	}
	p := r.slots[r.next&mask]
	r.next++
	if r.left--; r.left == 0 || r.next-r.tail.Load() >= freeBatch {
		r.tail.Store(r.next) // release, pairs with the load in push
	}
	return p
}

// len is the number of packets, those included that are not published yet.
// Run bit holder only.
func (r *ring) len() int { return int(r.head.Load() - r.next) }
