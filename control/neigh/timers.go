package neigh

import "time"

// Timing are the intervals of neighbour unreachability detection.
//
//	INCOMPLETE ─answer─▶ REACHABLE ─Reachable─▶ STALE ─used─▶ PROBE ─answer─▶ REACHABLE
//	     │                                        │             │
//	  Tries x Retrans                           Unused    2 x Tries x Retrans
//	     ▼                                        ▼             ▼
//	   FAILED ─Failed─▶ forgotten             forgotten      FAILED
type Timing struct {
	Retrans   time.Duration // between two requests (RetransTimer)
	Tries     int           // requests before a neighbour has failed (MAX_MULTICAST_SOLICIT, MAX_UNICAST_SOLICIT)
	Reachable time.Duration // a confirmation is good for so long (REACHABLE_TIME)
	Delay     time.Duration // a stale neighbour in use is asked within so long (DELAY_FIRST_PROBE_TIME)
	Failed    time.Duration // a failure is remembered for so long
	Unused    time.Duration // an entry that nobody uses is kept for so long
}

// DefaultTiming has the values of RFC 4861, section 10, and Linux.
var DefaultTiming = Timing{
	Retrans: time.Second, Tries: 3, Reachable: 30 * time.Second, Delay: 5 * time.Second, Failed: 3 * time.Second, Unused: 10 * time.Minute,
}

// fill gives fields that are not set their defaults.
func (tm *Timing) fill() {
	d := &DefaultTiming
	for _, f := range []struct {
		v *time.Duration
		d time.Duration
	}{{&tm.Retrans, d.Retrans}, {&tm.Reachable, d.Reachable}, {&tm.Delay, d.Delay}, {&tm.Failed, d.Failed}, {&tm.Unused, d.Unused}} {
		if *f.v <= 0 {
			*f.v = f.d
		}
	}
	if tm.Tries <= 0 {
		tm.Tries = d.Tries
	}
}

// Requests that we send on an interface: a burst at once, then one a gap, so
// that neither a scan nor a table that expires at once floods the link.
const (
	requestBurst = 256
	requestGap   = time.Millisecond
)

// A limit spaces requests out. next is when the last one granted goes out,
// or would have gone had there been no burst.
type limit struct{ next int64 }

// grant gives the time at which the next request may be sent.
func (l *limit) grant(now int64) int64 {
	l.next = max(l.next, now-requestBurst*int64(requestGap)) + int64(requestGap)
	return max(l.next, now)
}

// ask sends one request, or puts it off until the limit allows it: to
// everybody, but the first ones of a probe to the neighbour itself.
func (t *Table) ask(e *entry, now int64) {
	if !e.granted {
		if at := t.limits[e.iface].grant(now); at > now {
			e.granted = true
			t.at(e, at)
			return
		}
	}
	e.granted = false
	e.tries++
	t.at(e, now+int64(t.cfg.Timing.Retrans))
	t.stats.TxRequests++
	i := &t.cfg.Ifaces[e.iface]
	alone := e.state == probe && e.tries <= t.cfg.Timing.Tries
	if e.addr.Is4() {
		to := [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
		if alone {
			to = e.mac
		}
		t.inject(e.iface, arpRequest(i, e.addr, to))
	} else {
		t.inject(e.iface, solicitation(i, e.addr, e.mac, alone))
	}
}

// stale lets an entry wait until somebody uses it. All of these are looked at
// together, so that many wake us no more often than one.
func (t *Table) stale(e *entry, now int64) {
	e.to(stale, now)
	t.look(e, now)
}

func (t *Table) look(e *entry, now int64) {
	every := int64(t.cfg.Timing.Delay)
	t.at(e, (now/every+1)*every)
}

// tick looks at what is due and gives the next due time.
func (t *Table) tick() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.cfg.Now()
	for len(t.due) > 0 && t.due[0].due <= now {
		t.age(t.due[0], now)
	}
	t.settle(now)
	t.sleeps = t.next()
	return t.sleeps
}

// next is when something is due; never if nothing is.
func (t *Table) next() int64 {
	next := int64(never)
	if len(t.due) > 0 {
		next = t.due[0].due
	}
	if t.dirty {
		next = min(next, t.publishAt)
	}
	return next
}

// age moves an entry on whose time has come; it is due later then, or gone.
// A router sees no acknowledgements, so there is nothing to wait for in DELAY.
func (t *Table) age(e *entry, now int64) {
	tm := &t.cfg.Timing
	used := e.used.Load()
	switch e.state {
	case incomplete, probe:
		limit := tm.Tries
		if e.state == probe {
			limit *= 2 // by unicast, then to everybody: it may have moved
		}
		if e.tries < limit {
			t.ask(e, now)
			return
		}
		e.to(failed, now)
		t.at(e, now+int64(tm.Failed))
		t.stats.Failed++
		t.dirty = true
	case reachable:
		if used != 0 && now-used <= int64(tm.Delay) { // in use: goes on being used meanwhile
			e.to(probe, now)
			t.ask(e, now)
			return
		}
		t.stale(e, now)
	case stale:
		switch {
		case used > e.since:
			e.to(probe, now)
			t.ask(e, now)
		case now-e.last() > int64(tm.Unused):
			t.remove(e)
		default:
			t.look(e, now)
		}
	default: // failed
		t.remove(e)
	}
}

// settle ends a call that changed the table. A change is published at once,
// but those of a burst together: publishing takes a tenth of the time at most.
func (t *Table) settle(now int64) {
	if t.dirty && now >= t.publishAt {
		t.dirty = false
		t.publish()
		end := t.cfg.Now()
		t.publishAt = end + max(10*(end-now), int64(time.Millisecond))
	}
	if t.next() < t.sleeps {
		t.sleeps = 0 // woken once
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
}
