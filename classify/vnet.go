package classify

import "taprouter/packet"

// checkVnet tests a virtio-net header against the frame: it may come from a
// guest. It sets the number of segments, the bytes on the wire and the true
// header length. What Linux refuses in virtio_net_hdr_to_skb is refused here.
func checkVnet(p *packet.Packet) packet.Reason {
	v := &p.Vnet
	if v.Flags&packet.NeedsCsum != 0 && !csumInside(p) {
		return packet.DropVnet
	}
	gso := v.GSOType &^ packet.GSOECN
	if gso == packet.GSONone {
		if v.GSOType != packet.GSONone {
			return packet.DropVnet
		}
		v.HdrLen = 0 // a hint that a device may refuse, and that nobody needs
		return 0
	}
	if v.GSOSize == 0 || v.GSOSize == 0xffff || p.L4 == 0 || p.Flags&packet.Fragment != 0 {
		return packet.DropVnet
	}
	b, hdr := p.Bytes(), 0
	switch gso {
	case packet.GSOTCPv4, packet.GSOTCPv6:
		want := packet.IPv4
		if gso == packet.GSOTCPv6 {
			want = packet.IPv6
		}
		at := int(p.L4)
		if p.Flags&want == 0 || p.Proto != ProtoTCP || len(b) < at+20 || v.Flags&packet.NeedsCsum != 0 && (v.CsumStart != p.L4 || v.CsumOffset != 16) {
			return packet.DropVnet
		}
		if hdr = at + int(b[at+12]>>4)*4; hdr < at+20 {
			return packet.DropVnet
		}
	case packet.GSOUDPL4:
		if v.GSOType != packet.GSOUDPL4 || p.Proto != ProtoUDP || v.Flags&packet.NeedsCsum == 0 || v.CsumStart != p.L4 || v.CsumOffset != 6 {
			return packet.DropVnet
		}
		hdr = int(p.L4) + 8
	default:
		return packet.DropVnet
	}
	if hdr > len(b) {
		return packet.DropVnet
	}
	return setSegs(p, hdr)
}

// csumInside: the checksummed part begins behind the network header, which
// nobody but the router may change, and the checksum lies in the head.
func csumInside(p *packet.Packet) bool {
	start, field := int(p.Vnet.CsumStart), int(p.Vnet.CsumStart)+int(p.Vnet.CsumOffset)
	network := int(p.L3)
	switch {
	case p.Flags&packet.IPv4 != 0:
		network += 20
	case p.Flags&packet.IPv6 != 0:
		network += 40
	}
	return start >= network && field+2 <= p.HeadLength()
}

func setSegs(p *packet.Packet, hdr int) packet.Reason {
	v := &p.Vnet
	payload := p.Len() - hdr
	if payload <= int(v.GSOSize) { // one segment is no superpacket
		v.GSOType, v.GSOSize, v.HdrLen = packet.GSONone, 0, 0
		return 0
	}
	segs := (payload + int(v.GSOSize) - 1) / int(v.GSOSize)
	if v.GSOType == packet.GSOUDPL4 && segs > 128 || segs > 0xffff { // UDP_MAX_SEGMENTS
		return packet.DropVnet
	}
	v.HdrLen = uint16(hdr)
	p.Segs = uint16(segs)
	p.WireLen = uint32(p.Len() + (segs-1)*hdr)
	return 0
}
