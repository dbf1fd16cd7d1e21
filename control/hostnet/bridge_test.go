package hostnet

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"taprouter/control/config"
)

// inBridge configures a TAP as a port of the kernel bridge br-vm0, made for it.
func inBridge(t *testing.T) (ns *NS, p *config.Port) {
	t.Helper()
	ns = newNS(t)
	name, _ := newTAP(t)
	p = &config.Port{Name: name, MTU: 1500, TxQueueLen: 1000, Host: config.Host{Bridge: "br-vm0", Create: true, Up: true}}
	for i := range 2 {
		if made, err := ns.EnsureBridge("br-vm0", true); err != nil || made != (i == 0) {
			t.Fatalf("EnsureBridge = %v, %v; call %d", made, err, i)
		}
		if err := Configure(ns, p); err != nil {
			t.Fatal(err)
		}
	}
	if err := ns.sysctl("0"); err != nil {
		t.Fatal(err)
	}
	return ns, p
}

// sysctl sets bridge-nf-call-iptables and its kin, where the kernel has them.
func (ns *NS) sysctl(value string) error {
	return ns.Do(func() error {
		for _, name := range []string{"iptables", "ip6tables", "arptables"} {
			err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+name, []byte(value), 0)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}

func TestKernelBridge(t *testing.T) {
	ns, p := inBridge(t)
	l, err := ns.Lookup("br-vm0")
	if err != nil || !l.Up || l.MTU != 1500 {
		t.Errorf("the bridge = %+v, %v; want it up with its member's MTU", l, err)
	}
	if got, err := ns.BridgeProblems(p, 1500); err != nil || len(got) > 0 {
		t.Errorf("BridgeProblems = %q, %v, want none", got, err)
	}
	if err := ns.DeleteBridge("br-vm0"); err != nil {
		t.Fatal(err)
	}
	if _, err := ns.Lookup("br-vm0"); err != nil {
		t.Errorf("a bridge with a member was deleted: %v", err)
	}
	if err := ns.with(p.Name, "leave", func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetNoMaster(l) }); err != nil {
		t.Fatal(err)
	}
	want := p.Name + " is not in bridge br-vm0"
	if got, err := ns.BridgeProblems(p, 1500); err != nil || len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("BridgeProblems = %q, %v, want %s", got, err, want)
	}
	if err := ns.DeleteBridge("br-vm0"); err != nil {
		t.Fatal(err)
	}
	if _, err := ns.Lookup("br-vm0"); !errors.Is(err, ErrNoLink) {
		t.Errorf("the empty bridge is left: %v", err)
	}
}

func TestKernelBridgeRefused(t *testing.T) {
	ns, p := inBridge(t)
	if _, err := ns.EnsureBridge("nosuch", false); !errors.Is(err, ErrNoLink) || !strings.Contains(err.Error(), "create: true") {
		t.Errorf("no bridge: %v, want ErrNoLink and what to do", err)
	}
	if _, err := ns.EnsureBridge(p.Name, true); err == nil || !strings.Contains(err.Error(), "not a bridge") {
		t.Errorf("a TAP as bridge: %v", err)
	}
	q := *p
	q.Host.Bridge, q.Host.Create = "nosuch", false
	if _, err := ns.BridgeProblems(&q, 1500); !errors.Is(err, ErrNoLink) {
		t.Errorf("BridgeProblems of no bridge: %v, want ErrNoLink", err)
	}
	q.Host.Create = true
	if got, err := ns.BridgeProblems(&q, 1500); err != nil || len(got) > 0 {
		t.Errorf("BridgeProblems of a bridge to be made: %q, %v", got, err)
	}
	q.Host.Bridge = p.Name
	if _, err := ns.BridgeProblems(&q, 1500); err == nil || !strings.Contains(err.Error(), "not a bridge") {
		t.Errorf("BridgeProblems of a TAP: %v", err)
	}
}

// Each setting that breaks a bridge is seen in the kernel. VLAN filtering,
// which not every kernel has, is judged in TestProblems.
func TestBridgeProblems(t *testing.T) {
	ns, p := inBridge(t)
	port := func(change func(h *netlink.Handle, l netlink.Link) error) func() error {
		return func() error { return ns.with(p.Name, "change", change) }
	}
	for _, tt := range []struct {
		want        string
		begin, back func() error
	}{
		{"bridge br-vm0 is set down", func() error { return ns.SetUp("br-vm0", false) }, func() error { return ns.SetUp("br-vm0", true) }},
		{p.Name + " in bridge br-vm0 is set down", func() error { return ns.SetUp(p.Name, false) }, func() error { return ns.SetUp(p.Name, true) }},
		{"has mtu 1400", func() error { return ns.SetMTU(p.Name, 1400) }, func() error { return ns.SetMTU(p.Name, 1500) }},
		{
			"hairpin mode", port(func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetHairpin(l, true) }),
			port(func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetHairpin(l, false) }),
		},
		{
			"promiscuous", port(func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetLearning(l, false) }),
			port(func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetLearning(l, true) }),
		},
		{
			"promiscuous", port(func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetFlood(l, false) }),
			port(func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetFlood(l, true) }),
		},
	} {
		if err := tt.begin(); err != nil {
			t.Fatalf("%s: %v", tt.want, err)
		}
		got, err := ns.BridgeProblems(p, 1500)
		if err != nil || len(got) != 1 || !strings.Contains(got[0], tt.want) {
			t.Errorf("BridgeProblems = %q, %v, want %q", got, err, tt.want)
		}
		if err := tt.back(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat("/proc/sys/net/bridge"); err != nil {
		return // no br_netfilter here: nothing to find
	}
	if err := ns.sysctl("1"); err != nil {
		t.Fatal(err)
	}
	if got, err := ns.BridgeProblems(p, 1500); err != nil || len(got) != 1 || !strings.HasPrefix(got[0], "bridge-nf-call-iptables, ") {
		t.Errorf("BridgeProblems = %q, %v, want bridge-nf-call-iptables", got, err)
	}
}

func TestProblems(t *testing.T) {
	well := member{name: "vm0", up: true, mtu: 9000, learning: true, flood: true}
	v := bridgeView{name: "br", up: true, members: []member{well}}
	if got := v.problems("tap0", 9000); len(got) > 0 {
		t.Errorf("problems = %q, want none", got)
	}
	v.vlanFiltering = true
	v.netfilter = []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"}
	v.members = append(v.members, member{name: "vm1", up: true, mtu: 1500, learning: true, flood: true})
	want := []string{
		"bridge-nf-call-iptables, bridge-nf-call-ip6tables on: frames in br pass the host's packet filter, which may drop them: sysctl -w net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0",
		"bridge br filters VLANs: tagged frames pass only where bridge vlan show allows them: ip link set br type bridge vlan_filtering 0",
		"vm1 in bridge br has mtu 1500, port tap0 9000: larger frames are dropped without a word: ip link set vm1 mtu 9000",
	}
	if got := v.problems("tap0", 9000); !slices.Equal(got, want) {
		t.Errorf("problems = %q, want %q", got, want)
	}
}
