package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"taprouter/internal/traffic"
	"taprouter/internal/vm"
)

// The tests with virtual machines are named TestVM… and have a step of their
// own (make vm). Each guest has a kernel bridge of its own in namespace h, in
// which are QEMU's TAP and a port of the router; c and d are namespaces.
// The kernel's queues are long, so that a machine that is busy with other
// things delays frames rather than lose them.
//
//	guest a 10.99.0.1 ── qa ═ br-a ═ a ─┐          ┌─ c ═ namespace c 10.99.0.3
//	                                    ├─ br0 ────┤
//	guest b 10.99.0.2 ── qb ═ br-b ═ b ─┘          └─ d ═ namespace d 10.99.0.4
const guests = `
version: 1
workers: 2
ports:
  - {name: @dev:a, type: tap, queues: 2, netns: @ns:h, host: {txqueuelen: 20000, bridge: br-a, create: true}}
  - {name: @dev:b, type: tap, queues: 2, netns: @ns:h, host: {txqueuelen: 20000, bridge: br-b, create: true}}
  - {name: @dev:c, type: tap, queues: 2, netns: @ns:c, create: true, host: {mac: "02:00:00:00:99:03", addresses: [10.99.0.3/24, "fd99::3/64"]}}
  - {name: @dev:d, type: tap, queues: 2, netns: @ns:d, create: true, host: {mac: "02:00:00:00:99:04", addresses: [10.99.0.4/24, "fd99::4/64"]}}
bridges:
  - {name: br0, ports: [@dev:a, @dev:b, @dev:c, @dev:d]}
`

// machines is what guests boot from; made once.
var machines struct {
	once   sync.Once
	err    error
	kernel *vm.Kernel
	kvm    bool
	init   string
}

// needMachines skips where no machines can be run, unless that is required.
func needMachines(t *testing.T) {
	t.Helper()
	m := &machines
	m.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if m.err = vm.Installed(); m.err != nil {
			return
		}
		if m.kernel, m.err = vm.FindKernel(ctx, vm.CacheDir()); m.err != nil {
			return
		}
		if m.err = m.kernel.Fetch(ctx); m.err != nil {
			return
		}
		m.init = filepath.Join(filepath.Dir(routerBinary), "guest")
		build := exec.Command("go", "build", "-o", m.init, "taprouter/test/netns/guest")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			m.err = fmt.Errorf("build the guest's program: %w: %s", err, out)
			return
		}
		m.kvm = vm.HasKVM(ctx, m.kernel, m.init)
	})
	missing := errors.Is(m.err, vm.ErrNoPackages) || errors.Is(m.err, vm.ErrNotInstalled)
	if missing && os.Getenv("ROUTER_REQUIRE_VM") == "" {
		t.Skip(m.err)
	}
	if m.err != nil {
		t.Fatal(m.err)
	}
}

// guestMAC is the address of guest k.
func guestMAC(k string) string { return fmt.Sprintf("02:00:00:00:99:%02x", k[0]) }

// hostNS makes namespace h with a TAP of QEMU's for each guest.
func (n *Net) hostNS(queues int, guests ...string) {
	n.t.Helper()
	n.run("ip netns add @ns:h")
	n.t.Cleanup(func() { n.run("ip netns del @ns:h") })
	n.must("h", quiet)
	multi := ""
	if queues > 1 {
		multi = " multi_queue"
	}
	for _, k := range guests {
		n.must("h", "ip tuntap add q"+k+" mode tap vnet_hdr"+multi)
		n.must("h", "ip link set q"+k+" txqueuelen 20000")
	}
}

// boot boots guests at the same time. Guest k's eth0 is behind TAP qk in
// br-k, which the router has made; it has the addresses that at gives it.
func (n *Net) boot(queues int, at map[string][]string) map[string]*Machine {
	n.t.Helper()
	nics := map[string]vm.NIC{}
	for k := range at {
		n.must("h", "ip link set q"+k+" master br-"+k+" up")
		nics[k] = vm.NIC{TAP: "q" + k, Queues: queues}
	}
	return n.bootWith(n.ns("h"), nics, at)
}

// bootWith boots guests whose QEMU is in namespace ns, ours if that is empty,
// and whose eth0 is a device of these.
func (n *Net) bootWith(ns string, nics map[string]vm.NIC, at map[string][]string) map[string]*Machine {
	t := n.t
	t.Helper()
	all := map[string]*Machine{}
	for k, nic := range nics {
		nic.MAC = guestMAC(k)
		started, err := vm.Start(vm.Config{
			Name: n.ns(k), Kernel: machines.kernel, Init: machines.init, NetNS: ns, CPUs: nic.Queues, KVM: machines.kvm, NICs: []vm.NIC{nic},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(started.Stop)
		all[k] = &Machine{Machine: started, t: t, addrs: at[k]}
	}
	for _, m := range all {
		took := m.ready(1)
		t.Logf("%s answers after %.1f s", m.Name, took.Seconds())
		m.up()
	}
	return all
}

// A Machine is a guest of a test, which fails where the guest does.
type Machine struct {
	*vm.Machine
	t     *testing.T
	addrs []string
}

// ready waits for the guest's boot number times.
func (m *Machine) ready(times int) time.Duration {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	took, err := m.Booted(ctx, times)
	if err != nil {
		m.t.Fatal(err)
	}
	return took
}

// up gives eth0 its addresses and sets it up.
func (m *Machine) up() {
	m.t.Helper()
	m.set(vm.LinkConfig{Addrs: prefixes(m.addrs)})
}

func prefixes(addrs []string) (all []netip.Prefix) {
	for _, a := range addrs {
		all = append(all, netip.MustParsePrefix(a))
	}
	return all
}

// set changes eth0.
func (m *Machine) set(c vm.LinkConfig) {
	m.t.Helper()
	c.Name = "eth0"
	m.must(m.SetLink(m.ctx(), c))
}

// ctx bounds a call to the guest.
func (m *Machine) ctx() context.Context {
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	m.t.Cleanup(cancel)
	return ctx
}

func (m *Machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatalf("%s: %v", m.Name, err)
	}
}

// echo sends count ICMP echo requests, all of which must be answered.
func (m *Machine) echo(to string, count, size int) traffic.Pings {
	m.t.Helper()
	p, err := m.Ping(m.ctx(), vm.Echo{To: netip.MustParseAddr(to), Count: count, Size: size})
	m.must(err)
	if p.Received != count {
		m.t.Errorf("%s: %d of %d requests of %d bytes to %s were answered", m.Name, p.Received, count, size, to)
	}
	return p
}

// reach waits until an address answers.
func (m *Machine) reach(to string) {
	m.t.Helper()
	until(m.t, 20*time.Second, m.Name+" reaches "+to, func() bool {
		p, err := m.Ping(m.ctx(), vm.Echo{To: netip.MustParseAddr(to), Count: 1})
		return err == nil && p.Received == 1
	})
}

// pause stops the guest with its QEMU, for as long as f takes.
func (m *Machine) pause(f func()) {
	m.t.Helper()
	m.must(m.Signal(syscall.SIGSTOP))
	defer func() { m.must(m.Signal(syscall.SIGCONT)) }()
	f()
}

// An end is a traffic end: a guest or an agent in a namespace.
type end interface {
	Listen(ctx context.Context, kind, addr string) (*traffic.Receiver, error)
	SendTCP(ctx context.Context, cfg traffic.TCPSend) (traffic.TCPSent, error)
	SendUDP(ctx context.Context, cfg traffic.UDPSend) (traffic.UDPSent, error)
}

// agent starts a traffic end in namespace k.
func (n *Net) agent(k string) *traffic.Agent {
	n.t.Helper()
	a, err := traffic.StartIn(n.ns(k), os.Stderr, routerBinary, "demo-agent")
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { a.Stop(5 * time.Second) })
	return a
}

// bulk sends that many bytes over one connection, checks each of them at the
// receiver, and gives the rate in Mbit/s. Any goroutine may call it.
func bulk(t *testing.T, from, to end, addr string, bytes int64) float64 {
	t.Helper()
	sent, got := tcp(t, from, to, addr, traffic.TCPSend{Duration: 50 * time.Second, Bytes: bytes})
	if got.Bytes != uint64(bytes) {
		t.Errorf("TCP to %s: %d bytes of %d arrived", addr, got.Bytes, bytes)
	}
	return traffic.Mbit(sent.Bytes, sent.Elapsed)
}

// bulkFor sends over one connection for a while and gives the rate at which
// it arrived, in Mbit/s.
func bulkFor(t *testing.T, from, to end, addr string, d time.Duration) float64 {
	t.Helper()
	_, got := tcp(t, from, to, addr, traffic.TCPSend{Duration: d})
	return traffic.Mbit(got.Bytes, got.Elapsed)
}

// tcp runs one connection or more, every byte of which is checked.
func tcp(t *testing.T, from, to end, addr string, send traffic.TCPSend) (sent traffic.TCPSent, got traffic.TCPReceived) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	rx, err := to.Listen(ctx, traffic.KindTCP, net.JoinHostPort(addr, "0"))
	if err != nil {
		t.Error(err)
		return sent, got
	}
	send.To, send.Flows = rx.Addr, max(send.Flows, 1)
	if sent, err = from.SendTCP(ctx, send); err != nil {
		t.Error(err)
	}
	all, err := rx.Finish(ctx, nil, time.Second)
	if err != nil {
		t.Error(err)
	}
	if all.TCP.Corrupt != 0 {
		t.Errorf("TCP to %s: %d reads were not what was sent", addr, all.TCP.Corrupt)
	}
	return sent, all.TCP
}

// numbered sends that many numbered datagrams, all of which must arrive, in order.
func numbered(t *testing.T, from, to end, addr string, count, size, pps int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	rx, err := to.Listen(ctx, traffic.KindUDP, net.JoinHostPort(addr, "0"))
	if err != nil {
		t.Fatal(err)
	}
	sent, err := from.SendUDP(ctx, traffic.UDPSend{To: rx.Addr, Flows: 1, PPS: pps, Burst: 4, Size: size, Duration: 40 * time.Second, Count: count})
	if err != nil {
		t.Fatal(err)
	}
	got, err := rx.Finish(ctx, sent.Flows, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	u := got.UDP
	if u.Packets != uint64(count) || u.Lost+u.Reordered+u.Duplicates+u.Corrupt > 0 {
		t.Errorf("UDP to %s: %d of %d datagrams of %d bytes arrived; %+v", addr, u.Packets, count, size, u)
	}
}
