package classify

import "taprouter/packet"

// tosPriority gives a priority by four bits of the TOS byte, (tos & 0x1e) / 2:
// the kernel's ip_tos2prio. DSCP class selectors do not count.
var tosPriority = [16]uint8{0, 0, 0, 0, 2, 2, 2, 2, 6, 6, 6, 6, 4, 4, 4, 4}

// priority is what skb->priority would be. The TOS byte of IPv4 and the
// traffic class of IPv6 decide alike; a frame that is not IP, or whose IP
// header asks for nothing, has the PCP of its outer VLAN tag. The kernel does
// this for forwarded IPv4 only.
func (d *dissector) priority() uint8 {
	var tos uint8
	switch p := d.p; {
	case p.Flags&packet.IPv4 != 0:
		tos = d.b[p.L3+1]
	case p.Flags&packet.IPv6 != 0:
		tos = d.b[p.L3]<<4 | d.b[p.L3+1]>>4
	}
	if prio := tosPriority[tos&0x1e>>1]; prio != 0 || d.p.VLANs == 0 {
		return prio
	}
	return uint8(d.p.TCI >> 13)
}
