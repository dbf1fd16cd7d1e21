// Package offload (data path) does in software what a port's reader does not
// take: completing checksums and cutting superpackets into segments.
package offload

import (
	"encoding/binary"

	"taprouter/packet"
)

// Checksum completes a partial checksum in place: the field holds the sum of
// the pseudo header, the rest is summed from CsumStart to the end of the
// frame (VIRTIO_NET_HDR_F_NEEDS_CSUM). It gives DropOffload if the header
// does not fit the frame, else 0. p has one owner and an unshared head.
func Checksum(p *packet.Packet) packet.Reason {
	start, field := int(p.Vnet.CsumStart), int(p.Vnet.CsumStart)+int(p.Vnet.CsumOffset)
	head := p.Bytes()
	if field+2 > len(head) || start > len(head) {
		return packet.DropOffload
	}
	binary.BigEndian.PutUint16(head[field:], complement(sumFrom(p, start)))
	p.Vnet.Flags &^= packet.NeedsCsum
	p.Vnet.CsumStart, p.Vnet.CsumOffset = 0, 0
	return 0
}

// complement gives what goes into a checksum field for a sum. UDP's 0 says
// that there is no checksum (RFC 768), so the other zero of ones' complement
// is written, as every protocol may; the UDP header may lie in a tunnel.
func complement(sum uint16) uint16 {
	if sum == 0xffff {
		return sum
	}
	return ^sum
}

// sumFrom adds up the frame from an offset in its head.
func sumFrom(p *packet.Packet, from int) uint16 {
	var sum summer
	c := start(p, from)
	for b := c.take(p.Len()); b != nil; b = c.take(p.Len()) {
		sum.add(b)
	}
	return sum.sum
}
