package neigh

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
)

const (
	protoICMP    = 1
	icmp4Echo    = 8
	moreFragment = 0x2000
	offsetMask   = 0x1fff
)

// ipv4 answers an echo request to an address of ours, put together first if
// it came in fragments. eth is its Ethernet header, nil on a TUN.
func (t *Table) ipv4(iface uint16, i *Iface, eth, b []byte) {
	if len(b) < 20 {
		return
	}
	ihl, total := int(b[0]&15)*4, int(be16(b[2:]))
	if ihl < 20 || total < ihl || total > len(b) || b[9] != protoICMP {
		return
	}
	src, dst := addr4(b[12:16]), addr4(b[16:20])
	if !t.ours(dst) || src.IsMulticast() || src.IsUnspecified() {
		return
	}
	msg := b[ihl:total]
	if word := be16(b[6:]); word&(moreFragment|offsetMask) != 0 {
		id := fragID{src, dst, uint32(be16(b[4:])), protoICMP}
		if msg = t.asm.add(id, int(word&offsetMask)*8, msg, word&moreFragment == 0, t.cfg.Now()); msg == nil {
			return
		}
	}
	if len(msg) < 8 || msg[0] != icmp4Echo || checksum.Checksum(msg, 0) != 0xffff {
		return
	}
	reply := append([]byte(nil), msg...)
	reply[0] = 0
	put16(reply[2:], 0)
	put16(reply[2:], ^checksum.Checksum(reply, 0))
	t.send4(iface, i, eth, dst, src, reply)
}

// send4 sends an ICMP message in as many fragments as the link needs, back
// to where the request came from.
func (t *Table) send4(iface uint16, i *Iface, eth []byte, src, dst netip.Addr, msg []byte) {
	t.ipID++
	size := (i.MTU - 20) &^ 7
	for off := 0; off < len(msg); off += size {
		n := min(size, len(msg)-off)
		f := answer(eth, i, etherIPv4, 20+n)
		b := f[len(f)-20-n:]
		b[0], b[8], b[9] = 0x45, 64, protoICMP
		put16(b[2:], uint16(20+n))
		put16(b[4:], t.ipID)
		word := uint16(off / 8)
		if off+n < len(msg) {
			word |= moreFragment
		}
		put16(b[6:], word)
		s, d := src.As4(), dst.As4()
		copy(b[12:], s[:])
		copy(b[16:], d[:])
		put16(b[10:], ^checksum.Checksum(b[:20], 0))
		copy(b[20:], msg[off:off+n])
		t.cfg.Inject(iface, f)
	}
}

// answer makes a frame back to the sender of one with header eth.
func answer(eth []byte, i *Iface, et uint16, n int) []byte {
	if eth == nil {
		return make([]byte, n)
	}
	return ether([6]byte(eth[6:12]), i.MAC, et, n)
}

// ipv6 takes neighbour discovery and answers echo requests.
func (t *Table) ipv6(iface uint16, i *Iface, eth, b []byte) {
	if len(b) < 40 || 40+int(be16(b[4:])) > len(b) {
		return
	}
	b = b[:40+int(be16(b[4:]))]
	src, dst := addr16(b[8:24]), addr16(b[24:40])
	msg := b[40:]
	switch b[6] {
	case 44: // a fragment header, RFC 8200, 4.5
		if len(msg) < 8 || msg[0] != protoICMPv6 {
			return
		}
		word := be16(msg[2:])
		id := fragID{src, dst, uint32(be16(msg[4:]))<<16 | uint32(be16(msg[6:])), protoICMPv6}
		if msg = t.asm.add(id, int(word&^7), msg[8:], word&1 == 0, t.cfg.Now()); msg == nil {
			return
		}
	case protoICMPv6:
	default:
		return
	}
	whole := append(append([]byte(nil), b[:40]...), msg...)
	if len(msg) < 8 || sum6(whole) != 0xffff {
		return
	}
	switch msg[0] {
	case ndSolicitation, ndAdvertisement:
		if b[6] == protoICMPv6 { // never in fragments, RFC 6980
			t.discovery(iface, i, eth, whole)
		}
	case icmp6EchoRequest:
		from := dst
		if dst.IsMulticast() {
			from = i.source(src)
		}
		if src.IsMulticast() || src.IsUnspecified() || !t.ours(from) {
			return
		}
		t.send6(iface, i, eth, from, src, msg)
	}
}

// send6 answers an echo request, in fragments if the link needs them.
func (t *Table) send6(iface uint16, i *Iface, eth []byte, src, dst netip.Addr, request []byte) {
	whole := make([]byte, 40+len(request))
	copy(whole[40:], request)
	whole[40] = icmp6EchoReply
	put16(whole[42:], 0)
	s, d := src.As16(), dst.As16()
	copy(whole[8:], s[:])
	copy(whole[24:], d[:])
	put16(whole[42:], ^sum6(whole))
	msg := whole[40:]
	if len(whole) <= i.MTU {
		f := answer(eth, i, etherIPv6, len(whole))
		b := f[len(f)-len(whole):]
		copy(b, whole)
		b[0], b[6], b[7] = 0x60, protoICMPv6, 64
		put16(b[4:], uint16(len(msg)))
		t.cfg.Inject(iface, f)
		return
	}
	t.ipID++
	size := (i.MTU - 48) &^ 7
	for off := 0; off < len(msg); off += size {
		n := min(size, len(msg)-off)
		f := answer(eth, i, etherIPv6, 48+n)
		b := f[len(f)-48-n:]
		copy(b, whole[:40])
		b[0], b[6], b[7] = 0x60, 44, 64
		put16(b[4:], uint16(8+n))
		b[40] = protoICMPv6
		word := uint16(off)
		if off+n < len(msg) {
			word |= 1
		}
		put16(b[42:], word)
		put16(b[46:], t.ipID)
		copy(b[48:], msg[off:off+n])
		t.cfg.Inject(iface, f)
	}
}
