package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"taprouter/control/api"
	"taprouter/control/config"
	"taprouter/control/hostnet"
	"taprouter/control/neigh"
	"taprouter/control/peer"
	"taprouter/dataplane"
	"taprouter/fib"
	"taprouter/forward"
	"taprouter/packet"
	"taprouter/tun"
	"taprouter/xpsflow"
)

// A router is a running router: the dataplane and what controls it.
type router struct {
	conf     *config.Config
	faults   map[string]dataplane.Shape // by port, for tests
	dp       *dataplane.Dataplane
	neigh    *neigh.Table
	ports    []*hostPort
	made     []string // namespaces that we made
	kernel   []kernelBridge
	begun    time.Time
	io       tun.IO // IOUring or IOReadv
	ioReason string
	cancel   context.CancelFunc

	changing sync.Mutex // held while a qdisc's options are read and changed

	mu   sync.Mutex
	snap *forward.Snapshot // the last one published; guarded by mu
}

// A hostPort is a port as the control plane sees it.
type hostPort struct {
	conf    *config.Port
	index   int        // of the port
	queue   *tun.Queue // of a socket port, which has no device
	peer    *peer.Peer // likewise
	ifindex int        // of the netdev, in the namespace where it is; watchLinks only, after open
	again   bool       // the namespace has come again, or its like, since the last open; watchLinks only

	mu   sync.Mutex
	dev  *tun.Device // guarded by mu: another one after the port has come back
	link linkState   // guarded by mu
}

func (p *hostPort) device() *tun.Device {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dev
}

// newRouter opens the devices of a configuration, configures their host
// sides and builds the dataplane. What fails is undone.
func newRouter(c *config.Config, faults map[string]dataplane.Shape) (r *router, err error) {
	r = &router{conf: c, faults: faults, begun: time.Now()}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	for i := range c.Ports {
		h := &hostPort{conf: &c.Ports[i], index: i}
		r.ports = append(r.ports, h)
		if err := r.open(h, c.Ports[i].Create); err != nil {
			return r, fmt.Errorf("port %s: %w", c.Ports[i].Name, err)
		}
	}
	if r.snap, err = build(c); err != nil {
		return r, err
	}
	// The collector and control have two threads beside the workers, which
	// keep theirs while traffic flows.
	runtime.GOMAXPROCS(c.Workers + 2)
	want, _ := tun.ParseIO(c.IO) // checked by config
	if r.io, r.ioReason, err = tun.ChooseIO(want); err != nil {
		return r, err
	}
	if r.dp, err = dataplane.New(r.dataplaneConfig()); err != nil {
		return r, err
	}
	r.limitMemory()
	for i, p := range r.ports {
		if err := r.applyXPS(p.conf); err != nil {
			return r, fmt.Errorf("port %s: %w", c.Ports[i].Name, err)
		}
	}
	r.neigh = neigh.New(neigh.Config{Ifaces: r.neighIfaces(), Inject: r.dp.Inject, Publish: r.setNeighbours, Now: dataplane.Now})
	return r, nil
}

// open makes a port's device and sets up the kernel's side; with create it
// makes a missing namespace. The device is opened where we are and then moved:
// a queue opened inside a namespace would keep that alive when somebody deletes
// it. Only a persistent device that is in its namespace already is taken over
// there.
func (r *router) open(h *hostPort, create bool) error {
	p := h.conf
	if p.Type == config.SocketType {
		return h.openSocket()
	}
	ns, created, err := hostnet.Ensure(p.NetNS, create)
	if err != nil {
		return err
	}
	defer ns.Close()
	if created {
		r.made = append(r.made, p.NetNS)
	}
	cfg := tun.Config{
		Name: p.Name, Mode: tun.TAP, Queues: p.Queues, VnetHdr: p.VnetHdr, NAPI: p.NAPI, Persist: p.Persist, SndBuf: p.SndBuf, Backpressure: p.Backpressure,
	}
	if p.Type == config.TUN {
		cfg.Mode = tun.TUN
	}
	cfg.Backend, _ = tun.ParseBackend(p.Backend) // checked by config
	var dev *tun.Device
	open := func() (err error) {
		dev, err = tun.Open(cfg)
		return err
	}
	if _, there := ns.Lookup(p.Name); there == nil && p.Persist {
		err = ns.Do(open)
	} else {
		err = open()
	}
	if err != nil {
		return hostnet.Explain(err, hostnet.NetAdmin|hostnet.TunDevice)
	}
	steering, _ := tun.ParseSteering(p.Steering) // checked by config
	h.mu.Lock()
	if h.dev != nil {
		steering = h.dev.Steering() // as it was changed
	}
	h.dev = dev
	h.mu.Unlock()
	if err := dev.SetSteering(steering); err != nil { // kernel, too: a device that was there may have a program
		return hostnet.Explain(err, hostnet.BPF)
	}
	if err := r.joinBridge(ns, p); err != nil {
		return err
	}
	if err := hostnet.Configure(ns, h.withMAC()); err != nil {
		return err
	}
	for _, problem := range bridgeProblems(ns, p, p.MTU) {
		slog.Warn(problem, "port", p.Name)
	}
	link, err := ns.Lookup(p.Name)
	h.ifindex = link.Index
	return err
}

// dataplaneConfig turns the configuration into the data path's.
func (r *router) dataplaneConfig() dataplane.Config {
	// A third of the memory in heads, enough small packets for full queues; a
	// sixth in small tails, one for every eighth head; the rest for superpackets.
	pool := int(r.conf.Pool)
	cfg := dataplane.Config{Workers: r.conf.Workers, Uring: r.io == tun.IOUring, Coalesce: r.conf.Coalesce, BusyPoll: r.conf.BusyPoll, Balance: r.conf.Balance, Memory: packet.Memory{
		Heads: pool / 3 / packet.HeadLen, SmallTails: pool / 6 / packet.SmallTailLen, Tails: pool / 2 / packet.TailLen, Huge: huge(r.conf.Huge),
	}}
	for _, p := range r.ports {
		mode, _ := xpsflow.ParseMode(p.conf.XPS.Mode) // checked by config
		pc := dataplane.PortConfig{
			Name: p.conf.Name, Queues: p.queues(), TxQueueLen: p.conf.TxQueueLen,
			Qdisc: p.conf.Qdisc.Root, Child: p.conf.Qdisc.Child, Line: dataplane.LineConfig(p.conf.Line),
			FlowTable: p.conf.XPS.FlowTableCnt, FlowMode: mode, GRO: p.conf.GRO, Fault: r.faults[p.conf.Name],
		}
		for _, a := range []struct {
			on  bool
			bit dataplane.Accept
		}{{p.conf.Accept.Csum, dataplane.AcceptCsum}, {p.conf.Accept.TSO, dataplane.AcceptTSO}, {p.conf.Accept.USO, dataplane.AcceptUSO}} {
			if a.on {
				pc.Accept |= a.bit
			}
		}
		cfg.Ports = append(cfg.Ports, pc)
	}
	return cfg
}

// applyXPS sets the configured worker-to-queue map of a port.
func (r *router) applyXPS(p *config.Port) error {
	for q, workers := range p.XPS.Map {
		if err := r.dp.SetWorkers(p.Name, q, workers); err != nil {
			return err
		}
	}
	return nil
}

func (r *router) neighIfaces() (all []neigh.Iface) {
	for i := range r.snap.Ifaces {
		f := &r.snap.Ifaces[i]
		n := neigh.Iface{Name: f.Name, Addrs: f.Addrs, Tun: f.Tun, MTU: f.MTU}
		for b := range n.MAC {
			n.MAC[b] = byte(f.MAC >> (40 - 8*b))
		}
		all = append(all, n)
	}
	return all
}

// change publishes a snapshot that differs from the last one by f.
func (r *router) change(f func(s *forward.Snapshot)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := *r.snap
	f(&next)
	r.snap = &next
	r.dp.Publish(&next)
}

func (r *router) setNeighbours(n *fib.Neighbours) {
	r.change(func(s *forward.Snapshot) { s.Neigh = n })
}

// run forwards until ctx ends, then drains and undoes what newRouter did.
func (r *router) run(ctx context.Context, l net.Listener) error {
	ctx, r.cancel = context.WithCancel(ctx)
	defer r.cancel()
	r.change(func(*forward.Snapshot) {})
	if err := r.dp.Start(); err != nil {
		l.Close()
		return errors.Join(err, r.close())
	}
	var wg sync.WaitGroup
	var serving error
	wg.Go(func() { r.dp.Serve(ctx, r.neigh) })
	wg.Go(func() { r.neigh.Run(ctx) })
	wg.Go(func() { r.watchLinks(ctx) })
	wg.Go(func() { r.ageTables(ctx) })
	for i := range r.conf.Bridges {
		wg.Go(func() { r.watchFlaps(ctx, i) })
	}
	for _, p := range r.ports {
		if p.peer != nil {
			wg.Go(func() { p.peer.Run(ctx, &socketPort{r, p.index}) })
		}
	}
	wg.Go(func() {
		if serving = api.Serve(ctx, l, r); serving != nil {
			r.cancel()
		}
	})
	for _, p := range r.dp.Ports() {
		if _, software := accepts(p.Accepts()); len(software) > 0 {
			slog.Info("offloads in software, as the port's reader does not take them", "port", p.Name, "offloads", strings.Join(software, ","))
		}
	}
	slog.Info("forwarding", "ports", len(r.ports), "workers", r.conf.Workers, "io", r.io, "why", r.ioReason)
	<-ctx.Done()
	wg.Wait()
	return errors.Join(serving, r.close())
}

// ageTables ends MAC table entries that were not seen for their bridge's
// ageing time; it wakes a few times in that.
func (r *router) ageTables(ctx context.Context) {
	if len(r.conf.Bridges) == 0 {
		return
	}
	every := r.conf.Bridges[0].AgeingTime
	for _, b := range r.conf.Bridges {
		every = min(every, b.AgeingTime)
	}
	tick := time.NewTicker(max(every/4, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for i, b := range r.conf.Bridges {
			r.snap.Bridges[i].FDB.Age(dataplane.Now(), int64(b.AgeingTime))
		}
	}
}

// watchFlaps says when a bridge sees an address behind two ports in turn.
func (r *router) watchFlaps(ctx context.Context, bridge int) {
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-r.snapshot().Bridges[bridge].FDB.Flaps():
			slog.Warn("address behind two ports in turn: two stations have it, or there is a loop", "bridge", r.conf.Bridges[bridge].Name,
				"mac", macText(f.MAC), "port", r.conf.Ports[f.From].Name, "and", r.conf.Ports[f.To].Name, "times", f.Count)
		}
	}
}

// macText writes an address as fib has it.
func macText(mac uint64) string {
	var m config.MAC
	for i := range m {
		m[i] = byte(mac >> (40 - 8*i))
	}
	return m.String()
}

// close ends the dataplane, the devices and the namespaces that we made. The
// error says that packets did not add up: a fault of ours.
func (r *router) close() (err error) {
	if r.dp != nil {
		r.dp.Stop()
		t := r.dp.Totals()
		heads, tails := r.dp.InUse()
		slog.Info("stopped", "received", t.Received, "sent", t.Sent, "dropped", t.Dropped, "balanced", t.Balanced(), "leaked", heads+tails)
		if !t.Balanced() || heads+tails != 0 {
			err = fmt.Errorf("packets do not add up at the end: %+v, %d buffers leaked", t, heads+tails)
		}
		r.dp.Close()
		r.dp = nil
	}
	for _, p := range r.ports {
		if err := p.close(); err != nil {
			slog.Warn("close", "port", p.conf.Name, "error", err)
		}
	}
	r.ports = nil
	for _, b := range r.kernel {
		if err := b.remove(); err != nil && !errors.Is(err, os.ErrNotExist) {
			slog.Warn("remove bridge", "bridge", b.name, "error", err)
		}
	}
	r.kernel = nil
	for _, ns := range r.made {
		if err := hostnet.Delete(ns); err != nil && !errors.Is(err, os.ErrNotExist) {
			slog.Warn("remove namespace", "netns", ns, "error", err)
		}
	}
	r.made = nil
	return err
}

// runRouter is `router run`: it returns when ctx ends.
func runRouter(ctx context.Context, conf *config.Config, faults map[string]dataplane.Shape, name string, stderr io.Writer) error {
	slog.SetDefault(slog.New(slog.NewTextHandler(stderr, nil)))
	signal.Ignore(syscall.SIGPIPE) // a log that nobody reads any more is no reason to leave things behind
	for _, w := range conf.Warnings {
		slog.Warn(w)
	}
	l, err := api.Listen(name) // first of all: a second holder of the name changes nothing
	if err != nil {
		return err
	}
	r, err := newRouter(conf, faults)
	if err != nil {
		l.Close()
		return err
	}
	return r.run(ctx, l)
}
