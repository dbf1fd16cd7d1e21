package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"taprouter/control/api"
	"taprouter/control/hostnet"
	"taprouter/internal/spawn"
	ends "taprouter/internal/traffic"
)

// A scene is two hosts in namespaces of their own with a bridge between them:
// what is measured is `router run`, with real TAPs and the kernel's TCP.
type scene struct {
	name       string // of the router
	nsA, nsB   string
	devA, devB string
	router     *spawn.Router
	a, b       *ends.Agent
	echo       *ends.Receiver // on b
	from, to   string         // addresses of the hosts
	cancel     context.CancelCauseFunc
}

// sceneSlice is how much longer than asked for a slice is in a scene, where TCP
// has to find its speed.
const sceneSlice = 4

var scenes atomic.Uint32 // names are used once

// newScene makes one. Ports are described by what follows their names in the
// configuration; the router's workers are as many as it chooses.
func newScene(ctx context.Context, r *Runner, portA, portB string) (*scene, error) {
	p := fmt.Sprintf("tb%x%x", os.Getpid(), scenes.Add(1))
	s := &scene{name: "bench-" + p, nsA: p + "a", nsB: p + "b", devA: p + "a", devB: p + "b", from: "10.98.0.1", to: "10.98.0.2"}
	ctx, s.cancel = context.WithCancelCause(ctx)
	conf := fmt.Sprintf(`version: 1
memory: {pool: 1GiB}
ports:
  - {name: %s, netns: %s, create: true, host: {addresses: [%s/24]}, %s}
  - {name: %s, netns: %s, create: true, host: {addresses: [%s/24]}, %s}
bridges:
  - {name: br0, ports: [%s, %s]}
`, s.devA, s.nsA, s.from, portA, s.devB, s.nsB, s.to, portB, s.devA, s.devB)
	var err error
	if s.router, err = spawn.Start(ctx, r.Router, s.name, conf, s.cancel); err != nil {
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
func (s *scene) sysctl(values map[string]string) error {
	ns, _, err := hostnet.Ensure(s.nsA, false)
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.Do(func() error {
		for name, v := range values {
			if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(v), 0); err != nil {
				return err
			}
		}
		return nil
	})
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

// A bulk is a TCP stream from a to b that lasts until stop.
type bulk struct {
	rcv   *ends.Receiver
	sent  chan error
	stats ends.TCPSent
}

// startBulk begins one, for d at most.
func (s *scene) startBulk(ctx context.Context, d time.Duration) (*bulk, error) {
	rcv, err := s.b.Listen(ctx, ends.KindTCP, s.at("0"))
	if err != nil {
		return nil, err
	}
	b := &bulk{rcv: rcv, sent: make(chan error, 1)}
	go func() {
		var err error
		b.stats, err = s.a.SendTCP(ctx, ends.TCPSend{To: rcv.Addr, Flows: 1, Duration: d})
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
