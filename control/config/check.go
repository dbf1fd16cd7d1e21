package config

import (
	"fmt"
	"net/netip"
	"slices"

	"taprouter/control/tc"
	"taprouter/qdisc"
)

// check finds what is wrong between values that are right by themselves. It
// leaves out ports, bridges and routes in which a fault is known already.
func (d *decoder) check(c *Config) {
	d.checkNames(c)
	for i := range c.Ports {
		if p := &c.Ports[i]; !d.faulty[p] {
			d.checkPort(p, c.Workers)
		}
	}
	d.checkSockets(c)
	for i := range c.Bridges {
		d.checkBridge(c, &c.Bridges[i])
	}
	ifs := interfaces(c)
	d.checkSubnets(ifs)
	d.checkRoutes(c, ifs)
}

// checkNames refuses a name that two ports, two bridges or one of each have.
func (d *decoder) checkNames(c *Config) {
	type owner struct {
		what string
		name *string
	}
	seen := map[string]owner{}
	see := func(what string, name *string) {
		if *name == "" {
			return
		}
		if o, ok := seen[*name]; ok {
			d.errorAt(name, "%s %s: the name is taken by the %s at line %d", what, *name, o.what, d.where[o.name].line)
			return
		}
		seen[*name] = owner{what, name}
	}
	for i := range c.Ports {
		see("port", &c.Ports[i].Name)
	}
	for i := range c.Bridges {
		see("bridge", &c.Bridges[i].Name)
	}
}

func (d *decoder) checkPort(p *Port, workers int) {
	if p.Type == TUN {
		d.checkTUN(p)
	}
	d.checkSocket(p)
	d.checkBackend(p)
	if p.Create && p.NetNS == "" {
		d.errorAt(&p.Create, "port %s: create makes a missing namespace, but none is named; add netns: NAME", p.Name)
	}
	if !p.Host.MAC.IsZero() && p.Host.MAC == p.MAC {
		d.errorAt(&p.Host.MAC, "port %s: host.mac and mac are the same; the two ends of the port are two stations", p.Name)
	}
	d.checkOffloads(p)
	d.checkQueues(p, workers)
	d.checkTx(p)
	d.checkSteering(p)
	d.checkMTU(p.Name, p.MTU, &p.MTU, p.Addresses, p.Host.Addresses)
	d.checkHost(p)
	if p.Bridge != "" && len(p.Addresses) > 0 {
		d.errorAt(&p.Addresses, "port %s is in bridge %s and cannot have addresses; give them to the bridge", p.Name, p.Bridge)
	}
	if p.Bridge == "" && len(p.Addresses) == 0 {
		d.warnAt(p, "port %s has no addresses and is in no bridge: nothing is forwarded to or from it", p.Name)
	}
}

func (d *decoder) checkTUN(p *Port) {
	for _, f := range []struct {
		v    any
		name string
	}{{&p.MAC, "mac"}, {&p.Host.MAC, "host.mac"}, {&p.Host.Bridge, "host.bridge"}} {
		if d.has(f.v) {
			d.errorAt(f.v, "port %s: a tun port carries no Ethernet; remove %s or take type: tap", p.Name, f.name)
		}
	}
}

// checkBackend refuses what a library cannot do.
func (d *decoder) checkBackend(p *Port) {
	if p.Backend == Native {
		return
	}
	refuse := func(v any, wrong bool, why string) {
		if wrong && d.has(v) {
			d.errorAt(v, "port %s: backend %s %s, or take backend: native", p.Name, p.Backend, why)
		}
	}
	if p.Backend == Wireguard && p.Type != TUN {
		d.errorAt(&p.Backend, "port %s: backend wireguard carries IP packets only; add type: tun, or take backend: native", p.Name)
	}
	refuse(&p.VnetHdr, p.Backend == Water && p.VnetHdr, "has no virtio-net header and so no offloads; remove vnet_hdr")
	refuse(&p.VnetHdr, p.Backend == Wireguard && !p.VnetHdr, "always uses the virtio-net header; remove vnet_hdr")
	refuse(&p.Accept, p.VnetHdr && p.Accept != Accept{}, "takes whole packets only and merges them itself; remove accept")
	refuse(&p.SndBuf, true, "would wait for room in a bounded send buffer; remove sndbuf")
	refuse(&p.NAPI, p.Backend == Water && p.NAPI, "cannot ask for NAPI; remove napi")
	refuse(&p.Backpressure, p.Backend == Water && p.Backpressure, "cannot ask for it; remove backpressure")
}

func (d *decoder) checkOffloads(p *Port) {
	a := p.Accept
	switch {
	case !p.VnetHdr && a != Accept{}:
		d.errorAt(&p.Accept, "port %s: without vnet_hdr nothing can be accepted; write accept: [] or remove it", p.Name)
	case (a.TSO || a.USO) && !a.Csum:
		d.errorAt(&p.Accept, "port %s: tso and uso need csum, as a superpacket's checksum is never complete; add csum", p.Name)
	}
}

func (d *decoder) checkQueues(p *Port, workers int) {
	x := &p.XPS
	if p.NAPI && p.Queues > 1 && x.FlowTableCnt > 0 {
		d.errorAt(&p.NAPI, "port %s: napi cannot go with a flow table on %d queues, as a packet is not delivered when it is written; "+
			"set xps.flow_table_cnt: 0 or queues: 1", p.Name, p.Queues)
	}
	if len(x.Map) > p.Queues {
		d.errorAt(&x.Map, "port %s: the map names queue %d, but queues are 0 to %d", p.Name, len(x.Map)-1, p.Queues-1)
		return
	}
	for q := range x.Map {
		for i := range x.Map[q] {
			if w := &x.Map[q][i]; *w >= workers {
				d.errorAt(w, "port %s: queue %d names worker %d, but workers are 0 to %d", p.Name, q, *w, workers-1)
			}
		}
	}
}

// checkTx checks qdisc and line.
func (d *decoder) checkTx(p *Port) {
	q := &p.Qdisc
	if q.Root.Kind != MQ && d.has(&q.Child.Kind) {
		d.errorAt(&q.Child.Kind, "port %s: only mq has a child; %s stands alone", p.Name, q.Root.Kind)
	}
	for _, s := range []*qdisc.Spec{&q.Root, &q.Child} {
		for i := range tc.FQ {
			if at := (given{s, tc.FQ[i].Name}); s.Kind != FQ && d.has(at) {
				d.errorAt(at, "port %s: %s is an option of fq; %s has none", p.Name, at.name, s.Kind)
			}
		}
	}
	if p.Line.Rate != 0 && d.has(&p.SndBuf) {
		d.errorAt(&p.SndBuf, "port %s: a line writes each packet at its time and cannot wait for sndbuf; remove one of them", p.Name)
	}
}

func (d *decoder) checkSteering(p *Port) {
	switch {
	case p.Steering == SteerRandom && p.Queues == 1:
		d.warnAt(&p.Steering, "port %s: with one queue steering random has no choice; with more it reorders every flow", p.Name)
	case p.Steering == SteerRandom:
		d.warnAt(&p.Steering, "port %s: steering random reorders the packets of every flow; take hash to keep flows together", p.Name)
	case p.Queues == 1 && p.Steering != SteerKernel:
		d.warnAt(&p.Steering, "port %s: with one queue steering %s has no choice; give it more queues or remove it", p.Name, p.Steering)
	}
}

// checkMTU refuses IPv6 on a link below its least MTU (RFC 8200, section 5).
func (d *decoder) checkMTU(name string, mtu int, at any, lists ...[]netip.Prefix) {
	for _, l := range lists {
		if mtu < 1280 && d.has(at) && slices.ContainsFunc(l, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
			d.errorAt(at, "%s: IPv6 needs an mtu of at least 1280, this is %d", name, mtu)
			return
		}
	}
}

// checkHost checks the kernel's side: its own addresses, and gateways.
func (d *decoder) checkHost(p *Port) {
	h := &p.Host
	for i := range h.Addresses {
		a := &h.Addresses[i]
		for j := range p.Addresses {
			if p.Addresses[j].Addr() == a.Addr() {
				d.errorAt(a, "port %s: host and router have the same address %s", p.Name, a.Addr())
			}
		}
		if slices.Contains(h.Addresses[:i], *a) {
			d.errorAt(a, "port %s: host address %s is given twice", p.Name, a)
		}
	}
	for i := range h.Routes {
		r := &h.Routes[i]
		if wrong := family(d.has(&r.To), &r.To, r.Via); wrong != "" {
			d.errorAt(r, "port %s: host route %s", p.Name, wrong)
			continue
		}
		if r.Via.IsValid() && !onLink(h.Addresses, r.Via) {
			d.errorAt(&r.Via, "port %s: %s is in no subnet of host.addresses", p.Name, r.Via)
		}
	}
	if h.Create && h.Bridge == "" {
		d.errorAt(&h.Create, "port %s: host.create makes a missing kernel bridge, but none is named; add bridge: NAME", p.Name)
	}
	if h.Bridge != "" && h.Bridge == p.Name {
		d.errorAt(&h.Bridge, "port %s: the port cannot be a bridge that it joins; give one of them another name", p.Name)
	}
	if h.Bridge != "" && len(h.Addresses) > 0 {
		d.warnAt(&h.Addresses, "port %s joins the kernel bridge %s: its own host addresses will not be used", p.Name, h.Bridge)
	}
}

// family completes a default route and checks that both ends of a route are
// of one family. It gives what is wrong.
func family(given bool, to *netip.Prefix, via netip.Addr) string {
	switch {
	case !given:
		return "needs a destination; add to: PREFIX or to: default"
	case !to.IsValid() && !via.IsValid():
		return "to default of which family? write 0.0.0.0/0 or ::/0"
	case !to.IsValid():
		*to = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if via.Is6() {
			*to = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
	case via.IsValid() && to.Addr().Is4() != via.Is4():
		return fmt.Sprintf("to %s goes via %s of the other family", to, via)
	}
	return ""
}

// onLink reports whether a station in a subnet of addrs is reached directly.
func onLink(addrs []netip.Prefix, via netip.Addr) bool {
	return via.IsLinkLocalUnicast() && via.Is6() ||
		slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Contains(via) })
}
