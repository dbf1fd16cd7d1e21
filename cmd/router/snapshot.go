package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"taprouter/control/config"
	"taprouter/fib"
	"taprouter/forward"
	"taprouter/packet"
)

// build makes the forwarding state that a configuration asks for, with every
// port down and no neighbours. Interface i < len(ports) is port i; bridges
// with addresses follow.
func build(c *config.Config) (*forward.Snapshot, error) {
	s := &forward.Snapshot{Neigh: fib.BuildNeighbours(nil)}
	byName := map[string]uint16{} // L3 interfaces
	ports := map[string]uint16{}
	for i := range c.Ports {
		p := &c.Ports[i]
		ports[p.Name] = uint16(i)
		s.Ports = append(s.Ports, forward.Port{Name: p.Name, Tun: p.Type == config.TUN, MTU: p.MTU, Bridge: -1, Routed: len(p.Addresses) > 0})
		iface := forward.Iface{Name: p.Name, Port: uint16(i), Bridge: -1, Tun: p.Type == config.TUN, MAC: fib.MAC(p.MAC[:]), MTU: p.MTU}
		iface.Addrs = ownAddresses(p.Addresses, p.MAC, iface.Tun)
		s.Ifaces = append(s.Ifaces, iface)
		if len(p.Addresses) > 0 {
			byName[p.Name] = uint16(i)
		}
	}
	for k := range c.Bridges {
		b := &c.Bridges[k]
		br := forward.Bridge{Name: b.Name, FDB: fib.NewFDB(b.FDBMax, rand.Uint64()), Iface: forward.NoIface}
		for _, name := range b.Ports {
			br.Ports = append(br.Ports, ports[name])
			s.Ports[ports[name]].Bridge = k
		}
		if len(b.Addresses) > 0 {
			br.Iface = uint16(len(s.Ifaces))
			byName[b.Name] = br.Iface
			s.Ifaces = append(s.Ifaces, forward.Iface{
				Name: b.Name, Port: packet.NoPort, Bridge: k, MAC: fib.MAC(b.MAC[:]), MTU: b.MTU, Addrs: ownAddresses(b.Addresses, b.MAC, false),
			})
		}
		s.Bridges = append(s.Bridges, br)
	}
	routes, err := routes(c, s, byName)
	if err != nil {
		return nil, err
	}
	s.Routes, err = fib.Build(routes)
	return s, err
}

// ownAddresses are the configured ones and, with IPv6 on Ethernet, the
// link-local address that goes with the MAC (RFC 4291, appendix A).
func ownAddresses(configured []netip.Prefix, mac config.MAC, tun bool) []netip.Prefix {
	own := append([]netip.Prefix(nil), configured...)
	if len(configured) == 0 || tun {
		return own
	}
	ll := [16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]}
	return append(own, netip.PrefixFrom(netip.AddrFrom16(ll), 64))
}

// routes gives what follows from addresses, then the configured ones.
func routes(c *config.Config, s *forward.Snapshot, byName map[string]uint16) ([]fib.Route, error) {
	var all []fib.Route
	for i := range s.Ifaces {
		for _, a := range s.Ifaces[i].Addrs {
			if a.Addr().IsLinkLocalUnicast() {
				continue // the same on every link: not for the table
			}
			all = append(all, connected(a, uint16(i))...)
		}
	}
	for _, r := range c.Routes {
		route := fib.Route{Prefix: r.To, Via: r.Via, Proto: "static"}
		switch r.Type {
		case config.Blackhole:
			route.Kind = fib.Blackhole
		case config.Unreachable:
			route.Kind = fib.Unreachable
		default:
			iface, ok := byName[r.Dev]
			if !ok {
				return nil, fmt.Errorf("route %v: %q has no addresses", r.To, r.Dev)
			}
			route.Iface = iface
		}
		all = append(all, route)
	}
	return all, nil
}

// connected gives the routes of one address of ours: itself, its subnet, and
// the subnet's broadcast addresses.
func connected(a netip.Prefix, iface uint16) []fib.Route {
	all := []fib.Route{{Prefix: netip.PrefixFrom(a.Addr(), a.Addr().BitLen()), Iface: iface, Kind: fib.Local, Proto: "kernel"}}
	if a.IsSingleIP() {
		return all
	}
	all = append(all, fib.Route{Prefix: a.Masked(), Iface: iface, Kind: fib.Unicast, Proto: "kernel"})
	if !a.Addr().Is4() || a.Bits() >= 31 {
		return all
	}
	first, last := a.Masked().Addr(), a.Masked().Addr().As4()
	for bit := a.Bits(); bit < 32; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	for _, b := range []netip.Addr{first, netip.AddrFrom4(last)} {
		all = append(all, fib.Route{Prefix: netip.PrefixFrom(b, 32), Iface: iface, Kind: fib.Broadcast, Proto: "kernel"})
	}
	return all
}
