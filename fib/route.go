// Package fib (data path) implements the forwarding tables: routes and
// neighbours as immutable snapshots, and the MAC table of a bridge, which
// workers write while they forward.
package fib

import (
	"fmt"
	"net/netip"

	"github.com/gaissmai/bart"
)

// A Kind says what a route does (rtm_type).
type Kind uint8

// The kinds of routes, named as ip-route(8) names them.
const (
	Unicast     Kind = iota // forward to Via, or straight to the destination
	Local                   // an address of ours
	Broadcast               // a subnet's broadcast address: not forwarded
	Blackhole               // discard silently
	Unreachable             // discard and say so
	Connected               // Unicast to a subnet of ours: there is no Via
)

var kinds = [...]string{"unicast", "local", "broadcast", "blackhole", "unreachable", "connected"}

func (k Kind) String() string { return kinds[k] }

// A Route is one entry of the FIB. It is not changed once in a Table.
type Route struct {
	Prefix netip.Prefix
	Via    netip.Addr // the next hop; zero: the destination is on the link
	Iface  uint16     // L3 interface to leave by
	Kind   Kind
	Metric uint32
	Proto  string // who made it: kernel (ours and connected) or static
}

// Sends reports whether the route leads out of an interface.
func (r *Route) Sends() bool { return r.Kind == Unicast || r.Kind == Connected }

// A Table finds the longest matching prefix. It is immutable: build another
// and publish that. The nil Table and the zero value have no routes. Any
// number of goroutines may look up at once.
type Table struct {
	t      bart.Fast[*Route]
	routes []*Route
}

// Build makes a table. Of several routes for a prefix a local one wins, then
// the one with the lowest metric, then the first.
func Build(routes []Route) (*Table, error) {
	t := &Table{}
	all := append([]Route(nil), routes...)
	for i := range all {
		r := &all[i]
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("fib: route %d: %w", i, err)
		}
		r.Prefix = r.Prefix.Masked()
		if old, ok := t.t.Get(r.Prefix); !ok || r.beats(old) {
			t.t.Insert(r.Prefix, r)
		}
		t.routes = append(t.routes, r)
	}
	return t, nil
}

func (r *Route) check() error {
	a := r.Prefix.Addr()
	switch {
	case !r.Prefix.IsValid():
		return fmt.Errorf("no valid prefix (via %v)", r.Via)
	case a.Is4In6() && r.Prefix.Bits() >= 96:
		return fmt.Errorf("%v is an IPv4-mapped prefix", r.Prefix)
	case r.Via.IsValid() && r.Via.Is4() != a.Is4():
		return fmt.Errorf("%v: next hop %v is of the other family", r.Prefix, r.Via)
	case r.Via.Zone() != "":
		return fmt.Errorf("%v: next hop %v has a zone", r.Prefix, r.Via)
	case int(r.Kind) >= len(kinds):
		return fmt.Errorf("%v: there is no kind %d", r.Prefix, r.Kind)
	}
	return nil
}

func (r *Route) beats(o *Route) bool {
	if (r.Kind == Local) != (o.Kind == Local) {
		return r.Kind == Local
	}
	return r.Metric < o.Metric
}

// Lookup gives the route of a destination, nil if there is none. dst must not
// be an IPv4-mapped IPv6 address.
func (t *Table) Lookup(dst netip.Addr) *Route {
	if t == nil {
		return nil
	}
	r, _ := t.t.Lookup(dst)
	return r
}

// Lookup4 is Lookup of an address in network order.
func (t *Table) Lookup4(dst [4]byte) *Route { return t.Lookup(netip.AddrFrom4(dst)) }

// Lookup6 is Lookup of an address in network order.
func (t *Table) Lookup6(dst [16]byte) *Route { return t.Lookup(netip.AddrFrom16(dst)) }

// RouteSize is about what a route takes at most, in bytes: two nodes of the
// trie, each with 256 places for prefixes and for nodes below it.
const RouteSize = 2 * 2 * 256 * 8

// Routes gives all routes as they were given to Build, for show.
func (t *Table) Routes() []*Route {
	if t == nil {
		return nil
	}
	return t.routes
}
