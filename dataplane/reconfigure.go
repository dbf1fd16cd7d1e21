package dataplane

import (
	"errors"
	"fmt"
	"math"
	"time"

	"taprouter/bql"
	"taprouter/packet"
	"taprouter/qdisc"
	"taprouter/tun"
	"taprouter/xpsflow"
)

// SetWorkers changes which workers prefer tx queue q of a port
// (`router xps set dev X queue N workers LIST`). It takes effect with the
// next batch; the flow table keeps flows in order meanwhile.
func (dp *Dataplane) SetWorkers(dev string, q int, workers []int) error {
	p, err := dp.port(dev)
	if err != nil {
		return err
	}
	for _, w := range workers {
		if w < 0 || w >= len(dp.workers) {
			return fmt.Errorf("worker %d: there are %d, from 0", w, len(dp.workers))
		}
	}
	dp.mu.Lock()
	defer dp.mu.Unlock()
	m, err := p.steer.Map().With(q, workers)
	if err != nil {
		return err
	}
	p.steer.SetMap(m)
	return nil
}

// SetHop makes the queue that each flow of a port prefers move on by one every
// period, 0 to end it: a test of how flows move.
func (dp *Dataplane) SetHop(dev string, period time.Duration) error {
	p, err := dp.port(dev)
	if err != nil {
		return err
	}
	if period != 0 && (period < minHop || period > time.Minute) {
		return fmt.Errorf("hop %v: want 0 or %v to %v", period, minHop, time.Minute)
	}
	dp.mu.Lock()
	defer dp.mu.Unlock()
	p.stopHop()
	p.steer.Hop(0)
	if period == 0 || dp.stopping.Load() {
		return nil
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	p.stopHop = func() { close(stop); <-ended; p.stopHop = func() {} }
	go func() {
		defer close(ended)
		tick := time.NewTicker(period)
		defer tick.Stop()
		for n := 1; ; n++ {
			select {
			case <-stop:
				return
			case <-tick.C:
				p.steer.Hop(n)
			}
		}
	}()
	return nil
}

const minHop = 100 * time.Microsecond

// SetGRO says whether what a port reads is merged. It takes effect with the
// next batch; nothing is reordered or lost.
func (dp *Dataplane) SetGRO(dev string, on bool) error {
	p, err := dp.port(dev)
	if err != nil {
		return err
	}
	return dp.quiesce(func() error {
		for _, rx := range p.rx {
			rx.gro = on
		}
		return nil
	})
}

// GRO reports whether what the port reads is merged.
func (p *Port) GRO() (on bool) {
	_ = p.dp.quiesce(func() error {
		on = p.rx[0].gro
		return nil
	})
	return on
}

// SetFlowTable gives a port a flow table of at least n buckets, 0 for none,
// in this mode. Packets in flight keep their order across the change.
func (dp *Dataplane) SetFlowTable(dev string, n int, mode xpsflow.Mode) error {
	p, err := dp.port(dev)
	if err != nil {
		return err
	}
	dp.mu.Lock()
	defer dp.mu.Unlock()
	return p.steer.SetTable(n, mode)
}

// SetTxQueueLen changes the length of a port's rings. What does not fit in a
// shorter ring is dropped as purge.
func (dp *Dataplane) SetTxQueueLen(dev string, n int) error {
	p, err := dp.port(dev)
	if err != nil {
		return err
	}
	if n < 1 || n > 1<<20 {
		return fmt.Errorf("txqueuelen %d: want 1 to %d packets", n, 1<<20)
	}
	return dp.quiesce(func() error {
		p.txQueueLen = n
		for i, q := range p.root.children {
			if i > 0 && p.root.mq == nil {
				break
			}
			q.Resize(&dp.control.cpu, n)
		}
		return nil
	})
}

// ReplaceQdisc grafts a new qdisc: at the root (child < 0, for mq with
// children made by children) or in the place of mq's child number child. The
// old backlog moves over in the order in which it would have been sent; what
// the new qdisc refuses is dropped as graft. Other queues are not touched.
func (dp *Dataplane) ReplaceQdisc(dev string, child int, spec, children qdisc.Spec) error {
	p, err := dp.port(dev)
	if err != nil {
		return err
	}
	return dp.quiesce(func() error {
		if child < 0 {
			return p.graftRoot(spec, children)
		}
		return p.graftChild(child, spec)
	})
}

func (p *Port) graftRoot(spec, children qdisc.Spec) error {
	root, err := p.newRoot(spec, children)
	if err != nil {
		return err
	}
	c := &p.dp.control.cpu
	old := p.root
	p.install(root)
	for i, q := range old.children {
		if i > 0 && old.mq == nil {
			break
		}
		p.move(c, q)
	}
	return nil
}

func (p *Port) graftChild(i int, spec qdisc.Spec) error {
	if p.root.mq == nil || i >= len(p.tx) {
		return fmt.Errorf("%s has no class :%x", p.Name, i+1)
	}
	q, err := p.newQdisc(spec, p.tx[i])
	if err != nil {
		return err
	}
	old := p.root.children[i]
	p.root.children[i] = q
	p.tx[i].qdisc.Store(q)
	p.move(&p.dp.control.cpu, old)
	return nil
}

// move empties old into the qdiscs that now serve the packets' queues.
func (p *Port) move(c *qdisc.CPU, old *qdisc.Qdisc) {
	old.Deactivate()
	old.MoveTo(c, func(pkt *packet.Packet) *qdisc.Qdisc { return p.tx[pkt.TxQ].qdisc.Load() })
}

// SetQueues changes how many of a port's queues are in use. Packets in tx
// queues that go are dropped as no_queue; flows leave them with their next
// packet. It calls attach for each rx queue that comes and detach for each
// that goes, the last first, while no worker reads.
func (dp *Dataplane) SetQueues(dev string, n int, attach, detach func(*tun.Queue) error) error {
	p, err := dp.port(dev)
	if err != nil {
		return err
	}
	if n < 1 || n > len(p.tx) {
		return fmt.Errorf("%d queues: %s was opened with %d, want 1 to that", n, dev, len(p.tx))
	}
	dp.mu.Lock()
	defer dp.mu.Unlock()
	had := p.steer.Queues()
	for q := n; q < had; q++ {
		dp.ask(p.rx[q].worker, func(w *Worker) { w.forget(p.rx[q]); p.rx[q].unwatch() })
	}
	if err := dp.hold(func() error { return p.changeQueues(n, had, attach, detach) }); err != nil {
		return err
	}
	return dp.watch(p.rx[min(had, n):n])
}

// changeQueues does what SetQueues does in the pause.
func (p *Port) changeQueues(n, had int, attach, detach func(*tun.Queue) error) error {
	if err := p.steer.SetQueues(n); err != nil {
		return err
	}
	for q := had - 1; q >= n; q-- { // the last first: the kernel renumbers
		if err := detach(p.rx[q].q); err != nil {
			return err
		}
	}
	for q := had; q < n; q++ {
		if err := attach(p.rx[q].q); err != nil {
			return err
		}
	}
	return p.leaveQueues(n, had)
}

// leaveQueues empties tx queues n to had-1, in a pause.
func (p *Port) leaveQueues(n, had int) error {
	c := &p.dp.control.cpu
	if p.root.mq != nil {
		for q := n; q < had; q++ {
			p.root.children[q].Reset(c, packet.DropNoQueue)
			p.tx[q].clear(packet.DropNoQueue)
		}
		return nil
	}
	if n >= had {
		return nil
	}
	for q := n; q < had; q++ {
		p.tx[q].clear(packet.DropNoQueue)
	}
	// One qdisc serves all: what is for other queues stays, in order.
	old := p.root.children[0]
	root, err := p.newRoot(p.root.spec, qdisc.Spec{})
	if err != nil {
		return err
	}
	p.install(root)
	old.Deactivate()
	old.MoveTo(c, func(pkt *packet.Packet) *qdisc.Qdisc {
		if int(pkt.TxQ) >= n {
			return nil
		}
		return root.children[0]
	})
	return nil
}

// PortDown empties a port's queues after its link went down or its device
// away: their packets are dropped with reason. Later packets are refused by
// forwarding once the snapshot says that the port is down.
func (dp *Dataplane) PortDown(port int, reason packet.Reason) {
	p := dp.ports[port]
	_ = dp.quiesce(func() error {
		c := &dp.control.cpu
		for _, t := range p.tx {
			t.qdisc.Load().Reset(c, reason)
			t.clear(reason)
		}
		return nil
	})
}

// clear drops what is on the way from the qdisc to the device and lets the
// queue run again: a dead device never says that it has room. In a pause.
func (t *TxQueue) clear(reason packet.Reason) {
	c := t.port.dp.control
	if t.line != nil {
		t.line.purge(c, t, reason)
	}
	t.xoff.WakeDriver()
	t.xoff.WakeStack()
	t.dql.Reset(c.now)
}

// DetachPort is PortDown for a device that is gone: no worker waits for its
// queues any more, so that the caller may close them, and AttachPort may give
// the port others.
func (dp *Dataplane) DetachPort(port int, reason packet.Reason) {
	dp.PortDown(port, reason)
	dp.mu.Lock()
	defer dp.mu.Unlock()
	for _, rx := range dp.ports[port].rx {
		dp.ask(rx.worker, func(w *Worker) { w.forget(rx); rx.unwatch() })
	}
}

// AttachPort gives a port that was detached the queues of a new device, as many
// as it had. Only the first so many as are in use are read.
func (dp *Dataplane) AttachPort(port int, queues []*tun.Queue) error {
	p := dp.ports[port]
	if len(queues) != len(p.tx) {
		return fmt.Errorf("%s has %d queues, the new device %d", p.Name, len(p.tx), len(queues))
	}
	dp.mu.Lock()
	defer dp.mu.Unlock()
	err := dp.hold(func() error {
		for i, q := range queues {
			p.rx[i].q, p.tx[i].q = q, q
		}
		return nil
	})
	if err != nil {
		return err
	}
	return dp.watch(p.rx[:p.steer.Queues()])
}

// watch has the workers of rx queues read them from now on. It needs dp.mu.
func (dp *Dataplane) watch(queues []*rxQueue) (err error) {
	for _, rx := range queues {
		dp.ask(rx.worker, func(*Worker) { err = errors.Join(err, rx.watch()) })
	}
	return err
}

// Connect gives a port whose queue is a socket's its connection, of which it
// takes over the sockets: see tun.Queue.Connect. Until Disconnect the
// port reads and writes; an Event says when the connection is of no use any more.
func (dp *Dataplane) Connect(port int, rx, tx int) error {
	return dp.quiesce(func() error {
		q := dp.ports[port].rx[0]
		if err := q.q.Connect(rx, tx); err != nil {
			return err
		}
		return q.watch()
	})
}

// Disconnect takes the connection away again and closes it. What waits for it
// is dropped with reason.
func (dp *Dataplane) Disconnect(port int, reason packet.Reason) {
	dp.DetachPort(port, reason)
	_ = dp.quiesce(func() error {
		dp.ports[port].rx[0].q.Disconnect()
		return nil
	})
}

// Queues is the number of queues that the port was opened with.
func (p *Port) Queues() int { return len(p.tx) }

// Steer gives the port's tx queue selection, for show.
func (p *Port) Steer() *xpsflow.Steer { return p.steer }

// Reordered is how many wire packets of the port were handed to the device
// after a later one of their flow and priority.
func (p *Port) Reordered() uint64 { return p.order.reordered.Load() }

// Accepts gives what the port's reader takes from us.
func (p *Port) Accepts() Accept { return p.accept }

// RxWorker gives the worker that reads rx queue q now.
func (p *Port) RxWorker(q int) int {
	p.dp.mu.Lock()
	defer p.dp.mu.Unlock()
	return p.rx[q].worker.id
}

// TxQueueLen gives the length of a port's rings.
func (dp *Dataplane) TxQueueLen(port int) int {
	dp.mu.Lock()
	defer dp.mu.Unlock()
	return dp.ports[port].txQueueLen
}

// A QdiscView is what can be seen of a qdisc.
type QdiscView struct {
	Kind  string
	Stats qdisc.Stats
	FQ    *FQ // nil for other kinds
}

// Qdiscs gives the root qdisc, then, if that is mq, those of each tx queue,
// at one moment.
func (p *Port) Qdiscs() (root QdiscView, children []QdiscView) {
	_ = p.dp.quiesce(func() error {
		if p.root.mq == nil {
			root = p.dp.view(p.root.children[0])
			return nil
		}
		root.Kind, root.Stats = p.root.spec.Kind, p.root.mq.Stats()
		for _, q := range p.root.children {
			children = append(children, p.dp.view(q))
		}
		return nil
	})
	return root, children
}

// view gives what can be seen of q, in a pause.
func (dp *Dataplane) view(q *qdisc.Qdisc) QdiscView {
	v := QdiscView{Kind: q.Discipline().Kind(), Stats: q.Stats()}
	f, ok := q.Discipline().(*qdisc.FQ)
	if !ok {
		return v
	}
	v.FQ = &FQ{Config: f.Config(), Stats: f.Stats()}
	if next := v.FQ.Stats.TimeNextDelayed; next != math.MaxInt64 {
		v.FQ.NextPacketDelay = max(time.Duration(next+f.TimerSlack()-dp.control.now), 0)
	}
	return v
}

// ChangeQdisc changes the parameters of an fq at the root (child < 0) or of
// mq's child number child. What a lower limit has no room for is dropped as
// purge.
func (dp *Dataplane) ChangeQdisc(dev string, child int, cfg qdisc.FQConfig) error {
	p, err := dp.port(dev)
	if err != nil {
		return err
	}
	return dp.quiesce(func() error {
		q := p.root.children[0]
		switch {
		case child < 0 && p.root.mq != nil:
			return fmt.Errorf("the root of %s is mq, which has no parameters; name a parent", dev)
		case child >= 0 && (p.root.mq == nil || child >= len(p.tx)):
			return fmt.Errorf("%s has no class :%x", dev, child+1)
		case child >= 0:
			q = p.root.children[child]
		}
		err := q.Change(&dp.control.cpu, cfg)
		if err == nil && child < 0 {
			p.root.spec.FQ = cfg
		}
		return err
	})
}

// An FQ is what can be seen of an fq.
type FQ struct {
	Config          qdisc.FQConfig
	Stats           qdisc.FQStats
	NextPacketDelay time.Duration // 0 = nothing waits for its time
}

// BQL gives the byte queue limit of tx queue q.
func (p *Port) BQL(q int) bql.Stats { return p.tx[q].dql.Stats() }

// SetStopHandling turns off, or on again, what keeps the qdiscs of stopped
// queues from being run in vain; benchmarks compare the two.
func (dp *Dataplane) SetStopHandling(on bool) {
	_ = dp.quiesce(func() error {
		for _, p := range dp.ports {
			for _, q := range p.root.children {
				q.SetStopHandling(on)
			}
		}
		return nil
	})
}

// SetBQL changes a setting of a tx queue's DQL, under its name in sysfs.
func (dp *Dataplane) SetBQL(dev string, queue int, key string, value uint64) error {
	p, err := dp.port(dev)
	if err != nil {
		return err
	}
	if queue < 0 || queue >= len(p.tx) {
		return fmt.Errorf("queue %d: %s has %d, from 0", queue, dev, len(p.tx))
	}
	if value > math.MaxUint32 {
		return fmt.Errorf("%s %d is too large", key, value)
	}
	d, v := &p.tx[queue].dql, uint32(value)
	return dp.quiesce(func() error {
		switch key {
		case "limit_min":
			return d.SetLimitMin(v)
		case "limit_max":
			return d.SetLimitMax(v)
		case "hold_time":
			d.SetHoldTime(v)
		case "stall_thrs":
			return d.SetStallThrs(v, dp.control.now)
		case "stall_max":
			d.ClearStallMax()
		default:
			return fmt.Errorf("%q: want limit_min, limit_max, hold_time, stall_thrs or stall_max", key)
		}
		return nil
	})
}
