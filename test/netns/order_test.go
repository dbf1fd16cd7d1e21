package netns

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"taprouter/internal/traffic"
)

// UDP of 64 flows arrives in order, and what is lost is counted.
func TestUDPOrder(t *testing.T) {
	eachBackend(t, func(t *testing.T, top topology, n *Net, r *Router) {
		e := n.ends(r)
		ctx := t.Context()
		for _, leg := range [][3]string{{"a", "b", top.b4}, {"a", "b", top.b6}, {"b", "a", top.a4}, {"b", "a", top.a6}} {
			u := e.udp(ctx, leg[0], leg[1], leg[2], traffic.UDPSend{Flows: 64, PPS: 20000, Size: 200, Duration: top.duration()})
			u.check(t, leg[0]+" to "+leg[2])
		}
	})
}

// Everything that can be changed live is changed under UDP flows: nothing is
// reordered, and what is lost is counted.
func TestLiveChanges(t *testing.T) {
	each(t, func(t *testing.T, top topology, n *Net, r *Router) {
		e := n.ends(r)
		done := make(chan udpRun, 1)
		go func() {
			done <- e.udp(t.Context(), "a", "b", top.b4, traffic.UDPSend{Flows: 16, PPS: 10000, Size: 300, Duration: 4 * time.Second})
		}()
		b := n.dev("b")
		changes := 0
		for end := time.Now().Add(3500 * time.Millisecond); time.Now().Before(end); {
			for _, c := range [][]string{
				{"qdisc", "replace", "dev", b, "root", "pfifo_fast"},
				{"link", "set", "dev", b, "txqueuelen", "500"},
				{"xps", "set", "dev", b, "flow_table_cnt", "64"},
				{"xps", "set", "dev", b, "queue", "0", "workers", "0,1"},
				{"qdisc", "replace", "dev", b, "root", "mq"},
				{"qdisc", "replace", "dev", b, "parent", ":1", "pfifo_fast"},
				{"bql", "set", "dev", b, "queue", "0", "limit_max", "100000"},
				{"qdisc", "replace", "dev", b, "parent", ":2", "fq", "limit", "5000"},
				{"qdisc", "change", "dev", b, "parent", ":2", "fq", "maxrate", "100mbit", "buckets", "64"},
				{"qdisc", "replace", "dev", b, "root", "mq", "child", "fq"},
				{"qdisc", "change", "dev", b, "parent", ":1", "fq", "maxrate", "0", "nopacing"},
				{"qdisc", "replace", "dev", b, "root", "fq"},
				{"qdisc", "change", "dev", b, "root", "fq", "flow_limit", "1000"},
				{"qdisc", "replace", "dev", b, "root", "mq"},
				{"xps", "set", "dev", b, "flow_table_cnt", "8192", "mode", "inflight"},
				{"xps", "set", "dev", b, "queue", "0", "workers", "0"},
				{"link", "set", "dev", n.dev("a"), "gro", "off"},
				{"link", "set", "dev", n.dev("a"), "gro", "on"},
				{"link", "set", "dev", b, "txqueuelen", "1000"},
			} {
				if out, err := r.command(c...); err != nil {
					t.Errorf("router %v: %v %s", c, err, out)
				}
				changes++
			}
		}
		u := <-done
		u.check(t, fmt.Sprintf("%d changes", changes))
	})
}

// The link of a port is set down and up again under traffic: packets for it
// are dropped with a reason, and it works again.
func TestLinkDownAndUp(t *testing.T) {
	eachBackend(t, func(t *testing.T, top topology, n *Net, r *Router) {
		n.must("b", "ip link set dev @dev:b down")
		until(t, 5*time.Second, "the port is down", func() bool { return r.link("@dev:b").OperState == "DOWN" })
		if _, err := n.exec("a", "ping -c 3 -i 0.2 -W 1 "+top.b4); err == nil {
			t.Error("a host whose link is down answers")
		}
		n.must("b", "ip link set dev @dev:b up")
		if strings.HasPrefix(top.name, "l3") { // the kernel forgets routes of a link that goes down
			n.must("b", "ip route replace default via 10.99.2.254")
		}
		n.ping("a", top.b4)
	})
}

// A netdev is moved to another namespace and renamed under the router: it is
// followed there, and following it costs nothing.
func TestDeviceMoves(t *testing.T) {
	n := newNet(t)
	r := n.router(bridged)
	n.ping("a", "10.99.0.2")
	if out, err := output(exec.Command("ip", "netns", "add", n.ns("c"))); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", n.ns("c")).Run() })
	n.must("b", "ip link set dev @dev:b netns @ns:c name moved")
	until(t, 5*time.Second, "the port is down", func() bool { return r.link("@dev:b").OperState == "DOWN" })
	n.must("c", "ip addr add 10.99.0.2/24 dev moved")
	n.must("c", "ip link set dev moved up")
	until(t, 5*time.Second, "the port is up", func() bool { return r.link("@dev:b").OperState == "UP" })
	n.ping("a", "10.99.0.2")
	before := r.usage()
	time.Sleep(2 * time.Second) // the time that is measured
	if used := r.usage().cpu - before.cpu; used > 100*time.Millisecond {
		t.Errorf("after a move the idle router used %v in 2 s", used)
	}
}
