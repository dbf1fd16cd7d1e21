package forward

import (
	"taprouter/fib"
	"taprouter/packet"
)

// l2Memory is the last unicast decision of a batch: packets of a batch often
// go from one station to one other.
type l2Memory struct {
	in       uint16
	out      uint16
	src, dst uint64
	valid    bool
}

// reserved is the block 01:80:c2:00:00:00 to 0f, which a bridge keeps to the
// link (IEEE 802.1D, 7.12.6).
const reserved = 0x0180c2000000

// group reports whether a MAC address is a multicast or broadcast one.
func group(mac uint64) bool { return mac>>40&1 != 0 }

// putMAC writes a MAC address to the front of b.
func putMAC(b []byte, mac uint64) {
	_ = b[5]
	b[0], b[1], b[2], b[3], b[4], b[5] = byte(mac>>40), byte(mac>>32), byte(mac>>24), byte(mac>>16), byte(mac>>8), byte(mac)
}

// lookup finds the port of br, bridge number k, behind which dst lives. A
// table may still name a port that has left the bridge.
func (s *Snapshot) lookup(br *Bridge, k int, dst uint64) (port uint16, ok bool) {
	port, ok = br.FDB.Lookup(dst)
	return port, ok && int(port) < len(s.Ports) && s.Ports[port].Bridge == k
}

// bridge forwards p, which came in by a port of a bridge.
func (f *Forwarder) bridge(s *Snapshot, p *packet.Packet, now int64, out *Output, last *l2Memory) {
	b := p.Bytes()
	if p.Flags&packet.Raw != 0 || len(b) < 14 {
		out.drop(p, packet.DropTruncated)
		return
	}
	dst, src := fib.MAC(b), fib.MAC(b[6:])
	if last.valid && last.dst == dst && last.src == src && last.in == p.In {
		f.send(s, last.out, p, out)
		return
	}
	if group(src) || src == 0 {
		out.drop(p, packet.DropMalformed)
		return
	}
	if dst&^0xf == reserved {
		out.drop(p, packet.DropReserved)
		return
	}
	k := s.Ports[p.In].Bridge
	br := &s.Bridges[k]
	br.FDB.Learn(src, p.In, now)
	if int(br.Iface) < len(s.Ifaces) {
		i := &s.Ifaces[br.Iface]
		if dst == i.MAC {
			f.input(s, br.Iface, p, now, out)
			return
		}
		if group(dst) && wanted(i, p) {
			if q := f.clone(p); q != nil {
				f.input(s, br.Iface, q, now, out)
			}
		}
	}
	if group(dst) {
		f.flood(s, br, p.In, p, out)
		return
	}
	port, ok := s.lookup(br, k, dst)
	switch {
	case !ok:
		f.flood(s, br, p.In, p, out)
	case port == p.In:
		out.drop(p, packet.DropSamePort)
	default:
		*last = l2Memory{in: p.In, out: port, src: src, dst: dst, valid: true}
		f.send(s, port, p, out)
	}
}

// flood sends a copy by every port of the bridge that is up, except the one
// it came in by. The last port gets p itself.
func (f *Forwarder) flood(s *Snapshot, br *Bridge, in uint16, p *packet.Packet, out *Output) {
	last := uint16(packet.NoPort)
	for _, port := range br.Ports {
		if port == in || !s.Ports[port].Up || s.Ports[port].Tun {
			continue
		}
		if last != packet.NoPort {
			if q := f.clone(p); q != nil {
				f.send(s, last, q, out)
			}
		}
		last = port
	}
	if last == packet.NoPort {
		out.drop(p, packet.DropNoBridgePort)
		return
	}
	f.send(s, last, p, out)
}

// send gives p to a port, unless that is down or p too long for it.
func (f *Forwarder) send(s *Snapshot, port uint16, p *packet.Packet, out *Output) {
	to := &s.Ports[port]
	p.Out = port
	switch {
	case !to.Up:
		out.drop(p, packet.DropLinkDown)
	case wireSize(p) > to.MTU+tags(p):
		out.drop(p, packet.DropTooBig)
	default:
		out.Tx.Push(p)
	}
}

// wireSize is the length in bytes of the network packet, or of a segment of
// it, that goes over the link.
func wireSize(p *packet.Packet) int {
	l2 := 14
	if p.Flags&packet.Raw != 0 {
		l2 = 0
	}
	if p.Vnet.GSOType != packet.GSONone {
		return int(p.Vnet.HdrLen) + int(p.Vnet.GSOSize) - l2
	}
	return p.Len() - l2
}

// tags is what a tagged frame may be longer: one tag, as for the kernel
// (is_skb_forwardable); a device that has room for one has it in its MTU for
// more.
func tags(p *packet.Packet) int {
	if p.VLANs > 0 {
		return 4
	}
	return 0
}
