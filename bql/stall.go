package bql

import "sync/atomic"

// JiffyNsec is the unit of the stall detector, in ns: the kernel's jiffy at
// HZ=250.
const JiffyNsec = 4_000_000

const (
	jiffyMs = JiffyNsec / 1_000_000

	historyWords = 4 // DQL_HIST_LEN
	historyBits  = historyWords * 64

	// The range of a stall threshold in jiffies, 0 apart. A longer one would
	// not fit the history, of which one half is looked at.
	stallThrsMin = 4
	stallThrsMax = historyBits / 2
)

func jiffy(now int64) int64 { return now / JiffyNsec }

// A history is a ring of one bit a jiffy: something was queued in it. The
// sender writes, the completer reads. head is the newest word's number since
// the beginning of time; the ring holds it and the three before it.
type history struct {
	head  atomic.Int64
	words [historyWords]atomic.Uint64
}

func (h *history) clear() {
	for i := range h.words {
		h.words[i].Store(0)
	}
}

// mark sets the bit of jiffy t. The words that t skips are cleared before
// head says that they are new (release, pairs with the load in find).
func (h *history) mark(t int64) {
	word, head := t/64, h.head.Load()
	if word <= head-historyWords {
		return // a sender whose clock is long past
	}
	if word > head {
		for i := max(head, word-historyWords) + 1; i <= word; i++ {
			h.words[i%historyWords].Store(0)
		}
		h.head.Store(word)
	}
	w := &h.words[word%historyWords]
	if old, bit := w.Load(), uint64(1)<<(t%64); old&bit == 0 {
		w.Store(old | bit)
	}
}

// find gives the first jiffy from..to in which something was queued. It looks
// again if words were reused meanwhile.
func (h *history) find(from, to int64) (int64, bool) {
	for {
		head := h.head.Load()
		t := max(from, (head-historyWords+1)*64, 0)
		end := min(to, head*64+63)
		for t <= end && h.words[t/64%historyWords].Load()>>(t%64)&1 == 0 {
			t++
		}
		if h.head.Load() == head {
			return t, t <= end
		}
	}
}

// checkStall runs at each completion. After a pause of at least the threshold
// a stall is counted if something was already waiting half a threshold ago: a
// stall of the threshold is always found, one of half of it sometimes.
func (d *DQL) checkStall(now int64) {
	thrs := int64(d.stallThrs.Load())
	last := d.lastReap.Load()
	if now >= last+thrs {
		if t, ok := d.history.find(last+1, now-thrs/2); ok {
			d.stallCnt.Store(d.stallCnt.Load() + 1)
			if now-t > d.stallMax.Load() {
				d.stallMax.Store(now - t)
			}
		}
	}
	d.lastReap.Store(now)
}
