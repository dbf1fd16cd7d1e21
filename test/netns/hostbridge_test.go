package netns

import (
	"strings"
	"testing"
)

// attached is one port in a kernel bridge in namespace h and one for host b.
const attached = `
version: 1
workers: 2
ports:
  - {name: @dev:a, type: tap, queues: 2, netns: @ns:h, create: true, host: {bridge: br-vm0, create: true}}
  - {name: @dev:b, type: tap, queues: 2, netns: @ns:b, create: true, host: {addresses: [10.99.0.2/24, "fd99::2/64"]}}
bridges:
  - {name: br0, ports: [@dev:a, @dev:b]}
`

// quiet takes a new namespace's frames out of the packet filter, where the
// kernel has br_netfilter.
const quiet = `sysctl -qe -w net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0 net.bridge.bridge-nf-call-arptables=0`

// A port in a kernel bridge reaches the bridge's other members, and what
// breaks such a bridge while it runs is named.
func TestHostBridge(t *testing.T) {
	n := newNet(t)
	r := n.router(attached)
	n.must("h", quiet)
	for _, line := range []string{
		"ip link add @dev:v type veth peer name @dev:g",
		"ip link set @dev:v master br-vm0 up",
		"ip link set @dev:g up",
		"ip addr add 10.99.0.1/24 dev @dev:g",
		"ip addr add fd99::1/64 dev @dev:g nodad",
	} {
		n.must("h", line)
	}
	n.ping("h", "10.99.0.2")
	n.ping("h", "fd99::2")
	for _, args := range []string{amount(), amount() + " -R", "-u -b 50M -l 1400 -n 4M"} {
		if res := n.iperf("h", "b", "10.99.0.2", args); res.End.Received.Bytes+res.End.Sum.Bytes < 1<<20 {
			t.Errorf("%s: nothing passed", args)
		}
	}
	l := r.link("@dev:a")
	if l.HostBridge != "br-vm0" || len(l.Problems) > 0 || l.Segments > 0 || len(l.Offloads) < 4 || l.QueuesUsed != 2 {
		t.Errorf("the port is shown as %+v", l)
	}

	n.must("h", "ip link set @dev:v mtu 1400")
	n.must("h", "bridge link set dev @dev:a hairpin on")
	l = r.link("@dev:a")
	got := strings.Join(l.Problems, "\n")
	if len(l.Problems) != 2 || !strings.Contains(got, n.dev("v")+" in bridge br-vm0 has mtu 1400") || !strings.Contains(got, "hairpin") {
		t.Errorf("problems = %q", l.Problems)
	}
}

// What breaks the bridge is in the log at start and in what check says, and
// the bridge that the router made stays as long as somebody else is in it.
func TestHostBridgeProblemsAtStart(t *testing.T) {
	n := newNet(t)
	for _, line := range []string{"ip netns add @ns:h", "ip -n @ns:h link add br-vm0 type bridge"} {
		n.run(line)
	}
	t.Cleanup(func() { n.run("ip netns del @ns:h") })
	r := n.router(attached)
	want := "bridge br-vm0 is set down: ip link set br-vm0 up"
	if !strings.Contains(r.log.String(), want) {
		t.Errorf("the log does not say %q:\n%s", want, r.log)
	}
	if out := n.run(routerBinary + " check " + r.conf); !strings.Contains(out, "warning: port "+n.dev("a")+": "+want) {
		t.Errorf("check does not say %q:\n%s", want, out)
	}
	r.stop()
	n.must("h", "ip link show br-vm0") // found, so left
	n.must("h", "ip link del br-vm0")
	r.start()
	n.must("h", "ip link add @dev:v type veth peer name @dev:g")
	n.must("h", "ip link set @dev:v master br-vm0")
	r.stop()
	n.must("h", "ip link show br-vm0") // made, but not alone in it
	n.must("h", "ip link del br-vm0")
	r.start()
	r.stop()
	if _, err := n.exec("h", "ip link show br-vm0"); err == nil {
		t.Error("the bridge that the router made is left behind")
	}
}
