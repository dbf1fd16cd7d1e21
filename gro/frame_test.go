package gro

import (
	"encoding/binary"
	"testing"

	"taprouter/classify"
	"taprouter/packet"
)

func cache(tb testing.TB) *packet.Cache {
	pool, err := packet.NewPool(packet.Memory{Heads: 2048, Tails: 600})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return pool.NewCache()
}

var cls = classify.New(classify.Seed{1, 2, 3, 5}, classify.Options{})

// A frame says what build makes. The zero value is a TCP or UDP packet over
// IPv4 with a right checksum, and no payload.
type frame struct {
	udp, v6, raw  bool
	dst           byte // of the MAC address, to tell Ethernet headers apart
	vlans         []uint16
	host          byte   // of the IP source
	port          uint16 // source
	tos, ttl      byte
	label         uint32
	id, frag      uint16 // frag: flags and offset
	ipOpt, tcpOpt []byte
	ext           bool // a destination options header, IPv6
	seq, ack      uint32
	flags         byte
	window, urg   uint16
	payload       []byte
	pad           int  // bytes behind the IP packet
	behind        int  // bytes behind the UDP datagram in it
	head          int  // how much of the frame lies in the head, 0 = what fits
	badSum, badIP bool // a wrong L4 checksum, IPv4 header checksum
	noSum         bool // UDP checksum 0
	vnet          uint8
}

// build gives the bytes of f; with NeedsCsum the L4 checksum is partial.
func (f *frame) build() (b []byte, l4 int) {
	if !f.raw {
		b = append(b, 2, 0, 0, 0, 0, f.dst, 2, 0, 0, 0, 0, 9)
		for _, tci := range f.vlans {
			b = binary.BigEndian.AppendUint16(append(b, 0x81, 0), tci)
		}
		if f.v6 {
			b = append(b, 0x86, 0xdd)
		} else {
			b = append(b, 8, 0)
		}
	}
	h := f.transport()
	proto := byte(protoTCP)
	if f.udp {
		proto = protoUDP
	}
	l3 := len(b)
	if f.v6 {
		b = binary.BigEndian.AppendUint32(b, 6<<28|uint32(f.tos)<<20|f.label)
		n, next, ext := len(h), proto, []byte(nil)
		if f.ext {
			n, next, ext = n+8, 60, []byte{proto, 0, 1, 4, 0, 0, 0, 0}
		}
		b = binary.BigEndian.AppendUint16(b, uint16(n))
		b = append(b, next, f.ttl)
		b = append(b, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, f.host)
		b = append(b, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1)
		b = append(b, ext...)
	} else {
		ihl := 20 + len(f.ipOpt)
		b = append(b, 0x40|byte(ihl/4), f.tos)
		b = binary.BigEndian.AppendUint16(b, uint16(ihl+len(h)))
		b = binary.BigEndian.AppendUint16(b, f.id)
		b = binary.BigEndian.AppendUint16(b, f.frag)
		b = append(b, f.ttl, proto, 0, 0, 10, 0, 0, f.host, 10, 0, 1, 1)
		b = append(b, f.ipOpt...)
		binary.BigEndian.PutUint16(b[l3+10:], ^slowSum(b[l3:]))
		if f.badIP {
			b[l3+10] ^= 0x40
		}
	}
	l4 = len(b)
	b = append(b, h...)
	field := l4 + 16
	if f.udp {
		field = l4 + 6
	}
	switch {
	case f.noSum:
	case f.vnet&packet.NeedsCsum != 0:
		binary.BigEndian.PutUint16(b[field:], slowSum(slowPseudo(b[l3:l4], proto, len(h))))
	default:
		finishSum(b, l3, l4, proto)
	}
	if f.badSum {
		b[field] ^= 0x40
	}
	return append(b, make([]byte, f.pad)...), l4
}

func (f *frame) transport() (h []byte) {
	h = binary.BigEndian.AppendUint16(h, f.port)
	h = binary.BigEndian.AppendUint16(h, 80)
	if f.udp {
		h = binary.BigEndian.AppendUint16(h, uint16(8+len(f.payload)))
		return append(append(append(h, 0, 0), f.payload...), make([]byte, f.behind)...)
	}
	h = binary.BigEndian.AppendUint32(h, f.seq)
	h = binary.BigEndian.AppendUint32(h, f.ack)
	h = append(h, byte(20+len(f.tcpOpt))/4<<4, f.flags)
	h = binary.BigEndian.AppendUint16(h, f.window)
	h = append(h, 0, 0)
	h = binary.BigEndian.AppendUint16(h, f.urg)
	return append(append(h, f.tcpOpt...), f.payload...)
}

// packet makes f a packet as it leaves the reader of a device and classify.
func (f *frame) packet(c *packet.Cache) *packet.Packet {
	b, l4 := f.build()
	return load(c, b, f.head, f.raw, f.header(l4))
}

// header is the vnet header that goes with f.
func (f *frame) header(l4 int) packet.Vnet {
	v := packet.Vnet{Flags: f.vnet}
	if f.vnet&packet.NeedsCsum != 0 {
		v.CsumStart, v.CsumOffset = uint16(l4), 16
		if f.udp {
			v.CsumOffset = 6
		}
	}
	return v
}

// load puts a frame into a head, no more than head bytes if that is not 0, and
// a tail.
func load(c *packet.Cache, b []byte, head int, raw bool, v packet.Vnet) *packet.Packet {
	p := c.Get()
	n := copy(p.Buffer()[packet.Headroom:], b)
	if head != 0 {
		n = min(n, head)
	}
	p.SetFrame(packet.Headroom, packet.Headroom+n)
	if n < len(b) {
		t := c.GetTail()
		p.SetTail(t, 0, copy(t.B, b[n:]))
	}
	if raw {
		p.Flags = packet.Raw
	}
	p.Vnet, p.In = v, 3
	cls.Batch([]*packet.Packet{p})
	return p
}

func slowSum(b []byte) uint16 {
	var sum uint32
	for i, x := range b {
		if i&1 == 0 {
			sum += uint32(x) << 8
		} else {
			sum += uint32(x)
		}
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

func slowPseudo(ip []byte, proto byte, n int) (b []byte) {
	if ip[0]>>4 == 4 {
		b = append(b, ip[12:20]...)
	} else {
		b = append(b, ip[8:40]...)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	return append(b, 0, 0, 0, proto)
}

// finishSum writes the L4 checksum of a whole TCP or UDP packet as Linux does:
// of the two zeros, UDP has the one that is not 0.
func finishSum(b []byte, l3, l4 int, proto byte) {
	field := l4 + 16
	if proto == protoUDP {
		field = l4 + 6
	}
	b[field], b[field+1] = 0, 0
	sum := ^slowSum(append(slowPseudo(b[l3:l4], proto, len(b)-l4), b[l4:]...))
	if sum == 0 && proto == protoUDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b[field:], sum)
}

func bytesOf(p *packet.Packet) []byte {
	b := make([]byte, p.Len())
	p.CopyOut(b, 0)
	return b
}
