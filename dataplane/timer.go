package dataplane

import (
	"math"
	"sync/atomic"
)

// never is the due time of what is not due.
const never = math.MaxInt64

// A timer calls fire on its home worker. Home arms it directly; others ask
// for it with request, one at a time.
type timer struct {
	home *Worker
	fire func()

	at     int64 // when it is due, never if it is not armed; home's
	queued int64 // of its earliest entry in home.timers; home's

	want   atomic.Int64 // the earliest time asked for since it last fired
	kicked atomic.Bool  // in home.kicks
	next   *timer       // there
}

func (tm *timer) init(home *Worker, fire func()) {
	tm.home, tm.fire, tm.at, tm.queued = home, fire, never, never
	tm.want.Store(never)
}

// request asks for fire at that time of the batch clock or earlier. What runs
// at fire asks again for what is left to do, so a later time need not be kept.
func (tm *timer) request(w *Worker, at int64) {
	if at >= tm.want.Load() {
		return
	}
	tm.want.Store(at)
	if w == tm.home {
		w.arm(tm, at)
	} else {
		tm.home.kick(tm)
	}
}

// arm makes tm due at that time and no other. An entry that is in the heap
// for an earlier time stays there and finds nothing to do.
func (w *Worker) arm(tm *timer, at int64) {
	tm.at = at
	if at < tm.queued {
		tm.queued = at
		w.timers.Push(at, tm)
	}
}

// expire fires the timers that are due.
func (w *Worker) expire() {
	for {
		at, ok := w.timers.Min()
		if !ok || at > w.now {
			return
		}
		tm := w.timers.Pop()
		if at != tm.queued {
			continue // an earlier entry has done its work
		}
		tm.queued = never
		if tm.at > w.now {
			if tm.at != never {
				w.arm(tm, tm.at)
			}
			continue
		}
		tm.at = never
		tm.want.Store(never) // before fire: what it leaves undone it asks for itself
		w.ticked = true
		tm.fire()
	}
}

// kick tells w that another worker asked for tm. It wakes w only if w sleeps
// or is about to: kicks is written before epoch is read here, and
// epoch before kicks is read there.
func (w *Worker) kick(tm *timer) {
	if tm.kicked.Swap(true) {
		return
	}
	for {
		tm.next = w.kicks.Load()
		if w.kicks.CompareAndSwap(tm.next, tm) {
			break
		}
	}
	if w.epoch.Load()&1 == 0 {
		w.poller.Wake()
	}
}

// serveKicks arms the timers that other workers asked for.
func (w *Worker) serveKicks() {
	if w.kicks.Load() == nil {
		return
	}
	for tm := w.kicks.Swap(nil); tm != nil; {
		next := tm.next
		tm.kicked.Store(false) // from here on it may be linked again
		if at := tm.want.Load(); at < tm.at {
			w.arm(tm, at)
		}
		tm = next
	}
}

// untilTimer shortens a wait of timeout ns, negative for none, to the first
// timer that is due.
func (w *Worker) untilTimer(timeout int64) int64 {
	at, ok := w.timers.Min()
	if !ok || timeout == 0 {
		return timeout
	}
	left := max(at-nanotime(), 0)
	if timeout < 0 {
		return left
	}
	return min(timeout, left)
}
