package dataplane

import (
	"fmt"

	"taprouter/bql"
	"taprouter/gro"
	"taprouter/packet"
	"taprouter/qdisc"
	"taprouter/tun"
	"taprouter/xpsflow"
)

// Accept says which offloads the reader behind a port takes from us. What it
// does not take is done in software at egress.
type Accept uint8

const (
	AcceptCsum Accept = 1 << iota // partial checksums
	AcceptTSO                     // TCP superpackets
	AcceptUSO                     // UDP superpackets
)

// AcceptAll is what the kernel behind a vnet header takes.
const AcceptAll = AcceptCsum | AcceptTSO | AcceptUSO

// PortConfig says what a port is made of.
type PortConfig struct {
	Name       string
	Queues     []*tun.Queue // by kernel queue index; the caller opened and will close them
	Accept     Accept
	GRO        bool       // merge what the port reads
	TxQueueLen int        // packets of one band of one queue's ring
	Qdisc      qdisc.Spec // root: "mq" or a kind that serves all queues
	Child      qdisc.Spec // of mq's children
	FlowTable  int        // flow table buckets, 0 = off
	FlowMode   xpsflow.Mode
	Line       LineConfig
	RxOffset   int   // rx queue q is read by worker (q+RxOffset) mod workers
	Fault      Shape // superpackets to be refused as if the device had, for tests
}

// A Port is a device seen by the data path.
type Port struct {
	Name    string
	Index   int
	dp      *Dataplane
	accept  Accept
	shapes  shapeWatch
	rx      []*rxQueue
	tx      []*TxQueue
	steer   *xpsflow.Steer
	order   orderWatch
	stopHop func()  // ends what SetHop began; guarded by dp.mu
	share   int     // bytes of pool memory that one of its qdiscs may hold, and half of that a ring or a queue's part of the delay
	lines   []*line // none, one for all tx queues, or one for each

	root       rootQdisc // guarded by dp.mu; its parts are read atomically
	txQueueLen int       // guarded by dp.mu
}

// An rxQueue is a queue as its one reading worker sees it. Which that is
// changes in a pause, and with dp.mu.
type rxQueue struct {
	q       *tun.Queue
	port    uint16
	home    *Worker // in whose name tx queues are chosen for what it brings
	worker  *Worker // reads it: home, unless that has too much to do
	token   uint32  // of its event in the worker's poller
	watched bool    // there
	gro     bool    // merge; changed in a pause

	// The worker's own; counters are read in a pause.
	ready          bool   // in worker.ready
	frames         uint64 // reads
	packets, bytes uint64
	merged         gro.Stats // what became of them

	_ [64]byte // the next rx queue is another worker's
}

// count adds what was read, in wire packets, once a batch.
func (rx *rxQueue) count(pkts []*packet.Packet) (bytes int64) {
	for _, p := range pkts {
		rx.packets += uint64(p.Segs)
		bytes += int64(p.Len())
	}
	rx.frames += uint64(len(pkts))
	rx.bytes += uint64(bytes)
	return bytes
}

// watch has the worker wait for what comes, if there is a connection; else
// Connect does.
func (rx *rxQueue) watch() error {
	if !rx.q.Connected() {
		return nil
	}
	rx.watched = true
	return rx.worker.poller.Watch(rx.q, rx.token)
}

// unwatch ends watch.
func (rx *rxQueue) unwatch() {
	rx.watched = false
	rx.worker.poller.Unwatch(rx.q)
}

func newPort(dp *Dataplane, index int, cfg PortConfig, share int) (*Port, error) {
	if len(cfg.Queues) < 1 || cfg.TxQueueLen < 1 {
		return nil, fmt.Errorf("dataplane: port %s: %d queues of length %d", cfg.Name, len(cfg.Queues), cfg.TxQueueLen)
	}
	p := &Port{Name: cfg.Name, Index: index, dp: dp, accept: cfg.Accept, share: share, txQueueLen: cfg.TxQueueLen, stopHop: func() {}}
	p.shapes.fault = cfg.Fault
	p.shapes.takes.Store(uint32(p.accept.shapes()))
	p.steer = xpsflow.New(len(dp.workers)+1, len(cfg.Queues))
	for i, q := range cfg.Queues {
		reader := dp.workers[(i+cfg.RxOffset)%len(dp.workers)]
		p.rx = append(p.rx, &rxQueue{q: q, port: uint16(index), home: reader, worker: reader, gro: cfg.GRO})
		t := newTxQueue(p, i, q)
		p.tx = append(p.tx, t)
		p.steer.SetCounters(i, t.dql.EnqueueOps(), t.dql.CompletedOps())
	}
	if err := p.setLine(cfg.Line); err != nil {
		return nil, fmt.Errorf("dataplane: port %s: %w", cfg.Name, err)
	}
	if len(cfg.Queues) > 1 {
		if err := p.steer.SetTable(cfg.FlowTable, cfg.FlowMode); err != nil {
			return nil, fmt.Errorf("dataplane: port %s: %w", cfg.Name, err)
		}
	}
	root, err := p.newRoot(cfg.Qdisc, cfg.Child)
	if err != nil {
		return nil, fmt.Errorf("dataplane: port %s: %w", cfg.Name, err)
	}
	p.install(root)
	return p, nil
}

// A rootQdisc is what sits at a port's root: mq with a child for each tx
// queue, or one qdisc that serves them all.
type rootQdisc struct {
	spec     qdisc.Spec
	mq       *qdisc.MQ      // nil unless kind is mq
	children []*qdisc.Qdisc // by tx queue; all the same without mq
}

func (p *Port) newQdisc(spec qdisc.Spec, txqs ...*TxQueue) (*qdisc.Qdisc, error) {
	d, err := spec.New(p.txQueueLen)
	if err != nil {
		return nil, err
	}
	qs := make([]qdisc.Txq, len(txqs))
	for i, t := range txqs {
		qs[i] = t
	}
	q := qdisc.New(d, qs, len(p.dp.workers)+1)
	q.SetMemoryLimit(p.share * len(txqs))
	return q, nil
}

func (p *Port) newRoot(spec, child qdisc.Spec) (rootQdisc, error) {
	r := rootQdisc{spec: spec}
	if spec.Kind != "mq" {
		q, err := p.newQdisc(spec, p.tx...)
		if err != nil {
			return r, err
		}
		for range p.tx {
			r.children = append(r.children, q)
		}
		return r, nil
	}
	for _, t := range p.tx {
		q, err := p.newQdisc(child, t)
		if err != nil {
			return r, err
		}
		r.children = append(r.children, q)
	}
	r.mq = &qdisc.MQ{Children: r.children}
	return r, nil
}

// install publishes the qdiscs of r to the tx queues.
func (p *Port) install(r rootQdisc) {
	p.root = r
	for i, t := range p.tx {
		t.qdisc.Store(r.children[i])
	}
}

// setLine gives the port's tx queues their lines, or none, before traffic. Of
// a queue's share of the pool the qdisc gets half, ring and delay a quarter each.
func (p *Port) setLine(cfg LineConfig) error {
	if err := cfg.Check(); err != nil || cfg.Rate == 0 {
		return err
	}
	p.share /= 2
	share := p.share / 2
	for i, t := range p.tx {
		if !cfg.Shared || i == 0 {
			n := 1
			if cfg.Shared {
				n = len(p.tx)
			}
			p.lines = append(p.lines, newLine(t.home, cfg, share*n))
		}
		l := p.lines[len(p.lines)-1]
		l.queues = append(l.queues, t)
		t.line = l
		t.ring.init(cfg.Ring, share)
		t.dql.Init(0, bql.MaxLimit)
	}
	return nil
}
