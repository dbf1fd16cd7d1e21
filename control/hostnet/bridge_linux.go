package hostnet

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"taprouter/control/config"
)

// A bridgeView is a kernel bridge as far as frames between a port and the
// bridge's other members depend on it.
type bridgeView struct {
	name          string
	up            bool
	vlanFiltering bool
	netfilter     []string // names of sysctls that send its frames through packet filters
	members       []member
}

// A member is a device in a kernel bridge.
type member struct {
	name                     string
	up                       bool
	mtu                      int
	hairpin, learning, flood bool
}

// EnsureBridge looks for the kernel bridge with that name. With create it
// makes a missing one and sets it up; its MTU follows its members'. It reports
// whether it did.
func (ns *NS) EnsureBridge(name string, create bool) (made bool, err error) {
	h, err := ns.handle()
	if err != nil {
		return false, err
	}
	defer h.Close()
	br, err := find(h, name)
	if errors.Is(err, ErrNoLink) && create {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err = h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err == nil {
			made = true
			br, err = find(h, name)
		}
		if err == nil {
			err = h.LinkSetUp(br)
		}
		return made, Explain(wrap("make", name, ns, err), NetAdmin)
	}
	if errors.Is(err, ErrNoLink) {
		return false, fmt.Errorf("bridge %s is not there; add `create: true` to host or run ip link add %s up type bridge: %w", name, name, err)
	}
	if err == nil && br.Type() != "bridge" {
		err = fmt.Errorf("it is a %s, not a bridge", br.Type())
	}
	return false, wrap("find", name, ns, err)
}

func wrap(op, bridge string, ns *NS, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s bridge %s in netns %s: %w", op, bridge, ns, err)
}

// DeleteBridge removes a kernel bridge, unless something is a member of it.
func (ns *NS) DeleteBridge(name string) error {
	return ns.with(name, "delete bridge", func(h *netlink.Handle, br netlink.Link) error {
		v, err := viewBridge(h, br)
		if err == nil && len(v.members) == 0 {
			err = h.LinkDel(br)
		}
		return err
	})
}

// BridgeProblems says what about the kernel bridge of port p keeps frames of
// this MTU from passing between the port and the bridge's other members, one
// sentence each, with what to do. A bridge that is yet to be made has none.
func (ns *NS) BridgeProblems(p *config.Port, mtu int) ([]string, error) {
	h, err := ns.handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	br, err := find(h, p.Host.Bridge)
	if errors.Is(err, ErrNoLink) && p.Host.Create {
		return nil, nil
	}
	if err == nil && br.Type() != "bridge" {
		err = fmt.Errorf("it is a %s, not a bridge", br.Type())
	}
	if err != nil {
		return nil, wrap("look at", p.Host.Bridge, ns, err)
	}
	v, err := viewBridge(h, br)
	if err != nil {
		return nil, wrap("look at", p.Host.Bridge, ns, err)
	}
	if err := ns.Do(func() error { v.netfilter = netfilterOn(); return nil }); err != nil {
		return nil, err
	}
	all := v.problems(p.Name, mtu)
	if l, err := find(h, p.Name); err == nil && l.Attrs().MasterIndex != br.Attrs().Index {
		all = append(all, fmt.Sprintf("%s is not in bridge %s: ip link set %s master %s", p.Name, v.name, p.Name, v.name))
	}
	return all, nil
}

// viewBridge looks at a bridge and its members.
func viewBridge(h *netlink.Handle, br netlink.Link) (v bridgeView, err error) {
	a := br.Attrs()
	v.name, v.up = a.Name, a.RawFlags&unix.IFF_UP != 0
	if b, ok := br.(*netlink.Bridge); ok && b.VlanFiltering != nil {
		v.vlanFiltering = *b.VlanFiltering
	}
	links, err := h.LinkList()
	if err != nil {
		return v, err
	}
	for _, l := range links {
		m := l.Attrs()
		if m.MasterIndex != a.Index {
			continue
		}
		port, err := h.LinkGetProtinfo(l)
		if err != nil {
			continue // it has just left
		}
		v.members = append(v.members, member{
			name: m.Name, up: m.RawFlags&unix.IFF_UP != 0, mtu: m.MTU,
			hairpin: port.Hairpin, learning: port.Learning, flood: port.Flood,
		})
	}
	return v, nil
}

// netfilterOn gives the sysctls of br_netfilter that are on in the calling
// thread's namespace; none if that module is not there.
func netfilterOn() (on []string) {
	for _, name := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables", "bridge-nf-call-arptables"} {
		b, err := os.ReadFile("/proc/sys/net/bridge/" + name)
		if err == nil && strings.TrimSpace(string(b)) != "0" {
			on = append(on, name)
		}
	}
	return on
}

// problems judges what was seen for a port and its MTU.
func (v *bridgeView) problems(port string, mtu int) (all []string) {
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if !v.up {
		add("bridge %s is set down: ip link set %s up", v.name, v.name)
	}
	if len(v.netfilter) > 0 {
		add("%s on: frames in %s pass the host's packet filter, which may drop them: sysctl -w net.bridge.%s=0",
			strings.Join(v.netfilter, ", "), v.name, strings.Join(v.netfilter, "=0 net.bridge."))
	}
	if v.vlanFiltering {
		add("bridge %s filters VLANs: tagged frames pass only where bridge vlan show allows them: ip link set %s type bridge vlan_filtering 0", v.name, v.name)
	}
	for _, m := range v.members {
		if !m.up {
			add("%s in bridge %s is set down: ip link set %s up", m.name, v.name, m.name)
		}
		if m.mtu != mtu {
			add("%s in bridge %s has mtu %d, port %s %d: larger frames are dropped without a word: ip link set %s mtu %d", m.name, v.name, m.mtu, port, mtu, m.name, mtu)
		}
		if m.hairpin {
			add("%s in bridge %s is in hairpin mode and gets its own frames back: bridge link set dev %s hairpin off", m.name, v.name, m.name)
		}
		if !m.learning || !m.flood {
			add("%s in bridge %s does not learn or flood, so the bridge takes it out of promiscuous mode and frames to unknown addresses are lost: "+
				"bridge link set dev %s learning on flood on", m.name, v.name, m.name)
		}
	}
	return all
}
