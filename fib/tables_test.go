package fib

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func ip(s string) netip.Addr    { return netip.MustParseAddr(s) }

func TestLookup(t *testing.T) {
	tab, err := Build([]Route{
		{Prefix: pfx("0.0.0.0/0"), Via: ip("10.0.0.254"), Iface: 9},
		{Prefix: pfx("10.0.0.5/24"), Iface: 1, Kind: Connected},
		{Prefix: pfx("10.0.0.1/32"), Iface: 1, Metric: 1},
		{Prefix: pfx("10.0.0.1/32"), Iface: 2, Kind: Local, Metric: 9},
		{Prefix: pfx("10.0.0.1/32"), Iface: 3},
		{Prefix: pfx("10.9.0.0/16"), Iface: 4, Metric: 20},
		{Prefix: pfx("10.9.0.0/16"), Iface: 5, Metric: 10},
		{Prefix: pfx("10.9.0.0/16"), Iface: 6, Metric: 10},
		{Prefix: pfx("2001:db8::/32"), Iface: 7},
		{Prefix: pfx("2001:db8:1::/48"), Iface: 8, Kind: Blackhole},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		dst  string
		want int // interface; -1 = none
	}{
		{"8.8.8.8", 9}, {"10.0.0.77", 1}, {"10.0.0.1", 2}, {"10.9.255.1", 5},
		{"2001:db8::1", 7}, {"2001:db8:1::1", 8}, {"2001:db9::1", -1}, {"::1", -1},
	} {
		r := tab.Lookup(ip(tt.dst))
		if got := -1; r != nil && int(r.Iface) != tt.want || r == nil && got != tt.want {
			t.Errorf("Lookup(%s) = %+v, want interface %d", tt.dst, r, tt.want)
		}
		a := ip(tt.dst)
		if a.Is4() && tab.Lookup4(a.As4()) != r || a.Is6() && tab.Lookup6(a.As16()) != r {
			t.Errorf("Lookup4/6(%s) is not Lookup", tt.dst)
		}
	}
	if len(tab.Routes()) != 10 || tab.Routes()[1].Prefix != pfx("10.0.0.0/24") {
		t.Errorf("Routes = %v", tab.Routes())
	}
	var none *Table
	if none.Lookup(ip("1.2.3.4")) != nil || none.Routes() != nil {
		t.Error("the nil table has a route")
	}
	dst := [16]byte{0x20, 1, 0x0d, 0xb8}
	if n := testing.AllocsPerRun(100, func() { tab.Lookup4([4]byte{10, 9, 1, 1}); tab.Lookup6(dst) }); n != 0 {
		t.Errorf("%v allocations in a lookup", n)
	}
}

func TestBuildRefuses(t *testing.T) {
	for _, tt := range []struct {
		r    Route
		want string
	}{
		{Route{}, "no valid prefix"},
		{Route{Prefix: pfx("::ffff:10.0.0.0/104")}, "IPv4-mapped"},
		{Route{Prefix: pfx("10.0.0.0/8"), Via: ip("::1")}, "other family"},
		{Route{Prefix: pfx("::/0"), Via: ip("fe80::1%eth0")}, "zone"},
		{Route{Prefix: pfx("::/0"), Kind: 99}, "kind 99"},
	} {
		if _, err := Build([]Route{tt.r}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Build(%+v) = %v, want an error with %q", tt.r, err, tt.want)
		}
	}
}

// The golden twin of Lookup goes through all routes.
func TestLookupAgainstScan(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	addr := func() netip.Addr {
		if rnd.UintN(2) == 0 {
			return netip.AddrFrom4([4]byte{10, byte(rnd.UintN(4)), byte(rnd.UintN(4)), byte(rnd.UintN(256))})
		}
		return netip.AddrFrom16([16]byte{0xfd, 0, byte(rnd.UintN(4)), 3: byte(rnd.UintN(4)), 15: byte(rnd.UintN(256))})
	}
	var routes []Route
	for i := range 500 {
		a := addr()
		routes = append(routes, Route{Prefix: netip.PrefixFrom(a, rnd.IntN(a.BitLen()+1)), Iface: uint16(i), Metric: uint32(rnd.UintN(3))})
	}
	tab, err := Build(routes)
	if err != nil {
		t.Fatal(err)
	}
	for range 5000 {
		a := addr()
		var want *Route
		for _, r := range tab.Routes() {
			if r.Prefix.Contains(a) && (want == nil || r.Prefix.Bits() > want.Prefix.Bits() || r.Prefix == want.Prefix && r.Metric < want.Metric) {
				want = r
			}
		}
		if got := tab.Lookup(a); got != want {
			t.Fatalf("Lookup(%v) = %+v, want %+v", a, got, want)
		}
	}
}

func TestNeighbours(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	type key struct {
		iface uint16
		addr  netip.Addr
	}
	var ns []Neigh
	want := map[key]Neigh{}
	for i := range 1000 {
		a := netip.AddrFrom4([4]byte{10, 0, byte(rnd.UintN(2)), byte(rnd.UintN(100))})
		if i%2 == 0 {
			a = netip.AddrFrom16([16]byte{0xfe, 0x80, 14: byte(rnd.UintN(2)), 15: byte(rnd.UintN(100))})
		}
		n := Neigh{Iface: uint16(rnd.UintN(3)), Addr: a, MAC: [6]byte{2, 4: byte(i >> 8), 5: byte(i)}, Failed: i%7 == 0}
		ns = append(ns, n)
		want[key{n.Iface, a}] = n
	}
	tab := BuildNeighbours(append(ns, Neigh{}))
	if tab.Len() != len(want) {
		t.Errorf("Len = %d, want %d", tab.Len(), len(want))
	}
	for iface := range uint16(4) {
		for i := range 256 {
			for _, a := range []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}), netip.AddrFrom16([16]byte{0xfe, 0x80, 15: byte(i)})} {
				got := tab.Lookup(iface, a)
				w, ok := want[key{iface, a}]
				if (got != nil) != ok || ok && *got != w {
					t.Fatalf("Lookup(%d, %v) = %+v, want %+v, %v", iface, a, got, w, ok)
				}
			}
		}
	}
	var none *Neighbours
	if none.Lookup(0, ip("1.2.3.4")) != nil || none.Len() != 0 {
		t.Error("the nil table has a neighbour")
	}
	if n := testing.AllocsPerRun(100, func() { tab.Lookup(1, ns[0].Addr) }); n != 0 {
		t.Errorf("%v allocations in a lookup", n)
	}
}
