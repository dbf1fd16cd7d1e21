package gro

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"taprouter/packet"
)

// verify reports whether the checksums of p, which parse has passed, are
// right: that of the IPv4 header, and that of L4 unless the device vouches for
// it or has yet to complete it. (skb_gro_checksum_validate)
func verify(p *packet.Packet) bool {
	b, l3, l4 := p.Bytes(), int(p.L3), int(p.L4)
	ip := b[l3:l4]
	if p.Flags&packet.IPv4 != 0 && sumIPv4(ip) != 0xffff {
		return false
	}
	if p.Vnet.Flags&(packet.NeedsCsum|packet.DataValid) != 0 {
		return true
	}
	sum := checksum.Checksum(b[l4:], sumPseudo(p, ip, p.Len()-l4))
	if p.HasTail() {
		rest := checksum.Checksum(p.TailBytes(), 0)
		if len(b)&1 != l4&1 { // the words of the tail begin at an odd place
			rest = rest<<8 | rest>>8
		}
		sum = checksum.Combine(sum, rest)
	}
	return sum == 0xffff
}

// sumIPv4 adds up an IPv4 header without options.
func sumIPv4(ip []byte) uint16 {
	ip = ip[:ipv4Len]
	return fold(words(ip) + words(ip[8:]) + uint64(binary.BigEndian.Uint32(ip[16:])))
}

// sumPseudo adds up the pseudo header of an L4 packet of n bytes.
func sumPseudo(p *packet.Packet, ip []byte, n int) uint16 {
	sum := uint64(p.Proto) + uint64(n)
	if p.Flags&packet.IPv4 != 0 {
		return fold(sum + words(ip[12:20]))
	}
	ip = ip[8:ipv6Len]
	return fold(sum + words(ip) + words(ip[8:]) + words(ip[16:]) + words(ip[24:]))
}

// words adds up eight bytes so that several such sums fit into 64 bits.
func words(b []byte) uint64 {
	x := binary.BigEndian.Uint64(b)
	return x>>32 + x&0xffff_ffff
}

// fold makes a 16-bit ones' complement sum (RFC 1071).
func fold(x uint64) uint16 {
	x = x>>32 + x&0xffff_ffff
	x = x>>16 + x&0xffff
	x = x>>16 + x&0xffff
	return uint16(x>>16 + x&0xffff)
}
