package netns

import (
	"strings"
	"testing"
	"time"
)

// B23 (f): a port goes with its namespace and comes back with it, as often as
// that happens and whatever was changed meanwhile, in a kernel bridge too; the
// others do not notice. What was made under the new name is not the router's.
func TestNamespaceComesBack(t *testing.T) {
	n := newNet(t)
	r := n.router(bridged[:strings.Index(bridged, "bridges:")] + `
  - {name: @dev:c, type: tap, queues: 2, netns: @ns:c, create: true, steering: hash, host: {addresses: [10.99.0.3/24]}}
  - {name: @dev:d, type: tap, queues: 2, netns: @ns:h, create: true, host: {bridge: br-vm0, create: true}}
  - {name: @dev:e, type: tap, queues: 2, netns: @ns:h, host: {bridge: br-vm1, create: true}}
bridges:
  - {name: br0, ports: [@dev:a, @dev:b, @dev:c, @dev:d, @dev:e]}
`)
	t.Cleanup(func() {
		n.run("ip netns del @ns:c")
		n.run("ip netns del @ns:h")
	})
	n.ping("a", "10.99.0.3")
	r.mustDo("link", "set", "dev", n.dev("c"), "queues", "1")
	beside := n.background("a", "ping -i 0.02 -c 250 10.99.0.2")
	for range 3 {
		n.run("ip netns del @ns:c")
		n.run("ip netns add @ns:c") // at once: the old one is still going
		n.ping("a", "10.99.0.3")
		n.run("ip netns del @ns:h")
		until(t, 10*time.Second, "the ports are shown as gone", func() bool {
			return r.link("@dev:d").OperState == "GONE" && r.link("@dev:e").OperState == "GONE"
		})
		n.run("ip netns add @ns:h")
		until(t, 10*time.Second, "the ports are up again", func() bool {
			return r.link("@dev:d").OperState == "UP" && r.link("@dev:e").OperState == "UP"
		})
		n.must("h", "ip addr add 10.99.0.9/24 dev br-vm0")
		n.ping("a", "10.99.0.9")
	}
	if out := beside(); !strings.Contains(out, " 0% packet loss") {
		t.Errorf("the other pair lost packets:\n%s", out)
	}
	l := r.link("@dev:c")
	if l.OperState != "UP" || l.Reason != "" || l.QueuesUsed != 1 || l.Steering != "hash" {
		t.Errorf("the port is shown as %+v", l)
	}
	r.mustDo("link", "set", "dev", n.dev("c"), "queues", "2")
	n.ping("a", "10.99.0.3")
	r.stop()
	if _, err := n.exec("h", "ip link show br-vm0"); err == nil {
		t.Error("the bridge that the router made is left behind")
	}
	if all := namespaces(); !all[n.ns("c")] || !all[n.ns("h")] || all[n.ns("a")] {
		t.Errorf("found and kept: %v, %v; made and left behind: %v", all[n.ns("c")], all[n.ns("h")], all[n.ns("a")])
	}
}
