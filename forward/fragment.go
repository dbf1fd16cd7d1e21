package forward

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"taprouter/offload"
	"taprouter/packet"
)

// fragment cuts an IPv4 packet into fragments of at most mtu bytes and ends
// p (RFC 791, 3.2). p may itself be a fragment. It changes nothing if it
// cannot. Payload is copied: this is the slow way for senders that do not
// look for the path's MTU.
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
		q := f.cache.Get()
		header := b[:ihl]
		if off > 0 {
			header = later[:laterLen]
		}
		if q == nil || !f.fill(q, header, p, int(p.L3)+ihl+off, n) {
			if q != nil {
				f.cache.Put(q)
			}
			f.cache.PutList(out)
			return packet.DropNoBuffer
		}
		word := flags&0xe000 | (flags&0x1fff + uint16(off/8))
		if off+n < total-ihl {
			word |= 0x2000 // more fragments
		}
		f.finishFragment(q, p, word, len(header))
		out.Push(q)
	}
	f.Created += uint64(out.Len()) - 1
	f.cache.Put(p)
	return 0
}

// fill puts a header and n bytes of p's frame from an offset into q.
func (f *Forwarder) fill(q *packet.Packet, header []byte, p *packet.Packet, from, n int) bool {
	inHead := min(n, packet.HeadLen-packet.Headroom-14-len(header))
	h := frame(q, len(header)+inHead)
	if p.Flags&packet.Raw == 0 { // for an error about the fragment: who sent it
		copy(q.Bytes()[:14], p.Bytes())
	}
	copy(h, header)
	p.CopyOut(h[len(header):], from)
	if n > inHead {
		t := f.cache.GetTail()
		if t == nil {
			return false
		}
		p.CopyOut(t.B[:n-inHead], from+inHead)
		q.SetTail(t, 0, n-inHead)
	}
	return true
}

func (f *Forwarder) finishFragment(q, p *packet.Packet, word uint16, ihl int) {
	h := q.Bytes()[14:]
	h[0] = 0x40 | uint8(ihl/4)
	binary.BigEndian.PutUint16(h[2:], uint16(q.Len()-14))
	binary.BigEndian.PutUint16(h[6:], word)
	h[10], h[11] = 0, 0
	binary.BigEndian.PutUint16(h[10:], ^checksum.Checksum(h[:ihl], 0))
	q.In, q.L3, q.EtherType, q.Proto = p.In, 14, etherIPv4, p.Proto
	q.Hash, q.Priority = p.Hash, p.Priority
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
