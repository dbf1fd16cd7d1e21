package tun_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"taprouter/tun"
)

func TestParseSteering(t *testing.T) {
	for _, s := range []tun.Steering{tun.SteerKernel, tun.SteerRandom, tun.SteerHash, tun.SteerQueue} {
		if got, err := tun.ParseSteering(s.String()); got != s || err != nil {
			t.Errorf("ParseSteering(%q) = %v, %v", s, got, err)
		}
	}
	if _, err := tun.ParseSteering("rss"); err == nil {
		t.Error("rss was accepted")
	}
}

// host is the kernel's end of a device in a namespace of its own: what is
// sent there goes down to the device as a host's packets do.
type host struct {
	t       testing.TB
	dev     *tun.Device
	fd      int // packet socket
	ifindex int
}

// newHost opens a device in a new namespace for the length of the test.
func newHost(t *testing.T, mode tun.Mode, queues int) *host {
	t.Helper()
	return newHostBy(t, func(h *host) error { return h.open(mode, queues, false) })
}

// newHostBy has open open the device, in the new namespace.
func newHostBy(t testing.TB, open func(h *host) error) *host {
	t.Helper()
	h := &host{t: t, fd: -1}
	done := make(chan error)
	go func() { // on a thread of the new namespace, which ends with the goroutine
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = open(h)
		}
		done <- err
	}()
	err := <-done
	if err != nil && os.Getenv("ROUTER_REQUIRE_NETNS") == "" && (errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist)) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Close(h.fd)
		if err := h.dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *host) open(mode tun.Mode, queues int, persist bool) error {
	return h.openAs(tun.Config{Mode: mode, Queues: queues, Persist: persist})
}

func (h *host) openAs(cfg tun.Config) (err error) {
	cfg.Name = "steer0"
	if h.dev, err = tun.Open(cfg); err != nil {
		return err
	}
	if h.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil { // protocol 0: it receives nothing
		return err
	}
	ifr, err := unix.NewIfreq(cfg.Name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(h.fd, unix.SIOCGIFINDEX, ifr); err != nil {
		return err
	}
	h.ifindex = int(ifr.Uint32())
	return h.setFlags(unix.IFF_UP | unix.IFF_RUNNING)
}

func (h *host) setFlags(flags uint16) error {
	ifr, err := unix.NewIfreq("steer0")
	if err != nil {
		return err
	}
	ifr.SetUint16(flags)
	return unix.IoctlIfreq(h.fd, unix.SIOCSIFFLAGS, ifr)
}

func (h *host) steer(s tun.Steering) {
	h.t.Helper()
	if err := h.dev.SetSteering(s); err != nil {
		h.t.Fatal(err)
	}
	if got := h.dev.Steering(); got != s {
		h.t.Errorf("Steering = %v, want %v", got, s)
	}
}

// send has the kernel send a frame and gives the queue on which it comes.
func (h *host) send(frame []byte) int {
	h.t.Helper()
	to := unix.SockaddrLinklayer{Protocol: protocolOf(h.dev.Mode, frame), Ifindex: h.ifindex}
	if err := unix.Sendto(h.fd, frame, 0, &to); err != nil {
		h.t.Fatalf("send: %v", err)
	}
	return h.receive(frame)
}

// receive waits for a frame and gives the queue on which it comes.
func (h *host) receive(frame []byte) int {
	h.t.Helper()
	buf := make([]byte, 2048)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for i, q := range h.dev.Queues() {
			for {
				n, err := unix.Read(q.FD(), buf)
				if err != nil {
					break
				}
				if bytes.Equal(buf[:n], frame) { // the kernel sends frames of its own, too
					return i
				}
			}
		}
	}
	h.t.Fatal("the frame did not come")
	return -1
}

// protocolOf is the frame's EtherType, in network byte order.
func protocolOf(mode tun.Mode, frame []byte) uint16 {
	if mode == tun.TAP {
		return uint16(frame[13])<<8 | uint16(frame[12])
	}
	if frame[0]>>4 == 6 {
		return 0xdd86
	}
	return 0x0008
}

// write has us write a frame on a queue.
func (h *host) write(queue int, frame []byte) {
	h.t.Helper()
	if _, err := unix.Write(h.dev.Queues()[queue].FD(), frame); err != nil {
		h.t.Fatalf("write on queue %d: %v", queue, err)
	}
}

// A flow is what one packet's headers say.
type flow struct {
	tun          bool
	tags         []layers.EthernetType // of VLAN headers
	udp          bool
	options      bool // IPv4 options
	src, dst     string
	sport, dport uint16
}

func (f flow) String() string {
	return fmt.Sprintf("tun %v, tags %v, udp %v, options %v, %s:%d to %s:%d", f.tun, f.tags, f.udp, f.options, f.src, f.sport, f.dst, f.dport)
}

func (f flow) reverse() flow {
	f.src, f.dst, f.sport, f.dport = f.dst, f.src, f.dport, f.sport
	return f
}

// frame makes a packet of f; n tells packets of one flow apart.
func (f flow) frame(t *testing.T, n byte) []byte {
	t.Helper()
	var ls []gopacket.SerializableLayer
	src, dst := netip.MustParseAddr(f.src), netip.MustParseAddr(f.dst)
	ethertype := layers.EthernetTypeIPv4
	if src.Is6() {
		ethertype = layers.EthernetTypeIPv6
	}
	if !f.tun {
		ls = append(ls, &layers.Ethernet{SrcMAC: macOf(src), DstMAC: macOf(dst), EthernetType: append(f.tags, ethertype)[0]})
		for i := range f.tags {
			ls = append(ls, &layers.Dot1Q{VLANIdentifier: uint16(5 + i), Type: append(f.tags, ethertype)[i+1]})
		}
	}
	proto := layers.IPProtocolTCP
	if f.udp {
		proto = layers.IPProtocolUDP
	}
	var network gopacket.NetworkLayer
	if src.Is4() {
		ip := &layers.IPv4{Version: 4, TTL: 64, Id: uint16(n), Protocol: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		if f.options {
			ip.Options = []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}} // router alert
		}
		network, ls = ip, append(ls, ip)
	} else {
		ip := &layers.IPv6{Version: 6, HopLimit: 64, FlowLabel: uint32(n), NextHeader: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		network, ls = ip, append(ls, ip)
	}
	if f.udp {
		u := &layers.UDP{SrcPort: layers.UDPPort(f.sport), DstPort: layers.UDPPort(f.dport)}
		_ = u.SetNetworkLayerForChecksum(network)
		ls = append(ls, u)
	} else {
		u := &layers.TCP{SrcPort: layers.TCPPort(f.sport), DstPort: layers.TCPPort(f.dport), ACK: true, Seq: uint32(n), Window: 1000}
		_ = u.SetNetworkLayerForChecksum(network)
		ls = append(ls, u)
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append(ls, gopacket.Payload{n, 1, 2, 3})...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// macOf makes a station's MAC address from its IP address.
func macOf(a netip.Addr) net.HardwareAddr {
	b := a.AsSlice()
	return append(net.HardwareAddr{2, 0}, b[len(b)-4:]...)
}

var (
	dot1q  = layers.EthernetTypeDot1Q
	qinq   = layers.EthernetTypeQinQ
	shapes = []flow{
		{udp: true, src: "10.0.0.1", dst: "10.0.0.2"}, {src: "10.0.0.1", dst: "10.0.0.2"},
		{udp: true, src: "fd00::1", dst: "fd00::2"}, {src: "fd00::1", dst: "fd00::2"},
		{udp: true, options: true, src: "10.0.0.1", dst: "10.0.0.2"},
		{tags: []layers.EthernetType{dot1q}, udp: true, src: "10.0.0.1", dst: "10.0.0.2"},
		{tags: []layers.EthernetType{dot1q}, src: "fd00::1", dst: "fd00::2"},
		{tags: []layers.EthernetType{qinq, dot1q}, src: "10.0.0.1", dst: "10.0.0.2"},
	}
)

// each runs f for flows of every shape, on a device that can carry it.
func each(t *testing.T, queues int, f func(t *testing.T, h *host, shape flow)) {
	for _, mode := range []tun.Mode{tun.TAP, tun.TUN} {
		t.Run(mode.String(), func(t *testing.T) {
			h := newHost(t, mode, queues)
			for _, shape := range shapes {
				if shape.tun = mode == tun.TUN; shape.tun && shape.tags != nil {
					continue
				}
				f(t, h, shape)
			}
		})
	}
}

// By random every packet of a flow takes its own queue.
func TestSteerRandom(t *testing.T) {
	h := newHost(t, tun.TAP, 4)
	h.steer(tun.SteerRandom)
	f := shapes[0]
	f.sport, f.dport = 1000, 2000
	var came [4]int
	for n := range 200 { // 10^-24 that a queue gets none
		came[h.send(f.frame(t, byte(n)))]++
	}
	for q, n := range came {
		if n == 0 {
			t.Errorf("queue %d got none of one flow's 200 packets: %v", q, came)
		}
	}
}

// By hash a flow and its reverse come on one queue, on whatever queue we
// write it; by the kernel's rule it follows our writes. Flows spread.
func TestSteerHash(t *testing.T) {
	each(t, 4, func(t *testing.T, h *host, f flow) {
		h.steer(tun.SteerHash)
		var came [4]int
		for i := range 64 {
			f.sport, f.dport = uint16(1000+i), 443
			q := h.send(f.frame(t, 0))
			came[q]++
			if r := h.send(f.reverse().frame(t, 1)); r != q {
				t.Errorf("%v comes on queue %d, its reverse on %d", f, q, r)
			}
		}
		for q, n := range came {
			if n < 4 {
				t.Errorf("64 flows like %v came on queues %v: too few on %d", f, came, q)
			}
		}
		want := h.send(f.frame(t, 2))
		for q := range 4 {
			h.write(q, f.reverse().frame(t, byte(q)))
			for _, g := range []flow{f, f.reverse()} {
				if got := h.send(g.frame(t, byte(10+q))); got != want {
					t.Errorf("%v comes on queue %d after a write on %d, before on %d", g, got, q, want)
				}
			}
		}
		if f.tags != nil {
			return // the kernel learns them under another hash than that of a packet socket's frame
		}
		h.steer(tun.SteerKernel)
		for q := range 4 {
			h.write(q, f.reverse().frame(t, byte(q)))
			if got := h.send(f.frame(t, byte(20+q))); got != q {
				t.Errorf("the kernel's rule: %v comes on queue %d after a write on %d", f, got, q)
			}
		}
	})
}

// Fragments of a datagram stay together; what has no ports spreads by address.
func TestSteerHashWithoutPorts(t *testing.T) {
	h := newHost(t, tun.TAP, 4)
	h.steer(tun.SteerHash)
	var came, arps [4]int
	for i := range 64 {
		f := flow{udp: true, src: fmt.Sprintf("10.0.%d.1", i), dst: "10.0.0.2", sport: uint16(i), dport: 80}
		first, rest, back := f.frame(t, 0), f.frame(t, 0), f.reverse().frame(t, 0)
		for b, offset := range map[*[]byte][2]byte{&first: {0x20, 0}, &rest: {0, 185}, &back: {0x20, 0}} {
			copy((*b)[14+6:], offset[:])
		}
		copy(rest[14+20:], "data that are no ports")
		q := h.send(first)
		came[q]++
		if r, b := h.send(rest), h.send(back); r != q || b != q {
			t.Errorf("fragments: the first came on queue %d, another on %d, of the reverse on %d", q, r, b)
		}
		arp, reply := append([]byte(nil), first...), append([]byte(nil), back...)
		arp[12], arp[13], reply[12], reply[13] = 8, 6, 8, 6
		q = h.send(arp)
		arps[q]++
		if r := h.send(reply); r != q {
			t.Errorf("ARP from %s came on queue %d, the reply on %d", f.src, q, r)
		}
	}
	for q := range 4 {
		if came[q] < 4 || arps[q] < 4 {
			t.Errorf("by address, queues got %v fragments and %v of ARP: too few on %d", came, arps, q)
		}
	}
	h.send([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 20}) // cut short: comes on some queue
}

// What a bridge hands on comes on the queue on which it was written to another
// TAP, whatever its flow and wherever we write; a host's own packets go by hash.
func TestSteerQueue(t *testing.T) {
	var guest *tun.Device
	h := newHostBy(t, func(h *host) error {
		if err := h.open(tun.TAP, 4, false); err != nil {
			return err
		}
		var err error
		if guest, err = tun.Open(tun.Config{Name: "guest0", Mode: tun.TAP, Queues: 6}); err != nil {
			return err
		}
		return bridge("br0", h.ifindex, guest.Name)
	})
	defer guest.Close()
	f := shapes[0]
	hashed := func() (queues [32]int) {
		for i := range queues {
			f.sport = uint16(i)
			queues[i] = h.send(f.frame(t, 0))
		}
		return queues
	}
	h.steer(tun.SteerHash)
	want := hashed()
	h.steer(tun.SteerQueue)
	if got := hashed(); got != want {
		t.Errorf("a host's own packets come on queues %v, by hash on %v", got, want)
	}
	for _, f := range shapes {
		for q, from := range guest.Queues() {
			h.write(3-q%4, f.reverse().frame(t, 0))
			frame := f.frame(t, byte(q))
			if _, err := unix.Write(from.FD(), frame); err != nil {
				t.Fatal(err)
			}
			if got := h.receive(frame); got != q%4 {
				t.Errorf("%v that was sent on queue %d comes on %d, want %d", f, q, got, q%4)
			}
		}
	}
}

// bridge puts two devices into a bridge and sets all up.
func bridge(name string, ifindex int, other string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	br := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(br); err != nil {
		return err
	}
	a, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return err
	}
	b, err := netlink.LinkByName(other)
	if err != nil {
		return err
	}
	for _, member := range []netlink.Link{a, b} {
		if err := errors.Join(netlink.LinkSetMaster(member, br), netlink.LinkSetUp(member)); err != nil {
			return err
		}
	}
	for _, family := range []string{"ip", "ip6"} { // its frames are no business of the packet filter
		if err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+family+"tables", []byte("0"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return netlink.LinkSetUp(br)
}

// Queues that go and come back change the number of choices only.
func TestSteerDetach(t *testing.T) {
	h := newHost(t, tun.TAP, 4)
	h.steer(tun.SteerHash)
	f := shapes[0]
	where := func() (queues [64]int, used int) {
		seen := map[int]bool{}
		for i := range queues {
			f.sport = uint16(i)
			queues[i] = h.send(f.frame(t, 0))
			if r := h.send(f.reverse().frame(t, 1)); r != queues[i] {
				t.Errorf("%v comes on queue %d, its reverse on %d", f, queues[i], r)
			}
			seen[queues[i]] = true
		}
		return queues, len(seen)
	}
	before, _ := where()
	last := h.dev.Queues()[3]
	if err := h.dev.Detach(last); err != nil {
		t.Fatal(err)
	}
	if _, used := where(); used != 3 {
		t.Errorf("flows came on %d queues of 3", used)
	}
	h.steer(tun.SteerRandom) // through whichever queue is attached
	h.steer(tun.SteerHash)
	if err := h.dev.Attach(last); err != nil {
		t.Fatal(err)
	}
	if after, used := where(); after != before || used != 4 {
		t.Errorf("flows came on %d queues of 4: %v, before the detach %v", used, after, before)
	}
}

// A device that outlives us is not left with our program.
func TestSteerPersistent(t *testing.T) {
	h := newHostBy(t, func(h *host) error {
		if err := h.open(tun.TAP, 4, true); err != nil {
			return err
		}
		unix.Close(h.fd)
		if err := errors.Join(h.dev.SetSteering(tun.SteerHash), h.dev.Close()); err != nil {
			return err
		}
		return h.open(tun.TAP, 4, false)
	})
	f := shapes[0]
	for q := range 4 {
		h.write(q, f.reverse().frame(t, byte(q)))
		if got := h.send(f.frame(t, byte(10+q))); got != q {
			t.Errorf("%v comes on queue %d after a write on %d", f, got, q)
		}
	}
}

// Setting a steering leaves no descriptor behind, and one without effect is
// accepted.
func TestSteerKeepsNothing(t *testing.T) {
	h := newHost(t, tun.TUN, 1)
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	h.steer(tun.SteerHash)
	before := count()
	for range 10 {
		h.steer(tun.SteerRandom)
		h.steer(tun.SteerHash)
		h.steer(tun.SteerKernel)
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}
