package netns

import (
	"os/exec"
	"strings"
	"testing"
)

// A persistent device that was there before, made by somebody else, is taken
// over, and left there at the end with the same index.
func TestDeviceFoundIsLeft(t *testing.T) {
	n := newNet(t)
	for _, line := range []string{
		"ip netns add @ns:a",
		"ip -n @ns:a tuntap add dev @dev:a mode tap multi_queue vnet_hdr",
		"ip -n @ns:a link set dev @dev:a address 02:00:00:00:00:0a",
	} {
		f := strings.Fields(n.expand(line))
		if out, err := output(exec.Command(f[0], f[1:]...)); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", n.ns("a")).Run() })
	index := n.must("a", "cat /sys/class/net/@dev:a/ifindex")
	conf := strings.Replace(bridged, "netns: @ns:a, create: true,", "netns: @ns:a, persist: true,", 1)
	for range 2 { // and a second time, as it was left
		r := n.router(conf)
		n.ping("b", "10.99.0.1")
		if l := r.link("@dev:a"); l.HostMAC != "02:00:00:00:00:0a" {
			t.Errorf("the device has address %s, had 02:00:00:00:00:0a", l.HostMAC)
		}
		r.stop()
		if now := n.must("a", "cat /sys/class/net/@dev:a/ifindex"); now != index {
			t.Fatalf("the device has index %s, had %s", now, index)
		}
	}
	all := namespaces()
	if !all[n.ns("a")] || all[n.ns("b")] {
		t.Errorf("found and kept: %v; made and left behind: %v", all[n.ns("a")], all[n.ns("b")])
	}
}

// A device of this name that is persistent is not taken, nor ended, by a
// configuration that does not say persist.
func TestDeviceFoundWithoutPersist(t *testing.T) {
	n := newNet(t)
	for _, line := range []string{"ip netns add @ns:a", "ip -n @ns:a tuntap add dev @dev:a mode tap multi_queue vnet_hdr"} {
		f := strings.Fields(n.expand(line))
		if out, err := output(exec.Command(f[0], f[1:]...)); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", n.ns("a")).Run() })
	out := refused(t, n.expand("version: 1\nports:\n  - {name: @dev:a, type: tap, netns: @ns:a}\n"), nil, 2, "--name", n.id)
	if !strings.Contains(out, n.dev("a")) {
		t.Errorf("it does not say which device is there:\n%s", out)
	}
	n.must("a", "ip link show dev @dev:a")
}
