package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"taprouter/control/config"
)

// Configure makes the netdev of an open port what p says about the kernel's
// side: it moves it from our namespace to ns, unless it is there already, and
// sets it up. What ns has beyond that, it leaves. Doing it again is harmless.
func Configure(ns *NS, p *config.Port) error {
	if err := moveHere(ns, p.Name); err != nil {
		return err
	}
	h, err := ns.handle()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := find(h, p.Name)
	if err != nil {
		return fmt.Errorf("device %s in netns %s: %w", p.Name, ns, err)
	}
	return Explain(configure(h, l, p), NetAdmin)
}

// moveHere moves the device from our namespace to ns.
func moveHere(ns *NS, name string) error {
	home, err := Current()
	if err != nil {
		return err
	}
	defer home.Close()
	if home.Same(ns) {
		return nil
	}
	h, err := home.handle()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := find(h, name)
	if errors.Is(err, ErrNoLink) {
		return nil // it is there already, or Configure will say that it is nowhere
	}
	if err == nil {
		err = h.LinkSetNsFd(l, ns.fd)
	}
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("move %s to netns %s: a device of that name is there: %w", name, ns, err)
	}
	if err != nil {
		return Explain(fmt.Errorf("move %s to netns %s: %w", name, ns, err), NetAdmin|SysAdmin)
	}
	return nil
}

// configure works in this order: what the kernel takes only from a device
// that is down or unused, addresses, up, and then routes, which need it up.
func configure(h *netlink.Handle, l netlink.Link, p *config.Port) error {
	a := l.Attrs()
	fail := func(op string, err error) error { return fmt.Errorf("%s of %s: %w", op, p.Name, err) }
	if a.MTU != p.MTU {
		if err := h.LinkSetMTU(l, p.MTU); err != nil {
			return fail(fmt.Sprintf("set mtu %d", p.MTU), err)
		}
	}
	if mac := p.Host.MAC; !mac.IsZero() && mac != macOf(a.HardwareAddr) {
		if err := h.LinkSetHardwareAddr(l, mac[:]); err != nil {
			return fail("set address "+mac.String(), err)
		}
	}
	if n := p.Host.TxQueueLen; a.TxQLen != n {
		if err := h.LinkSetTxQLen(l, n); err != nil {
			return fail(fmt.Sprintf("set txqueuelen %d", n), err)
		}
	}
	if p.Host.Bridge != "" {
		if err := join(h, l, p.Host.Bridge); err != nil {
			return fail("join bridge "+p.Host.Bridge, err)
		}
	}
	for _, addr := range p.Host.Addresses {
		if err := addAddress(h, l, addr); err != nil {
			return fail("add address "+addr.String(), err)
		}
	}
	if !p.Host.Up {
		return nil // routes would need it
	}
	if err := setUp(h, l, true); err != nil {
		return fail("set up", err)
	}
	for _, r := range p.Host.Routes {
		if err := addRoute(h, l, r); err != nil {
			return fail("add route "+r.To.String(), err)
		}
	}
	return nil
}

func macOf(hw net.HardwareAddr) config.MAC {
	if len(hw) != 6 {
		return config.MAC{}
	}
	return config.MAC(hw)
}

func join(h *netlink.Handle, l netlink.Link, bridge string) error {
	br, err := find(h, bridge)
	if err != nil {
		return err
	}
	if br.Type() != "bridge" {
		return fmt.Errorf("it is a %s, not a bridge", br.Type())
	}
	if l.Attrs().MasterIndex == br.Attrs().Index {
		return nil
	}
	return h.LinkSetMasterByIndex(l, br.Attrs().Index)
}

// addAddress adds an address that is usable at once: IPv6 without duplicate
// address detection, which would take a second.
func addAddress(h *netlink.Handle, l netlink.Link, p netip.Prefix) error {
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	err := h.AddrReplace(l, a)
	if p.Addr().Is6() && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) && effectiveCaps()>>unix.CAP_NET_ADMIN&1 == 1 {
		return fmt.Errorf("IPv6 is disabled there (sysctl net.ipv6.conf.*.disable_ipv6): %w", err)
	}
	return err
}

// addRoute adds a route through l. One that is there through l already is
// replaced; one through another device is somebody else's and an error.
func addRoute(h *netlink.Handle, l netlink.Link, hr config.HostRoute) error {
	r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(hr.To), Scope: netlink.SCOPE_LINK}
	if hr.Via.IsValid() {
		r.Gw, r.Scope = hr.Via.AsSlice(), netlink.SCOPE_UNIVERSE
	}
	err := h.RouteAdd(r)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	family := netlink.FAMILY_V6
	if hr.To.Addr().Is4() {
		family = netlink.FAMILY_V4
	}
	have, lerr := h.RouteListFiltered(family, &netlink.Route{LinkIndex: r.LinkIndex, Dst: r.Dst}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_DST)
	if lerr != nil || len(have) == 0 {
		return fmt.Errorf("there is one through another device: %w", err)
	}
	return h.RouteReplace(r)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
