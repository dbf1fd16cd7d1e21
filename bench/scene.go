package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"taprouter/control/api"
	"taprouter/control/hostnet"
	"taprouter/internal/spawn"
	ends "taprouter/internal/traffic"
)

// A plan is what a scene's configuration says besides names and addresses.
type plan struct {
	routed       bool   // or else bridged
	router       string // lines of the whole file
	portA, portB string // ", key: value" of each port
	host         string // the same, of the kernel's side of both
}

// names are those of what a scene makes.
type names struct {
	name       string // of the router
	nsA, nsB   string
	devA, devB string
}

// Addresses of the hosts. In a routed scene the router has .254 of both networks.
const (
	bridgedA, bridgedB = "10.98.0.1", "10.98.0.2"
	routedA, routedB   = "10.98.1.1", "10.98.2.1"
)

// addresses are those of the hosts.
func (p plan) addresses() (a, b string) {
	if p.routed {
		return routedA, routedB
	}
	return bridgedA, bridgedB
}

// config is the router's configuration.
func (p plan) config(n names) string {
	var b strings.Builder
	fmt.Fprintf(&b, "version: 1\n%sports:\n", p.router)
	hostA, hostB := p.addresses()
	if !p.routed {
		fmt.Fprintf(&b, "  - {name: %s, netns: %s, create: true, host: {addresses: [%s/24]%s}%s}\n", n.devA, n.nsA, hostA, p.host, p.portA)
		fmt.Fprintf(&b, "  - {name: %s, netns: %s, create: true, host: {addresses: [%s/24]%s}%s}\n", n.devB, n.nsB, hostB, p.host, p.portB)
		fmt.Fprintf(&b, "bridges:\n  - {name: br0, ports: [%s, %s]}\n", n.devA, n.devB)
		return b.String()
	}
	const routed = "  - {name: %s, netns: %s, create: true, addresses: [10.98.%d.254/24], " +
		"host: {addresses: [%s/24], routes: [{to: 10.98.0.0/16, via: 10.98.%[3]d.254}]%[5]s}%s}\n"
	fmt.Fprintf(&b, routed, n.devA, n.nsA, 1, hostA, p.host, p.portA)
	fmt.Fprintf(&b, routed, n.devB, n.nsB, 2, hostB, p.host, p.portB)
	return b.String()
}

// A scene is two hosts in namespaces of their own with a router between them:
// what is measured is `router run`, with real TAPs and the kernel's TCP.
type scene struct {
	names
	router   *spawn.Router
	a, b     *ends.Agent
	echo     *ends.Receiver // on b
	from, to string         // addresses of the hosts
	cancel   context.CancelCauseFunc
}

// sceneSlice is how much longer than asked for a slice is in a scene, where TCP
// has to find its speed.
const sceneSlice = 4

var scenes atomic.Uint32 // names are used once

// newScene makes one with a bridge. Ports are described by what follows their
// names in the configuration; the router's workers are as many as it chooses.
func newScene(ctx context.Context, r *Runner, portA, portB string) (*scene, error) {
	return startScene(ctx, r, plan{router: "memory: {pool: 1GiB}\n", portA: ", " + portA, portB: ", " + portB})
}

func startScene(ctx context.Context, r *Runner, p plan) (*scene, error) {
	id := fmt.Sprintf("tb%x%x", os.Getpid(), scenes.Add(1))
	s := &scene{names: names{name: "bench-" + id, nsA: id + "a", nsB: id + "b", devA: id + "a", devB: id + "b"}}
	s.from, s.to = p.addresses()
	ctx, s.cancel = context.WithCancelCause(ctx)
	var err error
	if s.router, err = spawn.Start(ctx, r.Router, s.name, p.config(s.names), s.cancel); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if s.a, err = ends.StartIn(s.nsA, io.Discard, r.Router, r.Agent); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if s.b, err = ends.StartIn(s.nsB, io.Discard, r.Router, r.Agent); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if s.echo, err = s.b.Listen(ctx, ends.KindEcho, s.at("0")); err == nil {
		err = s.a.Reach(ctx, s.echo.Addr, 10*time.Second)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// at is an address of host b.
func (s *scene) at(port string) string { return net.JoinHostPort(s.to, port) }

// close ends the children; the router removes the namespaces.
func (s *scene) close() error {
	for _, a := range []*ends.Agent{s.a, s.b} {
		if a != nil {
			a.Stop(10 * time.Second)
		}
	}
	var err error
	if s.router != nil {
		err = s.router.Stop()
	}
	s.cancel(nil)
	return err
}

// set changes something of a port.
func (s *scene) set(ctx context.Context, what string, c api.Change) error {
	return s.router.API.Set(ctx, what, c)
}

// sysctl writes net.ipv4 settings of host a.
func (s *scene) sysctl(values map[string]string) (err error) {
	for name, v := range values {
		err = errors.Join(err, setSysctl(s.nsA, "ipv4/"+name, v))
	}
	return err
}

// setSysctl writes a setting below net of a namespace.
func setSysctl(netns, name, value string) error {
	return inNetNS(netns, func(ns *hostnet.NS) error {
		return ns.Do(func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) })
	})
}

// inNetNS calls f with a namespace that exists.
func inNetNS(name string, f func(ns *hostnet.NS) error) error {
	ns, _, err := hostnet.Ensure(name, false)
	if err != nil {
		return err
	}
	defer ns.Close()
	return f(ns)
}

// steering gives what `router xps show` says of port b.
func (s *scene) steering(ctx context.Context) (x api.XPS, err error) {
	var all []api.XPS
	if err = s.router.API.Get(ctx, "xps", &all); err != nil {
		return x, err
	}
	for _, x := range all {
		if x.Dev == s.devB {
			return x, nil
		}
	}
	return x, fmt.Errorf("no port %s", s.devB)
}

// A bulk is a number of TCP streams from a to b that last until stop.
type bulk struct {
	rcv   *ends.Receiver
	sent  chan error
	stats ends.TCPSent
}

// startBulk begins one stream, for d at most.
func (s *scene) startBulk(ctx context.Context, d time.Duration) (*bulk, error) {
	return s.startBulks(ctx, ends.KindTCP, 1, d)
}

// startBulks begins so many, to a receiver of that kind.
func (s *scene) startBulks(ctx context.Context, kind string, flows int, d time.Duration) (*bulk, error) {
	rcv, err := s.b.Listen(ctx, kind, s.at("0"))
	if err != nil {
		return nil, err
	}
	b := &bulk{rcv: rcv, sent: make(chan error, 1)}
	go func() {
		var err error
		b.stats, err = s.a.SendTCP(ctx, ends.TCPSend{To: rcv.Addr, Flows: flows, Duration: d})
		b.sent <- err
	}()
	return b, nil
}

// wait waits until everything has arrived.
func (b *bulk) wait(ctx context.Context) error {
	if err := <-b.sent; err != nil {
		return err
	}
	_, err := b.rcv.Finish(ctx, nil, 0)
	return err
}

// goodput measures what host b has read in the time that f takes, in Mbit/s.
func (b *bulk) goodput(ctx context.Context, f func() error) (mbit float64, err error) {
	_, before, err := b.rcv.Progress(ctx)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := f(); err != nil {
		return 0, err
	}
	_, after, err := b.rcv.Progress(ctx)
	return ends.Mbit(after-before, time.Since(start)), err
}
