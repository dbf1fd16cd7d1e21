package neigh

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
)

const (
	protoICMP     = 1
	protoFragment = 44
	icmp4Echo     = 8
	moreFragment  = 0x2000
	offsetMask    = 0x1fff
	replyTTL      = 64
	minMTU        = 68 // RFC 791: every link takes so much
)

// ipv4 answers an echo request to an address of ours, put together first if
// it came in fragments. eth is its Ethernet header, nil on a TUN.
func (t *Table) ipv4(iface uint16, i *Iface, eth, b []byte) {
	if len(b) < 20 {
		t.stats.RxMalformed++
		return
	}
	ihl, total := int(b[0]&15)*4, int(be16(b[2:]))
	if b[0]>>4 != 4 || ihl < 20 || total < ihl || total > len(b) {
		t.stats.RxMalformed++
		return
	}
	src, dst := addr4(b[12:16]), addr4(b[16:20])
	if b[9] != protoICMP || !t.ours(i, dst) || t.ours(i, src) || !unicast(src) {
		t.stats.RxIgnored++
		return
	}
	msg := b[ihl:total]
	if word := be16(b[6:]); word&(moreFragment|offsetMask) != 0 {
		id := fragID{iface, src, dst, uint32(be16(b[4:])), protoICMP}
		if msg = t.asm.add(id, int(word&offsetMask)*8, msg, word&moreFragment == 0, t.cfg.Now()); msg == nil {
			return
		}
	}
	switch {
	case len(msg) < 8 || checksum.Checksum(msg, 0) != 0xffff:
		t.stats.RxMalformed++
	case msg[0] != icmp4Echo || msg[1] != 0:
		t.stats.RxIgnored++
	default:
		t.stats.RxEcho++
		reply := append([]byte(nil), msg...)
		reply[0] = 0
		put16(reply[2:], 0)
		put16(reply[2:], ^checksum.Checksum(reply, 0))
		t.send4(iface, i, eth, dst, src, b[1]&^3, reply) // the same TOS, RFC 1122, 3.2.2.6
	}
}

// send4 sends an ICMP message in as many fragments as the link needs, back
// to where the request came from.
func (t *Table) send4(iface uint16, i *Iface, eth []byte, src, dst netip.Addr, tos uint8, msg []byte) {
	t.ipID++
	t.stats.TxEcho++
	size := (max(i.MTU, minMTU) - 20) &^ 7
	for off := 0; off < len(msg); off += size {
		n := min(size, len(msg)-off)
		f := answer(eth, i, etherIPv4, 20+n)
		b := f[len(f)-20-n:]
		b[0], b[1], b[8], b[9] = 0x45, tos, replyTTL, protoICMP
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
		t.inject(iface, f)
	}
}

// answer makes a frame back to the sender of one with header eth.
func answer(eth []byte, i *Iface, et uint16, n int) []byte {
	if eth == nil {
		return make([]byte, n)
	}
	return ether([6]byte(eth[6:12]), i.MAC, et, n)
}

// ipv6 takes neighbour discovery and answers echo requests. Extension headers
// other than the fragment header are not understood.
func (t *Table) ipv6(iface uint16, i *Iface, eth, b []byte) {
	if len(b) < 40 || b[0]>>4 != 6 || 40+int(be16(b[4:])) > len(b) {
		t.stats.RxMalformed++
		return
	}
	b = b[:40+int(be16(b[4:]))]
	src, dst, msg := addr16(b[8:24]), addr16(b[24:40]), b[40:]
	switch {
	case b[6] == protoFragment && len(msg) >= 8 && msg[0] == protoICMPv6: // RFC 8200, 4.5
		word := be16(msg[2:])
		id := fragID{iface, src, dst, uint32(be16(msg[4:]))<<16 | uint32(be16(msg[6:])), protoICMPv6}
		if msg = t.asm.add(id, int(word&^7), msg[8:], word&1 == 0, t.cfg.Now()); msg == nil {
			return
		}
	case b[6] != protoICMPv6:
		t.stats.RxIgnored++
		return
	}
	whole := append(append([]byte(nil), b[:40]...), msg...)
	switch {
	case len(msg) < 8 || sum6(whole) != 0xffff:
		t.stats.RxMalformed++
	case msg[0] == icmp6EchoRequest && msg[1] == 0:
		t.echo6(iface, i, eth, src, dst, msg)
	case (msg[0] == ndSolicitation || msg[0] == ndAdvertisement) && b[6] == protoICMPv6: // never in fragments, RFC 6980
		t.discovery(iface, i, eth, whole)
	default:
		t.stats.RxIgnored++
	}
}

// echo6 answers an echo request to an address of ours or to all nodes.
func (t *Table) echo6(iface uint16, i *Iface, eth []byte, src, dst netip.Addr, msg []byte) {
	from := dst
	if dst == netip.IPv6LinkLocalAllNodes() {
		from = i.source(src)
	}
	if !unicast(src) || t.ours(i, src) || !from.IsValid() || !t.ours(i, from) {
		t.stats.RxIgnored++
		return
	}
	t.stats.RxEcho++
	t.send6(iface, i, eth, from, src, msg)
}

// send6 answers an echo request, in fragments if the link needs them.
func (t *Table) send6(iface uint16, i *Iface, eth []byte, src, dst netip.Addr, request []byte) {
	t.stats.TxEcho++
	whole := make([]byte, 40+len(request))
	msg := whole[40:]
	copy(msg, request)
	msg[0] = icmp6EchoReply
	ipv6Packet(whole, src, dst, replyTTL)
	if len(whole) <= i.MTU {
		f := answer(eth, i, etherIPv6, len(whole))
		copy(f[len(f)-len(whole):], whole)
		t.inject(iface, f)
		return
	}
	t.ipID++
	size := (max(i.MTU, minMTU) - 48) &^ 7
	for off := 0; off < len(msg); off += size {
		n := min(size, len(msg)-off)
		f := answer(eth, i, etherIPv6, 48+n)
		b := f[len(f)-48-n:]
		copy(b, whole[:40])
		b[6] = protoFragment
		put16(b[4:], uint16(8+n))
		b[40] = protoICMPv6
		word := uint16(off)
		if off+n < len(msg) {
			word |= 1
		}
		put16(b[42:], word)
		put16(b[46:], t.ipID)
		copy(b[48:], msg[off:off+n])
		t.inject(iface, f)
	}
}
