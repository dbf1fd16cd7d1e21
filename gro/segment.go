package gro

import (
	"encoding/binary"

	"taprouter/packet"
)

const (
	protoTCP = 6
	protoUDP = 17

	ipv4Len = 20
	ipv6Len = 40
	tcpLen  = 20
	udpLen  = 8

	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpPSH = 0x08
	tcpACK = 0x10
	tcpURG = 0x20
	tcpCWR = 0x80

	ipDF = 0x40 // in the first byte of flags and fragment offset
)

// A segment is what parse found in one packet of a train, or of a train to be.
type segment struct {
	hdr     int    // bytes of headers, Ethernet to L4
	payload int    // bytes behind them, one at least
	seq     uint32 // TCP
	flags   uint8  // TCP
	id      uint16 // IPv4
	df      bool   // IPv4
}

// parse reports whether p, a TCP or UDP packet, can be in a train at all. It
// is not if it has no payload, IPv4 options, IPv6 extension headers, bytes
// behind the IP packet, a TCP flag other than ACK, PSH, ECE and CWR, or no UDP
// checksum; or if it is a superpacket, or was found to be malformed.
func (s *segment) parse(p *packet.Packet) bool {
	if p.Vnet.GSOType != packet.GSONone || p.Bad != 0 || p.Drop != 0 {
		return false
	}
	b, l3, l4 := p.Bytes(), int(p.L3), int(p.L4)
	if p.Flags&packet.IPv4 != 0 {
		if l4 != l3+ipv4Len || len(b) < l4+udpLen {
			return false
		}
		ip := b[l3 : l3+ipv4Len]
		if int(binary.BigEndian.Uint16(ip[2:])) != p.Len()-l3 {
			return false
		}
		s.id, s.df = binary.BigEndian.Uint16(ip[4:]), ip[6] == ipDF
		if ip[6]&^ipDF|ip[7] != 0 {
			return false
		}
	} else if l4 != l3+ipv6Len || len(b) < l4+udpLen || int(binary.BigEndian.Uint16(b[l3+4:])) != p.Len()-l4 {
		return false
	}
	field := uint16(6)
	if p.Proto == protoTCP {
		if field = 16; !s.tcp(b[l4:]) {
			return false
		}
	} else {
		u := b[l4 : l4+udpLen]
		if int(binary.BigEndian.Uint16(u[4:])) != p.Len()-l4 || u[6]|u[7] == 0 {
			return false
		}
		s.hdr = udpLen
	}
	s.hdr += l4
	s.payload = p.Len() - s.hdr
	return s.payload > 0 && s.hdr <= len(b) &&
		(p.Vnet.Flags&packet.NeedsCsum == 0 || p.Vnet.CsumStart == p.L4 && p.Vnet.CsumOffset == field)
}

func (s *segment) tcp(h []byte) bool {
	if len(h) < tcpLen {
		return false
	}
	s.hdr, s.seq, s.flags = int(h[12]>>4)*4, binary.BigEndian.Uint32(h[4:]), h[13]
	return s.hdr >= tcpLen && s.flags&(tcpFIN|tcpSYN|tcpRST|tcpURG|tcpACK) == tcpACK
}
