package offload

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"taprouter/packet"
)

const (
	protoTCP = 6
	protoUDP = 17

	tcpFIN = 0x01
	tcpPSH = 0x08
	tcpCWR = 0x80
)

// MaxHeaders is the largest header that Next and Piece write, in bytes.
const MaxHeaders = 256

// A Segmenter cuts one superpacket after the other. No packet is made: each
// segment is a header of its own and pieces of the superpacket's payload. It
// is not safe for concurrent use.
type Segmenter struct {
	p       *packet.Packet
	hdr     int // bytes of headers, Ethernet to L4
	l3, l4  int
	size    int // payload bytes of a segment
	payload int // payload bytes in all
	ipID    uint16
	seq     uint32
	pseudo  uint16 // sum of the pseudo header without the length

	next int    // segment
	at   cursor // where its payload begins
	// A merged packet comes from one batch, each frame of it in two pieces at
	// most.
	pieces [2 * packet.MaxBatch][]byte
}

// Init takes on p, which classify found to be a TCP or UDP superpacket or GRO
// made one; its segment p.SegNext is the first that Next gives. p stays the
// caller's, and its frame must not change until the last segment. The result
// is DropOffload if the headers do not allow it, else 0.
func (s *Segmenter) Init(p *packet.Packet) packet.Reason {
	b := p.Bytes()
	s.p, s.hdr, s.l3, s.l4, s.size = p, int(p.Vnet.HdrLen), int(p.L3), int(p.L4), int(p.Vnet.GSOSize)
	s.payload = p.Len() - s.hdr
	if s.size == 0 || s.payload <= 0 || int(p.Segs) != (s.payload+s.size-1)/s.size || p.SegNext >= p.Segs ||
		s.hdr > min(len(b), MaxHeaders) || s.l4 >= s.hdr || s.hdr-s.l3+s.size > 0xffff || !s.headers(b[:s.hdr]) {
		return packet.DropOffload
	}
	s.next, s.at = int(p.SegNext), start(p, s.hdr)
	s.at.skip(s.next * s.size)
	return 0
}

// headers reports whether the headers h agree with the offsets, and notes
// what segments are made from.
func (s *Segmenter) headers(h []byte) bool {
	var addrs []byte
	switch ip := h[min(s.l3, s.l4):s.l4]; {
	case s.p.Flags&packet.IPv4 != 0:
		if len(ip) < 20 || len(ip) != int(ip[0]&15)*4 {
			return false
		}
		s.ipID, addrs = binary.BigEndian.Uint16(ip[4:]), ip[12:20]
	case s.p.Flags&packet.IPv6 != 0:
		if len(ip) < 40 {
			return false
		}
		addrs = ip[8:40]
	default:
		return false
	}
	l4, field := h[s.l4:], 6
	switch s.p.Proto {
	case protoTCP:
		if len(l4) < 20 || len(l4) != int(l4[12]>>4)*4 {
			return false
		}
		s.seq, field = binary.BigEndian.Uint32(l4[4:]), 16
	case protoUDP:
		if len(l4) != 8 {
			return false
		}
	default:
		return false
	}
	s.pseudo = checksum.Checksum(addrs, uint16(s.p.Proto))
	if s.p.Flags&packet.IPv4 == 0 && s.l4 > s.l3+40 && s.p.Vnet.Flags&packet.NeedsCsum != 0 {
		// Behind a routing header the sum is over the final destination
		// (RFC 8200, 8.1), which the sender knew: take its length off again.
		s.pseudo = checksum.Combine(binary.BigEndian.Uint16(l4[field:]), ^fold(len(l4)+s.payload))
	}
	return true
}

// Len is the length of segment i in bytes, headers included.
func (s *Segmenter) Len(i int) int { return s.Wire(i, 1) }

// Wire is the length in bytes of k segments from i on, each with its headers.
func (s *Segmenter) Wire(i, k int) int { return k*s.hdr + min(k*s.size, s.payload-i*s.size) }

// fold makes the ones' complement sum of a length, which may need 17 bits.
func fold(n int) uint16 { return checksum.Combine(uint16(n>>16), uint16(n)) }

// Next writes the complete headers of the next segment, from 0, into hdr,
// which is at least MaxHeaders long. It gives their length and the payload
// that goes behind them, in pieces that alias p's memory; the slice of pieces
// is valid until the next call. The segments are p.Segs in all.
func (s *Segmenter) Next(hdr []byte) (length int, payload [][]byte) {
	l4, field, payload := s.cut(1, hdr)
	var sum summer
	for _, b := range payload {
		sum.add(b)
	}
	head := checksum.Checksum(l4, sum.sum) // headers are even
	binary.BigEndian.PutUint16(l4[field:], complement(head))
	return s.hdr, payload
}

// Piece is Next for k segments, fewer at the end, that stay together: the
// frame is a superpacket again, or with one segment an ordinary frame, and v
// is its vnet header. Its checksum is partial: no payload is read.
func (s *Segmenter) Piece(k int, hdr []byte) (v packet.Vnet, length int, payload [][]byte) {
	first, n := s.next == 0, min(k*s.size, s.payload-s.next*s.size)
	_, field, payload := s.cut(k, hdr)
	v = packet.Vnet{Flags: packet.NeedsCsum, CsumStart: uint16(s.l4), CsumOffset: uint16(field)}
	if n > s.size {
		v.GSOType, v.GSOSize, v.HdrLen = s.p.Vnet.GSOType, uint16(s.size), uint16(s.hdr)
		if !first {
			v.GSOType &^= packet.GSOECN // CWR went with the first
		}
	}
	return v, s.hdr, payload
}

// cut writes the headers of a frame of the next k segments, fewer at the end,
// and gives its payload. The checksum field, at l4[field], has the sum of the
// pseudo header.
func (s *Segmenter) cut(k int, hdr []byte) (l4 []byte, field int, payload [][]byte) {
	i, off := s.next, s.next*s.size
	n := min(k*s.size, s.payload-off)
	s.next += k
	payload = s.pieces[:0]
	for left := n; left > 0; {
		b := s.at.take(left)
		payload = append(payload, b)
		left -= len(b)
	}
	h := hdr[:copy(hdr, s.p.Bytes()[:s.hdr])]
	ip, l4 := h[s.l3:], h[s.l4:]
	if s.p.Flags&packet.IPv4 != 0 {
		binary.BigEndian.PutUint16(ip[2:], uint16(s.hdr-s.l3+n))
		if s.p.Flags&packet.FixedID == 0 {
			binary.BigEndian.PutUint16(ip[4:], s.ipID+uint16(i)) // increments, as Linux does
		}
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^checksum.Checksum(ip[:s.l4-s.l3], 0))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(s.hdr-s.l3-40+n))
	}
	field = 6
	if s.p.Proto == protoTCP {
		field = 16
		s.tcp(l4, i, off, n)
	} else {
		binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)+n))
	}
	binary.BigEndian.PutUint16(l4[field:], checksum.Combine(s.pseudo, uint16(len(l4)+n)))
	return l4, field, payload
}

// tcp sets what differs between segments: sequence number, and the flags
// that belong to the first or the last one only (tcp_gso_segment).
func (s *Segmenter) tcp(h []byte, i, off, n int) {
	binary.BigEndian.PutUint32(h[4:], s.seq+uint32(off))
	if off+n < s.payload {
		h[13] &^= tcpFIN | tcpPSH
	}
	if i > 0 {
		h[13] &^= tcpCWR
	}
}
