package neigh

import (
	"encoding/binary"
	"net/netip"
)

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
	arpLen    = 28
)

func be16(b []byte) uint16       { return binary.BigEndian.Uint16(b) }
func put16(b []byte, v uint16)   { binary.BigEndian.PutUint16(b, v) }
func addr4(b []byte) netip.Addr  { return netip.AddrFrom4([4]byte(b)) }
func addr16(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)) }

// ether makes a frame with room for n bytes behind its Ethernet header.
func ether(dst, src [6]byte, et uint16, n int) []byte {
	f := make([]byte, 14+n)
	copy(f, dst[:])
	copy(f[6:], src[:])
	put16(f[12:], et)
	return f
}

// arpFrame makes an ARP packet for Ethernet and IPv4 (RFC 826).
func arpFrame(op uint16, dst, src [6]byte, sender netip.Addr, target [6]byte, addr netip.Addr) []byte {
	f := ether(dst, src, etherARP, arpLen)
	a := f[14:]
	copy(a, []byte{0, 1, 8, 0, 6, 4})
	put16(a[6:], op)
	copy(a[8:], src[:])
	s4, t4 := sender.As4(), addr.As4()
	copy(a[14:], s4[:])
	copy(a[18:], target[:])
	copy(a[24:], t4[:])
	return f
}

func arpRequest(i *Iface, addr netip.Addr, to [6]byte) []byte {
	from := i.source(addr)
	if !from.IsValid() {
		from = netip.IPv4Unspecified()
	}
	return arpFrame(1, to, i.MAC, from, [6]byte{}, addr)
}

// arp answers requests for our addresses and learns from answers. A request
// for us also tells where its sender is; other ARP only updates what is known.
func (t *Table) arp(iface uint16, i *Iface, a []byte) {
	if len(a) < arpLen || be16(a) != 1 || be16(a[2:]) != etherIPv4 || a[4] != 6 || a[5] != 4 {
		t.stats.RxMalformed++
		return
	}
	t.stats.RxARP++
	op, mac, sender, target := be16(a[6:]), [6]byte(a[8:14]), addr4(a[14:18]), addr4(a[24:28])
	switch {
	case op != 1 && op != 2, mac[0]&1 != 0, mac == i.MAC:
		t.stats.RxIgnored++
		return
	case i.has(sender):
		t.stats.Conflicts++
		return
	}
	forUs := i.has(target)
	if op == 1 && forUs {
		t.stats.TxReplies++
		t.inject(iface, arpFrame(2, mac, i.MAC, target, mac, sender))
	}
	if unicast(sender) {
		t.learn(iface, sender, claim{mac: mac, solicited: op == 2 && forUs, override: true, create: op == 1 && forUs})
	}
}
