package main

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"

	"taprouter/control/config"
	"taprouter/control/hostnet"
)

// watchNames reports the names of namespaces that appear, if any port is in a
// namespace; without such a port it never does. The watch has ended when
// watching says so.
func (r *router) watchNames(ctx context.Context) (names chan string, watching *sync.WaitGroup) {
	names, watching = make(chan string), &sync.WaitGroup{}
	if !slices.ContainsFunc(r.ports, func(p *hostPort) bool { return p.conf.NetNS != "" }) {
		return names, watching
	}
	started := make(chan struct{})
	begun := sync.OnceFunc(func() { close(started) })
	watching.Go(func() {
		defer begun()
		err := hostnet.WatchNames(ctx, begun, func(name string) {
			select {
			case names <- name:
			case <-ctx.Done():
			}
		})
		if err != nil {
			slog.Warn("a port whose namespace is deleted will not come back", "error", err)
		}
	})
	<-started
	return names, watching
}

// forget is for a name under which somebody has made a namespace: what we made
// under it is gone, and the new one is not ours to remove at the end.
func (r *router) forget(name string) {
	r.made = slices.DeleteFunc(r.made, func(made string) bool { return made == name })
	r.kernel = slices.DeleteFunc(r.kernel, func(b kernelBridge) bool { return b.netns == name })
}

// withMAC is the port's configuration with the address that its netdev had
// before it was lost, so that neighbours need not learn another.
func (p *hostPort) withMAC() *config.Port {
	c := *p.conf
	p.mu.Lock()
	defer p.mu.Unlock()
	if mac, err := net.ParseMAC(p.link.MAC); err == nil && len(mac) == 6 && c.Host.MAC.IsZero() {
		c.Host.MAC = config.MAC(mac)
	}
	return &c
}

// lost reports whether the port's device is gone.
func (p *hostPort) lost() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.link.Gone
}

// restore opens the device of a lost port anew, in the namespace that now has
// the name of the one that was deleted, and puts it into service. It reports
// whether that worked; what does not is the port's reason.
func (r *router) restore(p *hostPort) bool {
	r.changing.Lock()
	defer r.changing.Unlock()
	p.again = false
	err := p.device().Close() // its queues are detached from the workers
	if err == nil {
		err = r.open(p, false)
	}
	dev := p.device()
	queues := dev.Queues()
	for i := len(queues) - 1; err == nil && i >= r.dp.Ports()[p.index].Steer().Queues(); i-- {
		err = dev.Detach(queues[i])
	}
	if err == nil {
		err = r.dp.AttachPort(p.index, queues)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.link.Reason = "its namespace is there again, but: " + err.Error()
		slog.Warn("port stays gone", "port", p.conf.Name, "error", err)
		return false
	}
	p.link = linkState{MTU: p.conf.MTU, Reason: "its state is not known yet"}
	slog.Info("port back", "port", p.conf.Name, "netns", p.conf.NetNS)
	return true
}
