package xpsflow

import (
	"fmt"
	"sync/atomic"
)

// A Mode is a way to find out whether a flow may change its tx queue.
type Mode uint8

const (
	// Inflight counts the packets of each bucket from the choice of their
	// queue to their end. A flow moves when there are none.
	Inflight Mode = iota
	// DQL compares packet counters of the queue's BQL, as the patch did that
	// was published for the kernel. It is there to be compared with: it
	// reorders, see selectDQL.
	DQL
)

var modes = [...]string{Inflight: "inflight", DQL: "dql"}

func (m Mode) String() string { return modes[m] }

// ParseMode is the inverse of String.
func ParseMode(s string) (Mode, error) {
	for m, name := range modes {
		if s == name {
			return Mode(m), nil
		}
	}
	return 0, fmt.Errorf("flow table mode %q, want inflight or dql", s)
}

// MaxTable is the largest flow table, in buckets.
const MaxTable = 1 << 24

// A table has a power of two of buckets, one 64-bit word each. Any worker
// writes any bucket. In mode Inflight:
//
//	63     48 47               16 15       0
//	[  gen   |     in flight     | queue+1 ]
//
// queue+1 is 0 in a bucket that was never used. gen counts the bucket's
// changes of queue; it is for people who read a dump. The word retired says
// that the bucket is closed for good: it was empty when the table was being
// replaced. In mode DQL:
//
//	63         32 31      0
//	[ queue_ptr  | queue  ]     queue is -1 in a bucket that was never used
type table struct {
	mode    Mode
	buckets []bucket
}

// A bucket is in one cache line.
type bucket struct {
	word atomic.Uint64
	flow atomic.Uint32 // the hash seen last, to count collisions
}

const (
	queueMask = 1<<16 - 1
	oneFlight = 1 << 16
	genShift  = 48
	retired   = queueMask
	unusedDQL = 1<<32 - 1
)

func inflight(w uint64) uint32 { return uint32(w >> 16) }

// newTable gives a table of at least n buckets; none for 0.
func newTable(n int, mode Mode) *table {
	if n == 0 {
		return nil
	}
	size := 1
	for size < n {
		size *= 2
	}
	t := &table{mode: mode, buckets: make([]bucket, size)}
	if mode == DQL {
		for i := range t.buckets {
			t.buckets[i].word.Store(unusedDQL)
		}
	}
	return t
}

// collides notes that a flow uses the bucket and reports whether that had
// another flow's packets in flight: w is the bucket after the claim of n.
func (b *bucket) collides(hash uint32, w uint64, n int) bool {
	if b.flow.Load() == hash {
		return false
	}
	b.flow.Store(hash)
	return int(inflight(w)) > n
}

func (t *table) bucket(hash uint32) *bucket { return &t.buckets[int(hash)&(len(t.buckets)-1)] }

// size is the number of buckets, 0 without a table.
func (t *table) size() int {
	if t == nil {
		return 0
	}
	return len(t.buckets)
}

// claim takes n packets into bucket e and gives the queue they go to: the
// bucket's own while packets are in flight, else want. was is the queue of the
// packets before, -1 if there were none or it exists no more. An empty bucket
// of a table that is being replaced is retired instead. ok is false if the
// bucket is retired; nothing was counted then. after is the bucket's new word.
//
// This is why flows keep their order: the queue changes only in a CAS that
// has seen no packet in flight. X1: the CAS precedes the packets' enqueue.
// X3: it reads what X2 in release wrote, so all earlier packets have ended.
func claim(e *atomic.Uint64, want, queues, n int, replaced bool) (use, was int, after uint64, ok bool) {
	for {
		w := e.Load()
		if w == retired {
			return 0, 0, 0, false
		}
		use, was = want, int(w&queueMask)-1
		if was >= queues {
			was = -1 // the queue was purged with all that was in it
		}
		next := w
		switch {
		case inflight(w) == 0 && replaced:
			if e.CompareAndSwap(w, retired) {
				return 0, 0, 0, false
			}
			continue
		case inflight(w) > 0 && was >= 0:
			use = was
		case use != was:
			next = w&^queueMask | uint64(want+1) + 1<<genShift
		}
		next += uint64(n) * oneFlight
		if e.CompareAndSwap(w, next) {
			return use, was, next, true
		}
	}
}

// release ends n packets of bucket e. X2: the packets were written, or their
// drop decided, before.
func release(e *atomic.Uint64, n uint32) {
	if w := e.Add(-(uint64(n) * oneFlight)); inflight(w)+n < n {
		tooMany(w, n)
	}
}

func tooMany(w uint64, n uint32) {
	panic(fmt.Sprintf("xpsflow: %d packets ended in a bucket that had %d in flight (now %#x)", n, inflight(w)+n, w))
}

// sum adds up what is in flight. It is exact while no packet moves.
func (t *table) sum() int {
	if t == nil || t.mode != Inflight {
		return 0
	}
	n := 0
	for i := range t.buckets {
		n += int(inflight(t.buckets[i].word.Load()))
	}
	return n
}

// retire closes every bucket with nothing in flight and reports whether all
// are closed. The table must have been replaced before.
func (t *table) retire() bool {
	all := true
	for i := range t.buckets {
		e := &t.buckets[i].word
		for w := e.Load(); w != retired; w = e.Load() {
			if inflight(w) > 0 {
				all = false
				break
			}
			e.CompareAndSwap(w, retired)
		}
	}
	return all
}
