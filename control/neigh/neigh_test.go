package neigh

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"go.uber.org/goleak"

	"taprouter/fib"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	ourMAC  = [6]byte{2, 0, 0, 0, 0, 0xfe}
	hostMAC = [6]byte{2, 0, 0, 0, 0, 1}
	ours4   = netip.MustParseAddr("10.0.0.254")
	ours6   = netip.MustParseAddr("fd00::fe")
	ll6     = netip.MustParseAddr("fe80::fe")
	host4   = netip.MustParseAddr("10.0.0.1")
	host6   = netip.MustParseAddr("fd00::1")
)

// A wire is what a Table sends and publishes, with a clock set by hand.
type wire struct {
	t    *testing.T
	tab  *Table
	now  int64
	sent [][]byte
	last *fib.Neighbours
}

func newWire(t *testing.T) *wire {
	w := &wire{t: t, now: int64(time.Hour)}
	w.tab = New(Config{
		Ifaces: []Iface{
			{Name: "p0", MAC: ourMAC, MTU: 1500, Addrs: []netip.Prefix{netip.PrefixFrom(ours4, 24), netip.PrefixFrom(ours6, 64), netip.PrefixFrom(ll6, 64)}},
			{Name: "tun0", Tun: true, MTU: 1500, Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.254/24")}},
		},
		Inject:  func(_ uint16, f []byte) bool { w.sent = append(w.sent, f); return true },
		Publish: func(n *fib.Neighbours) { w.last = n },
		Now:     func() int64 { return w.now },
	})
	return w
}

// after lets time pass and gives what was sent then.
func (w *wire) after(d time.Duration) [][]byte {
	w.now += int64(d)
	w.sent = nil
	w.tab.tick()
	return w.sent
}

// hear gives the Table a frame and what it answers.
func (w *wire) hear(frame []byte) [][]byte {
	w.sent = nil
	w.tab.HandleFrame(0, frame)
	return w.sent
}

func (w *wire) state(addr netip.Addr) string {
	for _, e := range w.tab.Entries() {
		if e.Addr == addr {
			return e.State
		}
	}
	return ""
}

// known is what the data path sees of an address, a moment later.
func (w *wire) known(addr netip.Addr) *fib.Neigh {
	w.now += int64(time.Millisecond)
	w.tab.tick()
	return w.last.Lookup(0, addr)
}

func frameOf(t testing.TB, ls ...gopacket.SerializableLayer) []byte {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func arpOf(t testing.TB, op uint16, mac [6]byte, sender, target netip.Addr) []byte {
	return frameOf(t, &layers.Ethernet{SrcMAC: mac[:], DstMAC: net.HardwareAddr{255, 255, 255, 255, 255, 255}, EthernetType: layers.EthernetTypeARP},
		&layers.ARP{AddrType: 1, Protocol: 0x0800, HwAddressSize: 6, ProtAddressSize: 4, Operation: op, SourceHwAddress: mac[:], SourceProtAddress: sender.AsSlice(), DstHwAddress: make([]byte, 6), DstProtAddress: target.AsSlice()})
}

// ndOf makes a neighbour solicitation or advertisement with one option.
func ndOf(t testing.TB, typ, hops uint8, mac [6]byte, src, dst, target netip.Addr, flags, opt uint8) []byte {
	ip := &layers.IPv6{Version: 6, HopLimit: hops, NextHeader: layers.IPProtocolICMPv6, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(typ, 0)}
	_ = icmp.SetNetworkLayerForChecksum(ip)
	body := append([]byte{flags, 0, 0, 0}, target.AsSlice()...)
	if opt != 0 {
		body = append(append(body, opt, 1), mac[:]...)
	}
	return frameOf(t, &layers.Ethernet{SrcMAC: mac[:], DstMAC: ourMAC[:], EthernetType: layers.EthernetTypeIPv6}, ip, icmp, gopacket.Payload(body))
}

func TestResolveARP(t *testing.T) {
	w := newWire(t)
	w.tab.Resolve(0, host4)
	w.tab.Resolve(0, host4) // while it is under way it asks nothing again
	if len(w.sent) != 1 {
		t.Fatalf("%d requests, want 1", len(w.sent))
	}
	arp, ok := gopacket.NewPacket(w.sent[0], layers.LayerTypeEthernet, gopacket.Default).Layer(layers.LayerTypeARP).(*layers.ARP)
	if !ok || arp.Operation != 1 || !bytes.Equal(arp.SourceProtAddress, ours4.AsSlice()) || !bytes.Equal(arp.DstProtAddress, host4.AsSlice()) || !bytes.Equal(arp.SourceHwAddress, ourMAC[:]) {
		t.Fatalf("the request is %+v", arp)
	}
	w.hear(arpOf(t, 2, hostMAC, host4, ours4))
	if n := w.known(host4); n == nil || n.MAC != hostMAC || n.Failed || w.state(host4) != "REACHABLE" {
		t.Errorf("after the answer: %+v, %s", n, w.state(host4))
	}
}

// Three requests a second apart, then the failure is published, and after a
// while forgotten.
func TestResolveFails(t *testing.T) {
	w := newWire(t)
	w.tab.Resolve(0, host4)
	for i := range 2 {
		if got := w.after(time.Second); len(got) != 1 {
			t.Fatalf("second %d: %d requests", i+1, len(got))
		}
	}
	if got := w.after(time.Second); len(got) != 0 || w.state(host4) != "FAILED" || !w.known(host4).Failed {
		t.Fatalf("after three requests: %d more, state %s", len(got), w.state(host4))
	}
	w.tab.Resolve(0, host4) // somebody tries again: it begins anew
	if w.state(host4) != "INCOMPLETE" || len(w.sent) != 1 {
		t.Errorf("a new try: state %s, %d requests", w.state(host4), len(w.sent))
	}
	for range 3 {
		w.after(time.Second)
	}
	if w.after(4 * time.Second); w.state(host4) != "" || w.known(host4) != nil {
		t.Errorf("a failure is remembered as %s", w.state(host4))
	}
}

// A neighbour in use is asked again by unicast when its time is over, and
// used meanwhile; one that is not in use is left alone and forgotten.
func TestUnreachabilityDetection(t *testing.T) {
	w := newWire(t)
	w.tab.Resolve(0, host4)
	w.hear(arpOf(t, 2, hostMAC, host4, ours4))
	w.known(host4).Used.Store(w.now + int64(28*time.Second))
	got := w.after(31 * time.Second)
	if len(got) != 1 || !bytes.Equal(got[0][:6], hostMAC[:]) || w.state(host4) != "PROBE" || w.known(host4).Failed {
		t.Fatalf("in use: %d requests, state %s", len(got), w.state(host4))
	}
	w.hear(arpOf(t, 2, hostMAC, host4, ours4))
	if w.state(host4) != "REACHABLE" {
		t.Errorf("after the answer to a probe: %s", w.state(host4))
	}
	if got := w.after(61 * time.Second); len(got) != 0 || w.state(host4) != "STALE" {
		t.Errorf("not in use: %d requests, state %s", len(got), w.state(host4))
	}
	for range 25 {
		w.after(31 * time.Second)
	}
	if w.state(host4) != "" {
		t.Errorf("unused for long: still %s", w.state(host4))
	}
}

func TestAnswersARP(t *testing.T) {
	w := newWire(t)
	got := w.hear(arpOf(t, 1, hostMAC, host4, ours4))
	if len(got) != 1 {
		t.Fatalf("%d answers", len(got))
	}
	arp := gopacket.NewPacket(got[0], layers.LayerTypeEthernet, gopacket.Default).Layer(layers.LayerTypeARP).(*layers.ARP)
	if arp.Operation != 2 || !bytes.Equal(arp.SourceHwAddress, ourMAC[:]) || !bytes.Equal(arp.SourceProtAddress, ours4.AsSlice()) || !bytes.Equal(arp.DstHwAddress, hostMAC[:]) {
		t.Errorf("the answer is %+v", arp)
	}
	if n := w.known(host4); n == nil || n.MAC != hostMAC || w.state(host4) != "STALE" {
		t.Errorf("the asker is known as %+v, %s", n, w.state(host4))
	}
	for name, f := range map[string][]byte{
		"for another":            arpOf(t, 1, hostMAC, host4, netip.MustParseAddr("10.0.0.9")),
		"from a group address":   arpOf(t, 1, [6]byte{1, 2, 3, 4, 5, 6}, netip.MustParseAddr("10.0.0.8"), ours4),
		"claims our own address": arpOf(t, 1, hostMAC, ours4, ours4),
		"unasked answer":         arpOf(t, 2, hostMAC, netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.0.0.7")),
	} {
		n := len(w.tab.Entries())
		if got := w.hear(f); len(got) != 0 || len(w.tab.Entries()) != n {
			t.Errorf("%s: %d answers, %d entries more", name, len(got), len(w.tab.Entries())-n)
		}
	}
	// A neighbour that moves is followed.
	moved := [6]byte{2, 0, 0, 0, 0, 2}
	w.hear(arpOf(t, 2, moved, host4, host4))
	if w.known(host4).MAC != moved {
		t.Error("gratuitous ARP did not update a known neighbour")
	}
}

func TestNeighbourDiscovery(t *testing.T) {
	w := newWire(t)
	w.tab.Resolve(0, host6)
	p := gopacket.NewPacket(w.sent[0], layers.LayerTypeEthernet, gopacket.Default)
	ns, ok := p.Layer(layers.LayerTypeICMPv6NeighborSolicitation).(*layers.ICMPv6NeighborSolicitation)
	ip := p.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
	if !ok || !ns.TargetAddress.Equal(host6.AsSlice()) || ip.HopLimit != 255 || ip.DstIP.String() != "ff02::1:ff00:1" || sum6(w.sent[0][14:]) != 0xffff {
		t.Fatalf("the solicitation is %v to %v, hop limit %d", ns, ip.DstIP, ip.HopLimit)
	}
	for name, f := range map[string][]byte{
		"hop limit 254": ndOf(t, 136, 254, hostMAC, host6, ours6, host6, 0x60, 2),
		"no option":     ndOf(t, 136, 255, hostMAC, host6, ours6, host6, 0x60, 0),
		"for nobody":    ndOf(t, 136, 255, hostMAC, host6, ours6, netip.MustParseAddr("fd00::9"), 0x60, 2),
	} {
		if w.hear(f); w.state(host6) != "INCOMPLETE" {
			t.Errorf("%s: state %s", name, w.state(host6))
		}
	}
	broken := ndOf(t, 136, 255, hostMAC, host6, ours6, host6, 0x60, 2)
	broken[len(broken)-1] ^= 1
	if w.hear(broken); w.state(host6) != "INCOMPLETE" {
		t.Error("a wrong checksum was accepted")
	}
	zero := ndOf(t, 136, 255, hostMAC, host6, ours6, host6, 0x60, 2)
	zero[14+40+25] = 0
	fixSum(zero)
	if w.hear(zero); w.state(host6) != "INCOMPLETE" {
		t.Error("an option of length 0 was accepted")
	}
	w.hear(ndOf(t, 136, 255, hostMAC, host6, ours6, host6, 0x60, 2))
	if n := w.known(host6); n == nil || n.MAC != hostMAC || w.state(host6) != "REACHABLE" {
		t.Errorf("after the advertisement: %+v, %s", n, w.state(host6))
	}
	other := [6]byte{2, 0, 0, 0, 0, 9}
	if w.hear(ndOf(t, 136, 255, other, host6, ours6, host6, 0x40, 2)); w.known(host6).MAC != hostMAC {
		t.Error("an advertisement without override replaced the address")
	}
	if w.hear(ndOf(t, 136, 255, other, host6, ours6, host6, 0x20, 2)); w.known(host6).MAC != other || w.state(host6) != "STALE" {
		t.Errorf("an override did not: %s", w.state(host6))
	}
}

func fixSum(f []byte) {
	put16(f[14+42:], 0)
	put16(f[14+42:], ^sum6(f[14:]))
}

func TestAnswersSolicitations(t *testing.T) {
	w := newWire(t)
	group := netip.MustParseAddr("ff02::1:ff00:fe")
	for _, target := range []netip.Addr{ours6, ll6} {
		got := w.hear(ndOf(t, 135, 255, hostMAC, host6, group, target, 0, 1))
		if len(got) != 1 || sum6(got[0][14:]) != 0xffff {
			t.Fatalf("%v: %d answers", target, len(got))
		}
		p := gopacket.NewPacket(got[0], layers.LayerTypeEthernet, gopacket.Default)
		na := p.Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
		if !na.TargetAddress.Equal(target.AsSlice()) || na.Flags != 0xe0 || !bytes.Equal(got[0][:6], hostMAC[:]) {
			t.Errorf("%v: the answer is %+v", target, na)
		}
	}
	// Duplicate address detection is answered to all nodes.
	got := w.hear(ndOf(t, 135, 255, hostMAC, netip.IPv6Unspecified(), group, ours6, 0, 0))
	if len(got) != 1 || got[0][0] != 0x33 || got[0][54+4] != 0xa0 {
		t.Errorf("DAD: %d answers", len(got))
	}
	if got := w.hear(ndOf(t, 135, 255, hostMAC, host6, group, netip.MustParseAddr("fd00::77"), 0, 1)); len(got) != 0 {
		t.Error("a solicitation for another was answered")
	}
}

func ping4(t testing.TB, n int) []byte {
	return frameOf(t, &layers.Ethernet{SrcMAC: hostMAC[:], DstMAC: ourMAC[:], EthernetType: layers.EthernetTypeIPv4},
		&layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolICMPv4, SrcIP: host4.AsSlice(), DstIP: ours4.AsSlice(), Id: 9},
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 5, Seq: 6}, gopacket.Payload(bytes.Repeat([]byte{7}, n)))
}

func ping6(t testing.TB, dst netip.Addr, n int) []byte {
	ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolICMPv6, SrcIP: host6.AsSlice(), DstIP: dst.AsSlice()}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}
	_ = icmp.SetNetworkLayerForChecksum(ip)
	return frameOf(t, &layers.Ethernet{SrcMAC: hostMAC[:], DstMAC: ourMAC[:], EthernetType: layers.EthernetTypeIPv6}, ip, icmp,
		gopacket.Payload(append([]byte{0, 5, 0, 6}, bytes.Repeat([]byte{7}, n)...)))
}

func TestEcho(t *testing.T) {
	w := newWire(t)
	got := w.hear(ping4(t, 56))
	if len(got) != 1 {
		t.Fatalf("%d answers to a ping", len(got))
	}
	p := gopacket.NewPacket(got[0], layers.LayerTypeEthernet, gopacket.Default)
	icmp := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
	ip := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	if icmp.TypeCode.Type() != 0 || icmp.Id != 5 || icmp.Seq != 6 || len(icmp.Payload) != 56 || !ip.SrcIP.Equal(ours4.AsSlice()) || !ip.DstIP.Equal(host4.AsSlice()) {
		t.Errorf("the answer is %+v from %v", icmp, ip.SrcIP)
	}
	got = w.hear(ping6(t, ours6, 56))
	if len(got) != 1 || got[0][54] != 129 || sum6(got[0][14:]) != 0xffff {
		t.Fatalf("%d answers to an IPv6 ping", len(got))
	}
	got = w.hear(ping6(t, netip.IPv6LinkLocalAllNodes(), 8))
	if len(got) != 1 || !bytes.Equal(got[0][22:38], ours6.AsSlice()) {
		t.Errorf("%d answers to a ping of all nodes", len(got))
	}
	if got := w.hear(ping6(t, netip.MustParseAddr("fd00::77"), 8)); len(got) != 0 {
		t.Error("a ping for another was answered")
	}
	bad := ping4(t, 56)
	bad[40] ^= 1
	if got := w.hear(bad); len(got) != 0 {
		t.Error("a ping with a wrong checksum was answered")
	}
	w.sent = nil
	if w.tab.HandleFrame(1, []byte{0x45}); len(w.sent) != 0 {
		t.Error("one byte from a TUN was answered")
	}
}

// fragments cuts an IPv4 frame, in the order that order gives.
func fragments(f []byte, size int, order func(n int) []int) (out [][]byte) {
	body := f[34:]
	n := (len(body) + size - 1) / size
	for _, i := range order(n) {
		part := body[i*size : min((i+1)*size, len(body))]
		g := append(append([]byte{}, f[:34]...), part...)
		word := uint16(i * size / 8)
		if i < n-1 {
			word |= moreFragment
		}
		binary.BigEndian.PutUint16(g[14+6:], word)
		binary.BigEndian.PutUint16(g[14+2:], uint16(20+len(part)))
		out = append(out, g)
	}
	return out
}

func backwards(n int) (order []int) {
	for i := range n {
		order = append(order, n-1-i)
	}
	return order
}

// A ping that comes in fragments, in any order, is answered in fragments.
func TestFragmentedEcho(t *testing.T) {
	w := newWire(t)
	var got [][]byte
	for _, f := range fragments(ping4(t, 8000), 1480, backwards) {
		got = append(got, w.hear(f)...)
	}
	if len(got) != 6 {
		t.Fatalf("%d fragments of an answer of 8008 bytes, want 6", len(got))
	}
	total := 0
	for _, f := range got {
		if len(f) > 1514 {
			t.Errorf("a fragment of %d bytes", len(f))
		}
		total += len(f) - 34
	}
	if total != 8008 {
		t.Errorf("%d bytes in all", total)
	}
	// Overlap spoils it; what stays open times out and does not pile up.
	parts := fragments(ping4(t, 8000), 1480, backwards)
	for _, f := range append(parts[:3:3], parts[2]) {
		if got := w.hear(f); len(got) != 0 {
			t.Error("an overlapping fragment completed a datagram")
		}
	}
	for id := range 100 {
		f := append([]byte{}, parts[0]...)
		binary.BigEndian.PutUint16(f[14+4:], uint16(1000+id))
		w.hear(f)
	}
	if n := len(w.tab.asm.open); n > asmMax {
		t.Errorf("%d datagrams are open", n)
	}
	w.now += 2 * asmTimeout
	w.hear(parts[1])
	if n := len(w.tab.asm.open); n != 1 { // its own
		t.Errorf("%d datagrams are open after the timeout", n)
	}
}

// Run keeps real time, and ends.
func TestRun(t *testing.T) {
	asked := make(chan struct{}, 10)
	begin := time.Now()
	tab := New(Config{
		Ifaces: []Iface{{MAC: ourMAC, MTU: 1500, Addrs: []netip.Prefix{netip.PrefixFrom(ours4, 24)}}},
		Inject: func(uint16, []byte) bool { asked <- struct{}{}; return true }, Publish: func(*fib.Neighbours) {},
		Now:    func() int64 { return int64(time.Since(begin)) },
		Timing: Timing{Retrans: 5 * time.Millisecond, Tries: 3, Reachable: time.Second, Failed: time.Second, Unused: time.Minute},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { tab.Run(ctx); close(done) }()
	tab.Resolve(0, host4)
	for i := range 3 {
		select {
		case <-asked:
		case <-time.After(5 * time.Second):
			t.Fatalf("request %d did not come", i+1)
		}
	}
	cancel()
	<-done
}

func FuzzHandleFrame(f *testing.F) {
	f.Add(arpOf(f, 1, hostMAC, host4, ours4), uint16(0))
	f.Add(ndOf(f, 135, 255, hostMAC, host6, ours6, ours6, 0, 1), uint16(0))
	f.Add(ping4(f, 20), uint16(0))
	f.Add(ping6(f, ours6, 20), uint16(0))
	f.Add(ping4(f, 20)[14:], uint16(1))
	f.Fuzz(func(t *testing.T, frame []byte, iface uint16) {
		w := newWire(t)
		w.tab.HandleFrame(iface, frame)
		if len(w.sent) > 64 {
			t.Errorf("%d frames in answer to one", len(w.sent))
		}
	})
}
