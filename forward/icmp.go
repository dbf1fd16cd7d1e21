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
// sender, from the address that faces it. It keeps silent where RFC 1812,
// 4.3.2.7, and RFC 4443, 2.4 (e), forbid an error, and over the rate limit.
func (f *Forwarder) icmpError(s *Snapshot, in uint16, p *packet.Packet, k icmpKind, now int64, out *Output) {
	if int(in) >= len(s.Ifaces) || p.Flags&(packet.LaterFrag|packet.Mcast|packet.Local) != 0 || f.aboutError(p) {
		return
	}
	v6 := p.Flags&packet.IPv6 != 0
	h := p.Bytes()[p.L3:]
	var to netip.Addr
	if v6 {
		to = netip.AddrFrom16([16]byte(h[8:24]))
	} else {
		to = netip.AddrFrom4([4]byte(h[12:16]))
	}
	from, ok := facing(s, &s.Ifaces[in], to)
	if !ok || to.IsUnspecified() || to.IsMulticast() {
		return
	}
	r := s.Routes.Lookup(to)
	if r == nil || r.Kind != fib.Unicast || !f.limit.allow(to, now) {
		return
	}
	q := f.cache.Get()
	if q == nil {
		return
	}
	f.Created++
	if v6 {
		f.build6(q, p, k, from, to)
	} else {
		f.build4(q, p, k, from, to)
	}
	q.Flags |= packet.Local
	q.In, q.L3, q.Hash = p.In, 14, p.Hash
	f.resized(q)
	f.output(s, r, to, q, now, out)
}

// aboutError reports whether p is itself an ICMP error (or too short to tell).
func (f *Forwarder) aboutError(p *packet.Packet) bool {
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

// facing gives our address on the interface for messages to a host: the one
// whose subnet it is in, or else the first of its family.
func facing(s *Snapshot, i *Iface, to netip.Addr) (from netip.Addr, ok bool) {
	for _, a := range i.Addrs {
		if a.Addr().Is4() != to.Is4() || a.Addr().IsLinkLocalUnicast() && !to.IsLinkLocalUnicast() {
			continue
		}
		if a.Contains(to) {
			return a.Addr(), true
		}
		if !ok {
			from, ok = a.Addr(), true
		}
	}
	return from, ok
}

// frame opens q for n bytes behind an Ethernet header that is filled later.
func frame(q *packet.Packet, n int) []byte {
	q.SetFrame(packet.Headroom, packet.Headroom+14+n)
	return q.Bytes()[14:]
}

func (f *Forwarder) build4(q, p *packet.Packet, k icmpKind, from, to netip.Addr) {
	quoted := min(p.Len()-int(p.L3), icmp4Max-28)
	b := frame(q, 28+quoted)
	clear(b[:28])
	p.CopyOut(b[28:], int(p.L3))
	b[0], b[1], b[8], b[9] = 0x45, 0xc0, 64, protoICMP // TOS: internetwork control, RFC 1812 4.3.2.5
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	a4, t4 := from.As4(), to.As4()
	copy(b[12:], a4[:])
	copy(b[16:], t4[:])
	binary.BigEndian.PutUint16(b[10:], ^checksum.Checksum(b[:20], 0))
	m := b[20:]
	m[0], m[1] = k.type4, k.code4
	if k == icmpTooBig {
		binary.BigEndian.PutUint16(m[6:], uint16(f.icmpMTU)) // RFC 1191
	}
	binary.BigEndian.PutUint16(m[2:], ^checksum.Checksum(m, 0))
	q.EtherType, q.Flags, q.Proto, q.L4 = etherIPv4, packet.IPv4, protoICMP, 34
}

func (f *Forwarder) build6(q, p *packet.Packet, k icmpKind, from, to netip.Addr) {
	quoted := min(p.Len()-int(p.L3), icmp6Max-48)
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
	if k == icmpTooBig {
		binary.BigEndian.PutUint32(m[4:], f.icmpMTU)
	}
	sum := checksum.Checksum(b[8:40], uint16(protoICMPv6))
	sum = checksum.Combine(sum, uint16(len(m)))
	binary.BigEndian.PutUint16(m[2:], ^checksum.Checksum(m, sum))
	q.EtherType, q.Flags, q.Proto, q.L4 = etherIPv6, packet.IPv6, protoICMPv6, 54
}
