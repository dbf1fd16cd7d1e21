package fib

import "sync/atomic"

// A Flap is an address that was seen behind two ports in turn: two stations
// have it, or there is a loop.
type Flap struct {
	MAC      uint64
	From, To uint16 // ports, of the last move
	Count    uint64 // moves of this kind in the table so far
}

const (
	tick       = 30             // bits of ns that a time in recent leaves out: a unit is 1.07 s
	flapTicks  = 9              // within which a second move of an address is a flap; a station that migrates moves once
	flapReport = 10_000_000_000 // ns between two reports of a table
)

// A flapWatch counts flaps and reports one now and then, so that a storm of
// them costs a count each.
//
//	recent   [ MAC address, 48 bits | time, 16 bits ]   the last move of an address with that hash
type flapWatch struct {
	recent   [64]atomic.Uint64
	count    atomic.Uint64
	reported atomic.Int64 // batch clock, ns; 0 = never
	reports  chan Flap
}

// moved takes in the move of an address with that hash. Any worker may call
// it; it never blocks. A move that another address's displaces is forgotten.
func (w *flapWatch) moved(hash uint64, f Flap, now int64) {
	t := uint16(now >> tick)
	last := w.recent[hash%uint64(len(w.recent))].Swap(f.MAC<<16 | uint64(t))
	if last>>16 == f.MAC && t-uint16(last) <= flapTicks { // both wrap every 19 hours
		w.see(f, now)
	}
}

// see counts a flap.
func (w *flapWatch) see(f Flap, now int64) {
	f.Count = w.count.Add(1)
	last := w.reported.Load()
	if last != 0 && now-last < flapReport || !w.reported.CompareAndSwap(last, now) {
		return
	}
	select {
	case w.reports <- f:
	default: // nobody has read the last one
	}
}

// Flaps delivers an address that flaps, at most one in ten seconds.
func (t *FDB) Flaps() <-chan Flap { return t.flaps.reports }
