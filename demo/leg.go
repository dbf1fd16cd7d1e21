package demo

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"taprouter/internal/traffic"
)

// UDP legs: datagrams of a common size.
const (
	udpSize   = 1200 // bytes of payload
	udpPPS    = 20000
	udpMaxPPS = 50000
)

const (
	pingInterval  = 5 * time.Millisecond
	reachTimeout  = 15 * time.Second // duplicate address detection of IPv6 takes 1 to 2 s
	patience      = 300 * time.Millisecond
	legGrace      = 20 * time.Second // what a leg may take beyond its duration
	progressEvery = 200 * time.Millisecond
)

// A leg is one row of the table.
type leg struct {
	path
	proto string // tcp | udp
	flows int
	to    string // the receiver's address
	// Of UDP: datagrams a second, all flows together, and how far that rises
	// as long as the sender keeps up.
	pps, maxPPS int
}

// allLegs gives the legs in the order in which they run.
func allLegs() (legs []leg) {
	for _, p := range paths {
		for _, proto := range []string{"tcp", "udp"} {
			for _, flows := range []int{1, 8} {
				legs = append(legs, leg{p.path, proto, flows, p.to, udpPPS, udpMaxPPS})
			}
		}
	}
	return legs
}

func (l leg) name() string { return fmt.Sprintf("%s-%s-%s-%d", l.layer, l.family, l.proto, l.flows) }

// listen is an address to listen on. The wildcard does not wait until an IPv6
// address is known to be unique, as binding to the address would.
func (l leg) listen() string {
	if l.family == "ipv6" {
		return "[::]:0"
	}
	return "0.0.0.0:0"
}

// at gives a receiver's port at the leg's address.
func (l leg) at(r *traffic.Receiver) string {
	return net.JoinHostPort(l.to, r.Addr[strings.LastIndexByte(r.Addr, ':')+1:])
}

// A target is where the pings of a path go.
type target struct {
	echo *traffic.Receiver
	addr string
}

// reach starts the echoes and waits until each path works.
func (d *demo) reach(ctx context.Context) error {
	d.targets = map[path]target{}
	for _, l := range d.opt.legs {
		if _, ok := d.targets[l.path]; ok {
			continue
		}
		echo, err := d.b.Listen(ctx, traffic.KindEcho, l.listen())
		if err != nil {
			return err
		}
		d.targets[l.path] = target{echo, l.at(echo)}
		if err := d.a.Reach(ctx, l.at(echo), reachTimeout); err != nil {
			return fmt.Errorf("%s %s: %w", l.layer, l.family, err)
		}
	}
	return nil
}

// legs runs the legs one after the other.
func (d *demo) legs(ctx context.Context, res *result) error {
	legs := d.opt.legs
	for i, l := range legs {
		d.show.update("[%2d/%d] %-16s", i+1, len(legs), l.name())
		r, err := d.leg(ctx, l, func(mbit float64) {
			d.show.update("[%2d/%d] %-16s %8.0f Mbit/s", i+1, len(legs), l.name(), mbit)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", l.name(), err)
		}
		d.show.say("[%2d/%d] %-16s %8.0f Mbit/s", i+1, len(legs), l.name(), r.MbitS)
		res.Legs = append(res.Legs, r.Leg)
		for _, f := range r.failures() {
			res.fail("%s: %s", l.name(), f)
		}
	}
	return nil
}

// leg runs one leg: traffic and pings at the same time, counters before and
// after.
func (d *demo) leg(ctx context.Context, l leg, show func(mbit float64)) (m measured, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d.opt.Duration+legGrace, fmt.Errorf("no end after %v", d.opt.Duration+legGrace))
	defer cancel()
	rcv, err := d.b.Listen(ctx, l.proto, l.listen())
	if err != nil {
		return m, err
	}
	before, err := d.observe(ctx)
	if err != nil {
		return m, err
	}
	pings := make(chan error, 1)
	go func() {
		var err error
		m.pings, err = d.a.SendPings(ctx, traffic.Ping{To: d.targets[l.path].addr, Interval: pingInterval, Duration: d.opt.Duration})
		pings <- err
	}()
	stop := watch(ctx, rcv, show)
	err = d.drive(ctx, l, rcv, &m)
	stop()
	if perr := <-pings; err == nil {
		err = perr
	}
	if err != nil {
		return m, err
	}
	after, err := d.observe(ctx)
	if err != nil {
		return m, err
	}
	m.leg = l
	m.seen = after.since(before, d.names.ports(l.path), d.guests.taps(d.names)...)
	m.add()
	return m, nil
}

// drive sends the leg's traffic and collects what both ends say.
func (d *demo) drive(ctx context.Context, l leg, rcv *traffic.Receiver, m *measured) (err error) {
	if l.proto == "tcp" {
		m.tcpSent, err = d.a.SendTCP(ctx, traffic.TCPSend{To: l.at(rcv), Flows: l.flows, Duration: d.opt.Duration})
	} else {
		m.udpSent, err = d.a.SendUDP(ctx, traffic.UDPSend{
			To: l.at(rcv), Flows: l.flows, PPS: l.pps, MaxPPS: l.maxPPS, Size: udpSize, Duration: d.opt.Duration,
		})
	}
	got, ferr := rcv.Finish(ctx, m.udpSent.Flows, patience)
	m.got = got
	if err == nil {
		err = ferr
	}
	return err
}

// watch shows a receiver's progress until stop is called.
func watch(ctx context.Context, rcv *traffic.Receiver, show func(mbit float64)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(progressEvery)
		defer t.Stop()
		start := time.Now()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			if _, n, err := rcv.Progress(ctx); err == nil {
				show(traffic.Mbit(n, time.Since(start)))
			}
		}
	}()
	return func() { cancel(); <-done }
}
