package netns

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"taprouter/internal/vm"
)

// Guests on socket ports, one of each kind, beside namespaces on TAPs with all
// offloads.
//
//	guest a 10.99.0.1 ── stream, unix: QEMU connects ── a ─┐
//	guest b 10.99.0.2 ── dgram, unix ────────────────── b ─┼ br0 ─┬─ c ═ namespace c 10.99.0.3
//	guest e 10.99.0.5 ── stream, TCP: we connect ────── e ─┘      └─ d ═ namespace d 10.99.0.4
const onSockets = `
version: 1
workers: 2
ports:
  - {name: a, type: socket, mtu: 9000, stream: {listen: @dir/a}}
  - {name: b, type: socket, mtu: 9000, dgram: {local: @dir/b, remote: @dir/qb}}
  - {name: e, type: socket, mtu: 9000, stream: {connect: "127.0.0.1:@port"}}
  - {name: @dev:c, type: tap, mtu: 9000, queues: 2, netns: @ns:c, create: true, host: {addresses: [10.99.0.3/24, "fd99::3/64"]}}
  - {name: @dev:d, type: tap, mtu: 9000, queues: 2, netns: @ns:d, create: true, host: {addresses: [10.99.0.4/24, "fd99::4/64"]}}
bridges:
  - {name: br0, ports: [a, b, e, @dev:c, @dev:d]}
`

// freePort gives a port of the loopback that nobody has.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// onSocketPorts starts the router and the three guests.
func (n *Net) onSocketPorts() (r *Router, a, b, e *Machine) {
	n.t.Helper()
	dir, port := n.t.TempDir(), freePort(n.t)
	r = n.router(strings.NewReplacer("@dir", dir, "@port", fmt.Sprint(port)).Replace(onSockets))
	g := n.bootWith("", map[string]vm.NIC{
		"a": {Netdev: fmt.Sprintf("stream,server=off,addr.type=unix,addr.path=%s/a", dir)},
		"b": {Netdev: fmt.Sprintf("dgram,local.type=unix,local.path=%[1]s/qb,remote.type=unix,remote.path=%[1]s/b", dir)},
		"e": {Netdev: fmt.Sprintf("stream,server=on,addr.type=inet,addr.host=127.0.0.1,addr.port=%d", port)},
	}, map[string][]string{"a": {"10.99.0.1/24", "fd99::1/64"}, "b": {"10.99.0.2/24", "fd99::2/64"}, "e": {"10.99.0.5/24", "fd99::5/64"}})
	for _, k := range []string{"a", "b", "e"} {
		r.connected(k)
	}
	g["a"].reach("10.99.0.2")
	g["b"].reach("10.99.0.5")
	return r, g["a"], g["b"], g["e"]
}

// connected waits until a socket port has its peer.
func (r *Router) connected(port string) {
	r.net.t.Helper()
	until(r.net.t, 20*time.Second, "port "+port+" is connected", func() bool {
		l := r.link(port)
		return l.OperState == "UP" && l.SocketState == "connected"
	})
}

// Guests on socket ports do everything that guests on TAPs do.
func TestVMSockets(t *testing.T) {
	needMachines(t)
	n := newNet(t)
	r, a, b, e := n.onSocketPorts()
	t.Run("ping", func(t *testing.T) {
		t.Logf("IPv4 %+v", a.echo("10.99.0.2", 10, 56))
		t.Logf("fragments %+v", e.echo("10.99.0.1", 5, 4000))
		n.ping("c", "10.99.0.2")
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
		t.Logf("a to b, stream to dgram: %.0f Mbit/s", bulk(t, a, b, "10.99.0.2", 32<<20))
		t.Logf("b to e, IPv6, dgram to TCP: %.0f Mbit/s", bulk(t, b, e, "fd99::5", 16<<20))
		t.Logf("e to a, TCP to stream: %.0f Mbit/s", bulk(t, e, a, "10.99.0.1", 16<<20))
	})
	t.Run("udp", func(t *testing.T) {
		numbered(t, a, b, "10.99.0.2", 10000, 200, 4000)
		numbered(t, b, e, "10.99.0.5", 2000, 200, 2000)
		numbered(t, e, a, "fd99::1", 2000, 200, 2000)
	})
	t.Run("namespace", func(t *testing.T) { // superpackets and checksums to be completed go to plain frames
		c := n.agent("c")
		bulk(t, c, a, "10.99.0.1", 16<<20)
		bulk(t, c, b, "fd99::2", 16<<20)
		bulk(t, e, c, "10.99.0.3", 8<<20)
		for _, k := range []string{"a", "b"} {
			if l := r.link(k); l.Segments == 0 || l.Checksums == 0 || len(l.Software) != 3 {
				t.Errorf("port %s: %d software segments, %d checksums, software %v", k, l.Segments, l.Checksums, l.Software)
			}
		}
		if l := r.link(n.dev("c")); !slices.Contains(l.Offloads, "tso4") {
			t.Errorf("the TAP has the offloads %v", l.Offloads)
		}
	})
	t.Run("dhcp", func(t *testing.T) {
		n.dhcp("c", n.dev("c"), net.IPv4(10, 99, 0, 3), net.IPv4(10, 99, 0, 77))
		var got string
		b.must(b.Call(b.ctx(), "dhcp", "eth0", &got))
		if got != "10.99.0.77/24" {
			t.Fatalf("the guest got %s", got)
		}
		b.set(vm.LinkConfig{Addrs: prefixes([]string{got})})
		n.ping("c", "10.99.0.77")
	})
	t.Run("vlan", func(t *testing.T) {
		a.must(a.AddVLAN(a.ctx(), "eth0", "v7", 7, netip.MustParsePrefix("10.99.7.1/24")))
		b.must(b.AddVLAN(b.ctx(), "eth0", "v7", 7, netip.MustParsePrefix("10.99.7.2/24")))
		a.reach("10.99.7.2")
		bulk(t, a, b, "10.99.7.2", 4<<20)
		numbered(t, b, a, "10.99.7.1", 2000, 200, 2000)
	})
	t.Run("mtu", func(t *testing.T) {
		for _, m := range []*Machine{a, b, e} {
			m.set(vm.LinkConfig{MTU: 9000})
		}
		t.Logf("%+v", a.echo("10.99.0.2", 5, 8972)) // not a fragment: 20 + 8 + 8972
		bulk(t, a, b, "10.99.0.2", 16<<20)
		numbered(t, b, e, "fd99::5", 500, 8000, 500)
	})
	t.Run("paused", func(t *testing.T) { pausedOnSocket(t, n, r, a) })
	if n := r.steering().Reordered; n != 0 {
		t.Errorf("%d packets were reordered", n)
	}
	t.Run("restart", func(t *testing.T) { // QEMU 7.2 listens again; it does not connect again
		r.end()
		r.start()
		r.connected("b")
		r.connected("e")
		b.reach("10.99.0.5")
		bulk(t, e, b, "10.99.0.2", 4<<20)
	})
	if got := r.drops(); got["malformed"] > 0 || got["tx_error"] > 0 || got["tx_inval"] > 0 {
		t.Errorf("drops: %v", got)
	}
}

// pausedOnSocket pauses guest a: its socket fills up and its queue stops.
func pausedOnSocket(t *testing.T, n *Net, r *Router, a *Machine) {
	stops := r.link("a").Queues[0].TxStops
	besidePaused(t, n, r, a, "10.99.0.1", "a", func() {
		if q := r.link("a").Queues[0]; !q.Stopped || q.TxStops == stops {
			t.Errorf("the paused guest's queue did not stop: %+v", q)
		}
	})
}
