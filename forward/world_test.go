package forward

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"go.uber.org/goleak"

	"taprouter/classify"
	"taprouter/fib"
	"taprouter/packet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The world of the tests:
//
//	port 0  routed, 10.0.0.1/24, fd00::1/64      port 1  routed, 10.0.1.1/24, fd01::1/64, MTU mtu1
//	port 2, 3, 4  bridge br0, 10.0.2.1/24, fd02::1/64 (interface 8)
//	port 5  TUN, 10.0.3.1/24, fd03::1/64         port 6, 7  bridge br1
//
// Behind interface 1 the hosts .2 and the gateway .254 are known and .3 is
// known not to answer; the rest is unknown. Interface n has MAC 02:..:n.
type world struct {
	t     testing.TB
	s     *Snapshot
	f     *Forwarder
	out   Output
	cls   *classify.Classifier
	pool  *packet.Pool
	cache *packet.Cache
	now   int64

	in, injected, ended uint64 // wire packets
}

const (
	ifBridge = 8
	mtu1     = 1400
	second   = 1_000_000_000
)

func ip(s string) netip.Addr    { return netip.MustParseAddr(s) }
func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func mac(n byte) uint64         { return 0x020000000000 | uint64(n) }
func hw(m uint64) net.HardwareAddr {
	return net.HardwareAddr{byte(m >> 40), byte(m >> 32), byte(m >> 24), byte(m >> 16), byte(m >> 8), byte(m)}
}

const hostMAC = 0x02aa00000000 // MACs of hosts

func snapshot(t testing.TB, more ...fib.Neigh) *Snapshot {
	s := &Snapshot{}
	for i := range 8 {
		p := Port{Name: fmt.Sprintf("p%d", i), Up: true, MTU: 1500, Bridge: -1, Routed: i < 2 || i == 5, Tun: i == 5}
		if i == 1 {
			p.MTU = mtu1
		}
		if i >= 2 && i <= 4 {
			p.Bridge = 0
		}
		if i >= 6 {
			p.Bridge = 1
		}
		s.Ports = append(s.Ports, p)
		s.Ifaces = append(s.Ifaces, Iface{Port: uint16(i), Bridge: -1, MAC: mac(byte(i)), MTU: p.MTU, Tun: p.Tun})
	}
	s.Ifaces = append(s.Ifaces, Iface{Port: packet.NoPort, Bridge: 0, MAC: mac(ifBridge), MTU: 1500})
	s.Bridges = []Bridge{
		{Name: "br0", Ports: []uint16{2, 3, 4}, FDB: fib.NewFDB(64, 1), Iface: ifBridge},
		{Name: "br1", Ports: []uint16{6, 7}, FDB: fib.NewFDB(64, 1), Iface: NoIface},
	}
	var routes []fib.Route
	for net, iface := range []int{0, 1, ifBridge, 5} {
		for _, a := range []string{fmt.Sprintf("10.0.%d.1/24", net), fmt.Sprintf("fd0%d::1/64", net)} {
			p := pfx(a)
			s.Ifaces[iface].Addrs = append(s.Ifaces[iface].Addrs, p)
			routes = append(routes, fib.Route{Prefix: netip.PrefixFrom(p.Addr(), p.Addr().BitLen()), Iface: uint16(iface), Kind: fib.Local},
				fib.Route{Prefix: p, Iface: uint16(iface), Kind: fib.Connected})
		}
		s.Ifaces[iface].Addrs = append(s.Ifaces[iface].Addrs, pfx(fmt.Sprintf("fe80::%d/64", net+1)))
		routes = append(routes, fib.Route{Prefix: pfx(fmt.Sprintf("10.0.%d.255/32", net)), Iface: uint16(iface), Kind: fib.Broadcast})
	}
	routes = append(routes,
		fib.Route{Prefix: pfx("192.0.2.0/24"), Via: ip("10.0.1.254"), Iface: 1},
		fib.Route{Prefix: pfx("2001:db8::/32"), Via: ip("fe80::254"), Iface: 1},
		fib.Route{Prefix: pfx("198.51.100.0/24"), Kind: fib.Blackhole},
		fib.Route{Prefix: pfx("203.0.113.0/24"), Kind: fib.Unreachable},
		fib.Route{Prefix: pfx("2001:db8:dead::/48"), Kind: fib.Unreachable})
	var err error
	if s.Routes, err = fib.Build(routes); err != nil {
		t.Fatal(err)
	}
	ns := []fib.Neigh{
		{Iface: 1, Addr: ip("10.0.1.2"), MAC: [6]byte{2, 0xaa, 5: 0x12}},
		{Iface: 1, Addr: ip("fd01::2"), MAC: [6]byte{2, 0xaa, 5: 0x12}},
		{Iface: 1, Addr: ip("10.0.1.254"), MAC: [6]byte{2, 0xaa, 5: 0xfe}},
		{Iface: 1, Addr: ip("fe80::254"), MAC: [6]byte{2, 0xaa, 5: 0xfe}},
		{Iface: 1, Addr: ip("10.0.1.3"), Failed: true},
		{Iface: 1, Addr: ip("fd01::3"), Failed: true},
		{Iface: ifBridge, Addr: ip("10.0.2.2"), MAC: [6]byte{2, 0xaa, 5: 0x22}},
	}
	s.Neigh = fib.BuildNeighbours(append(ns, more...))
	return s
}

func newWorld(t testing.TB) *world {
	pool, err := packet.NewPool(packet.Memory{Heads: 2048, Tails: 64})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, s: snapshot(t), pool: pool, cache: pool.NewCache(), cls: classify.New(classify.NewSeed(), classify.Options{}), now: second}
	w.f = New(w.cache)
	t.Cleanup(func() {
		w.f.Purge(&w.out, packet.DropShutdown)
		w.take()
		if heads, tails := pool.InUse(); heads != 0 || tails != 0 {
			t.Errorf("%d packets and %d tails leaked", heads, tails)
		}
		pool.Close()
	})
	return w
}

// got is a packet that came out, copied.
type got struct {
	where string // tx, drop or punt
	out   uint16
	why   packet.Reason
	frame []byte
	p     packet.Packet // without its buffers
}

func (g got) String() string {
	if g.where == "drop" {
		return "drop " + g.why.String()
	}
	return fmt.Sprintf("%s %d", g.where, g.out)
}

// load makes a packet that was read from port in.
func (w *world) load(in uint16, frame []byte, v packet.Vnet) *packet.Packet {
	p := w.cache.Get()
	n := min(len(frame), packet.HeadLen-packet.Headroom)
	p.Set(frame[:n])
	if n < len(frame) {
		t := w.cache.GetTail()
		copy(t.B, frame[n:])
		p.SetTail(t, 0, len(frame)-n)
	}
	p.Vnet, p.In = v, in
	if in == 5 {
		p.Flags = packet.Raw
	}
	return p
}

// send forwards frames read from port in as one batch.
func (w *world) send(in uint16, frames ...[]byte) []got {
	w.t.Helper()
	var pkts []*packet.Packet
	for _, b := range frames {
		pkts = append(pkts, w.load(in, b, packet.Vnet{}))
	}
	return w.forward(pkts)
}

// sendGSO forwards one frame with its virtio-net header.
func (w *world) sendGSO(in uint16, frame []byte, v packet.Vnet) []got {
	w.t.Helper()
	return w.forward([]*packet.Packet{w.load(in, frame, v)})
}

func (w *world) forward(pkts []*packet.Packet) []got {
	w.t.Helper()
	w.cls.Batch(pkts)
	for _, p := range pkts {
		w.in += uint64(p.Segs)
	}
	w.f.Forward(w.s, pkts, w.now, &w.out)
	return w.take()
}

// take empties w.out and checks that everything adds up.
func (w *world) take() []got {
	w.t.Helper()
	var all []got
	for _, l := range []struct {
		where string
		list  *packet.List
	}{{"tx", &w.out.Tx}, {"punt", &w.out.Punts}, {"drop", &w.out.Drops}} {
		for p := l.list.Pop(); p != nil; p = l.list.Pop() {
			g := got{where: l.where, out: p.Out, why: p.Drop, frame: make([]byte, p.Len()), p: *p}
			p.CopyOut(g.frame, 0)
			w.ended += uint64(p.Segs)
			if (l.where == "drop") != (p.Drop != 0) {
				w.t.Errorf("%s with drop reason %v", l.where, p.Drop)
			}
			if want := p.Len() + int(p.Segs-1)*int(p.Vnet.HdrLen); l.where == "tx" && int(p.WireLen) != want {
				w.t.Errorf("%v: WireLen %d, want %d", g, p.WireLen, want)
			}
			w.cache.Put(p)
			all = append(all, g)
		}
	}
	if sum := w.ended + uint64(w.f.Parked()); w.in+w.injected+w.f.Created != sum {
		w.t.Errorf("received %d + injected %d + created %d != ended %d + parked %d", w.in, w.injected, w.f.Created, w.ended, w.f.Parked())
	}
	return all
}

// is checks what came out: "tx 1", "drop ttl", "punt 0", ...
func (w *world) is(what string, gs []got, want ...string) {
	w.t.Helper()
	var have []string
	for _, g := range gs {
		have = append(have, g.String())
	}
	if fmt.Sprint(have) != fmt.Sprint(want) {
		w.t.Errorf("%s: %v, want %v", what, have, want)
	}
}

// build serialises layers with lengths and checksums.
func build(ls ...gopacket.SerializableLayer) []byte {
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
		panic(err)
	}
	return append([]byte(nil), buf.Bytes()...)
}

func ether(dst, src uint64, t layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{DstMAC: hw(dst), SrcMAC: hw(src), EthernetType: t}
}

// v4 and v6 give a header whose DF flag and TTL the caller may change.
func v4(src, dst string, proto layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, TTL: 64, Id: 77, Protocol: proto, SrcIP: ip(src).AsSlice(), DstIP: ip(dst).AsSlice()}
}

func v6(src, dst string, proto layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: ip(src).AsSlice(), DstIP: ip(dst).AsSlice()}
}

func udp(l gopacket.NetworkLayer) *layers.UDP {
	u := &layers.UDP{SrcPort: 4000, DstPort: 33434}
	_ = u.SetNetworkLayerForChecksum(l)
	return u
}

func payload(n int) gopacket.Payload {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

// udp4 is an Ethernet/IPv4/UDP frame from the host behind port in to dst.
func udp4(in byte, src, dst string, n int, change func(*layers.IPv4)) []byte {
	h := v4(src, dst, layers.IPProtocolUDP)
	if change != nil {
		change(h)
	}
	if in == 5 {
		return build(h, udp(h), payload(n))
	}
	return build(ether(gw(in), hostMAC|uint64(in), layers.EthernetTypeIPv4), h, udp(h), payload(n))
}

func udp6(in byte, src, dst string, n int, change func(*layers.IPv6)) []byte {
	h := v6(src, dst, layers.IPProtocolUDP)
	if change != nil {
		change(h)
	}
	if in == 5 {
		return build(h, udp(h), payload(n))
	}
	return build(ether(gw(in), hostMAC|uint64(in), layers.EthernetTypeIPv6), h, udp(h), payload(n))
}

// gw is the router's MAC as seen from a port.
func gw(in byte) uint64 {
	if in >= 2 && in <= 4 {
		return mac(ifBridge)
	}
	return mac(in)
}

func ttl(n uint8) func(*layers.IPv4)  { return func(h *layers.IPv4) { h.TTL = n } }
func hops(n uint8) func(*layers.IPv6) { return func(h *layers.IPv6) { h.HopLimit = n } }
func df(h *layers.IPv4)               { h.Flags = layers.IPv4DontFragment }
