package bql

import (
	"fmt"
	"sync/atomic"
	"time"
)

// The stall detector remembers for 256 ticks in which of them something was
// queued. When a completion comes late it looks whether anything was queued
// so long ago (dql_queue_stall, dql_check_stall).
const (
	tick      = 4 * time.Millisecond // a jiffy at HZ=250
	histWords = 4
	// Thresholds in ticks: below 4 a pause of the scheduler counts as a
	// stall, above 128 half the history would not cover it.
	minThrs = 4
	maxThrs = histWords * 64 / 2
)

// A stallHistory is a ring of words with one bit a tick. The sending side
// marks, the completing side reads.
type stallHistory struct {
	head atomic.Int64 // number of the newest word: tick / 64
	word [histWords]atomic.Uint64
}

func (h *stallHistory) mark(now int64) {
	t := now / int64(tick)
	word := t / 64
	if head := h.head.Load(); word > head {
		for w := max(head+1, word-histWords+1); w <= word; w++ {
			h.word[w%histWords].Store(0)
		}
		h.head.Store(word)
	}
	w := &h.word[word%histWords]
	w.Store(w.Load() | 1<<(t%64))
}

func (h *stallHistory) clear() {
	for i := range h.word {
		h.word[i].Store(0)
	}
}

// first gives the first tick in [from, to] in which something was queued.
func (h *stallHistory) first(from, to int64) (int64, bool) {
	for {
		head := h.head.Load()
		lo, hi := max(from, (head-histWords+1)*64), min(to, head*64+63)
		for t := lo; t <= hi; t++ {
			if h.word[t/64%histWords].Load()&(1<<(t%64)) != 0 {
				if h.head.Load() != head {
					break // words were cleared under us: look again
				}
				return t, true
			}
		}
		if h.head.Load() == head {
			return 0, false
		}
	}
}

// checkStall looks at each completion for a stall that ends with it: one of
// the threshold's length is found for certain, one of half of it perhaps.
func (d *DQL) checkStall(now int64) {
	thrs := d.stallThrs.Load()
	if thrs == 0 {
		return
	}
	t, last := now/int64(tick), d.lastReap/int64(tick)
	d.lastReap = now
	if n := thrs / int64(tick); t >= last+n {
		if at, ok := d.history.first(last+1, t-n/2); ok {
			d.stallCnt.Store(d.stallCnt.Load() + 1)
			d.stallMax.Store(max(d.stallMax.Load(), (t-at)*int64(tick)))
		}
	}
}

// SetStallThrs turns the stall detector on, for stalls of this length and
// more, or with 0 off. Neither side may be running.
func (d *DQL) SetStallThrs(t time.Duration, now int64) error {
	n := t / tick
	if t != 0 && (n < minThrs || n > maxThrs) {
		return fmt.Errorf("bql: stall_thrs %v: want 0 or %v to %v", t, minThrs*tick, maxThrs*tick)
	}
	d.lastReap = now
	d.history.clear()
	d.stallThrs.Store(int64(n * tick))
	return nil
}

// ClearStallMax forgets the longest stall.
func (d *DQL) ClearStallMax() { d.stallMax.Store(0) }
