package neigh

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
)

// ICMPv6 types and options, RFC 4443 and RFC 4861.
const (
	icmp6EchoRequest   = 128
	icmp6EchoReply     = 129
	ndSolicitation     = 135
	ndAdvertisement    = 136
	optSourceLL        = 1
	optTargetLL        = 2
	protoICMPv6        = 58
	naRouter           = 0x80
	naSolicited        = 0x40
	naOverride         = 0x20
	ndLen              = 24 // of either message, without options
	hopLimitNeighbours = 255
)

// ipv6Packet makes an IPv6 packet in b, whose ICMPv6 message is in place
// behind the header, and completes its checksum.
func ipv6Packet(b []byte, src, dst netip.Addr, hops uint8) {
	b[0], b[6], b[7] = 0x60, protoICMPv6, hops
	put16(b[4:], uint16(len(b)-40))
	s, d := src.As16(), dst.As16()
	copy(b[8:], s[:])
	copy(b[24:], d[:])
	put16(b[42:], 0)
	put16(b[42:], ^sum6(b))
}

// sum6 adds up an ICMPv6 message with its pseudo header; 0xffff if right.
func sum6(b []byte) uint16 {
	sum := checksum.Checksum(b[8:40], protoICMPv6)
	sum = checksum.Combine(sum, uint16(len(b)-40))
	return checksum.Checksum(b[40:], sum)
}

// solicitedNode is the group that the owner of addr listens to.
func solicitedNode(addr netip.Addr) netip.Addr {
	a := addr.As16()
	return netip.AddrFrom16([16]byte{0xff, 2, 11: 1, 12: 0xff, 13: a[13], 14: a[14], 15: a[15]})
}

// solicitation makes a neighbour solicitation for addr: to its
// solicited-node group, or as a probe to the neighbour itself.
func solicitation(i *Iface, addr netip.Addr, mac [6]byte, unicast bool) []byte {
	dst := addr
	if !unicast {
		dst = solicitedNode(addr)
		a := dst.As16()
		mac = [6]byte{0x33, 0x33, 0xff, a[13], a[14], a[15]}
	}
	src := i.source(addr)
	if !src.IsValid() {
		src = netip.IPv6Unspecified()
	}
	f := ether(mac, i.MAC, etherIPv6, 40+ndLen+8)
	m := f[54:]
	m[0] = ndSolicitation
	a := addr.As16()
	copy(m[8:], a[:])
	m[24], m[25] = optSourceLL, 1
	copy(m[26:], i.MAC[:])
	ipv6Packet(f[14:], src, dst, hopLimitNeighbours)
	return f
}

// advertise says that target is ours.
func (t *Table) advertise(iface uint16, i *Iface, target, to netip.Addr, mac [6]byte, flags uint8) {
	f := ether(mac, i.MAC, etherIPv6, 40+ndLen+8)
	m := f[54:]
	m[0], m[4] = ndAdvertisement, flags|naRouter
	a := target.As16()
	copy(m[8:], a[:])
	m[24], m[25] = optTargetLL, 1
	copy(m[26:], i.MAC[:])
	ipv6Packet(f[14:], target, to, hopLimitNeighbours)
	t.stats.TxReplies++
	t.inject(iface, f)
}

// linkLayer finds the address in a link-layer option; an option without
// length spoils the message (RFC 4861, 4.6).
func linkLayer(options []byte, kind uint8) (mac [6]byte, found, ok bool) {
	for len(options) > 0 {
		if len(options) < 8 || options[1] == 0 || int(options[1])*8 > len(options) {
			return mac, false, false
		}
		if options[0] == kind && options[1] == 1 {
			mac, found = [6]byte(options[2:8]), true
		}
		options = options[int(options[1])*8:]
	}
	return mac, found, true
}

// discovery takes a neighbour solicitation or advertisement, b from its IPv6
// header on, whose checksum is right.
func (t *Table) discovery(iface uint16, i *Iface, eth, b []byte) {
	m, src, dst := b[40:], addr16(b[8:24]), addr16(b[24:40])
	if i.Tun || b[7] != hopLimitNeighbours || len(m) < ndLen || m[1] != 0 || src.IsMulticast() || addr16(m[8:24]).IsMulticast() {
		t.stats.RxMalformed++
		return
	}
	t.stats.RxND++
	target := addr16(m[8:24])
	kind := uint8(optTargetLL)
	if m[0] == ndSolicitation {
		kind = optSourceLL
	}
	mac, found, ok := linkLayer(m[ndLen:], kind)
	switch {
	case !ok, found && mac[0]&1 != 0:
		t.stats.RxMalformed++
	case i.has(src):
		t.stats.Conflicts++
	case m[0] == ndSolicitation:
		t.solicited(iface, i, eth, src, dst, target, mac, found)
	case dst.IsMulticast() && m[4]&naSolicited != 0: // RFC 4861, 7.1.2
		t.stats.RxMalformed++
	case i.has(target):
		t.stats.Conflicts++
	default:
		t.advertised(iface, target, mac, found, m[4])
	}
}

// solicited answers a neighbour solicitation. From nobody, it is of a host
// that wants to use the address; everybody is told that it is taken.
func (t *Table) solicited(iface uint16, i *Iface, eth []byte, src, dst, target netip.Addr, mac [6]byte, found bool) {
	group := dst == solicitedNode(target)
	switch {
	case !i.has(target) || !group && !i.has(dst):
		t.stats.RxIgnored++
	case src.IsUnspecified() && (!group || found): // RFC 4861, 7.1.1
		t.stats.RxMalformed++
	case src.IsUnspecified():
		t.stats.Conflicts++
		t.advertise(iface, i, target, netip.IPv6LinkLocalAllNodes(), [6]byte{0x33, 0x33, 5: 1}, naOverride)
	default:
		to := [6]byte(eth[6:12])
		if found {
			to = mac
			t.learn(iface, src, claim{mac: mac, override: true, create: true})
		}
		t.advertise(iface, i, target, src, to, naSolicited|naOverride)
	}
}

// advertised takes a neighbour advertisement. Without an option it confirms
// the MAC address that is known.
func (t *Table) advertised(iface uint16, target netip.Addr, mac [6]byte, found bool, flags uint8) {
	e := t.all[key{iface, target}]
	if e == nil || !found && e.unknown() {
		t.stats.RxIgnored++
		return // nobody asked, or it tells nothing
	}
	if !found {
		mac = e.mac
	}
	t.learn(iface, target, claim{mac: mac, solicited: flags&naSolicited != 0, override: flags&naOverride != 0})
}
