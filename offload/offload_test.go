package offload

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"pgregory.net/rapid"

	"taprouter/packet"
)

func cache(t interface {
	Fatal(...any)
	Cleanup(func())
}) *packet.Cache {
	pool, err := packet.NewPool(packet.Memory{Heads: 128, Tails: 4})
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
}

// super makes a superpacket of a shape with its metadata as classify leaves
// them; the checksum field holds the sum of the pseudo header. headLen says
// where the head ends and the tail begins.
func super(c *packet.Cache, rng *rand.Rand, sh shape, payload, size, headLen int) *packet.Packet {
	f := make([]byte, 12, 70000)
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
		f = binary.BigEndian.AppendUint16(f, 0x86dd)
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
		f = binary.BigEndian.AppendUint16(f, 0x0800)
		p.L3, p.Flags = uint16(len(f)), packet.IPv4
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
	headLen = max(min(headLen, len(f), packet.HeadLen-packet.Headroom), hdr)
	copy(p.Buffer()[packet.Headroom:], f[:headLen])
	p.SetFrame(packet.Headroom, packet.Headroom+headLen)
	if len(f) > headLen {
		tail := c.GetTail()
		copy(tail.B, f[headLen:])
		p.SetTail(tail, 0, len(f)-headLen)
	}
	return p
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

// right verifies an Ethernet frame with gopacket as the judge of its shape,
// and both checksums. It gives the L4 payload and the TCP layer if there is one.
func right(t interface{ Fatalf(string, ...any) }, f []byte) (payload []byte, tcp *layers.TCP, id uint16) {
	pkt := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
	if e := pkt.ErrorLayer(); e != nil {
		t.Fatalf("a segment does not decode: %v", e.Error())
	}
	var src, dst net.IP
	var total int
	if ip, ok := pkt.Layer(layers.LayerTypeIPv4).(*layers.IPv4); ok {
		if checksum.Checksum(ip.Contents, 0) != 0xffff {
			t.Fatalf("wrong IPv4 header checksum")
		}
		src, dst, total, id = ip.SrcIP, ip.DstIP, int(ip.Length)-int(ip.IHL)*4, ip.Id
	} else {
		ip := pkt.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
		src, dst, total = ip.SrcIP, ip.DstIP, int(ip.Length)
		if r, ok := pkt.Layer(layers.LayerTypeIPv6Routing).(*layers.IPv6Routing); ok {
			dst, total = r.SourceRoutingIPs[0], total-len(r.Contents)
		}
	}
	l4 := pkt.TransportLayer()
	whole := append(append([]byte{}, l4.LayerContents()...), l4.LayerPayload()...)
	proto := uint16(protoUDP)
	if tt, ok := l4.(*layers.TCP); ok {
		tcp, proto = tt, protoTCP
	}
	if len(whole) != total {
		t.Fatalf("%d bytes behind the IP header, which says %d", len(whole), total)
	}
	sum := checksum.Checksum(src, checksum.Checksum(dst, proto))
	if checksum.Checksum(whole, checksum.Combine(sum, uint16(total))) != 0xffff {
		t.Fatalf("wrong L4 checksum")
	}
	return l4.LayerPayload(), tcp, id
}

// Segments of any superpacket are right, and together they are its payload.
func TestSegmentsAreTheWhole(t *testing.T) {
	c := cache(t)
	rapid.Check(t, func(t *rapid.T) {
		sh := shape{
			proto: rapid.SampledFrom([]uint8{protoTCP, protoUDP}).Draw(t, "proto"), v6: rapid.Bool().Draw(t, "v6"),
			vlans: rapid.IntRange(0, 2).Draw(t, "vlans"), options: rapid.IntRange(0, 3).Draw(t, "options"), ecn: rapid.Bool().Draw(t, "ecn"), routed: rapid.Bool().Draw(t, "routed"),
		}
		size := rapid.IntRange(1, 1500).Draw(t, "size")
		payload := rapid.IntRange(size+1, min(60000, size*128)).Draw(t, "payload")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		p := super(c, rng, sh, payload, size, rapid.IntRange(0, packet.HeadLen).Draw(t, "head"))
		defer c.Put(p)
		if !sh.routed && rapid.Bool().Draw(t, "spoilt") { // nobody relies on a guest's sum
			p.Bytes()[p.Vnet.CsumStart+p.Vnet.CsumOffset] ^= 0x55
		}
		want := make([]byte, payload)
		p.CopyOut(want, int(p.Vnet.HdrLen))
		var s Segmenter
		if why := s.Init(p); why != 0 {
			t.Fatalf("Init: %v", why)
		}
		var got []byte
		var hdr [MaxHeaders]byte
		for i := range int(p.Segs) {
			n, from, size := s.Segment(i, hdr[:])
			a, b := Payload(p, from, size)
			data, tcp, id := right(t, append(append(append([]byte{}, hdr[:n]...), a...), b...))
			if tcp != nil {
				last := i == int(p.Segs)-1
				if tcp.Seq != 0xfffffff0+uint32(len(got)) || tcp.FIN != last || tcp.PSH != last || tcp.CWR != (sh.ecn && i == 0) || !tcp.ACK {
					t.Fatalf("segment %d of %d: seq %x FIN %v PSH %v CWR %v", i, p.Segs, tcp.Seq, tcp.FIN, tcp.PSH, tcp.CWR)
				}
			}
			if !sh.v6 && id != 0xfffe+uint16(i) {
				t.Fatalf("segment %d: id %x", i, id)
			}
			got = append(got, data...)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("the segments' payload differs from the superpacket's")
		}
	})
}

// A partial checksum is completed wherever head and tail meet.
func TestChecksum(t *testing.T) {
	c := cache(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, proto := range []uint8{protoTCP, protoUDP} {
		for _, v6 := range []bool{false, true} {
			for payload := 1; payload < 1400; payload += 61 {
				for _, head := range []int{0, 100, 101, 2000} {
					p := super(c, rng, shape{proto: proto, v6: v6}, payload, 1500, head)
					p.Vnet.GSOType = packet.GSONone
					if why := Checksum(p); why != 0 || p.Vnet.Flags != 0 {
						t.Fatalf("Checksum: %v, flags %x", why, p.Vnet.Flags)
					}
					f := make([]byte, p.Len())
					p.CopyOut(f, 0)
					if proto == protoUDP { // super leaves the length to segmentation; the sum counts it
						binary.BigEndian.PutUint16(f[p.L4+4:], uint16(8+payload))
						sum := binary.BigEndian.Uint16(f[p.L4+6:])
						binary.BigEndian.PutUint16(f[p.L4+6:], ^checksum.Combine(^sum, uint16(8+payload)))
					}
					if !v6 {
						binary.BigEndian.PutUint16(f[p.L3+10:], ^checksum.Checksum(f[p.L3:p.L4], 0))
					}
					right(t, f)
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
	p := super(c, rand.New(rand.NewPCG(1, 2)), shape{proto: protoTCP}, 30000, 1400, 2000)
	s, hdr := &Segmenter{}, make([]byte, MaxHeaders)
	if n := testing.AllocsPerRun(100, func() {
		s.Init(p)
		for i := range int(p.Segs) {
			s.Segment(i, hdr)
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
		p := super(c, rand.New(rand.NewPCG(1, 2)), tt.shape, 1000, 300, packet.HeadLen)
		tt.spoil(p, p.Bytes())
		if got := new(Segmenter).Init(p); got != tt.want {
			t.Errorf("%s: Init = %v, want %v", tt.name, got, tt.want)
		}
		c.Put(p)
	}
}

// Whatever the headers and the metadata are: Init refuses it, or Segment
// reads and writes inside the headers and the frame.
func FuzzInit(f *testing.F) {
	c := cache(f)
	for _, sh := range []shape{{proto: protoTCP}, {proto: protoUDP, v6: true, vlans: 1}, {proto: protoTCP, v6: true, routed: true}} {
		p := super(c, rand.New(rand.NewPCG(1, 2)), sh, 1000, 300, 2000)
		f.Add(p.Bytes(), p.L3, p.L4, p.Vnet.HdrLen, uint16(300), p.Segs, sh.proto, sh.v6)
	}
	f.Add(make([]byte, 1000), uint16(0), uint16(0), uint16(65535), uint16(0), uint16(1), uint8(protoUDP), false)
	f.Fuzz(func(t *testing.T, frame []byte, l3, l4, hdr, size, segs uint16, proto uint8, v6 bool) {
		p := c.Get()
		defer c.Put(p)
		if !p.Set(frame) {
			return
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
		for i := range int(segs) {
			n, from, k := s.Segment(i, b[:hdr:hdr])
			data, more := Payload(p, from, k)
			if n != int(hdr) || from != n+sum || len(data)+len(more) != k || k < 1 {
				t.Fatalf("segment %d: %d bytes of headers, payload of %d bytes from %d", i, n, k, from)
			}
			sum += k
		}
		if int(hdr)+sum != len(frame) {
			t.Errorf("%d bytes of headers and %d of payload, of %d", hdr, sum, len(frame))
		}
	})
}

func BenchmarkSegment(b *testing.B) {
	c := cache(b)
	p := super(c, rand.New(rand.NewPCG(1, 2)), shape{proto: protoTCP}, 60000, 1448, 2000)
	s, hdr := &Segmenter{}, make([]byte, MaxHeaders)
	b.SetBytes(60000)
	b.ReportAllocs()
	for b.Loop() { // headers and checksums of all segments of 60 kB
		s.Init(p)
		for i := range int(p.Segs) {
			s.Segment(i, hdr)
		}
	}
}
