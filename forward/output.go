package forward

import (
	"encoding/binary"
	"net/netip"

	"taprouter/fib"
	"taprouter/packet"
)

// A hop is the last route looked up, valid for one snapshot.
type hop struct {
	dst   netip.Addr
	route *fib.Route
}

// route finds the route of dst, often the one found before.
func (f *Forwarder) route(s *Snapshot, dst netip.Addr) *fib.Route {
	if f.hop.dst == dst {
		return f.hop.route
	}
	r := s.Routes.Lookup(dst)
	f.hop = hop{dst, r}
	return r
}

// forward sends p on by r, the route of dst.
func (f *Forwarder) forward(s *Snapshot, r *fib.Route, dst netip.Addr, ttl uint8, p *packet.Packet, now int64, out *Output) {
	switch {
	case r == nil || r.Sends() && int(r.Iface) >= len(s.Ifaces):
		f.icmpError(s, p, icmpNoRoute, 0, now, out)
		out.drop(p, packet.DropNoRoute)
	case r.Kind == fib.Blackhole:
		out.drop(p, packet.DropBlackhole)
	case r.Kind == fib.Unreachable:
		f.icmpError(s, p, icmpHostUnreachable, 0, now, out)
		out.drop(p, packet.DropNoRoute)
	case r.Kind == fib.Broadcast: // RFC 2644
		out.drop(p, packet.DropMartian)
	case ttl <= 1:
		f.icmpError(s, p, icmpTimeExceeded, 0, now, out)
		out.drop(p, packet.DropTTL)
	case l3Size(p) > s.Ifaces[r.Iface].MTU:
		f.tooBig(s, r, dst, p, now, out)
	default:
		decrement(p)
		f.output(s, r.Iface, nextHop(r, dst), p, now, out)
	}
}

func nextHop(r *fib.Route, dst netip.Addr) netip.Addr {
	if r.Via.IsValid() {
		return r.Via
	}
	return dst
}

// l3Size is the length of the packet, or of a segment, from its IP header on.
func l3Size(p *packet.Packet) int {
	if p.Vnet.GSOType != packet.GSONone {
		return int(p.Vnet.HdrLen) - int(p.L3) + int(p.Vnet.GSOSize)
	}
	return p.Len() - int(p.L3)
}

// tooBig cuts an IPv4 packet that may be cut, and tells the sender of others.
func (f *Forwarder) tooBig(s *Snapshot, r *fib.Route, dst netip.Addr, p *packet.Packet, now int64, out *Output) {
	mtu := s.Ifaces[r.Iface].MTU
	if p.Flags&packet.IPv4 == 0 || p.Bytes()[p.L3+6]&0x40 != 0 {
		f.icmpError(s, p, icmpTooBig, uint32(mtu), now, out)
		out.drop(p, packet.DropTooBig)
		return
	}
	decrement(p)
	var cut packet.List
	if why := f.cut(p, mtu, &cut); why != 0 {
		out.drop(p, why)
		return
	}
	for q := cut.Pop(); q != nil; q = cut.Pop() {
		f.output(s, r.Iface, nextHop(r, dst), q, now, out)
	}
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

// output sends p, whose IP header is final, to the neighbour via on an L3
// interface; while its MAC address is not known p waits.
func (f *Forwarder) output(s *Snapshot, iface uint16, via netip.Addr, p *packet.Packet, now int64, out *Output) {
	i := &s.Ifaces[iface]
	if i.Tun {
		f.toTun(s, i, p, out)
		return
	}
	n := f.neighbour(s, iface, via, now)
	switch {
	case n == nil:
		f.wait(iface, via, p, now, out)
	case n.Failed:
		f.icmpError(s, p, icmpHostUnreachable, 0, now, out)
		out.drop(p, packet.DropNeighFailed)
	default:
		f.toEther(s, i, fib.MAC(n.MAC[:]), p, out)
	}
}

// usedGrain is how exact Neigh.Used is, in ns: workers share the word.
const usedGrain = 250e6

// neighbour looks a neighbour up, often the one found before, and notes that
// it is used.
func (f *Forwarder) neighbour(s *Snapshot, iface uint16, addr netip.Addr, now int64) *fib.Neigh {
	n := f.near
	if n == nil || n.Iface != iface || n.Addr != addr {
		if n = s.Neigh.Lookup(iface, addr); n == nil {
			return nil
		}
		f.near = n
	}
	if n.Used != nil && now-n.Used.Load() > usedGrain {
		n.Used.Store(now)
	}
	return n
}

// toEther gives p an Ethernet header to dst and sends it.
func (f *Forwarder) toEther(s *Snapshot, i *Iface, dst uint64, p *packet.Packet, out *Output) {
	if p.L3 > 14 {
		p.Pull(int(p.L3) - 14)
	} else if p.L3 < 14 && p.Push(14-int(p.L3)) == nil {
		out.drop(p, packet.DropMalformed)
		return
	}
	p.Flags &^= packet.Raw | packet.Mcast
	b := p.Bytes()
	putMAC(b, dst)
	putMAC(b[6:], i.MAC)
	binary.BigEndian.PutUint16(b[12:], etherType(p))
	resized(p)
	f.emit(s, i, p, out)
}

// toTun takes p's Ethernet header off and sends it.
func (f *Forwarder) toTun(s *Snapshot, i *Iface, p *packet.Packet, out *Output) {
	p.Pull(int(p.L3))
	p.Flags = p.Flags&^packet.Mcast | packet.Raw
	resized(p)
	f.emit(s, i, p, out)
}

func etherType(p *packet.Packet) uint16 {
	if p.Flags&packet.IPv6 != 0 {
		return etherIPv6
	}
	return etherIPv4
}

// resized brings WireLen in line with headers that came or went, and clears a
// header length that means nothing: the kernel believes it, and refuses one
// that is longer than the frame.
func resized(p *packet.Packet) {
	p.WireLen = uint32(p.Len())
	if p.Vnet.GSOType == packet.GSONone {
		p.Vnet.HdrLen = 0
		return
	}
	p.WireLen += uint32(p.Segs-1) * uint32(p.Vnet.HdrLen)
}
