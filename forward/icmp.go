package forward

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"taprouter/fib"
	"taprouter/packet"
)

// An icmpKind is one of the errors that a router sends, with its type and
// code in either version.
type icmpKind struct{ type4, code4, type6, code6 uint8 }

var (
	icmpTimeExceeded     = icmpKind{11, 0, 3, 0}
	icmpNoRoute          = icmpKind{3, 0, 1, 0}
	icmpHostUnreachable  = icmpKind{3, 1, 1, 3}
	icmpPortUnreachable  = icmpKind{3, 3, 1, 4}
	icmpProtoUnreachable = icmpKind{3, 2, 4, 1}
	icmpTooBig           = icmpKind{3, 4, 2, 0}
)

// Most of an error message that quotes the packet, in bytes with its IP
// header: RFC 1812, 4.3.2.3, and RFC 4443, 2.4 (c).
const (
	icmp4Max = 576
	icmp6Max = 1280
)

// icmpError sends an error about p, which stays the caller's, back to its
// sender, from the address that faces it. info is the next-hop MTU or the
// pointer to what is wrong. It keeps silent where RFC 1812, 4.3.2.7, and RFC
// 4443, 2.4 (e), forbid an error, and over the rate limit.
func (f *Forwarder) icmpError(s *Snapshot, p *packet.Packet, k icmpKind, info uint32, now int64, out *Output) {
	in := s.ifaceOf(p.In)
	if in == NoIface || !reportable(p, k) {
		return
	}
	to, from := addresses(p)
	if k != icmpPortUnreachable && k != icmpProtoUnreachable { // those were sent to us
		from = s.facing(in, to)
	}
	if !from.IsValid() || to.IsUnspecified() || to.IsMulticast() || to.IsLoopback() {
		return
	}
	r := s.Routes.Lookup(to)
	if r != nil && !r.Sends() || !f.limit.allow(to, now) {
		return
	}
	q := f.cache.Get()
	if q == nil {
		f.NoBuffer++
		return
	}
	f.Created++
	if p.Flags&packet.IPv6 != 0 {
		build6(q, p, k, info, from, to)
	} else {
		build4(q, p, k, info, from, to)
	}
	q.Flags |= packet.Local
	q.L3, q.Hash, q.Priority = 14, p.Hash, prioControl
	resized(q)
	f.reply(s, in, r, to, p, q, now, out)
}

// prioControl is TC_PRIO_CONTROL, include/uapi/linux/pkt_sched.h.
const prioControl = 7

// reply sends q, made about p, to the host to by its route r. Where that
// leads back to where p came from and the next hop is unknown or failed, and
// for link-local hosts and those without a route, the MAC address that sent p
// serves: nothing is asked for and nothing waits.
func (f *Forwarder) reply(s *Snapshot, in uint16, r *fib.Route, to netip.Addr, p, q *packet.Packet, now int64, out *Output) {
	back := to.IsLinkLocalUnicast() || r == nil || int(r.Iface) >= len(s.Ifaces)
	iface, via := in, to
	if !back {
		iface, via = r.Iface, nextHop(r, to)
	}
	i := &s.Ifaces[iface]
	if iface == in && !i.Tun && p.Flags&packet.Raw == 0 {
		n, mac := f.neighbour(s, iface, via, now), fib.MAC(p.Bytes()[6:])
		if (back || n == nil || n.Failed) && !group(mac) && mac != 0 {
			f.toEther(s, i, mac, q, out)
			return
		}
	}
	f.output(s, iface, via, q, now, out)
}

// reportable reports whether an ICMP error about p may be sent at all.
func reportable(p *packet.Packet, k icmpKind) bool {
	if p.Flags&(packet.Mcast|packet.Local) != 0 || aboutError(p) {
		return false
	}
	// A later fragment may be too big for an IPv6 link; its sender must know.
	return p.Flags&packet.LaterFrag == 0 || p.Flags&packet.IPv6 != 0 && k == icmpTooBig
}

// aboutError reports whether p is itself an ICMP error (or too short to tell).
func aboutError(p *packet.Packet) bool {
	v6 := p.Flags&packet.IPv6 != 0
	if !(v6 && p.Proto == protoICMPv6 || !v6 && p.Proto == protoICMP) {
		return false
	}
	if p.L4 == 0 || int(p.L4) >= p.HeadLength() {
		return true
	}
	t := p.Bytes()[p.L4]
	if v6 {
		return t < 128 || t == ndRedirect
	}
	switch t {
	case 0, 8, 13, 14: // echo and timestamp, the queries still in use
		return false
	}
	return true
}

// addresses gives the source and destination of p's network header.
func addresses(p *packet.Packet) (src, dst netip.Addr) {
	h := p.Bytes()[p.L3:]
	if p.Flags&packet.IPv6 != 0 {
		return netip.AddrFrom16([16]byte(h[8:24])), netip.AddrFrom16([16]byte(h[24:40]))
	}
	return netip.AddrFrom4([4]byte(h[12:16])), netip.AddrFrom4([4]byte(h[16:20]))
}

// facing gives our address for messages to a host that is reached through
// interface in: the one whose subnet it is in, or else the first of its
// family, or else that of another interface. The zero Addr says that the
// router has none.
func (s *Snapshot) facing(in uint16, to netip.Addr) netip.Addr {
	from := s.Ifaces[in].facing(to)
	for i := 0; i < len(s.Ifaces) && !from.IsValid() && !to.IsLinkLocalUnicast(); i++ {
		from = s.Ifaces[i].facing(to)
	}
	return from
}

func (i *Iface) facing(to netip.Addr) (from netip.Addr) {
	for _, a := range i.Addrs {
		if a.Addr().Is4() != to.Is4() || a.Addr().Is6() && a.Addr().IsLinkLocalUnicast() != to.IsLinkLocalUnicast() {
			continue
		}
		if a.Contains(to) {
			return a.Addr()
		}
		if !from.IsValid() {
			from = a.Addr()
		}
	}
	return from
}

// frame opens q for n bytes behind an Ethernet header that is filled later.
func frame(q *packet.Packet, n int) []byte {
	q.SetFrame(packet.Headroom, packet.Headroom+14+n)
	return q.Bytes()[14:]
}

func build4(q, p *packet.Packet, k icmpKind, info uint32, from, to netip.Addr) {
	quoted := min(l3Size(p), icmp4Max-28)
	b := frame(q, 28+quoted)
	clear(b[:28])
	p.CopyOut(b[28:], int(p.L3))
	b[0], b[1], b[8], b[9] = 0x45, 0xc0, 64, protoICMP // TOS: internetwork control, RFC 1812 4.3.2.5
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	b[6] = 0x40 // DF, so that an identification of 0 will do (RFC 6864, 4.1)
	a4, t4 := from.As4(), to.As4()
	copy(b[12:], a4[:])
	copy(b[16:], t4[:])
	binary.BigEndian.PutUint16(b[10:], ^checksum.Checksum(b[:20], 0))
	m := b[20:]
	m[0], m[1] = k.type4, k.code4
	binary.BigEndian.PutUint32(m[4:], info) // the MTU in the low half, RFC 1191
	binary.BigEndian.PutUint16(m[2:], ^checksum.Checksum(m, 0))
	q.EtherType, q.Flags, q.Proto, q.L4 = etherIPv4, packet.IPv4, protoICMP, 34
}

func build6(q, p *packet.Packet, k icmpKind, info uint32, from, to netip.Addr) {
	quoted := min(l3Size(p), icmp6Max-48)
	b := frame(q, 48+quoted)
	clear(b[:48])
	p.CopyOut(b[48:], int(p.L3))
	b[0], b[6], b[7] = 0x60, protoICMPv6, 64
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)-40))
	a16, t16 := from.As16(), to.As16()
	copy(b[8:], a16[:])
	copy(b[24:], t16[:])
	m := b[40:]
	m[0], m[1] = k.type6, k.code6
	binary.BigEndian.PutUint32(m[4:], info)
	sum := checksum.Checksum(b[8:40], uint16(protoICMPv6))
	sum = checksum.Combine(sum, uint16(len(m)))
	binary.BigEndian.PutUint16(m[2:], ^checksum.Checksum(m, sum))
	q.EtherType, q.Flags, q.Proto, q.L4 = etherIPv6, packet.IPv6, protoICMPv6, 54
}
