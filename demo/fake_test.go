package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"taprouter/control/api"
)

// fakeMode tells the fake router what to do wrong, by environment variable.
const fakeMode = "ROUTER_DEMO_FAKE"

// A fake stands in for `router run`: plain TAPs of which each two are joined
// by a loop that copies frames, so that the demo can be tested without a
// router, and over paths that misbehave.
type fake struct {
	names
	mode           string
	received, sent atomic.Uint64
	dropped        atomic.Uint64
}

func fakeRouter(args []string) int {
	pid, err := strconv.Atoi(strings.TrimPrefix(args[len(args)-1], "demo-td"))
	if err != nil {
		return 1
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	f := &fake{names: newNames(pid), mode: os.Getenv(fakeMode)}
	if err := f.start(); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 2
	}
	<-term
	fmt.Fprintln(os.Stderr, "ending") // which must not be our end
	if f.mode == "leave" {
		return 0 // with the namespaces still there
	}
	_ = os.Remove(f.socket())
	_ = ip("netns del " + f.nsA)
	_ = ip("netns del " + f.nsB)
	return 0
}

func (f *fake) start() error {
	if f.mode == "refuse" {
		return fmt.Errorf("tun: open: not today")
	}
	for _, ns := range []string{f.nsA, f.nsB} {
		if err := ip("netns add " + ns); err != nil {
			return err
		}
	}
	for _, pair := range [][2]string{
		{f.l2a + " 10.71.1.1/24 fd71:1::1/64", f.l2b + " 10.71.1.2/24 fd71:1::2/64"},
		{f.l3a + " 10.71.2.1/24 fd71:2::1/64 10.71.3.0/24 fd71:3::/64", f.l3b + " 10.71.3.1/24 fd71:3::1/64 10.71.2.0/24 fd71:2::/64"},
	} {
		a, err := fakePort(f.nsA, strings.Fields(pair[0]))
		if err != nil {
			return err
		}
		b, err := fakePort(f.nsB, strings.Fields(pair[1]))
		if err != nil {
			return err
		}
		go f.forward(a, b, f.mode)
		go f.forward(b, a, "")
	}
	l, err := api.Listen(f.router)
	if err != nil {
		return err
	}
	go func() { _ = api.Serve(context.Background(), l, fakeAPI{f: f}) }()
	return nil
}

// fakePort makes a TAP in ns; arg is its name, addresses and routes.
func fakePort(ns string, arg []string) (io.ReadWriter, error) {
	var f *os.File
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		made <- func() error {
			h, err := netns.GetFromName(ns)
			if err != nil {
				return err
			}
			defer h.Close()
			if err := netns.Set(h); err != nil {
				return err
			}
			fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			req, err := unix.NewIfreq(arg[0])
			if err != nil {
				return err
			}
			req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
			if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
				return err
			}
			f = os.NewFile(uintptr(fd), arg[0]) // after TUNSETIFF, or the poller never wakes
			return nil
		}()
	}()
	if err := <-made; err != nil {
		return nil, err
	}
	steps := []string{"link set " + arg[0] + " up", "addr add " + arg[1] + " dev " + arg[0], "addr add " + arg[2] + " dev " + arg[0] + " nodad"}
	for _, to := range arg[3:] {
		steps = append(steps, "route add "+to+" dev "+arg[0])
	}
	for _, s := range steps {
		if err := ip("-n " + ns + " " + s); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// forward copies frames, and does wrong what mode says to each 200th big one.
func (f *fake) forward(from, to io.ReadWriter, mode string) {
	buf := make([]byte, 1<<16)
	var held []byte
	for big := 0; ; {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		f.received.Add(1)
		if n > 500 {
			big++
		}
		if n > 500 && big%200 == 0 {
			switch mode {
			case "swap":
				held = append(held[:0], buf[:n]...)
				continue
			case "lose":
				continue
			case "count":
				f.dropped.Add(1)
				continue
			case "spoil": // the last byte: checksum, too, is the sender's kernel's
				buf[n-1] ^= 1
			case "die":
				os.Exit(7)
			}
		}
		f.write(to, buf[:n])
		if n > 500 && len(held) > 0 {
			f.write(to, held)
			held = held[:0]
		}
	}
}

func (f *fake) write(to io.Writer, b []byte) {
	f.sent.Add(1)
	_, _ = to.Write(b)
}

// ip runs ip(8).
func ip(args string) error {
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", args, err, out)
	}
	return nil
}

// A fakeAPI answers what the demo asks.
type fakeAPI struct {
	api.Router // nil: nobody asks for the rest
	f          *fake
}

func (a fakeAPI) Status() api.Status {
	sent, dropped := a.f.sent.Load(), a.f.dropped.Load()
	t := api.Totals{Received: sent + dropped, Sent: sent, Dropped: dropped}
	if a.f.mode == "unbalanced" {
		t.Received++
	}
	return api.Status{Totals: t, Balanced: a.f.mode != "unbalanced"}
}

func (a fakeAPI) Drops() []api.Drop {
	return []api.Drop{{Reason: "qdisc_full", Packets: a.f.dropped.Load()}}
}

func (a fakeAPI) Links() []api.Link {
	return []api.Link{{Name: a.f.l2a, Queues: []api.Queue{{Queue: 0}, {Queue: 1}}}, {Name: a.f.l2b, Queues: []api.Queue{{}}}}
}

func (a fakeAPI) Qdiscs() []api.Qdisc {
	return []api.Qdisc{
		{Dev: a.f.l2a, Kind: "mq", Root: true}, {Dev: a.f.l2a, Kind: "pfifo_fast"}, {Dev: a.f.l2a, Kind: "pfifo_fast", Drops: 3},
		{Dev: a.f.l2b, Kind: "pfifo_fast", Root: true},
	}
}

func (a fakeAPI) XPS() []api.XPS {
	return []api.XPS{{Dev: a.f.l2a, Buckets: 4096, Mode: "inflight", Moves: 2}}
}
