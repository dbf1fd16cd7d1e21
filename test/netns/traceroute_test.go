package netns

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Two routers in a row, joined by a kernel bridge in namespace m:
//
//	a 10.97.1.1 ═ .254 router 1 10.97.2.1 ═ br ═ 10.97.2.2 router 2 10.97.3.254 ═ .1 b
func twoRouters(t *testing.T) *Net {
	n := newNet(t)
	for _, line := range []string{"ip netns add @ns:m", "ip -n @ns:m link add br0 type bridge forward_delay 0 stp_state 0", "ip -n @ns:m link set br0 up"} {
		f := strings.Fields(n.expand(line))
		if out, err := output(exec.Command(f[0], f[1:]...)); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", n.ns("m")).Run() })
	half := `
version: 1
workers: 2
ports:
  - {name: @dev:%[1]s, type: tap, queues: 2, netns: @ns:%[1]s, create: true, host: {addresses: [10.97.%[2]d.1/24, "fd97:%[2]d::1/64"], routes: [{to: default, via: 10.97.%[2]d.254}, {to: default, via: "fd97:%[2]d::fe"}]}, addresses: [10.97.%[2]d.254/24, "fd97:%[2]d::fe/64"]}
  - {name: @dev:%[1]sm, type: tap, queues: 2, netns: @ns:m, host: {bridge: br0}, addresses: [10.97.2.%[3]d/24, "fd97:2::%[3]d/64"]}
routes:
  - {to: 10.97.%[4]d.0/24, via: 10.97.2.%[5]d}
  - {to: "fd97:%[4]d::/64", via: "fd97:2::%[5]d"}
`
	n.router(fmt.Sprintf(half, "a", 1, 1, 3, 2))
	n.router(fmt.Sprintf(half, "b", 3, 2, 1, 1))
	n.ping("a", "10.97.3.1")
	n.ping("a", "fd97:3::1")
	n.must("b", "sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0") // the last hop is the kernel
	return n
}

// B10: traceroute shows every hop, each answering from the address that
// faces the sender.
func TestTraceroute(t *testing.T) {
	n := twoRouters(t)
	for _, tt := range []struct {
		line string
		hops []string
	}{
		{"traceroute -n -w 2 10.97.3.1", []string{"10.97.1.254", "10.97.2.2", "10.97.3.1"}},
		{"traceroute -n -w 2 -I 10.97.3.1", []string{"10.97.1.254", "10.97.2.2", "10.97.3.1"}},
		{"traceroute -n -w 2 -T 10.97.3.1", []string{"10.97.1.254", "10.97.2.2", "10.97.3.1"}},
		{"traceroute -n -w 2 -6 fd97:3::1", []string{"fd97:1::fe", "fd97:2::2", "fd97:3::1"}},
		{"traceroute -n -w 2 -6 -I fd97:3::1", []string{"fd97:1::fe", "fd97:2::2", "fd97:3::1"}},
		{"traceroute -n -w 2 -6 -T fd97:3::1", []string{"fd97:1::fe", "fd97:2::2", "fd97:3::1"}},
		{"traceroute -n -w 2 10.97.2.2", []string{"10.97.1.254", "10.97.2.2"}}, // ends at a router
	} {
		out := n.must("a", tt.line)
		var hops []string
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) > 1 && f[0] != "traceroute" {
				hops = append(hops, f[1])
			}
		}
		if !slices.Equal(hops, tt.hops) || strings.Contains(out, "*") {
			t.Errorf("%s: hops %v, want %v and no stars\n%s", tt.line, hops, tt.hops, out)
		}
	}
}

// A ping whose TTL ends at the router is answered by it, to the sender.
func TestPingTTL(t *testing.T) {
	each(t, func(t *testing.T, top topology, n *Net, r *Router) {
		for _, tt := range [][3]string{{top.b4, "10.99.1.254", "Time to live exceeded"}, {top.b6, "fd99:1::fe", "Time exceeded: Hop limit"}} {
			out, err := n.exec("a", "ping -c 1 -W 2 -t 1 "+tt[0])
			if top.name == "l2" { // a bridge is not a hop
				if err != nil {
					t.Errorf("ping -t 1 %s over a bridge: %v\n%s", tt[0], err, out)
				}
				continue
			}
			if !strings.Contains(out, tt[2]) || !strings.Contains(strings.ToLower(out), "from "+tt[1]) {
				t.Errorf("ping -t 1 %s: want %q from %s\n%s", tt[0], tt[2], tt[1], out)
			}
		}
	})
}

// Pings to the router are answered, also those that need fragments.
func TestPingRouter(t *testing.T) {
	n := newNet(t)
	n.router(routed)
	for _, addr := range []string{"10.99.1.254", "10.99.2.254", "fd99:1::fe", "fd99:2::fe"} {
		n.ping("a", addr)
		for _, size := range []int{1400, 8000, 60000} {
			if out, err := n.exec("a", fmt.Sprintf("ping -c 2 -i 0.2 -W 2 -s %d %s", size, addr)); err != nil {
				t.Errorf("ping -s %d %s: %v\n%s", size, addr, err, out)
			}
		}
	}
}

// A packet that is too big for the way out is cut by us, or its sender is
// told; IPv6 and DF.
func TestSmallerMTU(t *testing.T) {
	n := newNet(t)
	n.router(strings.Replace(routed, "netns: @ns:b\n", "netns: @ns:b\n    mtu: 1400\n", 1))
	n.ping("a", "10.99.2.1")
	n.ping("a", "fd99:2::1")
	if out, err := n.exec("a", "ping -c 2 -i 0.2 -W 2 -M dont -s 1472 10.99.2.1"); err != nil {
		t.Errorf("a ping that may be cut: %v\n%s", err, out)
	}
	if out, err := n.exec("a", "ping -c 1 -W 2 -M do -s 1472 10.99.2.1"); err == nil || !strings.Contains(out, "mtu") || !strings.Contains(out, "1400") {
		t.Errorf("a ping that must not be cut: %v, want an answer with the MTU\n%s", err, out)
	}
	if out, err := n.exec("a", "ping -c 3 -i 0.2 -W 2 -s 1452 fd99:2::1"); err != nil && !strings.Contains(out, "2 received") {
		t.Errorf("IPv6 after packet too big: %v\n%s", err, out)
	}
	if res := n.iperf("a", "b", "10.99.2.1", "-t 1"); res.End.Received.Bytes < 1<<20 {
		t.Errorf("TCP over the smaller MTU: %.0f bytes", res.End.Received.Bytes)
	}
}
