package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"taprouter/control/config"
	"taprouter/control/hostnet"
	"taprouter/internal/traffic"
	"taprouter/internal/vm"
)

// The ends of `router demo --vm` are virtual machines whose TAPs, made by QEMU,
// are in bridges of the kernel in namespace a; each bridge has a port of the
// router. c is a namespace behind a slow line.
//
//	guest a, 2 vCPUs ── qa ═ br-a ═ l2a ─┐        ┌── l2b ═ br-b ═ qb ── guest b
//	                                     ├─ br0 ──┤
//	                                     │        └── line ── namespace c
//
// /init of both is this program. Guest b has one vCPU: with more, the guest's
// own kernel may reorder what it receives while a receiver moves.
type guests struct {
	kernel *vm.Kernel
	kvm    bool
	all    []*vm.Machine   // a and b
	host   *traffic.Remote // in namespace a
	c      *traffic.Remote
	Guests
}

// Guests are what a demo with virtual machines has found beside its legs.
type Guests struct {
	Kernel string    `json:"kernel"` // Debian's package
	KVM    bool      `json:"kvm"`    // or else emulated
	Boot   []float64 `json:"boot_s"`
	Ping   Ping      `json:"ping"` // ICMP, nothing else going on
	Hops   []Hop     `json:"hops"`
}

// Ping is the round trip between the guests.
type Ping struct {
	Sent     int     `json:"sent"`
	Received int     `json:"received"`
	P50      float64 `json:"p50_us"`
	P99      float64 `json:"p99_us"`
}

// guestCPUs are the vCPUs of a and b.
var guestCPUs = [2]int{2, 1}

var guestAddrs = [2][]netip.Prefix{
	{netip.MustParsePrefix("10.71.1.1/24"), netip.MustParsePrefix("fd71:1::1/64")},
	{netip.MustParsePrefix("10.71.1.2/24"), netip.MustParsePrefix("fd71:1::2/64")},
}

// guestLegs gives the legs in the order in which they run. An emulated CPU
// takes some thousand datagrams a second.
func guestLegs() (legs []leg) {
	for _, l := range []leg{
		{flows: 1, proto: "tcp", path: path{family: "ipv4"}}, {flows: 8, proto: "tcp", path: path{family: "ipv4"}},
		{flows: 1, proto: "udp", path: path{family: "ipv4"}}, {flows: 1, proto: "tcp", path: path{family: "ipv6"}},
	} {
		l.layer, l.to, l.pps, l.maxPPS = "vm", "10.71.1.2", 2000, 10000
		if l.family == "ipv6" {
			l.to = "fd71:1::2"
		}
		legs = append(legs, l)
	}
	return legs
}

// tap is QEMU's device for guest i.
func (n names) tap(i int) string { return n.prefix + "q" + "ab"[i:i+1] }

// taps are the devices of the machines, if there are any.
func (g *guests) taps(n names) []string {
	if g == nil {
		return nil
	}
	return []string{n.tap(0), n.tap(1)}
}

// guestConfig is the router's configuration. The kernel's queues are long: an
// emulated CPU is late at times.
func (n names) guestConfig() string {
	var b strings.Builder
	b.WriteString("version: 1\nports:\n")
	for _, p := range [][2]string{{n.l2a, "br-a"}, {n.l2b, "br-b"}} {
		fmt.Fprintf(&b, "  - {name: %s, queues: %d, mtu: %d, steering: hash, netns: %s, create: true, host: {txqueuelen: %d, bridge: %s, create: true}}\n",
			p[0], queues, mtu, n.nsA, guestTxQueueLen, p[1])
	}
	fmt.Fprintf(&b, "  - {name: %s, queues: %d, mtu: %d, netns: %s, create: true, host: {addresses: [%s/24]}, line: {rate: %dmbit, ring: 64, shared: true}}\n",
		n.slow, queues, mtu, n.nsB, slowAddr, hopRate)
	fmt.Fprintf(&b, "bridges:\n  - {name: br0, ports: [%s, %s, %s]}\n", n.l2a, n.l2b, n.slow)
	return b.String()
}

const guestTxQueueLen = 20000

// boot boots the machines and sets up their devices, at both ends.
func (d *demo) boot(ctx context.Context) (err error) {
	g := d.guests
	g.host, g.c = d.a, d.b
	for i, k := range []string{"a", "b"} {
		m, err := vm.Start(vm.Config{
			Name: d.names.prefix + k, Kernel: g.kernel, Init: d.opt.Router, NetNS: d.names.nsA, CPUs: guestCPUs[i], KVM: g.kvm,
			NICs: []vm.NIC{{TAP: d.names.tap(i), MAC: fmt.Sprintf("02:00:00:00:71:%02x", i+1), Queues: guestCPUs[i]}},
		})
		if err != nil {
			return err
		}
		g.all = append(g.all, m)
	}
	defer d.count("booting two guests")()
	ctx, cancel := context.WithTimeoutCause(ctx, bootTimeout, fmt.Errorf("the guests do not boot within %v", bootTimeout))
	defer cancel()
	for i, m := range g.all {
		took, err := m.Ready(ctx)
		if err != nil {
			return err
		}
		g.Boot = append(g.Boot, round(took.Seconds(), 1))
		if err := d.plug(i); err != nil {
			return err
		}
		if err := m.SetLink(ctx, vm.LinkConfig{Name: "eth0", Addrs: guestAddrs[i]}); err != nil {
			return fmt.Errorf("guest %s: set up its device: %w", m.Name, err)
		}
	}
	d.a, d.b = g.all[0].Remote, g.all[1].Remote
	return d.ping(ctx)
}

const bootTimeout = time.Minute

// plug puts the TAP that QEMU has made for guest i into its bridge.
func (d *demo) plug(i int) error {
	ns, _, err := hostnet.Ensure(d.names.nsA, false)
	if err != nil {
		return err
	}
	defer ns.Close()
	// Frames between guests are no business of the packet filter.
	err = ns.Do(func() error {
		for _, family := range []string{"ip", "ip6", "arp"} {
			err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+family+"tables", []byte("0"), 0)
			if err != nil && !errors.Is(err, os.ErrNotExist) { // no br_netfilter
				return err
			}
		}
		return nil
	})
	return errors.Join(err, hostnet.Configure(ns, &config.Port{
		Name: d.names.tap(i), MTU: mtu, Host: config.Host{Up: true, TxQueueLen: guestTxQueueLen, Bridge: []string{"br-a", "br-b"}[i]},
	}))
}

// ping measures the round trip from guest to guest.
func (d *demo) ping(ctx context.Context) error {
	to := guestAddrs[1][0].Addr()
	for range 20 { // until the devices pass frames
		if p, err := d.guests.all[0].Ping(ctx, vm.Echo{To: to, Count: 1}); err != nil || p.Received == 1 {
			break
		}
	}
	p, err := d.guests.all[0].Ping(ctx, vm.Echo{To: to, Count: 50, Size: 56, Interval: 10})
	d.guests.Ping = Ping{p.Sent, p.Received, micros(p.P50), micros(p.P99)}
	return err
}

func (g *guests) stop() {
	for _, m := range g.all {
		m.Stop()
	}
}

// head says what the ends are.
func (g *Guests) head() string {
	var b strings.Builder
	for i, name := range []string{"a", "b"} {
		n, s := guestCPUs[i], "s"[:min(guestCPUs[i]-1, 1)]
		fmt.Fprintf(&b, "guest %s      %d vCPU%s, %d queue%s, up after %.1f s\n", name, n, s, n, s, g.Boot[i])
	}
	accel := "emulated (TCG), as KVM does not work here: the rates are the emulator's"
	if g.KVM {
		accel = "under KVM"
	}
	fmt.Fprintf(&b, "kernel       Debian's %s, %s\n", g.Kernel, accel)
	fmt.Fprintf(&b, "ping a to b  %d of %d answered, p50 %.0f µs, p99 %.0f µs\n\n", g.Ping.Received, g.Ping.Sent, g.Ping.P50, g.Ping.P99)
	return b.String()
}
