package gro

import (
	"encoding/binary"

	"taprouter/packet"
)

const (
	// maxIP is the largest IP packet, in bytes. Linux holds IPv6 to it too
	// (GRO_LEGACY_MAX_SIZE).
	maxIP = 65535
	// maxUDP is how many datagrams Linux merges at most (UDP_GRO_CNT_MAX);
	// kernels before 6.7 refuse to cut more (UDP_MAX_SEGMENTS).
	maxUDP = 64
)

// A train is a flow's place in the Merger and, if head is not nil, the packets
// that have been merged so far or may be merged with the next ones.
type train struct {
	head     *packet.Packet // the first packet, others are appended to it
	hash     uint32
	taken    bool
	verified bool // head's checksums are known to be right
	fixedID  bool // all have one IPv4 id
	push     bool // the last one had PSH
	first    segment
	payload  int // bytes of all packets
	segs     int
}

// open makes p the first packet of a train, unless p says that its flow has
// nothing more to come.
func (t *train) open(p *packet.Packet, s *segment) {
	if s.flags&tcpPSH != 0 {
		return
	}
	t.head, t.first, t.payload, t.segs = p, *s, s.payload, 1
	t.verified, t.fixedID, t.push = false, false, false
}

// fits reports whether p goes behind the packets of the train so that cutting
// gives p again: its headers are those of the first packet, but for lengths,
// checksums, sequence number, id, PSH, and the CWR of the first.
func (t *train) fits(p *packet.Packet, s *segment) bool {
	l3, l4 := int(p.L3), int(p.L4)
	if s.payload > t.first.payload || s.hdr != t.first.hdr || s.hdr-l3+t.payload+s.payload > maxIP {
		return false
	}
	a, b := t.head.Bytes()[:s.hdr], p.Bytes()[:s.hdr]
	if string(a[:l3]) != string(b[:l3]) {
		return false
	}
	if p.Flags&packet.IPv4 != 0 {
		if !sameIPv4(a[l3:l4], b[l3:l4]) || !t.idFits(s) {
			return false
		}
	} else if !sameIPv6(a[l3:l4], b[l3:l4]) {
		return false
	}
	if p.Proto == protoTCP {
		return s.seq == t.first.seq+uint32(t.payload) && sameTCP(a[l4:], b[l4:])
	}
	return binary.BigEndian.Uint32(a[l4:]) == binary.BigEndian.Uint32(b[l4:])
}

// idFits: the id rises by one with each packet, or stays, which takes DF as
// then it means nothing (RFC 6864). The second packet tells which.
func (t *train) idFits(s *segment) bool {
	d := s.id - t.first.id
	if d == 0 {
		return t.fixedID || t.segs == 1 && s.df
	}
	return !t.fixedID && int(d) == t.segs
}

// sameIPv4 compares all but total length, id and checksum.
func sameIPv4(a, b []byte) bool {
	a, b = a[:ipv4Len], b[:ipv4Len]
	const lenID, sum = 0x0000_ffff_ffff_0000, 0x0000_ffff_0000_0000
	return (binary.BigEndian.Uint64(a)^binary.BigEndian.Uint64(b))&^lenID|
		(binary.BigEndian.Uint64(a[8:])^binary.BigEndian.Uint64(b[8:]))&^sum == 0 &&
		binary.BigEndian.Uint32(a[16:]) == binary.BigEndian.Uint32(b[16:])
}

// sameIPv6 compares all but the payload length.
func sameIPv6(a, b []byte) bool {
	a, b = a[:ipv6Len], b[:ipv6Len]
	const length = 0xffff_0000
	return (binary.BigEndian.Uint64(a)^binary.BigEndian.Uint64(b))&^length == 0 && string(a[8:]) == string(b[8:])
}

// sameTCP compares ports, acknowledgement, window, flags but PSH and the CWR
// that only the first may have, urgent pointer and options. The two are
// equally long.
func sameTCP(a, b []byte) bool {
	const psh, cwr = tcpPSH << 16, tcpCWR << 16
	y := binary.BigEndian.Uint32(b[12:])
	return binary.BigEndian.Uint32(a) == binary.BigEndian.Uint32(b) &&
		binary.BigEndian.Uint32(a[8:]) == binary.BigEndian.Uint32(b[8:]) &&
		(binary.BigEndian.Uint32(a[12:])^y)&^(psh|cwr)|y&cwr == 0 &&
		string(a[18:]) == string(b[18:])
}

// add appends p, which fits. It ends the train if nothing can follow.
func (t *train) add(p *packet.Packet, s *segment, st *Stats) {
	if t.segs == 1 {
		t.verified, t.fixedID = true, p.Flags&packet.IPv4 != 0 && s.id == t.first.id
	}
	t.head.Append(p, s.hdr)
	t.payload += s.payload
	t.segs++
	t.push = s.flags&tcpPSH != 0
	if t.push || s.payload < t.first.payload || p.Proto == protoUDP && t.segs == maxUDP {
		t.close(st)
	}
}

// close ends the train, if there is one. Packets that were merged become one
// superpacket, as the kernel would give it; a single one is left as it is.
func (t *train) close(st *Stats) {
	p := t.head
	t.head = nil
	if p == nil || t.segs == 1 {
		return
	}
	st.Trains++
	st.Merged += uint64(t.segs - 1)
	hdr := t.first.hdr
	b, l3, l4 := p.Bytes()[:hdr], int(p.L3), int(p.L4)
	p.Vnet = packet.Vnet{Flags: packet.NeedsCsum, HdrLen: uint16(hdr), GSOSize: uint16(t.first.payload), CsumStart: p.L4}
	p.Segs = uint16(t.segs)
	p.WireLen = uint32(t.segs*hdr + t.payload)
	if t.fixedID {
		p.Flags |= packet.FixedID
	}
	ip, l4len := b[l3:l4], hdr-l4+t.payload
	if p.Flags&packet.IPv4 != 0 {
		binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Len+l4len))
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^sumIPv4(ip))
		p.Vnet.GSOType = packet.GSOTCPv4
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(l4len))
		p.Vnet.GSOType = packet.GSOTCPv6
	}
	pseudo := sumPseudo(p, ip, l4len)
	if p.Proto == protoUDP {
		p.Vnet.GSOType, p.Vnet.CsumOffset = packet.GSOUDPL4, 6
		binary.BigEndian.PutUint16(b[l4+4:], uint16(l4len))
		binary.BigEndian.PutUint16(b[l4+6:], pseudo)
		return
	}
	p.Vnet.CsumOffset = 16
	binary.BigEndian.PutUint16(b[l4+16:], pseudo)
	if t.push {
		b[l4+13] |= tcpPSH
	}
	if b[l4+13]&tcpCWR != 0 {
		p.Vnet.GSOType |= packet.GSOECN
	}
}
