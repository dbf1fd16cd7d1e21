package forward

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"taprouter/fib"
	"taprouter/packet"
)

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd

	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58

	// ICMPv6 types of neighbour discovery, RFC 4861, and of multicast
	// listener discovery, which ends at a router.
	ndRouterSolicit = 133
	ndRedirect      = 137
	icmp6Echo       = 128
)

// routed takes a packet that came in by a routed port.
func (f *Forwarder) routed(s *Snapshot, p *packet.Packet, now int64, out *Output) {
	i := &s.Ifaces[p.In]
	if p.Flags&packet.Raw == 0 {
		switch dst := fib.MAC(p.Bytes()); {
		case dst == i.MAC && p.VLANs > 0, p.VLANs > 0:
			out.drop(p, packet.DropVLAN)
			return
		case dst == i.MAC:
		case group(dst) && wanted(i, p):
		default:
			out.drop(p, packet.DropNotForUs)
			return
		}
	}
	f.input(s, p.In, p, now, out)
}

// wanted reports whether a group-addressed frame concerns the router: ARP for
// one of its addresses, neighbour discovery, a ping to all nodes.
func wanted(i *Iface, p *packet.Packet) bool {
	if p.VLANs > 0 {
		return false
	}
	b := p.Bytes()[p.L3:]
	switch {
	case p.Flags&packet.ARP != 0:
		return len(b) >= 28 && (i.has(netip.AddrFrom4([4]byte(b[24:28]))) || [4]byte(b[14:18]) == [4]byte(b[24:28]))
	case p.Flags&packet.IPv6 == 0 || p.Proto != protoICMPv6 || p.L4 == 0 || int(p.L4) >= p.HeadLength():
		return false
	}
	t := p.Bytes()[p.L4]
	if t == ndRouterSolicit+2 { // a neighbour solicitation, for an address of ours
		l4 := p.Bytes()[p.L4:]
		return len(l4) >= 24 && i.has(netip.AddrFrom16([16]byte(l4[8:24])))
	}
	return t == ndRouterSolicit+3 || t == icmp6Echo && b[24] == 0xff && b[25] == 2 && b[39] == 1
}

// has reports whether addr is one of the interface's own.
func (i *Iface) has(addr netip.Addr) bool {
	for _, a := range i.Addrs {
		if a.Addr() == addr {
			return true
		}
	}
	return false
}

// input is L3's front door: p is for the router to deal with, as it came in
// by L3 interface in.
func (f *Forwarder) input(s *Snapshot, in uint16, p *packet.Packet, now int64, out *Output) {
	switch {
	case p.VLANs > 0:
		out.drop(p, packet.DropVLAN)
	case p.Flags&packet.ARP != 0:
		punt(in, p, out)
	case p.Bad != 0:
		out.drop(p, p.Bad)
	case p.Flags&packet.IPv4 != 0:
		f.input4(s, in, p, now, out)
	case p.Flags&packet.IPv6 != 0:
		f.input6(s, in, p, now, out)
	default:
		out.drop(p, packet.DropProtocol)
	}
}

func punt(iface uint16, p *packet.Packet, out *Output) {
	p.Out = iface
	out.Punts.Push(p)
}

func (f *Forwarder) input4(s *Snapshot, in uint16, p *packet.Packet, now int64, out *Output) {
	h := p.Bytes()[p.L3:]
	ihl := int(h[0]&15) * 4
	if checksum.Checksum(h[:ihl], 0) != 0xffff {
		out.drop(p, packet.DropIPChecksum)
		return
	}
	trim(p, int(binary.BigEndian.Uint16(h[2:])))
	src, dst := netip.AddrFrom4([4]byte(h[12:16])), netip.AddrFrom4([4]byte(h[16:20]))
	if martian4(src, true) || martian4(dst, false) || p.Flags&packet.Mcast != 0 {
		out.drop(p, packet.DropMartian)
		return
	}
	r := f.route(s, dst)
	if r != nil && r.Kind == fib.Local {
		f.local(s, in, p, now, out)
		return
	}
	if h[8] <= 1 {
		f.icmpError(s, in, p, icmpTimeExceeded, now, out)
		out.drop(p, packet.DropTTL)
		return
	}
	f.forward(s, in, r, dst, p, now, out)
}

func (f *Forwarder) input6(s *Snapshot, in uint16, p *packet.Packet, now int64, out *Output) {
	h := p.Bytes()[p.L3:]
	trim(p, 40+int(binary.BigEndian.Uint16(h[4:])))
	src, dst := netip.AddrFrom16([16]byte(h[8:24])), netip.AddrFrom16([16]byte(h[24:40]))
	if dst.IsMulticast() || dst.IsLinkLocalUnicast() {
		// Never forwarded; of interest are discovery and pings to ourselves.
		i := &s.Ifaces[in]
		if p.Proto == protoICMPv6 && (i.has(dst) || dst.IsMulticast() && wanted(i, p)) {
			punt(in, p, out)
			return
		}
		out.drop(p, packet.DropNotForUs)
		return
	}
	if src.IsMulticast() || src.IsLoopback() || dst.IsLoopback() || dst.IsUnspecified() || p.Flags&packet.Mcast != 0 {
		out.drop(p, packet.DropMartian)
		return
	}
	r := f.route(s, dst)
	if r != nil && r.Kind == fib.Local {
		f.local(s, in, p, now, out)
		return
	}
	if src.IsUnspecified() || src.IsLinkLocalUnicast() { // RFC 4291 2.5.2, 2.5.6
		out.drop(p, packet.DropMartian)
		return
	}
	if h[7] <= 1 {
		f.icmpError(s, in, p, icmpTimeExceeded, now, out)
		out.drop(p, packet.DropTTL)
		return
	}
	f.forward(s, in, r, dst, p, now, out)
}

// trim cuts what Ethernet padded, or anybody appended, behind the packet.
func trim(p *packet.Packet, total int) {
	if p.Vnet.GSOType == packet.GSONone && p.Len() > int(p.L3)+total {
		p.Trim(int(p.L3) + total)
		p.WireLen = uint32(p.Len())
	}
}

// martian4 reports addresses that must not be on the wire (RFC 1812, 5.3.7).
func martian4(a netip.Addr, source bool) bool {
	b := a.As4()
	switch {
	case b[0] == 0, b[0] == 127, b[0] >= 240:
		return true
	}
	return b[0] >= 224 // multicast is neither a source nor routed here
}

// local deals with a packet for an address of the router's own.
func (f *Forwarder) local(s *Snapshot, in uint16, p *packet.Packet, now int64, out *Output) {
	switch {
	case p.Proto == protoICMP && p.Flags&packet.IPv4 != 0, p.Proto == protoICMPv6 && p.Flags&packet.IPv6 != 0:
		punt(in, p, out)
		return
	case p.Proto == protoUDP:
		f.icmpError(s, in, p, icmpPortUnreachable, now, out)
	case p.Proto != protoTCP:
		f.icmpError(s, in, p, icmpProtoUnreachable, now, out)
	}
	out.drop(p, packet.DropProtocol)
}

// A hop is the last route looked up and the neighbour at its end, valid for
// one snapshot.
type hop struct {
	dst   netip.Addr
	route *fib.Route
	neigh *fib.Neigh
	via   netip.Addr
}

// route finds the route of dst, often the one found before.
func (f *Forwarder) route(s *Snapshot, dst netip.Addr) *fib.Route {
	if f.hop.dst == dst {
		return f.hop.route
	}
	r := s.Routes.Lookup(dst)
	f.hop = hop{dst: dst, route: r}
	return r
}

// forward sends p on by r, the route of dst.
func (f *Forwarder) forward(s *Snapshot, in uint16, r *fib.Route, dst netip.Addr, p *packet.Packet, now int64, out *Output) {
	switch {
	case r == nil:
		f.icmpError(s, in, p, icmpNoRoute, now, out)
		out.drop(p, packet.DropNoRoute)
		return
	case r.Kind == fib.Blackhole:
		out.drop(p, packet.DropBlackhole)
		return
	case r.Kind == fib.Unreachable:
		f.icmpError(s, in, p, icmpHostUnreachable, now, out)
		out.drop(p, packet.DropNoRoute)
		return
	case r.Kind == fib.Broadcast:
		out.drop(p, packet.DropMartian)
		return
	}
	i := &s.Ifaces[r.Iface]
	if l3Size(p) > i.MTU {
		f.tooBig(s, in, r, dst, p, now, out)
		return
	}
	decrement(p)
	f.output(s, r, dst, p, now, out)
}

// l3Size is the length of the packet, or of a segment, from its IP header on.
func l3Size(p *packet.Packet) int {
	if p.Vnet.GSOType != packet.GSONone {
		return int(p.Vnet.HdrLen) - int(p.L3) + int(p.Vnet.GSOSize)
	}
	return p.Len() - int(p.L3)
}

// tooBig cuts an IPv4 packet that may be cut, and tells the sender of others.
func (f *Forwarder) tooBig(s *Snapshot, in uint16, r *fib.Route, dst netip.Addr, p *packet.Packet, now int64, out *Output) {
	if p.Flags&packet.IPv4 != 0 && p.Bytes()[p.L3+6]&0x40 == 0 && p.Vnet.GSOType == packet.GSONone {
		decrement(p)
		var frags packet.List
		if why := f.fragment(p, s.Ifaces[r.Iface].MTU, &frags); why != 0 {
			out.drop(p, why)
			return
		}
		for q := frags.Pop(); q != nil; q = frags.Pop() {
			f.output(s, r, dst, q, now, out)
		}
		return
	}
	f.icmpMTU = uint32(s.Ifaces[r.Iface].MTU)
	f.icmpError(s, in, p, icmpTooBig, now, out)
	out.drop(p, packet.DropTooBig)
}

// decrement takes one off the TTL or hop limit. The TTL is the high byte of
// its word of the IPv4 header: the checksum grows by 0x0100 (RFC 1624).
func decrement(p *packet.Packet) {
	h := p.Bytes()[p.L3:]
	if p.Flags&packet.IPv6 != 0 {
		h[7]--
		return
	}
	h[8]--
	sum := uint32(binary.BigEndian.Uint16(h[10:])) + 0x100
	binary.BigEndian.PutUint16(h[10:], uint16(sum+sum>>16))
}

// output finds the neighbour at the end of r and sends p there; without one
// p waits.
func (f *Forwarder) output(s *Snapshot, r *fib.Route, dst netip.Addr, p *packet.Packet, now int64, out *Output) {
	i := &s.Ifaces[r.Iface]
	if i.Tun {
		f.toTun(s, i, p, out)
		return
	}
	via := dst
	if r.Via.IsValid() {
		via = r.Via
	}
	n := f.neighbour(s, r, dst, via)
	switch {
	case n == nil:
		f.wait(r.Iface, via, p, now, out)
	case n.Failed:
		f.icmpError(s, p.In, p, icmpHostUnreachable, now, out)
		out.drop(p, packet.DropNeighFailed)
	default:
		if n.Used != nil && now-n.Used.Load() > usedGrain {
			n.Used.Store(now)
		}
		f.toEther(s, i, n, p, out)
	}
}

// usedGrain is how exact Neigh.Used is, in ns.
const usedGrain = 1e9

// neighbour is the lookup of via, remembered with the last route.
func (f *Forwarder) neighbour(s *Snapshot, r *fib.Route, dst, via netip.Addr) *fib.Neigh {
	if f.hop.dst == dst && f.hop.route == r && f.hop.neigh != nil && f.hop.via == via {
		return f.hop.neigh
	}
	n := s.Neigh.Lookup(r.Iface, via)
	if f.hop.dst == dst && f.hop.route == r {
		f.hop.neigh, f.hop.via = n, via
	}
	return n
}

// toEther gives p an Ethernet header to n and sends it.
func (f *Forwarder) toEther(s *Snapshot, i *Iface, n *fib.Neigh, p *packet.Packet, out *Output) {
	if p.L3 > 14 {
		p.Pull(int(p.L3) - 14)
	} else if p.L3 < 14 && p.Push(14-int(p.L3)) == nil {
		out.drop(p, packet.DropMalformed)
		return
	}
	p.Flags &^= packet.Raw | packet.Mcast
	b := p.Bytes()
	copy(b, n.MAC[:])
	putMAC(b[6:], i.MAC)
	binary.BigEndian.PutUint16(b[12:], etherType(p))
	f.resized(p)
	f.emit(s, i, p, out)
}

// toTun takes p's Ethernet header off and sends it.
func (f *Forwarder) toTun(s *Snapshot, i *Iface, p *packet.Packet, out *Output) {
	p.Pull(int(p.L3))
	p.Flags = p.Flags&^packet.Mcast | packet.Raw
	f.resized(p)
	f.emit(s, i, p, out)
}

func etherType(p *packet.Packet) uint16 {
	if p.Flags&packet.IPv6 != 0 {
		return etherIPv6
	}
	return etherIPv4
}

// resized brings WireLen in line with headers that came or went.
func (f *Forwarder) resized(p *packet.Packet) {
	p.WireLen = uint32(p.Len())
	if p.Vnet.GSOType != packet.GSONone {
		p.WireLen += uint32(p.Segs-1) * uint32(p.Vnet.HdrLen)
	}
}
