package offload

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"taprouter/packet"
)

func cache(t interface {
	Fatal(...any)
	Cleanup(func())
}) *packet.Cache {
	pool, err := packet.NewPool(packet.Memory{Heads: 128, Tails: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool.NewCache()
}

// A shape is a kind of superpacket.
type shape struct {
	proto   uint8
	v6      bool
	vlans   int
	options int // words of IPv4 or TCP options
	ecn     bool
	routed  bool // IPv6 with a routing header: the sum is over the final destination
	fixedID bool // all segments have one IPv4 id
	raw     bool // no Ethernet header
}

// super makes a superpacket of a shape with its metadata as classify leaves
// them; the checksum field holds the sum of the pseudo header. parts says how
// the frame lies in memory: see lay.
func super(c *packet.Cache, rng *rand.Rand, sh shape, payload, size int, parts ...int) *packet.Packet {
	f := make([]byte, 12, 70000)
	if sh.raw {
		f = f[:0]
	}
	for i := range sh.vlans {
		f = binary.BigEndian.AppendUint16(f, 0x8100)
		f = binary.BigEndian.AppendUint16(f, uint16(i+1))
	}
	l4len := 8
	if sh.proto == protoTCP {
		l4len = 20 + 4*sh.options
	}
	p := c.Get()
	if sh.v6 {
		if !sh.raw {
			f = binary.BigEndian.AppendUint16(f, 0x86dd)
		}
		p.L3, p.Flags = uint16(len(f)), packet.IPv6
		h := make([]byte, 40)
		h[0], h[6], h[7] = 0x60, sh.proto, 64
		for i := 8; i < 40; i++ {
			h[i] = byte(rng.Uint32())
		}
		if sh.routed { // type 0 with one segment left (RFC 2460, 4.4)
			h[6] = 43
			h = append(h, sh.proto, 2, 0, 1, 0, 0, 0, 0)
			for range 16 {
				h = append(h, byte(rng.Uint32()))
			}
		}
		binary.BigEndian.PutUint16(h[4:], uint16(len(h)-40+l4len+payload))
		f = append(f, h...)
	} else {
		if !sh.raw {
			f = binary.BigEndian.AppendUint16(f, 0x0800)
		}
		p.L3, p.Flags = uint16(len(f)), packet.IPv4
		if sh.fixedID {
			p.Flags |= packet.FixedID
		}
		ihl := 20 + 4*sh.options
		h := bytes.Repeat([]byte{1}, ihl) // options are no-ops
		copy(h, make([]byte, 20))
		h[0], h[8], h[9] = 0x40|byte(ihl/4), 64, sh.proto
		binary.BigEndian.PutUint16(h[2:], uint16(ihl+l4len+payload))
		binary.BigEndian.PutUint16(h[4:], 0xfffe) // the id wraps
		for i := 12; i < 20; i++ {
			h[i] = byte(rng.Uint32())
		}
		f = append(f, h...)
	}
	p.L4, p.Proto = uint16(len(f)), sh.proto
	l4 := bytes.Repeat([]byte{1}, l4len)
	copy(l4, make([]byte, min(l4len, 20)))
	binary.BigEndian.PutUint16(l4, 1000)
	binary.BigEndian.PutUint16(l4[2:], 80)
	field := 6
	p.Vnet = packet.Vnet{Flags: packet.NeedsCsum, GSOType: packet.GSOUDPL4}
	if sh.proto == protoTCP {
		field = 16
		binary.BigEndian.PutUint32(l4[4:], 0xfffffff0) // the sequence number wraps
		l4[12], l4[13] = byte(l4len/4)<<4, 0x19        // ACK PSH FIN
		p.Vnet.GSOType = packet.GSOTCPv4
		if sh.v6 {
			p.Vnet.GSOType = packet.GSOTCPv6
		}
		if sh.ecn {
			p.Vnet.GSOType |= packet.GSOECN
			l4[13] |= tcpCWR
		}
	}
	f = append(f, l4...)
	hdr := len(f)
	for range payload {
		f = append(f, byte(rng.Uint32()))
	}
	p.Vnet.HdrLen, p.Vnet.GSOSize = uint16(hdr), uint16(size)
	p.Vnet.CsumStart, p.Vnet.CsumOffset = p.L4, uint16(field)
	binary.BigEndian.PutUint16(f[int(p.L4)+field:], pseudo(f, p, l4len+payload))
	p.Segs = uint16((payload + size - 1) / size)
	if sh.raw {
		p.Flags |= packet.Raw
	}
	lay(c, p, f, hdr, parts)
	return p
}

// lay puts a frame into p: parts are the lengths of its pieces, head and tail
// in turn, of p and of packets that are appended to it. The headers stay
// together, and what is left when parts end goes where it fits.
func lay(c *packet.Cache, p *packet.Packet, f []byte, hdr int, parts []int) {
	next := func(least, most int) []byte {
		n := most
		if len(parts) > 0 {
			n, parts = parts[0], parts[1:]
		}
		n = min(max(n, least), most, len(f))
		b := f[:n]
		f = f[n:]
		return b
	}
	for q := p; ; q = c.Get() {
		head := next(hdr, packet.HeadLen-packet.Headroom)
		hdr = 0
		copy(q.Buffer()[packet.Headroom:], head)
		q.SetFrame(packet.Headroom, packet.Headroom+len(head))
		if tail := next(0, packet.TailLen); len(tail) > 0 {
			t := c.GetTail()
			copy(t.B[5:], tail)
			q.SetTail(t, 5, len(tail))
		}
		if q != p {
			p.Append(q, 0)
		}
		if len(f) == 0 {
			return
		}
	}
}

// pseudo is the sum of the pseudo header.
func pseudo(f []byte, p *packet.Packet, l4len int) uint16 {
	ip := f[p.L3:]
	addrs := ip[12:20]
	if p.Flags&packet.IPv6 != 0 {
		addrs = ip[8:40]
		if ip[6] == 43 {
			addrs = append(bytes.Clone(ip[8:24]), ip[48:64]...)
		}
	}
	return checksum.Combine(checksum.Checksum(addrs, uint16(p.Proto)), uint16(l4len))
}

// A partial checksum is completed wherever the frame's pieces meet.
func TestChecksum(t *testing.T) {
	c := cache(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, proto := range []uint8{protoTCP, protoUDP} {
		for _, v6 := range []bool{false, true} {
			for payload := 1; payload < 1400; payload += 61 {
				for _, parts := range [][]int{nil, {0}, {100}, {101}, {101, 7, 0, 33}, {100, 0, 1, 0, 1, 2, 3}} {
					p := super(c, rng, shape{proto: proto, v6: v6}, payload, 1500, parts...)
					p.Vnet.GSOType = packet.GSONone
					want := twin(p).Wire()[0]
					if why := Checksum(p); why != 0 || p.Vnet.Flags != 0 {
						t.Fatalf("Checksum: %v, flags %x", why, p.Vnet.Flags)
					}
					if !bytes.Equal(flat(p), want) {
						t.Fatalf("%d bytes in parts %v: wrong checksum", payload, parts)
					}
					c.Put(p)
				}
			}
		}
	}
}

func TestChecksumThatIsZero(t *testing.T) {
	c := cache(t)
	p := c.Get()
	p.Set([]byte{0xff, 0xff, 0, 0, 0, 0, 0, 0})
	p.Proto, p.Vnet = protoUDP, packet.Vnet{Flags: packet.NeedsCsum, CsumStart: 0, CsumOffset: 6}
	if why := Checksum(p); why != 0 || binary.BigEndian.Uint16(p.Bytes()[6:]) != 0xffff {
		t.Errorf("%v, UDP checksum %x, want ffff for a sum of 0", why, p.Bytes()[6:])
	}
	p.Vnet = packet.Vnet{Flags: packet.NeedsCsum, CsumStart: 7, CsumOffset: 6}
	if Checksum(p) != packet.DropOffload {
		t.Error("a field outside the frame was accepted")
	}
}

func TestSegmentAllocatesNothing(t *testing.T) {
	c := cache(t)
	p := super(c, rand.New(rand.NewPCG(1, 2)), shape{proto: protoTCP}, 30000, 1400, 1000, 999, 998, 997, 996, 995, 994)
	s, hdr := &Segmenter{}, make([]byte, MaxHeaders)
	if n := testing.AllocsPerRun(100, func() {
		s.Init(p)
		for range p.Segs {
			s.Next(hdr)
		}
		s.Init(p)
		for range (p.Segs + 1) / 2 {
			s.Piece(2, hdr)
		}
	}); n != 0 {
		t.Errorf("segmenting allocates %v times", n)
	}
}

// Init refuses a superpacket whose headers contradict what is known of it.
func TestInitRefuses(t *testing.T) {
	c := cache(t)
	tcp4, udp6 := shape{proto: protoTCP}, shape{proto: protoUDP, v6: true}
	for _, tt := range []struct {
		name  string
		shape shape
		spoil func(p *packet.Packet, b []byte)
		want  packet.Reason
	}{
		{"nothing wrong, TCP", tcp4, func(*packet.Packet, []byte) {}, 0},
		{"nothing wrong, UDP", udp6, func(*packet.Packet, []byte) {}, 0},
		{"no segment left", tcp4, func(p *packet.Packet, _ []byte) { p.SegNext = p.Segs }, packet.DropOffload},
		{"no segment size", tcp4, func(p *packet.Packet, _ []byte) { p.Vnet.GSOSize = 0 }, packet.DropOffload},
		{"one segment too many", tcp4, func(p *packet.Packet, _ []byte) { p.Segs++ }, packet.DropOffload},
		{"segments beyond 64 KiB", tcp4, func(p *packet.Packet, _ []byte) { p.Vnet.GSOSize, p.Segs = 0xffff, 1 }, packet.DropOffload},
		{"no payload", tcp4, func(p *packet.Packet, _ []byte) { p.Trim(54) }, packet.DropOffload},
		{"no L4", tcp4, func(p *packet.Packet, _ []byte) { p.L4 = 0 }, packet.DropOffload},
		{"L4 behind the headers", tcp4, func(p *packet.Packet, _ []byte) { p.L4 = 54 }, packet.DropOffload},
		{"L4 in the payload", tcp4, func(p *packet.Packet, b []byte) { p.L4, b[14] = 74, 0x4f }, packet.DropOffload},
		{"another IHL", tcp4, func(_ *packet.Packet, b []byte) { b[14] = 0x46 }, packet.DropOffload},
		{"another data offset", tcp4, func(_ *packet.Packet, b []byte) { b[46] = 0x60 }, packet.DropOffload},
		{"longer headers", tcp4, func(p *packet.Packet, _ []byte) { p.Vnet.HdrLen = MaxHeaders + 1 }, packet.DropOffload},
		{"IPv6 header cut short", udp6, func(p *packet.Packet, _ []byte) { p.L3 += 4 }, packet.DropOffload},
		{"UDP header of 12 bytes", udp6, func(p *packet.Packet, _ []byte) { p.Vnet.HdrLen += 4 }, packet.DropOffload},
		{"not IP", udp6, func(p *packet.Packet, _ []byte) { p.Flags = 0 }, packet.DropOffload},
		{"neither TCP nor UDP", udp6, func(p *packet.Packet, _ []byte) { p.Proto = 132 }, packet.DropOffload},
	} {
		p := super(c, rand.New(rand.NewPCG(1, 2)), tt.shape, 1000, 300)
		tt.spoil(p, p.Bytes())
		if got := new(Segmenter).Init(p); got != tt.want {
			t.Errorf("%s: Init = %v, want %v", tt.name, got, tt.want)
		}
		c.Put(p)
	}
}

// Whatever the headers and the metadata are: Init refuses it, or Next and
// Piece read and write inside the headers and the frame.
func FuzzInit(f *testing.F) {
	c := cache(f)
	for _, sh := range []shape{{proto: protoTCP}, {proto: protoUDP, v6: true, vlans: 1}, {proto: protoTCP, v6: true, routed: true}} {
		p := super(c, rand.New(rand.NewPCG(1, 2)), sh, 1000, 300)
		f.Add(p.Bytes(), p.L3, p.L4, p.Vnet.HdrLen, uint16(300), p.Segs, sh.proto, sh.v6, uint16(400))
	}
	f.Add(make([]byte, 1000), uint16(0), uint16(0), uint16(65535), uint16(0), uint16(1), uint8(protoUDP), false, uint16(0))
	f.Fuzz(func(t *testing.T, frame []byte, l3, l4, hdr, size, segs uint16, proto uint8, v6 bool, part uint16) {
		if len(frame) > packet.HeadLen {
			return
		}
		p := c.Get()
		defer c.Put(p)
		first := min(max(int(part), 1), len(frame))
		p.Set(frame[:first])
		for rest := frame[first:]; len(rest) > 0; { // and the rest as if GRO had merged it
			n := min(max(int(part), 20), len(rest))
			q := c.Get()
			q.Set(rest[:n])
			p.Append(q, 0)
			rest = rest[n:]
		}
		p.L3, p.L4, p.Proto, p.Segs, p.Flags = l3, l4, proto, segs, packet.IPv4
		if v6 {
			p.Flags = packet.IPv6
		}
		p.Vnet = packet.Vnet{Flags: packet.NeedsCsum, HdrLen: hdr, GSOSize: size}
		var s Segmenter
		if s.Init(p) != 0 {
			return
		}
		var b [MaxHeaders]byte
		sum := 0
		for i := range segs {
			n, payload := s.Next(b[:hdr:hdr])
			k := len(bytes.Join(payload, nil))
			if n != int(hdr) || k < 1 || n+k != s.Len(int(i)) {
				t.Fatalf("segment %d: %d bytes of headers, %d of payload, Len %d", i, n, k, s.Len(int(i)))
			}
			sum += k
		}
		s.Init(p)
		for i := 0; i < int(segs); i += 3 {
			_, n, payload := s.Piece(3, b[:hdr:hdr])
			k := len(bytes.Join(payload, nil))
			if n != int(hdr) || k < 1 || min(3, int(segs)-i)*n+k != s.Wire(i, min(3, int(segs)-i)) {
				t.Fatalf("piece at %d: %d bytes of headers, %d of payload", i, n, k)
			}
		}
		if int(hdr)+sum != len(frame) {
			t.Errorf("%d bytes of headers and %d of payload, of %d", hdr, sum, len(frame))
		}
	})
}

// Headers and checksums of all segments of 60 kB.
func BenchmarkSegment(b *testing.B) {
	c := cache(b)
	for _, bb := range []struct {
		name  string
		parts []int
	}{{"memory=tail", nil}, {"memory=merged", merged(60000, 1448)}} {
		b.Run(bb.name, func(b *testing.B) {
			p := super(c, rand.New(rand.NewPCG(1, 2)), shape{proto: protoTCP}, 60000, 1448, bb.parts...)
			defer c.Put(p)
			s, hdr := &Segmenter{}, make([]byte, MaxHeaders)
			b.SetBytes(60000)
			b.ReportAllocs()
			for b.Loop() {
				s.Init(p)
				for range p.Segs {
					s.Next(hdr)
				}
			}
		})
	}
}

// merged gives the parts of a frame that GRO put together.
func merged(payload, size int) (parts []int) {
	for n := 54; payload > 0; n, payload = 0, payload-size {
		parts = append(parts, n+min(size, payload), 0)
	}
	return parts
}
