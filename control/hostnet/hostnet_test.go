package hostnet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"taprouter/control/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// needRoot skips where namespaces cannot be had, unless that is required.
func needRoot(t *testing.T) {
	t.Helper()
	if missingCaps(effectiveCaps(), NetAdmin|SysAdmin) == "" && tunProblem() == "" {
		return
	}
	if os.Getenv("ROUTER_REQUIRE_NETNS") == "1" {
		t.Fatalf("missing: %s %s", missingCaps(effectiveCaps(), NetAdmin|SysAdmin), tunProblem())
	}
	t.Skip("needs root and /dev/net/tun")
}

var serial atomic.Int32

// unique gives a name that no other test uses, at most 15 bytes.
func unique() string { return fmt.Sprintf("hn%d-%d", os.Getpid()%1e7, serial.Add(1)) }

// newNS makes a namespace for the length of the test.
func newNS(t *testing.T) *NS {
	t.Helper()
	needRoot(t)
	ns, created, err := Ensure(unique(), true)
	if err != nil || !created {
		t.Fatalf("Ensure = created %v, %v", created, err)
	}
	t.Cleanup(func() {
		if ns.fd >= 0 {
			ns.Close()
		}
		if err := ns.Delete(); err != nil {
			t.Error(err)
		}
	})
	return ns
}

// newTAP opens a TAP in our namespace for the length of the test.
func newTAP(t *testing.T) (name string, queue *os.File) {
	t.Helper()
	needRoot(t)
	l := &netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: unique()}, Mode: netlink.TUNTAP_MODE_TAP,
		Queues: 1, NonPersist: true, Flags: netlink.TUNTAP_NO_PI,
	}
	if err := netlink.LinkAdd(l); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Fds[0].Close() })
	return l.Name, l.Fds[0]
}

func openFDs(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

func TestEnsure(t *testing.T) {
	ns := newNS(t)
	again, created, err := Ensure(ns.name, true)
	if err != nil || created || !again.Same(ns) {
		t.Fatalf("Ensure again = %v, created %v, %v", again, created, err)
	}
	again.Close()
	home, _, err := Ensure("", true)
	if err != nil || home.Same(ns) {
		t.Fatalf("Ensure(\"\") = %v, %v", home, err)
	}
	home.Close()
	lo, err := ns.Lookup("lo")
	if err != nil || !lo.Up {
		t.Errorf("lo in a new namespace = %+v, %v, want it up", lo, err)
	}
	if err := ns.Do(func() error {
		here, err := Current()
		if err != nil {
			return err
		}
		defer here.Close()
		if !here.Same(ns) {
			return fmt.Errorf("in %v", here)
		}
		return nil
	}); err != nil {
		t.Errorf("Do: %v", err)
	}
}

func TestEnsureMissing(t *testing.T) {
	name := unique()
	_, _, err := Ensure(name, false)
	want := "netns " + name + " does not exist; add `create: true` or run ip netns add " + name
	if !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("Ensure = %v, want %s", err, want)
	}
	if _, _, err := Ensure("../x", true); err == nil {
		t.Error("Ensure took a path for a name")
	}
}

func TestDelete(t *testing.T) {
	ns := newNS(t)
	path := filepath.Join(runDir, ns.name)
	if err := Delete(ns.name); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s after Delete: %v", path, err)
	}
	// A namespace that somebody made under the old name is not ours.
	other, _, err := Ensure(ns.name, true)
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
	if err := ns.Delete(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("Delete removed the namespace of another: %v", err)
	}
	if err := other.Delete(); err != nil {
		t.Fatal(err)
	}
}

// A file that is no namespace is what a killed `ip netns add` leaves.
func TestLeftOver(t *testing.T) {
	ns := newNS(t) // so that runDir is there
	path := filepath.Join(runDir, ns.name+"x")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Ensure(ns.name+"x", true); err == nil || !strings.Contains(err.Error(), "not a namespace") {
		t.Errorf("Ensure = %v, want a complaint about the file", err)
	}
	if err := Delete(ns.name + "x"); err != nil {
		t.Error(err)
	}
}

func testPort(name string) *config.Port {
	return &config.Port{
		Name: name, Type: config.TAP, MTU: 9000,
		Host: config.Host{
			TxQueueLen: 123,
			Addresses:  []netip.Prefix{netip.MustParsePrefix("10.99.1.1/24"), netip.MustParsePrefix("fd99:1::1/64")},
			Routes: []config.HostRoute{
				{To: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.99.1.254")},
				{To: netip.MustParsePrefix("::/0"), Via: netip.MustParseAddr("fe80::1")},
				{To: netip.MustParsePrefix("10.98.0.0/16")},
			},
			MAC: config.MAC{2, 0, 0, 0, 0xa, 1},
			Up:  true,
		},
	}
}

func TestConfigure(t *testing.T) {
	ns := newNS(t)
	before := openFDs(t)
	name, queue := newTAP(t)
	p := testPort(name)
	for range 2 { // the second time it is there already
		if err := Configure(ns, p); err != nil {
			t.Fatal(err)
		}
	}
	l, err := ns.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	if l.MTU != 9000 || l.TxQueueLen != 123 || l.MAC.String() != "02:00:00:00:0a:01" || !l.Up || !l.Carrier {
		t.Errorf("Lookup = %+v", l)
	}
	h, err := ns.handle()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := h.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range addrs {
		got = append(got, a.IPNet.String())
		if a.Flags&unix.IFA_F_TENTATIVE != 0 && a.IP.IsGlobalUnicast() {
			t.Errorf("%s is tentative", a.IPNet)
		}
	}
	for _, a := range p.Host.Addresses {
		if !slices.Contains(got, a.String()) {
			t.Errorf("addresses = %v, want %s among them", got, a)
		}
	}
	got = nil
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := h.RouteList(link, family)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range routes {
			got = append(got, fmt.Sprint(r.Dst, r.Gw))
		}
	}
	for _, want := range []string{"0.0.0.0/0 10.99.1.254", "::/0 fe80::1", "10.98.0.0/16 <nil>"} {
		if !slices.Contains(got, want) {
			t.Errorf("routes = %v, want %s among them", got, want)
		}
	}
	queue.Close()
	h.Close()
	if after := openFDs(t); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

func TestSetters(t *testing.T) {
	ns := newNS(t)
	name, _ := newTAP(t)
	if err := Configure(ns, &config.Port{Name: name, MTU: 1500, Host: config.Host{TxQueueLen: 1000}}); err != nil {
		t.Fatal(err)
	}
	if l, _ := ns.Lookup(name); l.Up {
		t.Error("host.up: false set the device up")
	}
	err := errors.Join(ns.SetMTU(name, 1400), ns.SetMAC(name, [6]byte{2, 0, 0, 0, 0, 9}), ns.SetTxQueueLen(name, 10), ns.SetUp(name, true))
	if err != nil {
		t.Fatal(err)
	}
	l, err := ns.Lookup(name)
	if err != nil || l.MTU != 1400 || l.MAC[5] != 9 || l.TxQueueLen != 10 || !l.Up {
		t.Errorf("Lookup = %+v, %v", l, err)
	}
	if err := ns.SetMTU("nosuch", 1400); !errors.Is(err, ErrNoLink) {
		t.Errorf("SetMTU of no device: %v, want ErrNoLink", err)
	}
}

func TestConfigureRefused(t *testing.T) {
	ns := newNS(t)
	a, _ := newTAP(t)
	b, _ := newTAP(t)
	p := testPort(a)
	if err := Configure(ns, p); err != nil {
		t.Fatal(err)
	}
	p.Name = "nosuch"
	if err := Configure(ns, p); !errors.Is(err, ErrNoLink) {
		t.Errorf("no device: %v, want ErrNoLink", err)
	}
	p = testPort(b)
	if err := Configure(ns, p); !errors.Is(err, unix.EEXIST) {
		t.Errorf("the default route of another device: %v, want EEXIST", err)
	}
	p = &config.Port{Name: b, MTU: 1500, TxQueueLen: 1000, Host: config.Host{Bridge: a}}
	if err := Configure(ns, p); err == nil || !strings.Contains(err.Error(), "not a bridge") {
		t.Errorf("a TAP as bridge: %v", err)
	}
	p.Host.Bridge = "nosuch"
	if err := Configure(ns, p); !errors.Is(err, ErrNoLink) {
		t.Errorf("no bridge: %v, want ErrNoLink", err)
	}
}

func TestExplain(t *testing.T) {
	if got := missingCaps(1<<unix.CAP_NET_ADMIN, NetAdmin|SysAdmin); got != "CAP_SYS_ADMIN" {
		t.Errorf("missingCaps = %q", got)
	}
	if got := missingCaps(0, NetAdmin|SysAdmin|TunDevice); got != "CAP_NET_ADMIN and CAP_SYS_ADMIN" {
		t.Errorf("missingCaps = %q", got)
	}
	for have, want := range map[uint64]string{0: "CAP_BPF", 1 << unix.CAP_SYS_ADMIN: "", 1 << unix.CAP_BPF: ""} {
		if got := missingCaps(have, BPF); got != want {
			t.Errorf("missingCaps(%x, BPF) = %q, want %q", have, got, want)
		}
	}
	if err := Explain(nil, NetAdmin); err != nil {
		t.Errorf("Explain(nil) = %v", err)
	}
	if err := Explain(unix.EINVAL, NetAdmin|TunDevice); err != unix.EINVAL {
		t.Errorf("Explain(EINVAL) = %v", err)
	}
}

// next waits for an event for which ok holds.
func next(t *testing.T, events <-chan Event, what string, ok func(Event) bool) Event {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		select {
		case e := <-events:
			if ok(e) {
				return e
			}
		case <-deadline:
			t.Fatalf("no event: %s", what)
		}
	}
}

func TestWatch(t *testing.T) {
	ns := newNS(t)
	name, _ := newTAP(t)
	if err := Configure(ns, &config.Port{Name: name, MTU: 1500, TxQueueLen: 1000}); err != nil {
		t.Fatal(err)
	}
	events := make(chan Event, 1000)
	before := openFDs(t)
	w, err := Watch(ns, func(e Event) { events <- e })
	if err != nil {
		t.Fatal(err)
	}
	l, _ := ns.Lookup(name)
	mine := func(ok func(Event) bool) func(Event) bool {
		return func(e Event) bool { return e.Index == l.Index && ok(e) }
	}
	next(t, events, "it is there", mine(func(e Event) bool { return e.Name == name && !e.Up }))
	ns.SetUp(name, true)
	next(t, events, "up", mine(func(e Event) bool { return e.Up && e.Carrier }))
	ns.SetMTU(name, 1400)
	next(t, events, "mtu", mine(func(e Event) bool { return e.MTU == 1400 }))
	ns.SetUp(name, false)
	next(t, events, "down", mine(func(e Event) bool { return !e.Up }))
	if err := ns.with(name, "rename", func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetName(l, "other") }); err != nil {
		t.Fatal(err)
	}
	next(t, events, "renamed", mine(func(e Event) bool { return e.Name == "other" }))

	// Moved on: gone here, there in the other namespace.
	to := newNS(t)
	dup, err := unix.FcntlInt(uintptr(to.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	there := make(chan Event, 1000)
	w2, err := WatchFD(dup, func(e Event) { there <- e })
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.with("other", "move", func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetNsFd(l, to.fd) }); err != nil {
		t.Fatal(err)
	}
	next(t, events, "moved away", mine(func(e Event) bool { return e.Gone }))
	next(t, there, "arrived", func(e Event) bool { return e.Name == "other" && !e.Gone })
	w2.Close()
	w.Close()
	to.Close()
	if after := openFDs(t); after != before {
		t.Errorf("%d descriptors after Close, %d before", after, before)
	}
}

func TestWatchOwn(t *testing.T) {
	needRoot(t)
	home, err := Current()
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	events := make(chan Event, 1000)
	w, err := Watch(home, func(e Event) { events <- e })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	next(t, events, "lo", func(e Event) bool { return e.Name == "lo" })
	name, queue := newTAP(t)
	next(t, events, "made", func(e Event) bool { return e.Name == name && !e.Gone })
	queue.Close()
	next(t, events, "deleted", func(e Event) bool { return e.Name == name && e.Gone })
}

// A watch and a port's descriptors do not keep a namespace alive.
func TestWatchNamespaceDeleted(t *testing.T) {
	ns := newNS(t)
	name, queue := newTAP(t)
	if err := Configure(ns, &config.Port{Name: name, MTU: 1500, TxQueueLen: 1000, Host: config.Host{Up: true}}); err != nil {
		t.Fatal(err)
	}
	events := make(chan Event, 1000)
	w, err := Watch(ns, func(e Event) { events <- e })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ns.Close()
	if err := ns.Delete(); err != nil {
		t.Fatal(err)
	}
	next(t, events, "namespace deleted", func(e Event) bool { return e.NSGone })
	if err := queue.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for { // what the kernel sent while the device was up comes first
		if _, err := queue.Read(make([]byte, 2000)); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the device outlived its namespace")
			}
			return
		}
	}
}

// A reader that is too slow loses messages and asks for everything again.
func TestWatchOverrun(t *testing.T) {
	ns := newNS(t)
	a, _ := newTAP(t)
	b, bq := newTAP(t)
	for _, name := range []string{a, b} {
		if err := Configure(ns, &config.Port{Name: name, MTU: 1500, TxQueueLen: 1000}); err != nil {
			t.Fatal(err)
		}
	}
	l, _ := ns.Lookup(b)
	events := make(chan Event, 10000)
	hold := make(chan struct{})
	w, err := Watch(ns, func(e Event) { <-hold; events <- e })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.conn.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) }); err != nil {
		t.Fatal(err)
	}
	h, err := ns.handle()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	link, err := h.LinkByName(a)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		if err := h.LinkSetMTU(link, 1400-i); err != nil {
			t.Fatal(err)
		}
	}
	bq.Close()
	close(hold)
	next(t, events, "gone", func(e Event) bool { return e.Index == l.Index && e.Gone })
	next(t, events, "last mtu", func(e Event) bool { return e.MTU == 1351 })
}
