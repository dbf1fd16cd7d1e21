package forward

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"taprouter/fib"
	"taprouter/packet"
)

// An icmpMsg is a decoded error.
type icmpMsg struct {
	src, dst   string
	typ, code  uint8
	info       uint32
	quote      []byte
	ether      *layers.Ethernet
	ttl        uint8
	totalBytes int // of the IP packet
}

// decode checks every checksum of an ICMP error and takes it apart.
func decode(t *testing.T, frame []byte, raw bool) icmpMsg {
	t.Helper()
	first := gopacket.Decoder(layers.LayerTypeEthernet)
	if raw {
		first = layers.LayerTypeIPv4
		if frame[0]>>4 == 6 {
			first = layers.LayerTypeIPv6
		}
	}
	pk := gopacket.NewPacket(frame, first, gopacket.Default)
	var m icmpMsg
	if e, ok := pk.LinkLayer().(*layers.Ethernet); ok {
		m.ether = e
	}
	var l4 []byte
	switch h := pk.NetworkLayer().(type) {
	case *layers.IPv4:
		m.src, m.dst, m.ttl, m.totalBytes, l4 = h.SrcIP.String(), h.DstIP.String(), h.TTL, int(h.Length), h.Payload
		if sum(h.Contents) != 0xffff || sum(l4) != 0xffff {
			t.Errorf("wrong checksum: header %04x, ICMP %04x", sum(h.Contents), sum(l4))
		}
		if h.Protocol != layers.IPProtocolICMPv4 {
			t.Errorf("protocol %v", h.Protocol)
		}
	case *layers.IPv6:
		m.src, m.dst, m.ttl, m.totalBytes, l4 = h.SrcIP.String(), h.DstIP.String(), h.HopLimit, 40+int(h.Length), h.Payload
		pseudo := append(append(append([]byte{}, h.SrcIP...), h.DstIP...), 0, 0, byte(len(l4)>>8), byte(len(l4)), 0, 0, 0, 58)
		if s := sum(append(pseudo, l4...)); s != 0xffff {
			t.Errorf("wrong ICMPv6 checksum: %04x", s)
		}
		if h.NextHeader != layers.IPProtocolICMPv6 {
			t.Errorf("next header %v", h.NextHeader)
		}
	default:
		t.Fatalf("not IP: %x", frame)
	}
	m.typ, m.code, m.info, m.quote = l4[0], l4[1], binary.BigEndian.Uint32(l4[4:]), l4[8:]
	return m
}

// sum is the ones' complement sum, the slow way.
func sum(b []byte) uint16 {
	s := uint32(0)
	for i, x := range b {
		if i%2 == 0 {
			s += uint32(x) << 8
		} else {
			s += uint32(x)
		}
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// errors are checked for everything that RFC 1812 and 4443 ask for: where
// from, where to, what is quoted, how long.
func TestICMP(t *testing.T) {
	u4 := func(dst string, n int, change func(*layers.IPv4)) []byte { return udp4(0, "10.0.0.9", dst, n, change) }
	u6 := func(dst string, n int, change func(*layers.IPv6)) []byte { return udp6(0, "fd00::9", dst, n, change) }
	tcp := func(dst string) []byte {
		h := v4("10.0.0.9", dst, layers.IPProtocolTCP)
		l := &layers.TCP{SrcPort: 1, DstPort: 2, SYN: true}
		_ = l.SetNetworkLayerForChecksum(h)
		return build(ether(mac(0), hostMAC, layers.EthernetTypeIPv4), h, l)
	}
	other4 := build(ether(mac(0), hostMAC, layers.EthernetTypeIPv4), v4("10.0.0.9", "10.0.0.1", 200), payload(30))
	other6 := build(ether(mac(0), hostMAC, layers.EthernetTypeIPv6), v6("fd00::9", "fd00::1", 200), payload(30))
	for _, tt := range []struct {
		name      string
		in        uint16
		frame     []byte
		why       string
		src       string
		typ, code uint8
		info      uint32
	}{
		{"TTL", 0, u4("10.0.1.2", 20, ttl(1)), "ttl", "10.0.0.1", 11, 0, 0},
		{"TTL 0", 0, u4("10.0.1.2", 20, ttl(0)), "ttl", "10.0.0.1", 11, 0, 0},
		{"TTL of a ping", 0, func() []byte {
			return sum4(with(echo4(mac(0), hostMAC, "10.0.0.9", "10.0.1.2"), 22, 1))
		}(), "ttl", "10.0.0.1", 11, 0, 0},
		{"TTL of TCP", 0, sum4(with(tcp("10.0.1.2"), 22, 1)), "ttl", "10.0.0.1", 11, 0, 0},
		{"TTL, long", 0, u4("10.0.1.2", 1200, ttl(1)), "ttl", "10.0.0.1", 11, 0, 0},
		{"TTL from the TUN", 5, udp4(5, "10.0.3.9", "10.0.1.2", 20, ttl(1)), "ttl", "10.0.3.1", 11, 0, 0},
		{"TTL from a bridge", 2, udp4(2, "10.0.2.9", "10.0.1.2", 20, ttl(1)), "ttl", "10.0.2.1", 11, 0, 0},
		{"hop limit", 0, u6("fd01::2", 20, hops(1)), "ttl", "fd00::1", 3, 0, 0},
		{"hop limit, long", 0, u6("fd01::2", 1400, hops(1)), "ttl", "fd00::1", 3, 0, 0},
		{"hop limit from the TUN", 5, udp6(5, "fd03::9", "fd01::2", 20, hops(1)), "ttl", "fd03::1", 3, 0, 0},
		{"no route", 0, u4("172.16.0.1", 20, nil), "no_route", "10.0.0.1", 3, 0, 0},
		{"no route, IPv6", 0, u6("2002::1", 20, nil), "no_route", "fd00::1", 1, 0, 0},
		{"unreachable", 0, u4("203.0.113.5", 20, nil), "no_route", "10.0.0.1", 3, 1, 0},
		{"unreachable, IPv6", 0, u6("2001:db8:dead::1", 20, nil), "no_route", "fd00::1", 1, 3, 0},
		{"neighbour failed", 0, u4("10.0.1.3", 20, nil), "neigh_failed", "10.0.0.1", 3, 1, 0},
		{"neighbour failed, IPv6", 0, u6("fd01::3", 20, nil), "neigh_failed", "fd00::1", 1, 3, 0},
		{"DF, too big (B08)", 0, u4("10.0.1.2", 1472, df), "too_big", "10.0.0.1", 3, 4, mtu1},
		{"IPv6 too big (B08)", 0, u6("fd01::2", 1452, nil), "too_big", "fd00::1", 2, 0, mtu1},
		{"UDP to us (B10)", 0, u4("10.0.0.1", 20, ttl(1)), "protocol", "10.0.0.1", 3, 3, 0},
		{"UDP to our far address", 0, u4("10.0.1.1", 20, nil), "protocol", "10.0.1.1", 3, 3, 0},
		{"TCP to us", 0, tcp("10.0.0.1"), "protocol", "10.0.0.1", 3, 3, 0},
		{"protocol 200 to us", 0, other4, "protocol", "10.0.0.1", 3, 2, 0},
		{"IPv6 UDP to us", 0, u6("fd00::1", 20, nil), "protocol", "fd00::1", 1, 4, 0},
		{"IPv6 UDP to our link-local address", 0, udp6(0, "fe80::9", "fe80::1", 20, nil), "protocol", "fe80::1", 1, 4, 0},
		{"IPv6 next header 200 to us", 0, other6, "protocol", "fd00::1", 4, 1, 6},
	} {
		w := newWorld(t)
		gs := w.send(tt.in, tt.frame)
		w.is(tt.name, gs, fmt.Sprintf("tx %d", tt.in), "drop "+tt.why)
		if len(gs) != 2 {
			continue
		}
		m := decode(t, gs[0].frame, tt.in == 5)
		dgram := tt.frame
		if tt.in != 5 {
			dgram = dgram[14:]
			if want := hw(fib.MAC(tt.frame[6:])).String(); m.ether.DstMAC.String() != want || m.ether.SrcMAC.String() != hw(gw(byte(tt.in))).String() {
				t.Errorf("%s: from %v to %v, want to %v", tt.name, m.ether.SrcMAC, m.ether.DstMAC, want)
			}
		}
		limit, n := 576, int(binary.BigEndian.Uint16(dgram[2:]))
		src := netip.AddrFrom4([4]byte(dgram[12:16]))
		if dgram[0]>>4 == 6 {
			limit, n = 1280, 40+int(binary.BigEndian.Uint16(dgram[4:]))
			src = netip.AddrFrom16([16]byte(dgram[8:24]))
		}
		if m.src != tt.src || m.dst != src.String() || m.typ != tt.typ || m.code != tt.code || m.info != tt.info || m.ttl != 64 {
			t.Errorf("%s: %s -> %s type %d code %d info %d ttl %d; want %s -> %v type %d code %d info %d", tt.name, m.src, m.dst, m.typ, m.code, m.info, m.ttl, tt.src, src, tt.typ, tt.code, tt.info)
		}
		if want := min(n, limit-(m.totalBytes-len(m.quote))); len(m.quote) != want || m.totalBytes > limit {
			t.Errorf("%s: quotes %d bytes in %d, want %d of %d", tt.name, len(m.quote), m.totalBytes, want, n)
		}
		want := bytes.Clone(dgram[:len(m.quote)])
		if tt.why == "neigh_failed" { // found after the TTL was taken down, as in the kernel
			if dgram[0]>>4 == 4 {
				want[8]--
				want = sum4(append(make([]byte, 14), want...))[14:]
			} else {
				want[7]--
			}
		}
		if !bytes.Equal(m.quote, want) {
			t.Errorf("%s: quotes\n %x, was\n %x", tt.name, m.quote, want)
		}
		if g := gs[0].p; g.Flags&packet.Local == 0 || g.In != packet.NoPort || g.Priority != prioControl {
			t.Errorf("%s: flags %x, In %d, priority %d", tt.name, g.Flags, g.In, g.Priority)
		}
	}
}

// What must be met with silence.
func TestNoICMP(t *testing.T) {
	frag := func(b []byte, word ...byte) []byte { return sum4(with(b, 20, word...)) }
	for _, tt := range []struct {
		name  string
		in    uint16
		frame []byte
		want  string
	}{
		{"TTL of a later fragment", 0, frag(udp4(0, "10.0.0.9", "10.0.1.2", 20, ttl(1)), 0, 5), "drop ttl"},
		{"too big later fragment with DF", 0, frag(udp4(0, "10.0.0.9", "10.0.1.2", 1450, nil), 0x40, 5), "drop too_big"},
		{"TTL of an ICMP error", 0, sum4(with(icmp4(mac(0), hostA, "10.0.0.9", "10.0.1.2", 3, 1, payload(28)), 22, 1)), "drop ttl"},
		{"TTL of a redirect", 0, sum4(with(icmp4(mac(0), hostA, "10.0.0.9", "10.0.1.2", 5, 1, payload(28)), 22, 1)), "drop ttl"},
		{"hop limit of an ICMPv6 error", 0, with(icmp6(mac(0), hostA, "fd00::9", "fd01::2", 1, 0), 21, 1), "drop ttl"},
		{"hop limit of a redirect", 0, with(icmp6(mac(0), hostA, "fd00::9", "fd01::2", ndRedirect, 0), 21, 1), "drop ttl"},
		{"source is ours", 0, udp4(0, "10.0.1.1", "10.0.1.2", 20, ttl(1)), "drop ttl"},
		{"source is a blackhole", 0, udp4(0, "198.51.100.9", "10.0.1.2", 20, ttl(1)), "drop ttl"},
		{"blackhole", 0, udp4(0, "10.0.0.9", "198.51.100.9", 20, nil), "drop blackhole"},
		{"fragment of UDP to us", 0, frag(udp4(0, "10.0.0.9", "10.0.0.1", 20, nil), 0x20, 0), "drop protocol"},
	} {
		w := newWorld(t)
		w.is(tt.name, w.send(tt.in, tt.frame), tt.want)
	}
}

// Rules that hold although nothing gets that far today.
func TestReportable(t *testing.T) {
	for _, tt := range []struct {
		flags packet.Flags
		k     icmpKind
		want  bool
	}{
		{packet.IPv4, icmpTimeExceeded, true},
		{packet.IPv4 | packet.Mcast, icmpTimeExceeded, false},
		{packet.IPv4 | packet.Local, icmpTimeExceeded, false},
		{packet.IPv4 | packet.LaterFrag, icmpTooBig, false},
		{packet.IPv6 | packet.LaterFrag, icmpTimeExceeded, false},
		{packet.IPv6 | packet.LaterFrag, icmpTooBig, true},
		{packet.IPv6 | packet.Mcast, icmpTooBig, false},
	} {
		if got := reportable(&packet.Packet{Flags: tt.flags, Proto: protoUDP}, tt.k); got != tt.want {
			t.Errorf("reportable(flags %x, %v) = %v, want %v", tt.flags, tt.k, got, tt.want)
		}
	}
}

// A router without an address of the family keeps silent; without one on
// that side it takes another of its own.
func TestICMPSource(t *testing.T) {
	w := newWorld(t)
	s := *w.s
	s.Ifaces = append([]Iface(nil), w.s.Ifaces...)
	s.Ifaces[0].Addrs = []netip.Prefix{pfx("fe80::1/64")}
	w.s = &s
	gs := w.send(0, udp4(0, "10.0.0.9", "10.0.1.2", 20, ttl(1)))
	w.is("unnumbered side", gs, "tx 0", "drop ttl")
	if m := decode(t, gs[0].frame, false); m.src != "10.0.1.1" {
		t.Errorf("source %s, want 10.0.1.1", m.src)
	}
	s.Ifaces[0].Addrs = []netip.Prefix{pfx("10.5.0.1/24"), pfx("10.0.0.3/24")}
	if m := decode(t, w.send(0, udp4(0, "10.0.0.9", "10.0.1.2", 20, ttl(1)))[0].frame, false); m.src != "10.0.0.3" {
		t.Errorf("source %s, want the one of the sender's subnet, 10.0.0.3", m.src)
	}
	for i := range s.Ifaces {
		s.Ifaces[i].Addrs = []netip.Prefix{pfx("fe80::1/64")}
	}
	w.is("no address", w.send(0, udp4(0, "10.0.0.9", "10.0.1.2", 20, ttl(1))), "drop ttl")
}

// Answers follow the routes, ask for neighbours like other packets, and use
// the sender's MAC address where it serves.
func TestICMPWayBack(t *testing.T) {
	w := newWorld(t)
	gs := w.send(0, udp4(0, "10.0.1.2", "10.0.3.2", 20, ttl(1)))
	w.is("source behind another port", gs, "tx 1", "drop ttl")
	if m := decode(t, gs[0].frame, false); m.ether.DstMAC.String() != hw(hostMAC|0x12).String() {
		t.Errorf("to %v", m.ether.DstMAC)
	}
	gs = w.send(0, udp4(0, "10.0.1.77", "10.0.3.2", 20, ttl(1)))
	w.is("that has to be asked for", gs, "drop ttl")
	if w.f.Parked() != 1 || w.out.Resolves != 1 || w.out.Resolve[0] != (Resolve{1, ip("10.0.1.77")}) {
		t.Errorf("parked %d, asked for %v", w.f.Parked(), w.out.Resolve[:w.out.Resolves])
	}
	w.s = snapshot(t, fib.Neigh{Iface: 0, Addr: ip("10.0.0.66"), Failed: true})
	gs = w.send(0, udp4(0, "10.0.0.66", "10.0.3.2", 20, ttl(1)))
	w.is("source that did not answer, but has just sent", gs, "tx 0", "drop ttl")
	gs = w.send(0, udp4(0, "172.16.5.5", "10.0.3.2", 20, ttl(1)))
	w.is("source without a route", gs, "tx 0", "drop ttl")
	gs = w.send(5, udp4(5, "172.16.5.5", "10.0.1.2", 20, ttl(1)))
	w.is("source without a route, TUN", gs, "tx 5", "drop ttl")
}

func TestICMPQuotesFirstSegment(t *testing.T) {
	h := v6("fd00::9", "fd01::2", layers.IPProtocolTCP)
	tcp := &layers.TCP{SrcPort: 1, DstPort: 2, ACK: true}
	_ = tcp.SetNetworkLayerForChecksum(h)
	h.HopLimit = 1
	b := build(ether(mac(0), hostA, layers.EthernetTypeIPv6), h, tcp, payload(20000))
	w := newWorld(t)
	gs := w.sendGSO(0, b, packet.Vnet{Flags: packet.NeedsCsum, GSOType: packet.GSOTCPv6, GSOSize: 500, HdrLen: 74, CsumStart: 54, CsumOffset: 16})
	w.is("superpacket", gs, "tx 0", "drop ttl")
	if m := decode(t, gs[0].frame, false); len(m.quote) != 560 || gs[1].p.Segs != 40 {
		t.Errorf("quotes %d bytes of %d segments, want 560 of 40", len(m.quote), gs[1].p.Segs)
	}
}

func TestRateLimit(t *testing.T) {
	var l limiter
	a, now := ip("10.0.0.1"), int64(5*second)
	count := func(host netip.Addr, n int) (sent int) {
		for range n {
			if l.allow(host, now) {
				sent++
			}
		}
		return sent
	}
	if n := count(a, 100); n != hostBurst {
		t.Errorf("%d of a burst of 100 sent, want %d", n, hostBurst)
	}
	if n := count(ip("10.0.0.2"), 1); n != 1 {
		t.Error("the first to another host was not sent")
	}
	now += second
	if n := count(a, 100); n != second/hostInterval {
		t.Errorf("%d sent a second later, want %d", n, int(second/hostInterval))
	}
	now += 100 * second
	if n := count(a, 100); n != hostBurst {
		t.Errorf("%d sent much later, want the burst of %d", n, hostBurst)
	}
	now += second
	sent := 0
	for i := range 5000 { // forged sources
		sent += count(netip.AddrFrom4([4]byte{11, 0, byte(i >> 8), byte(i)}), 1)
	}
	if sent != allBurst {
		t.Errorf("%d errors to 5000 hosts at once, want %d", sent, allBurst)
	}
	l, sent = limiter{}, 0
	for range hostBurst {
		count(a, 1)
	}
	for range 100 { // tokens come back in fractions of an interval too
		now += hostInterval * 6 / 10
		sent += count(a, 1)
	}
	if sent != 60 {
		t.Errorf("%d sent in 60 intervals, want 60", sent)
	}
	l, sent = limiter{}, 0
	for i := range 2000 { // one that is active is not forgotten for others
		now += 10e6
		sent += count(a, 1)
		count(netip.AddrFrom4([4]byte{12, 0, byte(i >> 8), byte(i)}), 1)
	}
	if want := hostBurst + 200; sent > want {
		t.Errorf("%d sent to one host in 20 s, want at most %d", sent, want)
	}
	if n := testing.AllocsPerRun(10, func() { l.allow(a, now) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestRateLimitInForward(t *testing.T) {
	w := newWorld(t)
	sent := 0
	for range 100 {
		for _, g := range w.send(0, udp4(0, "10.0.0.9", "10.0.1.2", 20, ttl(1))) {
			if g.where == "tx" {
				sent++
			}
		}
	}
	if sent != hostBurst {
		t.Errorf("%d of 100 answered, want %d", sent, hostBurst)
	}
}
