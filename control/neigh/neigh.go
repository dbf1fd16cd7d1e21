// Package neigh (control plane) is what the router itself says on its links:
// it finds neighbours with ARP (RFC 826) and neighbour discovery (RFC 4861),
// answers those who look for the router, and answers pings to it.
//
// neigh.go keeps the table and its timers, arp.go and nd.go speak the
// protocols, echo.go answers pings and puts fragments of them together.
package neigh

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"taprouter/fib"
)

// An Iface is an L3 interface of the router.
type Iface struct {
	Name  string
	MAC   [6]byte
	Addrs []netip.Prefix // ours, link-local ones included
	Tun   bool           // no Ethernet, no neighbours
	MTU   int
}

// Config says how a Table reaches the world. Inject and Publish are called
// with the table locked: they must not call back.
type Config struct {
	Ifaces  []Iface // by index
	Inject  func(iface uint16, frame []byte) bool
	Publish func(*fib.Neighbours)
	Now     func() int64 // the data path's clock, ns
	Timing  Timing       // zero: the defaults
}

// Timing are the intervals of neighbour unreachability detection.
type Timing struct {
	Retrans   time.Duration // between two requests (RetransTimer)
	Tries     int           // requests before a neighbour has failed (MAX_MULTICAST_SOLICIT)
	Reachable time.Duration // a confirmation is good for so long (REACHABLE_TIME)
	Failed    time.Duration // a failure is remembered for so long
	Unused    time.Duration // an entry that nobody uses is kept for so long
}

// DefaultTiming has the values of RFC 4861, section 10, and Linux.
var DefaultTiming = Timing{Retrans: time.Second, Tries: 3, Reachable: 30 * time.Second, Failed: 3 * time.Second, Unused: 10 * time.Minute}

// maxEntries bounds the table, so that a scan of a subnet cannot fill memory.
const maxEntries = 8192

// A state is an entry's, in the words of ip-neigh(8).
type state string

const (
	incomplete state = "INCOMPLETE"
	reachable  state = "REACHABLE"
	stale      state = "STALE"
	probe      state = "PROBE"
	failed     state = "FAILED"
)

type key struct {
	iface uint16
	addr  netip.Addr
}

type entry struct {
	key
	mac   [6]byte
	state state
	tries int
	since int64         // of the state, ns
	due   int64         // when to look at it again, ns
	used  *atomic.Int64 // last use by the data path, ns
}

// A Table is the neighbours of all interfaces. Its methods may be called by
// any goroutine.
type Table struct {
	cfg  Config
	mu   sync.Mutex
	all  map[key]*entry // guarded by mu
	asm  reassembly     // guarded by mu
	ipID uint16         // guarded by mu
	wake chan struct{}  // a due time may have become earlier
}

// New makes a Table without neighbours.
func New(cfg Config) *Table {
	if cfg.Timing == (Timing{}) {
		cfg.Timing = DefaultTiming
	}
	return &Table{cfg: cfg, all: map[key]*entry{}, wake: make(chan struct{}, 1)}
}

// Run keeps the timers until ctx ends. It sleeps while nothing is due.
func (t *Table) Run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next := t.tick()
		wait := time.Duration(1<<62 - 1)
		if next >= 0 {
			wait = max(time.Duration(next-t.cfg.Now()), 0)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-t.wake:
		}
	}
}

func (t *Table) kick() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Resolve starts to look for a neighbour, unless that is under way.
func (t *Table) Resolve(iface uint16, addr netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if int(iface) >= len(t.cfg.Ifaces) || t.cfg.Ifaces[iface].Tun {
		return
	}
	now := t.cfg.Now()
	e := t.all[key{iface, addr}]
	switch {
	case e == nil:
		if len(t.all) >= maxEntries {
			t.evict()
		}
		e = &entry{key: key{iface, addr}, used: &atomic.Int64{}}
		t.all[e.key] = e
	case e.state != failed:
		t.publish() // the worker asks for what is known: it missed a snapshot
		return
	}
	e.to(incomplete, now)
	t.ask(e, now)
	t.kick()
}

// to changes the state.
func (e *entry) to(s state, now int64) { e.state, e.since, e.tries = s, now, 0 }

// ask sends one request: to everybody, or in state probe to the neighbour.
func (t *Table) ask(e *entry, now int64) {
	e.tries++
	e.due = now + int64(t.cfg.Timing.Retrans)
	i := &t.cfg.Ifaces[e.iface]
	to := [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	if e.state == probe {
		to = e.mac
	}
	if e.addr.Is4() {
		t.cfg.Inject(e.iface, arpRequest(i, e.addr, to))
	} else {
		t.cfg.Inject(e.iface, solicitation(i, e.addr, to, e.state == probe))
	}
}

// confirm is an answer from a neighbour, or with solicited false a hint of
// its address that proves nothing about the way to it.
func (t *Table) confirm(iface uint16, addr netip.Addr, mac [6]byte, solicited, create bool) {
	e := t.all[key{iface, addr}]
	now := t.cfg.Now()
	if e == nil {
		if !create || len(t.all) >= maxEntries {
			return
		}
		e = &entry{key: key{iface, addr}, used: &atomic.Int64{}, state: incomplete}
		e.used.Store(now)
		t.all[e.key] = e
	}
	changed := e.mac != mac || e.state == incomplete || e.state == failed
	e.mac = mac
	switch {
	case solicited:
		e.to(reachable, now)
		e.due = now + int64(t.cfg.Timing.Reachable)
	case changed:
		e.to(stale, now)
		e.due = now + int64(t.cfg.Timing.Retrans)
	}
	if changed {
		t.publish()
	}
	t.kick()
}

// tick looks at what is due and gives the next due time, -1 for none.
func (t *Table) tick() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, next, changed := t.cfg.Now(), int64(-1), false
	for k, e := range t.all {
		if e.due <= now && t.age(e, now) {
			changed = true
			if e.state == "" {
				delete(t.all, k)
				continue
			}
		}
		if next < 0 || e.due < next {
			next = e.due
		}
	}
	if changed {
		t.publish()
	}
	return next
}

// age moves an entry on whose time has come. It reports whether the data
// path has to know; an entry to be forgotten has no state afterwards.
func (t *Table) age(e *entry, now int64) bool {
	tm := &t.cfg.Timing
	switch e.state {
	case incomplete, probe:
		if e.tries < tm.Tries {
			t.ask(e, now)
			return false
		}
		e.to(failed, now)
		e.due = now + int64(tm.Failed)
		return true
	case failed:
		e.state = ""
		return true
	}
	idle := now - e.used.Load()
	switch {
	case e.state == reachable && idle > int64(tm.Reachable):
		e.to(stale, now) // nobody cares whether it is still there
	case idle <= int64(tm.Reachable):
		e.to(probe, now) // in use: ask again while it goes on being used
		t.ask(e, now)
		return false
	case idle > int64(tm.Unused):
		e.state = ""
		return true
	}
	e.due = now + int64(tm.Reachable)
	return false
}

// evict forgets the entry that was not used for the longest time.
func (t *Table) evict() {
	var oldest *entry
	for _, e := range t.all {
		if oldest == nil || e.used.Load() < oldest.used.Load() {
			oldest = e
		}
	}
	delete(t.all, oldest.key)
}

// publish gives the data path what it may use.
func (t *Table) publish() {
	ns := make([]fib.Neigh, 0, len(t.all))
	for _, e := range t.all {
		if e.state != incomplete && e.state != "" {
			ns = append(ns, fib.Neigh{Iface: e.iface, Addr: e.addr, MAC: e.mac, Failed: e.state == failed, Used: e.used})
		}
	}
	t.cfg.Publish(fib.BuildNeighbours(ns))
}

// An Entry is a neighbour for show.
type Entry struct {
	Iface uint16
	Addr  netip.Addr
	MAC   [6]byte
	State string
	Age   time.Duration // in this state
}

// Entries gives the table, in no order.
func (t *Table) Entries() []Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Entry, 0, len(t.all))
	for _, e := range t.all {
		all = append(all, Entry{e.iface, e.addr, e.mac, string(e.state), time.Duration(t.cfg.Now() - e.since)})
	}
	return all
}

// HandleFrame takes a frame for the router that came in by an interface.
func (t *Table) HandleFrame(iface uint16, frame []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if int(iface) >= len(t.cfg.Ifaces) {
		return
	}
	i := &t.cfg.Ifaces[iface]
	var eth []byte
	et := uint16(0)
	if i.Tun {
		if len(frame) < 1 {
			return
		}
		et = map[byte]uint16{4: etherIPv4, 6: etherIPv6}[frame[0]>>4]
	} else {
		if len(frame) < 14 {
			return
		}
		eth, frame, et = frame[:14], frame[14:], be16(frame[12:])
	}
	switch et {
	case etherARP:
		t.arp(iface, i, frame)
	case etherIPv4:
		t.ipv4(iface, i, eth, frame)
	case etherIPv6:
		t.ipv6(iface, i, eth, frame)
	}
}

// has reports whether addr is ours on this interface.
func (i *Iface) has(addr netip.Addr) bool {
	for _, a := range i.Addrs {
		if a.Addr() == addr {
			return true
		}
	}
	return false
}

// ours reports whether addr is ours on any interface.
func (t *Table) ours(addr netip.Addr) bool {
	for k := range t.cfg.Ifaces {
		if t.cfg.Ifaces[k].has(addr) {
			return true
		}
	}
	return false
}

// source is the address of ours to ask for a neighbour from.
func (i *Iface) source(to netip.Addr) netip.Addr {
	var any netip.Addr
	for _, a := range i.Addrs {
		if a.Addr().Is4() != to.Is4() {
			continue
		}
		if a.Contains(to) {
			return a.Addr()
		}
		if !any.IsValid() {
			any = a.Addr()
		}
	}
	return any
}
