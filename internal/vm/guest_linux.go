package vm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"taprouter/control/config"
	"taprouter/control/hostnet"
	"taprouter/internal/traffic"
)

// IsInit reports whether this process is the first one of a guest.
func IsInit() bool { return os.Getpid() == 1 && os.Args[0] == "/init" }

// Init is the whole life of a guest: it mounts what it needs, loads modules
// and carries out what it is asked for on its virtio port. more are further
// operations. It never returns.
func Init(more map[string]traffic.Handler) {
	err := setup()
	for err == nil {
		err = serve(more)
	}
	fmt.Println("guest: failed:", err)
	_ = end(PowerOff)
	select {}
}

func setup() error {
	for _, m := range []struct{ kind, at string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	mods, err := filepath.Glob("/modules/*")
	if err != nil {
		return err
	}
	for _, m := range mods { // Glob sorts
		if err := loadModule(m); err != nil {
			return fmt.Errorf("load %s: %w", m, err)
		}
	}
	ns, err := hostnet.Current()
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.SetUp("lo", true)
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// serve answers on the virtio port until its end, which comes when nobody
// holds the other side.
func serve(more map[string]traffic.Handler) error {
	port, err := openPort()
	if err != nil {
		return err
	}
	defer port.Close()
	ops := map[string]traffic.Handler{
		opLink:     traffic.Handle(link),
		opSetLink:  traffic.Handle(setLink),
		opVLAN:     traffic.Handle(addVLAN),
		opFeatures: traffic.Handle(setFeatures),
		opPing:     traffic.Handle(ping),
		opNeigh:    traffic.Handle(neighbours),
		opPin:      traffic.Handle(pin),
		opEnd:      traffic.Handle(func(_ context.Context, how string) (any, error) { return nil, end(how) }),
	}
	maps.Copy(ops, more)
	fmt.Println(ready)
	if err := traffic.Serve(port, port, ops); err != nil {
		return err
	}
	time.Sleep(50 * time.Millisecond) // nobody there: try again
	return nil
}

// openPort opens the virtio port, which the kernel may just be finding.
func openPort() (*os.File, error) {
	for range 500 {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			if b, err := os.ReadFile(n); err == nil && strings.TrimSpace(string(b)) == portName {
				return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(n)), os.O_RDWR, 0)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, errors.New("there is no virtio port named " + portName)
}

// end ends the guest, in a moment so that the answer gets out.
func end(how string) error {
	time.AfterFunc(100*time.Millisecond, func() {
		var err error
		switch how {
		case Reboot:
			err = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
		case Crash:
			err = os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0)
		default:
			err = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
		}
		fmt.Println("guest: end:", err)
	})
	return nil
}

func link(_ context.Context, name string) (l Link, err error) {
	ns, err := hostnet.Current()
	if err != nil {
		return l, err
	}
	defer ns.Close()
	now, err := ns.Lookup(name)
	if err != nil {
		return l, err
	}
	l = Link{MTU: now.MTU, MAC: now.MAC.String(), Carrier: now.Carrier}
	dir := "/sys/class/net/" + name
	b, err := os.ReadFile(dir + "/carrier_changes")
	if err == nil {
		l.CarrierChanges, err = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	queues, _ := filepath.Glob(dir + "/queues/tx-*")
	l.Queues = len(queues)
	return l, err
}

func setLink(_ context.Context, c LinkConfig) (any, error) {
	ns, err := hostnet.Current()
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	now, err := ns.Lookup(c.Name)
	if err != nil {
		return nil, err
	}
	if c.Down {
		return nil, ns.SetUp(c.Name, false)
	}
	if c.MTU == 0 {
		c.MTU = now.MTU
	}
	return nil, hostnet.Configure(ns, &config.Port{
		Name: c.Name, MTU: c.MTU, TxQueueLen: now.TxQueueLen, Host: config.Host{Addresses: c.Addrs, MAC: c.MAC, Up: true},
	})
}

func addVLAN(ctx context.Context, c vlanArg) (any, error) {
	parent, err := netlink.LinkByName(c.Dev)
	if err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = c.Name, parent.Attrs().Index
	if err := netlink.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: c.ID}); err != nil {
		return nil, err
	}
	return setLink(ctx, LinkConfig{Name: c.Name, Addrs: c.Addrs})
}

func setFeatures(_ context.Context, c featuresArg) (any, error) {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return nil, err
	}
	defer e.Close()
	if err := e.Change(c.Dev, c.On); err != nil {
		return nil, err
	}
	now, err := e.Features(c.Dev)
	if err != nil {
		return nil, err
	}
	for name, on := range c.On {
		if now[name] != on {
			return nil, fmt.Errorf("%s of %s is %v still", name, c.Dev, now[name])
		}
	}
	return nil, nil
}

// neighbours gives the addresses that the guest has resolved.
func neighbours(_ context.Context, dev string) (addrs []string, err error) {
	l, err := netlink.LinkByName(dev)
	if err != nil {
		return nil, err
	}
	all, err := netlink.NeighList(l.Attrs().Index, netlink.FAMILY_ALL)
	for _, n := range all {
		if n.State&(netlink.NUD_REACHABLE|netlink.NUD_STALE|netlink.NUD_DELAY|netlink.NUD_PROBE) != 0 && n.HardwareAddr != nil {
			addrs = append(addrs, n.IP.String())
		}
	}
	return addrs, err
}

// pin moves all threads of this process, the senders among them.
func pin(ctx context.Context, p Pin) (hops int, err error) {
	if len(p.CPUs) == 0 {
		return 0, errors.New("pin to which CPUs?")
	}
	for end := time.Now().Add(p.For); ; {
		if err := bind(p.CPUs[hops%len(p.CPUs)]); err != nil || p.Hop == 0 {
			return hops, err
		}
		select {
		case <-ctx.Done():
			return hops, ctx.Err()
		case <-time.After(p.Hop):
		}
		if hops++; time.Now().After(end) {
			return hops, nil
		}
	}
}

func bind(cpu int) error {
	if cpu >= runtime.NumCPU() {
		return fmt.Errorf("there are %d CPUs, from 0", runtime.NumCPU())
	}
	var set unix.CPUSet
	set.Set(cpu)
	tasks, err := os.ReadDir("/proc/self/task")
	for _, t := range tasks {
		tid, _ := strconv.Atoi(t.Name())
		if serr := unix.SchedSetaffinity(tid, &set); serr != nil && !errors.Is(serr, unix.ESRCH) {
			err = errors.Join(err, serr)
		}
	}
	return err
}
