package config

import (
	"net/netip"
	"slices"
)

// An iface is a port or bridge as the router's L3 sees it.
type iface struct {
	name  string
	addrs []netip.Prefix // shares the configuration's memory, for positions
}

func interfaces(c *Config) []iface {
	var ifs []iface
	for i := range c.Ports {
		ifs = append(ifs, iface{c.Ports[i].Name, c.Ports[i].Addresses})
	}
	for i := range c.Bridges {
		ifs = append(ifs, iface{c.Bridges[i].Name, c.Bridges[i].Addresses})
	}
	return ifs
}

func (d *decoder) checkBridge(c *Config, b *Bridge) {
	if d.faulty[b] {
		return
	}
	if len(b.Ports) == 0 {
		d.warnAt(b, "bridge %s has no ports", b.Name)
	}
	var first *Port
	for i := range b.Ports {
		name := &b.Ports[i]
		p := c.port(*name)
		switch {
		case p == nil:
			d.errorAt(name, "bridge %s: there is no port %s%s", b.Name, *name, hint(*name, "ports are", c.portNames()))
			continue
		case slices.Contains(b.Ports[:i], *name):
			d.errorAt(name, "bridge %s: port %s is listed twice", b.Name, *name)
		case p.Bridge != b.Name:
			d.errorAt(name, "bridge %s: port %s is in bridge %s already", b.Name, *name, p.Bridge)
		case p.Type == TUN:
			d.errorAt(name, "bridge %s: port %s is a tun port, which carries no Ethernet; a bridge takes type: tap", b.Name, *name)
		}
		if first == nil {
			first = p
		} else if p.MTU != first.MTU {
			d.warnAt(name, "bridge %s: mtu %d of %s and %d of %s differ: a frame that is too big for its way out is dropped",
				b.Name, first.MTU, first.Name, p.MTU, p.Name)
		}
	}
	d.checkMTU(b.Name, b.MTU, &b.MTU, b.Addresses)
}

func (c *Config) port(name string) *Port {
	for i := range c.Ports {
		if c.Ports[i].Name == name {
			return &c.Ports[i]
		}
	}
	return nil
}

func (c *Config) portNames() []string {
	var names []string
	for i := range c.Ports {
		if c.Ports[i].Name != "" {
			names = append(names, c.Ports[i].Name)
		}
	}
	return names
}

// checkSubnets refuses an address that is there twice and subnets that
// overlap between two interfaces. IPv6 link-local ones may.
func (d *decoder) checkSubnets(ifs []iface) {
	type place struct {
		dev  string
		addr *netip.Prefix
	}
	var seen []place
	for _, f := range ifs {
		for i := range f.addrs {
			a := &f.addrs[i]
			if !a.IsValid() {
				continue
			}
			for _, s := range seen {
				if wrong := conflict(f.name, *a, s.dev, *s.addr); wrong != "" {
					d.errorAt(a, "%s: %s", f.name, wrong)
					break
				}
			}
			seen = append(seen, place{f.name, a})
		}
	}
}

func conflict(dev string, a netip.Prefix, otherDev string, b netip.Prefix) string {
	linkLocal := a.Addr().Is6() && a.Addr().IsLinkLocalUnicast()
	switch {
	case dev == otherDev && a.Addr() == b.Addr():
		return "address " + a.Addr().String() + " is given twice"
	case dev == otherDev || linkLocal:
		return ""
	case a.Addr() == b.Addr():
		return "address " + a.Addr().String() + " is on " + otherDev + " already"
	case a.Overlaps(b):
		return "subnet " + a.Masked().String() + " overlaps " + b.Masked().String() + " on " + otherDev + "; each subnet is on one port or bridge"
	}
	return ""
}

func (d *decoder) checkRoutes(c *Config, ifs []iface) {
	seen := map[netip.Prefix]*Route{}
	for i := range c.Routes {
		r := &c.Routes[i]
		if d.faulty[r] {
			continue
		}
		if wrong := family(d.has(&r.To), &r.To, r.Via); wrong != "" {
			d.errorAt(r, "route %s", wrong)
			continue
		}
		if first := seen[r.To]; first != nil {
			d.errorAt(r, "route to %s is there already, at line %d", r.To, d.where[first].line)
			continue
		}
		seen[r.To] = r
		if r.Type != Unicast {
			if d.has(&r.Via) || d.has(&r.Dev) {
				d.errorAt(r, "route to %s: type %s leads nowhere; remove via and dev", r.To, r.Type)
			}
			continue
		}
		if dev := connected(r.To, ifs); dev != "" {
			d.errorAt(r, "route to %s: that subnet is on the link of %s already", r.To, dev)
			continue
		}
		if anyFaulty(d, c) {
			continue // what is on which link is not known
		}
		d.checkWay(r, ifs)
	}
}

func anyFaulty(d *decoder, c *Config) bool {
	for i := range c.Ports {
		if d.faulty[&c.Ports[i]] {
			return true
		}
	}
	for i := range c.Bridges {
		if d.faulty[&c.Bridges[i]] {
			return true
		}
	}
	return false
}

// checkWay finds the interface of a route and checks that its gateway is on
// the link there.
func (d *decoder) checkWay(r *Route, ifs []iface) {
	if r.Dev != "" {
		d.checkDev(r, ifs)
		return
	}
	if !r.Via.IsValid() {
		d.errorAt(r, "route to %s needs a gateway or a device; add via: ADDRESS or dev: NAME", r.To)
		return
	}
	if r.Via.Is6() && r.Via.IsLinkLocalUnicast() {
		d.errorAt(&r.Via, "route to %s: %s is link-local; add dev: NAME", r.To, r.Via)
		return
	}
	for _, f := range ifs {
		if onLink(f.addrs, r.Via) {
			r.Dev = f.name
			d.checkGateway(r, f)
			return
		}
	}
	d.errorAt(&r.Via, "route to %s: gateway %s is in no subnet of a port or bridge", r.To, r.Via)
}

func (d *decoder) checkDev(r *Route, ifs []iface) {
	i := slices.IndexFunc(ifs, func(f iface) bool { return f.name == r.Dev })
	if i < 0 {
		var names []string
		for _, f := range ifs {
			names = append(names, f.name)
		}
		d.errorAt(&r.Dev, "route to %s: there is no port or bridge %s%s", r.To, r.Dev, hint(r.Dev, "there are", names))
		return
	}
	f := ifs[i]
	is4 := r.To.Addr().Is4()
	if !slices.ContainsFunc(f.addrs, func(p netip.Prefix) bool { return p.Addr().Is4() == is4 }) {
		v := map[bool]string{true: "IPv4", false: "IPv6"}[is4]
		d.errorAt(&r.Dev, "route to %s: %s has no %s address of ours", r.To, r.Dev, v)
		return
	}
	if r.Via.IsValid() && !onLink(f.addrs, r.Via) {
		d.errorAt(&r.Via, "route to %s: gateway %s is in no subnet of %s", r.To, r.Via, r.Dev)
		return
	}
	d.checkGateway(r, f)
}

// checkGateway refuses ourselves as gateway.
func (d *decoder) checkGateway(r *Route, f iface) {
	if slices.ContainsFunc(f.addrs, func(a netip.Prefix) bool { return a.Addr() == r.Via }) {
		d.errorAt(&r.Via, "route to %s: %s is our own address on %s", r.To, r.Via, f.name)
	}
}

// connected names the interface on whose link the subnet is anyway.
func connected(subnet netip.Prefix, ifs []iface) string {
	for _, f := range ifs {
		if slices.ContainsFunc(f.addrs, func(a netip.Prefix) bool { return a.IsValid() && a.Masked() == subnet }) {
			return f.name
		}
	}
	return ""
}
