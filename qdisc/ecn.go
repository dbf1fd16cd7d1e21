package qdisc

import (
	"encoding/binary"

	"taprouter/packet"
)

// markCE sets congestion experienced in the header of a packet whose ends
// know ECN (RFC 3168, section 5). It reports whether the packet has the mark now.
func markCE(p *packet.Packet) bool {
	if p.HeadLength() < int(p.L3)+12 {
		return false
	}
	h := p.Bytes()[p.L3:]
	switch {
	case p.Flags&packet.IPv4 != 0:
		ecn := h[1] & 3
		if ecn == 0 || ecn == 3 {
			return ecn == 3
		}
		old := binary.BigEndian.Uint16(h)
		h[1] |= 3
		sum := uint32(^binary.BigEndian.Uint16(h[10:])) + uint32(^old&0xffff) + uint32(binary.BigEndian.Uint16(h)) // RFC 1624
		sum = sum&0xffff + sum>>16
		sum = sum&0xffff + sum>>16
		binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
		return true
	case p.Flags&packet.IPv6 != 0:
		ecn := h[1] >> 4 & 3
		if ecn == 0 || ecn == 3 {
			return ecn == 3
		}
		h[1] |= 3 << 4
		return true
	}
	return false
}
