package netns

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"taprouter/internal/vm"
)

// Two guests in bridges of the host reach each other through the router, with
// everything that hosts do.
func TestVMPair(t *testing.T) {
	needMachines(t)
	n := newNet(t)
	n.hostNS(1, "a", "b")
	r := n.router(guests)
	g := n.boot(1, map[string][]string{"a": {"10.99.0.1/24", "fd99::1/64"}, "b": {"10.99.0.2/24", "fd99::2/64"}})
	a, b := g["a"], g["b"]
	a.reach("10.99.0.2")
	for _, k := range []string{"a", "b"} {
		if l := r.link("@dev:" + k); len(l.Problems) > 0 {
			t.Errorf("port %s: %q", k, l.Problems)
		}
	}
	t.Run("ping", func(t *testing.T) {
		t.Logf("IPv4 %+v", a.echo("10.99.0.2", 10, 56))
		t.Logf("fragments %+v", a.echo("10.99.0.2", 5, 4000))
		t.Logf("from a namespace: %s", n.must("c", "ping -c 3 -i 0.2 10.99.0.1"))
	})
	t.Run("nd", func(t *testing.T) {
		a.echo("fd99::2", 5, 56)
		got, err := b.Neighbours(b.ctx(), "eth0")
		a.must(err)
		if !slices.Contains(got, netip.MustParseAddr("fd99::1")) {
			t.Errorf("b has resolved %v, want fd99::1 among them", got)
		}
	})
	t.Run("tcp", func(t *testing.T) {
		t.Logf("a to b %.0f Mbit/s", bulk(t, a, b, "10.99.0.2", 32<<20))
		t.Logf("b to a, IPv6 %.0f Mbit/s", bulk(t, b, a, "fd99::1", 8<<20))
	})
	t.Run("udp", func(t *testing.T) { numbered(t, a, b, "10.99.0.2", 10000, 200, 4000) })
	t.Run("namespace", func(t *testing.T) {
		c := n.agent("c")
		bulk(t, c, a, "10.99.0.1", 8<<20)
		bulk(t, a, c, "10.99.0.3", 8<<20)
	})
	t.Run("dhcp", func(t *testing.T) {
		n.dhcp("c", n.dev("c"), net.IPv4(10, 99, 0, 3), net.IPv4(10, 99, 0, 77))
		var got string
		a.must(a.Call(a.ctx(), "dhcp", "eth0", &got))
		if got != "10.99.0.77/24" {
			t.Fatalf("the guest got %s", got)
		}
		a.set(vm.LinkConfig{Addrs: prefixes([]string{got})})
		n.ping("c", "10.99.0.77")
	})
	t.Run("offloads", func(t *testing.T) {
		names := []string{"tx-checksum-ip-generic", "tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-generic-segmentation", "rx-gro"}
		for _, who := range [][]*Machine{{a}, {a, b}} {
			for _, m := range who {
				m.must(m.SetFeatures(m.ctx(), "eth0", all(names, false)))
			}
			bulk(t, a, b, "10.99.0.2", 4<<20)
			bulk(t, b, a, "fd99::1", 4<<20)
		}
		for _, m := range []*Machine{a, b} {
			m.must(m.SetFeatures(m.ctx(), "eth0", all(names, true)))
		}
		bulk(t, a, b, "10.99.0.2", 4<<20)
	})
	t.Run("vlan", func(t *testing.T) {
		a.must(a.AddVLAN(a.ctx(), "eth0", "v7", 7, netip.MustParsePrefix("10.99.7.1/24")))
		b.must(b.AddVLAN(b.ctx(), "eth0", "v7", 7, netip.MustParsePrefix("10.99.7.2/24")))
		a.reach("10.99.7.2")
		bulk(t, a, b, "10.99.7.2", 4<<20)
		numbered(t, b, a, "10.99.7.1", 2000, 200, 4000)
	})
	t.Run("mtu", func(t *testing.T) {
		for _, k := range []string{"a", "b"} {
			n.must("h", "ip link set q"+k+" mtu 9000")
			n.must("h", "ip link set @dev:"+k+" mtu 9000")
			g[k].set(vm.LinkConfig{MTU: 9000})
		}
		t.Logf("%+v", a.echo("10.99.0.2", 5, 8972)) // not a fragment: 20 + 8 + 8972
		bulk(t, a, b, "10.99.0.2", 16<<20)
		numbered(t, a, b, "fd99::2", 500, 8000, 1000)
		if l := r.link("@dev:a"); l.MTU != 9000 || len(l.Problems) > 0 {
			t.Errorf("port a has mtu %d, problems %q", l.MTU, l.Problems)
		}
	})
	if out, err := r.command("drops", "show"); err != nil || strings.Contains(out, "malformed") {
		t.Errorf("drops: %v\n%s", err, out)
	}
	for _, kind := range []string{"accept: []", "vnet_hdr: false"} { // B03
		t.Run(kind, func(t *testing.T) {
			r.stop()
			r = n.router(strings.Replace(strings.ReplaceAll(guests, "type: tap,", "type: tap, mtu: 9000,"), "{name: @dev:b,", "{name: @dev:b, "+kind+",", 1))
			for _, to := range []string{"10.99.0.2", "fd99::2"} {
				a.reach(to)
				bulk(t, a, b, to, 8<<20)
				numbered(t, a, b, to, 200, 8000, 500)
			}
			for _, to := range []string{"10.99.0.1", "fd99::1"} {
				bulk(t, b, a, to, 8<<20)
			}
			if l := r.link("@dev:b"); l.Segments == 0 || len(l.Software) != 3 || len(r.link("@dev:a").Software) != 0 {
				t.Errorf("the port shows %d software segments, software %v", l.Segments, l.Software)
			}
		})
	}
}

func all(names []string, on bool) map[string]bool {
	m := map[string]bool{}
	for _, n := range names {
		m[n] = on
	}
	return m
}
