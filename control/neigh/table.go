package neigh

import (
	"cmp"
	"container/heap"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"taprouter/fib"
)

// The table is bounded, so that a scan of a subnet cannot fill memory. When
// it is full, the least useful entries go in one sweep.
const (
	MaxEntries = 8192
	// EntrySize is about what an entry takes of memory in bytes: itself, its
	// places in the map and in the queue, and in the data path's snapshot.
	EntrySize = 512
	sweep     = MaxEntries / 16
)

const never = math.MaxInt64

// A state is an entry's, in the words of ip-neigh(8). DELAY is not kept: it
// is STALE and used since.
type state string

const (
	incomplete state = "INCOMPLETE"
	reachable  state = "REACHABLE"
	stale      state = "STALE"
	delay      state = "DELAY"
	probe      state = "PROBE"
	failed     state = "FAILED"
	permanent  state = "PERMANENT"
)

type key struct {
	iface uint16
	addr  netip.Addr
}

// An entry belongs to its Table, but for used, which is shared with every
// snapshot that has the entry.
type entry struct {
	key
	mac     [6]byte
	state   state
	tries   int
	granted bool          // due is when the limit lets it ask
	since   int64         // of the state, ns
	due     int64         // when to look at it again, ns
	pos     int           // in Table.due
	used    *atomic.Int64 // last use by the data path, ns; 0 = not yet
}

// to changes the state.
func (e *entry) to(s state, now int64) { e.state, e.since, e.tries, e.granted = s, now, 0, false }

// unknown reports whether the entry has no MAC address.
func (e *entry) unknown() bool { return e.state == incomplete || e.state == failed }

// create adds an entry that has no state yet.
func (t *Table) create(k key, now int64) *entry {
	if e := t.all[k]; e != nil {
		return e
	}
	if len(t.all) >= MaxEntries {
		t.evict()
	}
	e := &entry{key: k, since: now, due: never, used: &atomic.Int64{}}
	t.all[k] = e
	heap.Push(&t.due, e)
	return e
}

func (t *Table) remove(e *entry) {
	delete(t.all, e.key)
	heap.Remove(&t.due, e.pos)
	t.dirty = t.dirty || e.state != incomplete
}

// at says when an entry is to be looked at again.
func (t *Table) at(e *entry, due int64) {
	e.due = due
	heap.Fix(&t.due, e.pos)
}

// evict makes room: first goes what never answered, then what nobody sent
// to, then what was used longest ago.
func (t *Table) evict() {
	all := make([]*entry, 0, len(t.all))
	for _, e := range t.all {
		if e.state != permanent {
			all = append(all, e)
		}
	}
	worth := func(e *entry) int {
		switch {
		case e.unknown():
			return 0
		case e.used.Load() == 0:
			return 1
		}
		return 2
	}
	slices.SortFunc(all, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(worth(a), worth(b)), cmp.Compare(a.last(), b.last()))
	})
	for _, e := range all[:min(sweep, len(all))] {
		t.remove(e)
		t.stats.Evicted++
	}
}

// last is when something last happened to the entry.
func (e *entry) last() int64 { return max(e.used.Load(), e.since) }

// A claim is what a message says of a neighbour.
type claim struct {
	mac       [6]byte
	solicited bool // it answers us, so the way to the neighbour works
	override  bool // it may replace another MAC address
	create    bool // the neighbour is going to talk to us: worth an entry
}

// learn takes a claim about addr (RFC 4861, 7.2.5 and 7.2.3).
func (t *Table) learn(iface uint16, addr netip.Addr, c claim) {
	now := t.cfg.Now()
	e := t.all[key{iface, addr}]
	switch {
	case e == nil && c.create:
		e = t.create(key{iface, addr}, now)
		e.to(incomplete, now)
	case e == nil || e.state == permanent:
		return
	}
	other := !e.unknown() && e.mac != c.mac
	switch {
	case other && !c.override:
		if e.state == reachable { // a second opinion is a doubt, no more
			t.stale(e, now)
		}
		return
	case e.unknown() || other:
		e.mac, t.dirty = c.mac, true
		t.stale(e, now)
	}
	if c.solicited {
		e.to(reachable, now)
		t.at(e, now+int64(t.cfg.Timing.Reachable))
	}
}

// An Entry is a neighbour for show.
type Entry struct {
	Iface uint16
	Addr  netip.Addr
	MAC   [6]byte
	State string        // in the words of ip-neigh(8)
	Age   time.Duration // in this state
}

// Entries gives the table, in no order.
func (t *Table) Entries() []Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.cfg.Now()
	all := make([]Entry, 0, len(t.all))
	for _, e := range t.all {
		s := e.state
		if s == stale && e.used.Load() > e.since {
			s = delay
		}
		all = append(all, Entry{e.iface, e.addr, e.mac, string(s), time.Duration(max(now-e.since, 0))})
	}
	return all
}

// publish gives the data path what it may use.
func (t *Table) publish() {
	ns := make([]fib.Neigh, 0, len(t.all))
	for _, e := range t.all {
		if e.state != incomplete {
			ns = append(ns, fib.Neigh{Iface: e.iface, Addr: e.addr, MAC: e.mac, Failed: e.state == failed, Used: e.used})
		}
	}
	t.stats.Published++
	t.cfg.Publish(fib.BuildNeighbours(ns))
}

// byDue is a heap of entries, the one due first on top (container/heap).
type byDue []*entry

func (h byDue) Len() int           { return len(h) }
func (h byDue) Less(a, b int) bool { return h[a].due < h[b].due }
func (h byDue) Swap(a, b int) {
	h[a], h[b] = h[b], h[a]
	h[a].pos, h[b].pos = a, b
}

// Push is for container/heap.
func (h *byDue) Push(x any) {
	e := x.(*entry)
	e.pos = len(*h)
	*h = append(*h, e)
}

// Pop is for container/heap.
func (h *byDue) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
