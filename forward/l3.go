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

	// ICMPv6 types, RFC 4443 and 4861.
	icmp6Echo  = 128
	ndSolicit  = 135
	ndAdvert   = 136
	ndRedirect = 137

	arpLen = 28 // bytes of an ARP packet for IPv4 on Ethernet, RFC 826
)

// routed takes a packet that came in by a routed port.
func (f *Forwarder) routed(s *Snapshot, p *packet.Packet, now int64, out *Output) {
	i := &s.Ifaces[p.In]
	if p.Flags&packet.Raw == 0 {
		if p.HeadLength() < 14 {
			out.drop(p, packet.DropTruncated)
			return
		}
		switch dst := fib.MAC(p.Bytes()); {
		case p.VLANs > 0:
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
		return len(b) >= arpLen && (i.has(netip.AddrFrom4([4]byte(b[24:28]))) || [4]byte(b[14:18]) == [4]byte(b[24:28]))
	case p.Flags&packet.IPv6 == 0 || p.Proto != protoICMPv6 || p.L4 == 0 || int(p.L4) >= p.HeadLength():
		return false
	}
	t := p.Bytes()[p.L4]
	if t == ndSolicit { // for an address of ours?
		l4 := p.Bytes()[p.L4:]
		return len(l4) >= 24 && i.has(netip.AddrFrom16([16]byte(l4[8:24])))
	}
	return t == ndAdvert || t == icmp6Echo && [16]byte(b[24:40]) == allNodes
}

var allNodes = [16]byte{0: 0xff, 1: 2, 15: 1} // ff02::1

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
	case p.Flags&packet.ARP != 0 && p.HeadLength() < int(p.L3)+arpLen:
		out.drop(p, packet.DropMalformed)
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
	if martian4(h[12]) || martian4(h[16]) || p.Flags&packet.Mcast != 0 {
		out.drop(p, packet.DropMartian)
		return
	}
	r := f.route(s, dst)
	switch {
	case r != nil && r.Kind == fib.Local:
		f.local(s, in, p, now, out)
	case src.IsLinkLocalUnicast() || dst.IsLinkLocalUnicast(): // RFC 3927, 7
		out.drop(p, packet.DropMartian)
	default:
		f.forward(s, r, dst, h[8], p, now, out)
	}
}

func (f *Forwarder) input6(s *Snapshot, in uint16, p *packet.Packet, now int64, out *Output) {
	h := p.Bytes()[p.L3:]
	trim(p, 40+int(binary.BigEndian.Uint16(h[4:])))
	src, dst := netip.AddrFrom16([16]byte(h[8:24])), netip.AddrFrom16([16]byte(h[24:40]))
	switch {
	case src.IsMulticast(), src.IsLoopback(), dst.IsLoopback(), dst.IsUnspecified(), src.Is4In6(), dst.Is4In6():
		out.drop(p, packet.DropMartian)
	case dst.IsMulticast(): // never forwarded; discovery and pings are ours
		if wanted(&s.Ifaces[in], p) {
			punt(in, p, out)
			return
		}
		out.drop(p, packet.DropNotForUs)
	case p.Flags&packet.Mcast != 0, src.IsUnspecified(): // RFC 4291, 2.5.2
		out.drop(p, packet.DropMartian)
	case dst.IsLinkLocalUnicast(): // one of this link's, so in no routing table
		if s.Ifaces[in].has(dst) {
			f.local(s, in, p, now, out)
			return
		}
		out.drop(p, packet.DropMartian)
	default:
		f.global6(s, in, src, dst, h[7], p, now, out)
	}
}

// global6 routes what is for an address of global scope.
func (f *Forwarder) global6(s *Snapshot, in uint16, src, dst netip.Addr, hops uint8, p *packet.Packet, now int64, out *Output) {
	r := f.route(s, dst)
	switch {
	case r != nil && r.Kind == fib.Local:
		f.local(s, in, p, now, out)
	case src.IsLinkLocalUnicast(): // RFC 4291, 2.5.6
		out.drop(p, packet.DropMartian)
	default:
		f.forward(s, r, dst, hops, p, now, out)
	}
}

// trim cuts what Ethernet padded, or anybody appended, behind the packet.
func trim(p *packet.Packet, total int) {
	if p.Vnet.GSOType == packet.GSONone && p.Len() > int(p.L3)+total {
		p.Trim(int(p.L3) + total)
	}
}

// martian4 reports first bytes of IPv4 addresses that are neither a source nor
// routed here: this network, loopback, multicast and what is beyond (RFC 1812,
// 5.3.7).
func martian4(first byte) bool { return first == 0 || first == 127 || first >= 224 }

// local deals with a packet for an address of the router's own. Nothing here
// reassembles, so fragments are not understood.
func (f *Forwarder) local(s *Snapshot, in uint16, p *packet.Packet, now int64, out *Output) {
	icmp := uint8(protoICMP)
	if p.Flags&packet.IPv6 != 0 {
		icmp = protoICMPv6
	}
	switch {
	case p.Proto == icmp: // fragments too: control puts them together
		punt(in, p, out)
		return
	case p.Flags&packet.Fragment != 0:
	case p.Proto == protoUDP || p.Proto == protoTCP:
		f.icmpError(s, p, icmpPortUnreachable, 0, now, out)
	case icmp == protoICMP:
		f.icmpError(s, p, icmpProtoUnreachable, 0, now, out)
	case int(p.L4) == int(p.L3)+40: // points to the next header field of the fixed header
		f.icmpError(s, p, icmpProtoUnreachable, 6, now, out)
	}
	out.drop(p, packet.DropProtocol)
}
