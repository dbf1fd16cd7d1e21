// Package neigh (control plane) is what the router itself says on its links:
// it finds neighbours with ARP (RFC 826) and neighbour discovery (RFC 4861),
// answers those who look for the router, and answers pings to it.
//
// neigh.go is its face, table.go keeps the entries, timers.go moves them on,
// arp.go and nd.go speak the protocols, echo.go answers pings and
// reassembly.go puts fragments of them together.
package neigh

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"taprouter/fib"
)

// An Iface is an L3 interface of the router.
type Iface struct {
	Name  string
	MAC   [6]byte
	Addrs []netip.Prefix // ours, link-local ones included
	Tun   bool           // no Ethernet, no neighbours
	MTU   int            // bytes, without the Ethernet header
}

// Config says how a Table reaches the world. Inject and Publish are called
// with the table locked: they must not call back.
type Config struct {
	Ifaces    []Iface     // by index
	Permanent []fib.Neigh // never asked for, never forgotten
	Inject    func(iface uint16, frame []byte) bool
	Publish   func(*fib.Neighbours)
	Now       func() int64 // the data path's clock, ns
	Timing    Timing       // a zero field: its default
}

// A Table is the neighbours of all interfaces. Its methods may be called by
// any goroutine.
type Table struct {
	cfg  Config
	wake chan struct{} // a due time has become earlier

	mu     sync.Mutex
	all    map[key]*entry // guarded by mu
	due    byDue          // all but the permanent ones; guarded by mu
	limits []limit        // of requests, by interface; guarded by mu
	asm    reassembly     // guarded by mu
	ipID   uint16         // guarded by mu
	stats  Stats          // guarded by mu
	sleeps int64          // Run's next due time; guarded by mu

	dirty     bool  // the data path has not seen the last change; guarded by mu
	publishAt int64 // not earlier; guarded by mu
}

// New makes a Table with the permanent neighbours only. Run publishes them.
func New(cfg Config) *Table {
	cfg.Timing.fill()
	t := &Table{
		cfg: cfg, all: map[key]*entry{}, wake: make(chan struct{}, 1), limits: make([]limit, len(cfg.Ifaces)),
		publishAt: cfg.Now(), dirty: len(cfg.Permanent) > 0, sleeps: never,
	}
	for i := range t.limits {
		t.limits[i].next = cfg.Now() - requestBurst*int64(requestGap)
	}
	for _, n := range cfg.Permanent {
		e := t.create(key{n.Iface, n.Addr.Unmap().WithZone("")}, cfg.Now())
		e.mac, e.state = n.MAC, permanent
		t.at(e, never)
	}
	return t
}

// Run keeps the timers until ctx ends. It sleeps while nothing is due.
func (t *Table) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-t.wake:
		}
		timer.Stop()
		if next := t.tick(); next != never {
			timer.Reset(max(time.Duration(next-t.cfg.Now()), 0))
		}
	}
}

// Resolve starts to look for a neighbour, unless that is under way.
func (t *Table) Resolve(iface uint16, addr netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	addr = addr.Unmap().WithZone("")
	if int(iface) >= len(t.cfg.Ifaces) || t.cfg.Ifaces[iface].Tun || !unicast(addr) || t.cfg.Ifaces[iface].has(addr) {
		return
	}
	now := t.cfg.Now()
	defer t.settle(now)
	e := t.all[key{iface, addr}]
	switch {
	case e != nil && e.state != failed:
		return // under way, or known: who asks gets to see the snapshot
	case t.limits[iface].next-now > int64(t.cfg.Timing.Retrans):
		t.stats.Limited++ // so far behind that the packet will not wait
		return
	case e == nil:
		e = t.create(key{iface, addr}, now)
	default:
		t.dirty = true // no longer a failure
	}
	e.to(incomplete, now)
	t.ask(e, now)
}

// HandleFrame takes a frame for the router that came in by an interface. The
// frame is complete, with its checksums, and now the Table's.
func (t *Table) HandleFrame(iface uint16, frame []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if int(iface) >= len(t.cfg.Ifaces) {
		return
	}
	defer t.settle(t.cfg.Now())
	i := &t.cfg.Ifaces[iface]
	var eth []byte
	et := uint16(0)
	switch {
	case !i.Tun && len(frame) >= 14:
		eth, frame, et = frame[:14], frame[14:], be16(frame[12:])
	case i.Tun && len(frame) > 0 && frame[0]>>4 == 4:
		et = etherIPv4
	case i.Tun && len(frame) > 0 && frame[0]>>4 == 6:
		et = etherIPv6
	}
	if eth != nil && (eth[6]&1 != 0 || [6]byte(eth[6:12]) == i.MAC) {
		t.stats.RxMalformed++ // from nobody, or our own that came back
		return
	}
	switch {
	case et == etherARP && !i.Tun:
		t.arp(iface, i, frame)
	case et == etherIPv4:
		t.ipv4(iface, i, eth, frame)
	case et == etherIPv6:
		t.ipv6(iface, i, eth, frame)
	default:
		t.stats.RxMalformed++
	}
}

// Flush forgets the neighbours of an interface, but for permanent ones, and
// gives their number.
func (t *Table) Flush(iface uint16) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.settle(t.cfg.Now())
	n := 0
	for _, e := range t.all {
		if e.iface == iface && e.state != permanent {
			t.remove(e)
			n++
		}
	}
	return n
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

// ours reports whether what came in by interface i for addr is for us: an
// address of any interface, but link-local ones are known on their link only.
func (t *Table) ours(i *Iface, addr netip.Addr) bool {
	if addr.IsLinkLocalUnicast() {
		return i.has(addr)
	}
	for k := range t.cfg.Ifaces {
		if t.cfg.Ifaces[k].has(addr) {
			return true
		}
	}
	return false
}

// source is the address of ours to ask for a neighbour from.
func (i *Iface) source(to netip.Addr) netip.Addr {
	var other netip.Addr
	for _, a := range i.Addrs {
		if a.Addr().Is4() != to.Is4() {
			continue
		}
		if a.Contains(to) {
			return a.Addr()
		}
		if !other.IsValid() {
			other = a.Addr()
		}
	}
	return other
}

// unicast reports whether addr can be one host's.
func unicast(addr netip.Addr) bool {
	return addr.IsValid() && !addr.IsUnspecified() && !addr.IsMulticast() && addr != broadcast4
}

var broadcast4 = netip.AddrFrom4([4]byte{255, 255, 255, 255})
