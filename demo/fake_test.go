package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
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
	_ = os.MkdirAll(filepath.Dir(f.socket()), 0o755)
	l, err := net.Listen("unix", f.socket())
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(l, f.api()) }()
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

// api answers what view asks.
func (f *fake) api() http.Handler {
	answer := func(path string, f func() any) {
		http.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(f()) })
	}
	answer("/v1/status", func() any {
		sent, dropped := f.sent.Load(), f.dropped.Load()
		t := totals{Received: sent + dropped, Sent: sent, Dropped: dropped}
		if f.mode == "unbalanced" {
			t.Received++
		}
		return map[string]any{"totals": t}
	})
	answer("/v1/drops", func() any {
		return []map[string]any{{"port": "", "reason": "qdisc_full", "packets": f.dropped.Load()}}
	})
	answer("/v1/qdiscs", func() any { return []string{} })
	return http.DefaultServeMux
}
