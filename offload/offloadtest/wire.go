// Package offloadtest is the plain twin of package offload, for tests: it
// makes the frames that a superpacket stands for by copying, and sums word by
// word. It knows a frame by its bytes alone.
package offloadtest

import (
	"bytes"
	"encoding/binary"

	"taprouter/packet"
)

// A Frame is a good frame as it is read from a device with a vnet header.
type Frame struct {
	Vnet    packet.Vnet // HdrLen is not looked at
	B       []byte
	Raw     bool // no Ethernet header
	FixedID bool // all segments have one IPv4 id
}

// A Layout says where a frame's headers are.
type Layout struct {
	EtherType uint16
	Tags      int // VLAN tags
	L3, L4    int // offsets; L4 is 0 without IP and in a later fragment
	Proto     uint8
	Fragment  bool
}

// Layout finds the headers.
func (f Frame) Layout() (l Layout) {
	if f.Raw {
		l.EtherType = map[byte]uint16{4: 0x0800, 6: 0x86dd}[f.B[0]>>4]
	} else {
		at := 12
		for l.EtherType = be(f.B[at:]); l.EtherType == 0x8100 || l.EtherType == 0x88a8; l.EtherType = be(f.B[at:]) {
			at += 4
			l.Tags++
		}
		l.L3 = at + 2
	}
	ip := f.B[l.L3:]
	switch l.EtherType {
	case 0x0800:
		l.Proto, l.L4, l.Fragment = ip[9], l.L3+int(ip[0]&15)*4, be(ip[6:])&0x3fff != 0
		if be(ip[6:])&0x1fff != 0 {
			l.L4 = 0
		}
	case 0x86dd:
		l.Proto, l.L4 = ip[6], l.L3+40
		for l.Proto == 0 || l.Proto == 43 || l.Proto == 44 || l.Proto == 60 {
			h := f.B[l.L4:]
			if l.Proto == 44 {
				l.Proto, l.Fragment = h[0], true
				if l.L4 += 8; be(h[2:])&^7 != 0 {
					l.L4 = 0
					return l
				}
				continue
			}
			l.Proto = h[0]
			l.L4 += 8 * (int(h[1]) + 1)
		}
	}
	return l
}

// Headers is the length in bytes of the headers of a superpacket.
func (f Frame) Headers(l Layout) int {
	if l.Proto == 6 {
		return l.L4 + int(f.B[l.L4+12]>>4)*4
	}
	return l.L4 + 8
}

// Wire gives the frames on the wire: segments if it is a superpacket, with
// complete checksums.
func (f Frame) Wire() (all [][]byte) {
	if f.Vnet.GSOType == packet.GSONone {
		b := bytes.Clone(f.B)
		if f.Vnet.Flags&packet.NeedsCsum != 0 {
			start := int(f.Vnet.CsumStart)
			put(b[start+int(f.Vnet.CsumOffset):], complement(Sum(b[start:])))
		}
		return [][]byte{b}
	}
	l, size := f.Layout(), int(f.Vnet.GSOSize)
	hdr := f.Headers(l)
	payload := f.B[hdr:]
	for off, i := 0, 0; off < len(payload); off, i = off+size, i+1 {
		end := min(off+size, len(payload))
		b := append(bytes.Clone(f.B[:hdr]), payload[off:end]...)
		ip, l4 := b[l.L3:], b[l.L4:]
		if l.EtherType == 0x0800 {
			put(ip[2:], uint16(len(ip)))
			if !f.FixedID {
				put(ip[4:], be(ip[4:])+uint16(i))
			}
			put(ip[10:], 0)
			put(ip[10:], ^Sum(ip[:l.L4-l.L3]))
		} else {
			put(ip[4:], uint16(len(ip)-40))
		}
		field := l4[6:]
		if l.Proto == 6 {
			field = l4[16:]
			binary.BigEndian.PutUint32(l4[4:], binary.BigEndian.Uint32(l4[4:])+uint32(off))
			if end < len(payload) {
				l4[13] &^= 0x09 // FIN and PSH belong to the last,
			}
			if i > 0 {
				l4[13] &^= 0x80 // CWR to the first
			}
		} else {
			put(l4[4:], uint16(len(l4)))
		}
		put(field, 0)
		put(field, complement(Sum(append(Pseudo(b, l), l4...))))
		all = append(all, b)
	}
	return all
}

// Pseudo is the pseudo header of a frame's L4 (RFC 768, 9293, and 8200 8.1).
func Pseudo(f []byte, l Layout) []byte {
	ip := f[l.L3:l.L4]
	var addrs []byte
	switch {
	case l.EtherType == 0x0800:
		addrs = ip[12:20]
	case ip[6] == 43: // the last address of a routing header is the destination
		addrs = append(bytes.Clone(ip[8:24]), ip[len(ip)-16:]...)
	default:
		addrs = ip[8:40]
	}
	return append(binary.BigEndian.AppendUint32(bytes.Clone(addrs), uint32(len(f)-l.L4)), 0, l.Proto)
}

// Sum is the ones' complement sum of RFC 1071.
func Sum(b []byte) uint16 {
	var sum uint64
	for ; len(b) > 1; b = b[2:] {
		sum += uint64(be(b))
	}
	if len(b) > 0 {
		sum += uint64(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// complement gives what a checksum field has for a sum; 0 would say none.
func complement(sum uint16) uint16 {
	if sum == 0xffff {
		return sum
	}
	return ^sum
}

func be(b []byte) uint16     { return binary.BigEndian.Uint16(b) }
func put(b []byte, v uint16) { binary.BigEndian.PutUint16(b, v) }
