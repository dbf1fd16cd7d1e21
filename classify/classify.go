// Package classify (data path) looks at each packet once: where its headers
// lie, what it is, its flow hash, its priority, and whether its virtio-net
// header can be believed. Later stages use what it finds.
package classify

import (
	"encoding/binary"

	"taprouter/packet"
)

// Options change what the flow hash covers. The zero value is the default:
// symmetric, no flow label, no PCP, as nothing that may change within a flow
// enters the hash.
type Options struct {
	Asymmetric bool // the two directions of a flow hash differently
	FlowLabel  bool // IPv6 flow label, where there are no ports
	PCP        bool // priority bits of the outer VLAN tag
}

// A Classifier holds the hash key. It has no state and may be shared.
type Classifier struct {
	seed Seed
	opts Options
}

// New makes a Classifier. All workers of a router use one seed.
func New(seed Seed, opts Options) *Classifier { return &Classifier{seed: seed, opts: opts} }

// EtherTypes and protocol numbers, IEEE and IANA.
const (
	EtherIPv4  = 0x0800
	EtherARP   = 0x0806
	EtherVLAN  = 0x8100
	EtherIPv6  = 0x86dd
	EtherMPLS  = 0x8847
	EtherMPLSM = 0x8848
	EtherPPPoE = 0x8864
	EtherQinQ  = 0x88a8
	etherTEB   = 0x6558
	etherLLC   = 0x0004 // ETH_P_802_2: stands for every length field

	ProtoHopByHop = 0
	ProtoICMP     = 1
	ProtoIPIP     = 4
	ProtoTCP      = 6
	ProtoUDP      = 17
	ProtoDCCP     = 33
	ProtoIPv6     = 41
	ProtoRouting  = 43
	ProtoFragment = 44
	ProtoGRE      = 47
	ProtoESP      = 50
	ProtoAH       = 51
	ProtoICMPv6   = 58
	ProtoNoNext   = 59
	ProtoDstOpts  = 60
	ProtoSCTP     = 132
	ProtoUDPLite  = 136

	// maxHeaders bounds nested headers. MAX_FLOW_DISSECT_HDRS.
	maxHeaders = 15
)

// Batch dissects each packet and fills everything that Packet says classify
// fills. A frame that is shorter than its link header, or whose virtio-net
// header contradicts it, gets Drop; what only a router must not forward gets
// Bad.
func (c *Classifier) Batch(pkts []*packet.Packet) {
	for _, p := range pkts {
		c.one(p)
	}
}

func (c *Classifier) one(p *packet.Packet) {
	p.Segs, p.WireLen = 1, uint32(p.Len())
	var d dissector // a literal would be built aside and copied
	d.c, d.p, d.b = c, p, p.Bytes()
	if !d.link() {
		p.Drop, p.Bad = packet.DropTruncated, packet.DropTruncated
		return
	}
	if p.Vnet.GSOType != packet.GSONone || p.Vnet.Flags&packet.NeedsCsum != 0 {
		p.Drop = checkVnet(p)
	}
	p.Hash = d.key.hash(&c.seed, c.opts.Asymmetric)
	p.Priority = d.priority()
}

// A dissector goes through one packet's headers. Offsets and flags of p are
// those of the outer headers; the key is that of the innermost ones.
type dissector struct {
	c     *Classifier
	p     *packet.Packet
	b     []byte
	key   key
	depth int // headers so far
	inner bool
}

// link goes through Ethernet and VLAN tags, or takes a TUN's first nibble,
// and on to the network header. It reports false if there is no link header.
func (d *dissector) link() bool {
	if d.p.Flags&packet.Raw != 0 {
		return d.raw()
	}
	if len(d.b) < 14 {
		return false
	}
	if d.b[0]&1 != 0 {
		d.p.Flags |= packet.Mcast
	}
	at, et := 14, binary.BigEndian.Uint16(d.b[12:])
	for et == EtherVLAN || et == EtherQinQ {
		if len(d.b) < at+4 || d.depth == maxHeaders {
			d.p.Bad = packet.DropTruncated
			break
		}
		tci := binary.BigEndian.Uint16(d.b[at:])
		if d.p.VLANs == 0 {
			d.p.TCI = tci
			d.key.vlan = uint32(et)<<16 | uint32(tci&0x0fff)
			if d.c.opts.PCP {
				d.key.vlan |= uint32(tci & 0xe000)
			}
		}
		d.p.VLANs++
		d.depth++
		et = binary.BigEndian.Uint16(d.b[at+2:])
		at += 4
	}
	d.p.L3, d.p.EtherType = uint16(at), et
	d.network(at, et)
	return true
}

// raw takes a TUN's frame, whose first nibble says what it is.
func (d *dissector) raw() bool {
	if len(d.b) < 1 {
		return false
	}
	switch d.b[0] >> 4 {
	case 4:
		d.p.EtherType = EtherIPv4
	case 6:
		d.p.EtherType = EtherIPv6
	default:
		d.bad()
	}
	d.network(0, d.p.EtherType)
	return true
}

// bad notes why the outer headers must not be routed; inner ones may be what
// they like.
func (d *dissector) bad() {
	if !d.inner && d.p.Bad == 0 {
		d.p.Bad = packet.DropMalformed
	}
}

// next counts a header and reports whether one more may be looked at.
func (d *dissector) next() bool {
	d.depth++
	return d.depth <= maxHeaders
}

func (d *dissector) network(at int, et uint16) {
	if d.key.ethertype = et; et < 0x0600 { // a length (IEEE 802.3), which varies within a flow
		d.key.ethertype = etherLLC
	}
	if !d.next() {
		return
	}
	switch et {
	case EtherIPv4:
		d.ipv4(at)
	case EtherIPv6:
		d.ipv6(at)
	case EtherARP:
		if !d.inner {
			d.p.Flags |= packet.ARP
		}
	case EtherMPLS, EtherMPLSM:
		if len(d.b) >= at+4 {
			d.key.ports = binary.BigEndian.Uint32(d.b[at:]) &^ 0xfff // the top label
		}
	case EtherPPPoE:
		d.pppoe(at)
	}
}

// pppoe looks into a session frame (RFC 2516): 6 bytes, then the PPP protocol.
func (d *dissector) pppoe(at int) {
	if len(d.b) < at+8 || d.b[at] != 0x11 {
		return
	}
	proto := binary.BigEndian.Uint16(d.b[at+6:])
	d.inner = true
	switch proto {
	case 0x0021:
		d.network(at+8, EtherIPv4)
	case 0x0057:
		d.network(at+8, EtherIPv6)
	}
}

func (d *dissector) ipv4(at int) {
	if len(d.b) < at+20 {
		d.bad()
		return
	}
	h := d.b[at : at+20 : at+20]
	ihl, total := int(h[0]&15)*4, int(binary.BigEndian.Uint16(h[2:]))
	if h[0]>>4 != 4 || ihl < 20 || len(d.b) < at+ihl || total < ihl && !(total == 0 && d.gso()) || at+total > d.p.Len() {
		d.bad()
		return
	}
	frag := binary.BigEndian.Uint16(h[6:])
	if !d.inner {
		d.p.Flags |= packet.IPv4
		if ihl > 20 {
			d.p.Flags |= packet.IPOptions
		}
		if frag&0x3fff != 0 {
			d.p.Flags |= packet.Fragment
			if frag&0x1fff != 0 {
				d.p.Flags |= packet.LaterFrag
			}
		}
	}
	d.key.v4(h[12:16], h[16:20])
	d.key.proto = h[9]
	d.transport(at+ihl, h[9], frag&0x3fff != 0)
}

// gso: the total length of a superpacket beyond 64 KiB may be 0.
func (d *dissector) gso() bool { return d.p.Vnet.GSOType != packet.GSONone }

func (d *dissector) ipv6(at int) {
	if len(d.b) < at+40 {
		d.bad()
		return
	}
	h := d.b[at : at+40 : at+40]
	if h[0]>>4 != 6 || at+40+int(binary.BigEndian.Uint16(h[4:])) > d.p.Len() {
		d.bad()
		return
	}
	if !d.inner {
		d.p.Flags |= packet.IPv6
	}
	d.key.v6(h[8:24], h[24:40])
	d.ipv6Next(at+40, h[6])
	if d.c.opts.FlowLabel && !d.key.l4 {
		d.key.label = binary.BigEndian.Uint32(h) & 0xfffff
	}
}

// ipv6Next skips extension headers up to the upper layer (RFC 8200, 4.1).
func (d *dissector) ipv6Next(at int, proto uint8) {
	frag := false
	for {
		n := 0
		switch proto {
		case ProtoHopByHop, ProtoRouting, ProtoDstOpts:
			if len(d.b) < at+8 {
				d.bad()
				return
			}
			n = 8 + 8*int(d.b[at+1])
		case ProtoAH:
			if len(d.b) < at+8 {
				d.bad()
				return
			}
			n = 8 + 4*int(d.b[at+1])
		case ProtoFragment:
			if len(d.b) < at+8 {
				d.bad()
				return
			}
			if !frag { // what all fragments have in common: headers behind this one lie in the first only
				d.key.proto = d.b[at]
			}
			n, frag = 8, true
			offset := binary.BigEndian.Uint16(d.b[at+2:]) &^ 7
			if !d.inner {
				d.p.Flags |= packet.Fragment | packet.IPOptions
				if offset != 0 {
					d.p.Flags |= packet.LaterFrag
				}
			}
			if offset != 0 { // what follows is not a header
				d.upper(at+n, d.b[at])
				return
			}
		default:
			d.transport(at, proto, frag)
			return
		}
		if !d.inner {
			d.p.Flags |= packet.IPOptions
		}
		if !d.next() || len(d.b) < at+n {
			d.bad()
			return
		}
		proto = d.b[at]
		at += n
	}
}

// upper notes the outer upper-layer header.
func (d *dissector) upper(at int, proto uint8) {
	if d.inner {
		return
	}
	d.p.Proto = proto
	if d.p.Flags&packet.LaterFrag == 0 {
		d.p.L4 = uint16(at)
	}
}

// transport takes ports into the key, or follows a tunnel. Fragments hash
// without ports, the first like the later ones.
func (d *dissector) transport(at int, proto uint8, frag bool) {
	d.upper(at, proto)
	if frag {
		return
	}
	d.key.proto = proto
	switch proto {
	case ProtoTCP, ProtoUDP, ProtoUDPLite, ProtoDCCP, ProtoSCTP, ProtoESP:
		d.ports(at)
	case ProtoAH: // IPv4: SPI behind 4 bytes
		d.ports(at + 4)
	case ProtoGRE:
		d.gre(at)
	case ProtoIPIP:
		d.inner = true
		d.network(at, EtherIPv4)
	case ProtoIPv6:
		d.inner = true
		d.network(at, EtherIPv6)
	}
}

func (d *dissector) ports(at int) {
	if len(d.b) < at+4 {
		d.bad()
		return
	}
	d.key.ports, d.key.l4 = binary.BigEndian.Uint32(d.b[at:]), true
	if !d.inner {
		d.p.Flags |= packet.L4Hash
	}
}

// gre follows version 0 without routing (RFC 2784, 2890).
func (d *dissector) gre(at int) {
	if len(d.b) < at+4 {
		return
	}
	flags, et := binary.BigEndian.Uint16(d.b[at:]), binary.BigEndian.Uint16(d.b[at+2:])
	if flags&0x4007 != 0 {
		return
	}
	at += 4
	if flags&0x8000 != 0 { // checksum
		at += 4
	}
	if flags&0x2000 != 0 {
		if len(d.b) < at+4 {
			return
		}
		d.key.gre = binary.BigEndian.Uint32(d.b[at:])
		at += 4
	}
	if flags&0x1000 != 0 { // sequence number
		at += 4
	}
	d.inner = true
	if et == etherTEB && len(d.b) >= at+14 {
		et = binary.BigEndian.Uint16(d.b[at+12:])
		at += 14
	}
	d.network(at, et)
}
