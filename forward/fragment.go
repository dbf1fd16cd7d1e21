package forward

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"taprouter/offload"
	"taprouter/packet"
)

// cut makes packets of at most mtu bytes out of an IPv4 packet and ends p: its
// fragments, or of a superpacket those of each of its segments, as
// ip_finish_output_gso does. It changes nothing if it cannot. Payload is
// copied: this is the slow way for senders that do not look for the path's MTU.
func (f *Forwarder) cut(p *packet.Packet, mtu int, out *packet.List) packet.Reason {
	segs := p.Segs
	var why packet.Reason
	if p.Vnet.GSOType == packet.GSONone {
		why = f.fragment(p, mtu, out)
	} else {
		why = f.fragmentSegments(p, mtu, out)
	}
	if why != packet.NotDropped {
		f.cache.PutList(out)
		return why
	}
	f.Created += uint64(out.Len()) - uint64(segs)
	f.cache.Put(p)
	return packet.NotDropped
}

func (f *Forwarder) fragmentSegments(p *packet.Packet, mtu int, out *packet.List) packet.Reason {
	if why := f.seg.Init(p); why != packet.NotDropped {
		return why
	}
	var hdr [offload.MaxHeaders]byte
	for i := range int(p.Segs) {
		n, _ := f.seg.Next(hdr[:])
		q := f.piece(hdr[p.L3:n], p, n+i*int(p.Vnet.GSOSize), f.seg.Len(i)-n)
		if q == nil {
			return packet.DropNoBuffer
		}
		q.Flags, q.L4 = packet.IPv4, 14+p.L4-p.L3
		resized(q)
		if l3Size(q) <= mtu { // the last one is shorter
			out.Push(q)
			continue
		}
		why := f.fragment(q, mtu, out)
		f.cache.Put(q)
		if why != packet.NotDropped {
			return why
		}
	}
	return packet.NotDropped
}

// fragment cuts an IPv4 packet into fragments of at most mtu bytes (RFC 791,
// 3.2). p, which stays the caller's, may itself be a fragment.
func (f *Forwarder) fragment(p *packet.Packet, mtu int, out *packet.List) packet.Reason {
	if p.Vnet.Flags&packet.NeedsCsum != 0 { // the checksum covers the whole
		if why := offload.Checksum(p); why != 0 {
			return why
		}
	}
	b := p.Bytes()[p.L3:]
	ihl := int(b[0]&15) * 4
	total := p.Len() - int(p.L3)
	size := (mtu - ihl) &^ 7 // offsets count units of 8 bytes
	if size < 8 {
		return packet.DropFragmented
	}
	flags := binary.BigEndian.Uint16(b[6:])
	if int(flags&0x1fff)*8+total > 0xffff { // it would end beyond 64 KiB
		return packet.DropMalformed
	}
	var later [60]byte
	laterLen := laterHeader(later[:], b[:ihl])
	for off := 0; off < total-ihl; off += size {
		n := min(size, total-ihl-off)
		header := b[:ihl]
		if off > 0 {
			header = later[:laterLen]
		}
		q := f.piece(header, p, int(p.L3)+ihl+off, n)
		if q == nil {
			return packet.DropNoBuffer
		}
		word := flags&0xe000 | (flags&0x1fff + uint16(off/8))
		if off+n < total-ihl {
			word |= 0x2000 // more fragments
		}
		finishFragment(q, word, len(header))
		out.Push(q)
	}
	return packet.NotDropped
}

// piece makes a packet of an IPv4 header with what follows it, and n bytes of
// p's frame from an offset; nil if there is no buffer.
func (f *Forwarder) piece(header []byte, p *packet.Packet, from, n int) *packet.Packet {
	q := f.cache.Get()
	if q == nil {
		return nil
	}
	inHead := min(n, packet.HeadLen-packet.Headroom-14-len(header))
	h := frame(q, len(header)+inHead)
	if p.Flags&packet.Raw == 0 { // for an error about the piece: who sent it
		copy(q.Bytes()[:14], p.Bytes())
	}
	copy(h, header)
	p.CopyOut(h[len(header):], from)
	if n > inHead {
		t := f.cache.GetTailFor(n - inHead)
		if t == nil {
			f.cache.Put(q)
			return nil
		}
		p.CopyOut(t.B[:n-inHead], from+inHead)
		q.SetTail(t, 0, n-inHead)
	}
	q.In, q.L3, q.EtherType, q.Proto = p.In, 14, etherIPv4, p.Proto
	q.Hash, q.Priority = p.Hash, p.Priority
	return q
}

func finishFragment(q *packet.Packet, word uint16, ihl int) {
	h := q.Bytes()[14:]
	h[0] = 0x40 | uint8(ihl/4)
	binary.BigEndian.PutUint16(h[2:], uint16(q.Len()-14))
	binary.BigEndian.PutUint16(h[6:], word)
	h[10], h[11] = 0, 0
	binary.BigEndian.PutUint16(h[10:], ^checksum.Checksum(h[:ihl], 0))
	q.Flags = packet.IPv4 | packet.Fragment
	if word&0x1fff != 0 {
		q.Flags |= packet.LaterFrag
	} else {
		q.L4 = uint16(14 + ihl)
	}
	resized(q)
}

// laterHeader makes the header of all fragments but the first: of the
// options it keeps those whose copied flag is set, padded to a word.
func laterHeader(dst, h []byte) int {
	n := copy(dst, h[:20])
	for o := h[20:]; len(o) > 0 && o[0] != 0; { // 0 ends the list
		size := 1 // 1 is a no-op
		if o[0] != 1 {
			if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
				break
			}
			size = int(o[1])
		}
		if o[0]&0x80 != 0 {
			n += copy(dst[n:], o[:size])
		}
		o = o[size:]
	}
	for n%4 != 0 {
		dst[n] = 0
		n++
	}
	return n
}
