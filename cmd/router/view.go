package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"taprouter/control/api"
	"taprouter/control/config"
	"taprouter/control/hostnet"
	"taprouter/control/tc"
	"taprouter/dataplane"
	"taprouter/fib"
	"taprouter/forward"
	"taprouter/packet"
	"taprouter/qdisc"
	"taprouter/tun"
	"taprouter/xpsflow"
)

// router implements api.Router: what is shown, and what is changed live.
var _ api.Router = (*router)(nil)

func (r *router) snapshot() *forward.Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.snap
}

// Status is `router status`.
func (r *router) Status() api.Status {
	t := r.dp.Totals()
	s := api.Status{
		Version: version(), Pid: os.Getpid(), Uptime: time.Since(r.begun).Seconds(), Workers: r.conf.Workers,
		IO: r.io.String(), IOReason: r.ioReason, Coalesce: int(r.conf.Coalesce / time.Microsecond),
		BusyPoll: int(r.conf.BusyPoll / time.Microsecond), Balance: r.conf.Balance, Moves: r.dp.Moves(),
		Totals: api.Totals(t), Balanced: t.Balanced(),
	}
	for _, w := range r.dp.WorkerStats() {
		s.Rests += w.Rests
		s.Polls += w.Polls
		s.PollsFound += w.Found
	}
	for _, p := range r.dp.Ports() {
		s.InFlight += p.Steer().InFlight()
	}
	return s
}

// Links is `router link show`.
func (r *router) Links() []api.Link {
	all := []api.Link{}
	for i, h := range r.ports {
		h.mu.Lock()
		state, dev := h.link, h.dev
		h.mu.Unlock()
		c := h.conf
		l := api.Link{
			Index: i, Name: c.Name, Type: c.Type, Backend: c.Backend, OperState: "DOWN", Reason: state.Reason, MTU: cmp.Or(state.MTU, c.MTU),
			TxQueueLen: r.dp.TxQueueLen(i), Steering: config.SteerKernel, HostMAC: state.MAC, NetNS: c.NetNS, Master: c.Bridge, HostBridge: c.Host.Bridge,
			Addresses: texts(c.Addresses), Socket: c.Socket.String(), SocketState: string(state.Socket), Offloads: []string{},
		}
		if dev != nil {
			l.Steering, l.VnetHdr, l.Offloads = dev.Steering().String(), dev.VnetLen > 0, dev.Offloads.Names()
		}
		if !c.MAC.IsZero() {
			l.MAC = c.MAC.String()
		}
		switch {
		case state.Gone:
			l.OperState = "GONE"
		case state.Up:
			l.OperState = "UP"
		}
		l.Accept, l.Software = accepts(r.dp.Ports()[i].Accepts())
		r.linkCounters(&l, h, i)
		all = append(all, l)
	}
	return all
}

// accepts says what the reader takes, and so what is done in software.
func accepts(a dataplane.Accept) (taken, software []string) {
	taken, software = []string{}, []string{}
	for _, o := range []struct {
		bit  dataplane.Accept
		name string
	}{{dataplane.AcceptCsum, "csum"}, {dataplane.AcceptTSO, "tso"}, {dataplane.AcceptUSO, "uso"}} {
		if a&o.bit != 0 {
			taken = append(taken, o.name)
		} else {
			software = append(software, o.name)
		}
	}
	return taken, software
}

func (r *router) linkCounters(l *api.Link, h *hostPort, i int) {
	p := r.dp.Ports()[i]
	l.QueuesUsed, l.GRO, l.GSOOff = p.Steer().Queues(), p.GRO(), p.Refused().Names()
	for q, s := range p.QueueStats() {
		l.Queues = append(l.Queues, api.Queue{
			Queue: q, RxWorker: p.RxWorker(q), RxPackets: s.RxPackets, RxBytes: s.RxBytes,
			TxPackets: s.TxPackets, TxBytes: s.TxBytes, TxStops: s.DriverStops, Stopped: s.Stopped,
		})
		l.Segments += s.Segmented
		l.Checksums += s.Checksummed
		l.GSORefused += s.GSORefused
		l.GROTrains += s.GRO.Trains
		l.GROMerged += s.GRO.Merged
		l.GROBadCsum += s.GRO.BadCsum
	}
	for _, n := range r.dp.Drops(i) {
		l.Dropped += n
	}
	if h.queue != nil {
		return
	}
	if link, problems, err := h.find(); err == nil {
		l.KernelDrop = link.Stats.TxDropped // its own ring was full before we read it
		l.Problems = problems
	}
}

func texts(ps []netip.Prefix) []string {
	all := []string{}
	for _, p := range ps {
		all = append(all, p.String())
	}
	return all
}

// Qdiscs is `router qdisc show`: for each port the root, then mq's children.
func (r *router) Qdiscs() []api.Qdisc {
	all := []api.Qdisc{}
	for _, p := range r.dp.Ports() {
		view, children := p.Qdiscs()
		root := oneQdisc(p.Name, view)
		root.Root = true
		if root.Kind != "mq" {
			root.RefCnt = p.Queues() + 1
		}
		all = append(all, root)
		for i, c := range children {
			q := oneQdisc(p.Name, c)
			q.Parent = fmt.Sprintf(":%x", i+1)
			all = append(all, q)
		}
	}
	return all
}

func oneQdisc(dev string, v dataplane.QdiscView) api.Qdisc {
	s := &v.Stats
	q := api.Qdisc{
		Kind: v.Kind, Handle: "0:", Dev: dev, Bytes: s.Bytes, Packets: s.Packets, Drops: s.Drops,
		Overlimits: s.Overlimits, Requeues: s.Requeues, Backlog: s.Backlog, Qlen: s.Qlen,
	}
	if v.Kind == config.PfifoFast {
		q.Bands = qdisc.Bands
		for _, b := range qdisc.Priomap {
			q.Priomap = append(q.Priomap, int(b))
		}
	}
	if v.FQ != nil {
		q.Options = (*tc.FQConfig)(&v.FQ.Config)
		q.FQStats = tc.NewFQStats(&v.FQ.Stats, v.FQ.NextPacketDelay)
	}
	return q
}

// Lines is `router line show`.
func (r *router) Lines() []api.Line {
	all := []api.Line{}
	for i, p := range r.dp.Ports() {
		c := p.Line()
		if c.Rate == 0 {
			continue
		}
		v := p.LineView()
		l := api.Line{
			Dev: p.Name, Rate: c.Rate, Ring: c.Ring, Delay: int64(c.Delay), Overhead: c.Overhead, Shared: c.Shared,
			Held: v.Held, MaxHeld: v.MaxHeld, Overflow: r.dp.Drops(i)[packet.DropDelay],
		}
		for q, s := range v.Queues {
			l.Queues = append(l.Queues, api.LineQueue{Queue: q, Used: s.Used, Stops: s.Stops})
		}
		all = append(all, l)
	}
	return all
}

// XPS is `router xps show`.
func (r *router) XPS() []api.XPS {
	all := []api.XPS{}
	for _, p := range r.dp.Ports() {
		s := p.Steer()
		st := s.Stats()
		x := api.XPS{Dev: p.Name, Buckets: s.TableSize(), Mode: s.Mode().String(), Moves: st.Moves, Refused: st.Refused, Collisions: st.Collisions, InFlight: s.InFlight(), Reordered: p.Reordered()}
		for q := range s.Queues() {
			workers := slices.DeleteFunc(s.Map().Workers(q), func(w int) bool { return w >= r.dp.Workers() })
			x.Queues = append(x.Queues, api.XPSQueue{Queue: q, Workers: workers})
		}
		all = append(all, x)
	}
	return all
}

// BQL is `router bql show`.
func (r *router) BQL() []api.BQL {
	all := []api.BQL{}
	for i, p := range r.dp.Ports() {
		for q := range r.ports[i].conf.Queues {
			s := p.BQL(q)
			all = append(all, api.BQL{
				Dev: p.Name, Queue: q, Limit: s.Limit, LimitMin: s.LimitMin, LimitMax: s.LimitMax, HoldTime: s.HoldTimeMs,
				Inflight: s.Inflight, EnqueueOps: s.EnqueueOps, CompletedOps: s.CompletedOps,
				StallThrs: s.StallThrs, StallCnt: s.StallCnt, StallMax: s.StallMax,
			})
		}
	}
	return all
}

// FDB is `router fdb show`.
func (r *router) FDB() []api.FDB {
	all := []api.FDB{}
	s := r.snapshot()
	for i := range s.Bridges {
		for _, e := range s.Bridges[i].FDB.Entries(dataplane.Now()) {
			all = append(all, api.FDB{
				MAC: fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", e.MAC[0], e.MAC[1], e.MAC[2], e.MAC[3], e.MAC[4], e.MAC[5]),
				Dev: s.Ports[e.Port].Name, Master: s.Bridges[i].Name, Age: float64(e.Age) / 1e9, Static: e.Static,
			})
		}
	}
	slices.SortFunc(all, func(a, b api.FDB) int {
		return cmp.Or(cmp.Compare(a.Master, b.Master), cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.MAC, b.MAC))
	})
	return all
}

// Routes is `router route show`.
func (r *router) Routes() []api.Route {
	all := []api.Route{}
	s := r.snapshot()
	for _, x := range s.Routes.Routes() {
		a := api.Route{Dst: x.Prefix.String(), Protocol: x.Proto}
		if x.Prefix.Bits() == 0 {
			a.Dst = "default"
		} else if x.Prefix.IsSingleIP() {
			a.Dst = x.Prefix.Addr().String()
		}
		if x.Via.IsValid() {
			a.Gateway = x.Via.String()
		}
		if k := x.Kind.String(); x.Kind != fib.Unicast && x.Kind != fib.Connected {
			a.Type = k
		}
		if x.Kind != fib.Blackhole && x.Kind != fib.Unreachable {
			a.Dev = s.Ifaces[x.Iface].Name
		}
		all = append(all, a)
	}
	return all
}

// Neighs is `router neigh show`.
func (r *router) Neighs() []api.Neigh {
	all := []api.Neigh{}
	s := r.snapshot()
	for _, e := range r.neigh.Entries() {
		n := api.Neigh{Dst: e.Addr.String(), Dev: s.Ifaces[e.Iface].Name, State: e.State}
		if e.MAC != [6]byte{} {
			m := e.MAC
			n.LLAddr = fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
		}
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b api.Neigh) int { return cmp.Or(cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.Dst, b.Dst)) })
	return all
}

// Drops is `router drops show`.
func (r *router) Drops() []api.Drop {
	all := []api.Drop{}
	for i := range len(r.ports) + 1 {
		name := ""
		if i < len(r.ports) {
			name = r.ports[i].conf.Name
		}
		for reason, n := range r.dp.Drops(i) {
			if n > 0 {
				why := packet.Reason(reason)
				all = append(all, api.Drop{Port: name, Reason: why.String(), Text: why.Text(), Packets: n})
			}
		}
	}
	return all
}

// SetXPS is `router xps set dev X queue N workers LIST`.
func (r *router) SetXPS(dev string, queue int, workers []int) error {
	return r.dp.SetWorkers(dev, queue, workers)
}

// SetFlowTable is `router xps set dev X flow_table_cnt N`; without a mode it
// stays as it is.
func (r *router) SetFlowTable(dev string, buckets int, mode string) error {
	for _, p := range r.dp.Ports() {
		if p.Name == dev && mode == "" {
			mode = p.Steer().Mode().String()
		}
	}
	m, err := xpsflow.ParseMode(cmp.Or(mode, xpsflow.Inflight.String()))
	if err != nil {
		return err
	}
	return r.dp.SetFlowTable(dev, buckets, m)
}

// SetTxQueueLen is `router link set dev X txqueuelen N`.
func (r *router) SetTxQueueLen(dev string, n int) error { return r.dp.SetTxQueueLen(dev, n) }

// SetGRO is `router link set dev X gro on|off`.
func (r *router) SetGRO(dev string, on bool) error { return r.dp.SetGRO(dev, on) }

// SetGSO is `router link set dev X gso on`.
func (r *router) SetGSO(dev string) error { return r.dp.SetGSO(dev) }

// SetQueues is `router link set dev X queues N`.
func (r *router) SetQueues(dev string, n int) error {
	h, err := r.port(dev)
	if err != nil {
		return err
	}
	r.changing.Lock() // the device stays the same meanwhile
	defer r.changing.Unlock()
	d, err := h.netdev()
	if err != nil {
		return err
	}
	return r.dp.SetQueues(dev, n, d.Attach, d.Detach)
}

func (r *router) port(name string) (*hostPort, error) {
	for _, h := range r.ports {
		if h.conf.Name == name {
			return h, nil
		}
	}
	return nil, fmt.Errorf("there is no port %q", name)
}

// SetSteering is `router link set dev X steering kernel|random|hash|queue`.
func (r *router) SetSteering(dev, how string) error {
	s, err := tun.ParseSteering(how)
	if err != nil {
		return err
	}
	h, err := r.port(dev)
	if err != nil {
		return err
	}
	d, err := h.netdev()
	if err != nil {
		return err
	}
	return hostnet.Explain(d.SetSteering(s), hostnet.BPF)
}

// SetBQL is `router bql set dev X queue N KEY VALUE`.
func (r *router) SetBQL(dev string, queue int, key string, value uint64) error {
	return r.dp.SetBQL(dev, queue, key, value)
}

// SetHop is `router xps set dev X hop PERIOD`.
func (r *router) SetHop(dev string, period time.Duration) error { return r.dp.SetHop(dev, period) }

// SetLoad is `router line load dev X queue N backlog TIME`.
func (r *router) SetLoad(dev string, queue int, backlog time.Duration) error {
	return r.dp.SetLoad(dev, queue, backlog)
}

// ReplaceQdisc is `router qdisc replace dev X root|parent :N KIND [options]`,
// or `root mq [child KIND [options]]`.
func (r *router) ReplaceQdisc(dev string, child int, kind, children string, options []string) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	h, err := r.port(dev)
	if err != nil {
		return err
	}
	if kind != config.MQ {
		if children != "" {
			return fmt.Errorf("%s has no children; mq has", kind)
		}
		spec, err := h.spec(kind, options)
		if err != nil {
			return err
		}
		return r.dp.ReplaceQdisc(dev, child, spec, qdisc.Spec{})
	}
	spec, err := h.spec(cmp.Or(children, config.PfifoFast), options)
	if err != nil {
		return err
	}
	return r.dp.ReplaceQdisc(dev, child, qdisc.Spec{Kind: config.MQ}, spec)
}

// spec makes a qdisc's from its options, the defaults being those of the MTU.
func (p *hostPort) spec(kind string, options []string) (qdisc.Spec, error) {
	s := qdisc.Spec{Kind: kind}
	if kind != config.FQ {
		if len(options) > 0 {
			return s, fmt.Errorf("%s has no options; fq has", kind)
		}
		return s, nil
	}
	p.mu.Lock()
	s.FQ = qdisc.DefaultFQ(cmp.Or(p.link.MTU, p.conf.MTU))
	p.mu.Unlock()
	_, err := tc.FQOptions(&s.FQ, options)
	return s, err
}

// ChangeQdisc is `router qdisc change dev X root|parent :N fq options`.
func (r *router) ChangeQdisc(dev string, child int, kind string, options []string) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	h, err := r.port(dev)
	if err != nil {
		return err
	}
	now, children := r.dp.Ports()[h.index].Qdiscs()
	switch {
	case child >= len(children):
		return fmt.Errorf("%s has no class :%x", dev, child+1)
	case child >= 0:
		now = children[child]
	case now.Kind == config.MQ:
		return fmt.Errorf("the root of %s is mq, which has no options; name a parent", dev)
	}
	if now.FQ == nil || now.Kind != kind {
		return fmt.Errorf("there is %s, not %s, whose options could be changed; replace it", now.Kind, kind)
	}
	if _, err := tc.FQOptions(&now.FQ.Config, options); err != nil {
		return err
	}
	return r.dp.ChangeQdisc(dev, child, now.FQ.Config)
}
