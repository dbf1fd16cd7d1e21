package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"taprouter/control/hostnet"
	"taprouter/control/peer"
	"taprouter/dataplane"
	"taprouter/forward"
	"taprouter/packet"
	"taprouter/tun"
)

// A linkState is what is known of a port's netdev.
type linkState struct {
	Up     bool
	Gone   bool
	Reason string     // why it is not up
	Socket peer.State // of a socket port
	MAC    string
	MTU    int
}

// A linkEvent is an event in the namespace of a port's netdev.
type linkEvent struct {
	port int
	from *follower
	ev   hostnet.Event
}

// A follower is the watch of one port's netdev in one namespace. Events of a
// follower that was replaced are stale.
type follower struct{ w *hostnet.Watcher }

func (f *follower) close() {
	if f != nil && f.w != nil {
		f.w.Close()
	}
}

// watchLinks follows the netdevs of all ports until ctx ends: set up and
// down, given another MTU or address, moved to another namespace, deleted.
// None of that ends the router. A port that went with its namespace comes back
// when there is a namespace of that name again.
func (r *router) watchLinks(ctx context.Context) {
	events := make(chan linkEvent, 64)
	names, watching := r.watchNames(ctx)
	followers := make([]*follower, len(r.ports))
	for i, p := range r.ports {
		if p.queue == nil {
			followers[i] = r.follow(ctx, i, events)
		}
	}
	var closing sync.WaitGroup
	defer func() {
		for _, f := range followers {
			f.close()
		}
		closing.Wait()
		watching.Wait()
	}()
	for {
		for i, p := range r.ports {
			if p.again && p.lost() && r.restore(p) {
				closing.Go(followers[i].close)
				followers[i] = r.follow(ctx, i, events)
			}
		}
		select {
		case <-ctx.Done():
			return
		case e := <-r.dp.Events():
			r.heard(e)
		case name := <-names:
			r.forget(name)
			for _, p := range r.ports {
				p.again = p.again || p.conf.NetNS == name
			}
		case e := <-events:
			if e.from != followers[e.port] || r.note(e.port, e.ev) {
				continue
			}
			// The netdev is not in that namespace any more: where is it now?
			closing.Go(e.from.close) // it may be waiting to give us an event
			followers[e.port] = r.follow(ctx, e.port, events)
		}
	}
}

// heard is for what the workers say of a port.
func (r *router) heard(e dataplane.Event) {
	p := r.ports[e.Port]
	var closed *tun.ClosedError
	if errors.As(e.Err, &closed) {
		p.peer.Lost(closed)
		return
	}
	// The descriptor decides: the event may be about a device before this.
	_, err := p.device().CurrentName()
	var refused *dataplane.RefusedError
	switch {
	case errors.Is(err, tun.ErrGone):
		r.lose(e.Port, "the device was deleted")
	case errors.As(e.Err, &refused):
		slog.Warn("superpackets refused by the device go out in segments", "port", p.conf.Name,
			"shape", refused.Shape.Names()[0], "error", e.Err, "off", refused.Off)
	}
}

// follow begins to watch a port's netdev where it is now; nil if it is
// nowhere any more.
func (r *router) follow(ctx context.Context, port int, events chan<- linkEvent) *follower {
	p := r.ports[port]
	fd, err := p.device().NetNS()
	if err != nil {
		r.lose(port, "the device was deleted")
		return nil
	}
	f := &follower{}
	f.w, err = hostnet.WatchFD(fd, func(ev hostnet.Event) {
		select {
		case events <- linkEvent{port, f, ev}:
		case <-ctx.Done():
		}
	})
	if err != nil {
		r.unfollowed(port, err)
	}
	return f
}

// unfollowed is for a port whose link cannot be watched: it counts as up.
func (r *router) unfollowed(port int, err error) {
	p := r.ports[port]
	slog.Warn("cannot follow the link", "port", p.conf.Name, "error", err)
	r.setState(port, linkState{Up: true, MTU: p.conf.MTU, Reason: "its state cannot be followed: " + err.Error()})
}

// note takes in an event. It reports false if the port's netdev is not in
// the watched namespace any more.
func (r *router) note(port int, ev hostnet.Event) bool {
	p := r.ports[port]
	switch {
	case ev.Err != nil:
		r.unfollowed(port, ev.Err)
		return true
	case ev.NSGone:
		return false
	}
	if ev.Index != p.ifindex {
		return true
	}
	if ev.Gone {
		if link, _, err := p.find(); err == nil { // moved, not deleted
			p.ifindex = link.Index
		}
		return false
	}
	s := linkState{Up: ev.Up && ev.Carrier, MAC: ev.MAC.String(), MTU: ev.MTU}
	switch {
	case !ev.Up:
		s.Reason = "the netdev is set down"
	case !ev.Carrier:
		s.Reason = "the netdev has no carrier"
	}
	r.setState(port, s)
	return true
}

// find looks the netdev up where it is now, under its name of now, and what
// is wrong with the kernel bridge that it joins.
func (p *hostPort) find() (link hostnet.Link, problems []string, err error) {
	name, err := p.device().CurrentName()
	if err != nil {
		return link, nil, err
	}
	fd, err := p.device().NetNS()
	if err != nil {
		return link, nil, err
	}
	ns, err := hostnet.FromFD(fd)
	if err != nil {
		return link, nil, err
	}
	defer ns.Close()
	if link, err = ns.Lookup(name); err == nil {
		problems = bridgeProblems(ns, p.conf, link.MTU)
	}
	return link, problems, err
}

// setState publishes a port's state to the data path if it has changed.
func (r *router) setState(port int, s linkState) {
	p := r.ports[port]
	p.mu.Lock()
	old := p.link
	if !old.Gone {
		p.link = s
	}
	p.mu.Unlock()
	if old.Gone || old == s {
		return
	}
	if old.Up != s.Up || old.MTU != s.MTU {
		r.change(func(n *forward.Snapshot) {
			n.Ports = append([]forward.Port(nil), n.Ports...)
			n.Ports[port].Up = s.Up
			if s.MTU > 0 {
				n.Ports[port].MTU = s.MTU
				n.Ifaces = append([]forward.Iface(nil), n.Ifaces...)
				n.Ifaces[port].MTU = s.MTU
			}
		})
	}
	if old.Up && !s.Up {
		r.flush(port)
		r.neigh.Flush(uint16(port))
		r.dp.PortDown(port, packet.DropLinkDown)
	}
	slog.Info("link", "port", p.conf.Name, "up", s.Up, "mtu", s.MTU, "reason", s.Reason)
}

// flush forgets what was learned behind a port.
func (r *router) flush(port int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.snap.Ports[port].Bridge; b >= 0 {
		r.snap.Bridges[b].FDB.FlushPort(uint16(port))
	}
}

// lose takes a port whose device is gone out of service; the others go on.
func (r *router) lose(port int, reason string) {
	p := r.ports[port]
	p.mu.Lock()
	gone := p.link.Gone
	p.link = linkState{Gone: true, Reason: reason, MAC: p.link.MAC}
	p.mu.Unlock()
	if gone {
		return
	}
	r.change(func(n *forward.Snapshot) {
		n.Ports = append([]forward.Port(nil), n.Ports...)
		n.Ports[port].Up = false
	})
	r.flush(port)
	r.neigh.Flush(uint16(port))
	r.dp.DetachPort(port, packet.DropDeviceGone)
	slog.Warn("port gone", "port", p.conf.Name, "reason", reason)
}
