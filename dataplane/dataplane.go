// Package dataplane (data path) composes the stages into a router: workers
// read batches, classify and forward them, choose a tx queue, and push them
// through its qdisc, DQL and device. Only this package knows their order.
//
// Worker.poll is the picture of the data path. worker.go and txqueue.go are
// the hot files; the others are called by the control plane.
package dataplane

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/classify"
	"taprouter/forward"
	"taprouter/packet"
	"taprouter/tun"
)

// Config sizes a Dataplane.
type Config struct {
	Workers  int
	Uring    bool          // batches of system calls by io_uring; tun.ChooseIO says whether
	Coalesce time.Duration // longest time for which workers let frames gather; 0: never, at most MaxCoalesce
	BusyPoll time.Duration // longest time for which workers look for frames before they sleep; 0: never, at most MaxBusyPoll
	Balance  bool          // idle workers read queues of busy ones
	Memory   packet.Memory
	Classify classify.Options
	Ports    []PortConfig
}

// A Dataplane is the router below the control plane. Its exported methods
// may be called by any goroutine; those that change something are serialised.
type Dataplane struct {
	pool    *packet.Pool
	uring   bool
	workers []*Worker
	control *Worker // has no thread: what the control plane does while the workers are quiet
	ports   []*Port

	snapshot atomic.Pointer[forward.Snapshot]
	stopping atomic.Bool

	mu      sync.Mutex // serialises changes
	paused  atomic.Pointer[pause]
	started bool // guarded by mu
	wg      sync.WaitGroup

	balancer *balancer // nil: rx queues stay with their workers

	punts    chan Punt
	resolves chan forward.Resolve
	events   chan Event
	ctl      sync.Mutex // guards ctlCache, the packets of Serve and Inject
	ctlCache *packet.Cache
}

// An Event is something that happened to a port and that the control plane
// has to deal with.
type Event struct {
	Port int
	Err  error // tun.ErrGone: the device was deleted; or a *tun.ClosedError, a *RefusedError
}

// Lengths of the channels to the control plane. They never block a worker: a
// punt that does not fit is dropped as punt_full, a request for a neighbour is
// made again with the next packet.
const (
	puntLen    = 512
	resolveLen = 512
)

// New makes a Dataplane with its ports; Start sets it going.
func New(cfg Config) (*Dataplane, error) {
	if cfg.Workers < 1 {
		return nil, errors.New("dataplane: at least one worker is needed")
	}
	pool, err := packet.NewPool(cfg.Memory)
	if err != nil {
		return nil, err
	}
	txqs := 0
	for i := range cfg.Ports {
		txqs += len(cfg.Ports[i].Queues)
	}
	dp := &Dataplane{
		pool:     pool,
		uring:    cfg.Uring,
		punts:    make(chan Punt, puntLen),
		resolves: make(chan forward.Resolve, resolveLen),
		// One for each queue that can break, two for each shape that a port's
		// device can refuse: none is lost.
		events: make(chan Event, txqs+2*len(shapeNames)*len(cfg.Ports)),
	}
	dp.ctlCache = pool.NewCache()
	dp.snapshot.Store(&forward.Snapshot{})
	seed := classify.NewSeed()
	for i := range cfg.Workers + 1 {
		w, err := newWorker(dp, i, cfg.Workers, len(cfg.Ports), seed, cfg.Classify)
		if err != nil {
			dp.free()
			return nil, err
		}
		w.mod.longest = int64(min(cfg.Coalesce, MaxCoalesce))
		w.mod.poll = int64(min(cfg.BusyPoll, MaxBusyPoll))
		if i < cfg.Workers {
			dp.workers = append(dp.workers, w)
		} else {
			dp.control = w
		}
	}
	// Queued packets together take half of the pool at most, so that reading
	// never ends because one port does not send.
	share := cfg.Memory.Bytes() / 2 / max(txqs, 1)
	for i := range cfg.Ports {
		p, err := newPort(dp, i, cfg.Ports[i], share)
		if err != nil {
			dp.free()
			return nil, err
		}
		dp.ports = append(dp.ports, p)
	}
	if cfg.Balance && cfg.Workers > 1 {
		dp.balancer = dp.newBalancer()
	}
	return dp, nil
}

// Start starts the workers. Publish comes first: until then every packet
// is dropped.
func (dp *Dataplane) Start() error {
	dp.mu.Lock()
	defer dp.mu.Unlock()
	for _, p := range dp.ports {
		for _, rx := range p.rx {
			rx.home.adopt(rx)
			if err := rx.watch(); err != nil {
				return err
			}
		}
	}
	dp.started = true
	if dp.balancer != nil {
		go dp.balancer.run()
	}
	for _, w := range dp.workers {
		dp.wg.Go(w.run)
	}
	return nil
}

// Publish makes s the forwarding state. Workers use it from their next batch
// and send first what waited for it.
func (dp *Dataplane) Publish(s *forward.Snapshot) {
	dp.snapshot.Store(s)
	for _, w := range dp.workers {
		w.poller.Wake()
	}
}

// Ports gives the ports by index.
func (dp *Dataplane) Ports() []*Port { return dp.ports }

// Workers is the number of workers.
func (dp *Dataplane) Workers() int { return len(dp.workers) }

// Events delivers what happened to ports.
func (dp *Dataplane) Events() <-chan Event { return dp.events }

// A pause is a time in which no worker touches anything shared.
type pause struct{ over chan struct{} }

// quiesce runs f while every worker is between two batches. f may touch what
// otherwise belongs to the workers. It lasts as long as the slowest worker's
// batch, so nothing is lost but time; rings keep what arrives meanwhile.
func (dp *Dataplane) quiesce(f func() error) error {
	dp.mu.Lock()
	defer dp.mu.Unlock()
	return dp.hold(f)
}

// hold is quiesce for who has dp.mu.
func (dp *Dataplane) hold(f func() error) error {
	if !dp.started {
		return f()
	}
	p := &pause{over: make(chan struct{})}
	dp.paused.Store(p)
	for _, w := range dp.workers {
		for w.epoch.Load()&1 != 0 {
			runtime.Gosched()
		}
	}
	dp.control.now = nanotime()
	err := f()
	if dp.control.cpu.Pending() { // what f left to be run, a worker runs
		dp.workers[0].post(func(w *Worker) { w.cpu.TakeOver(&dp.control.cpu) })
	}
	dp.control.finish()
	dp.paused.Store(nil)
	close(p.over)
	return err
}

// ask has the worker do f at the top of its loop and waits until it has: what
// belongs to a worker's thread. The caller has dp.mu.
func (dp *Dataplane) ask(w *Worker, f func(w *Worker)) {
	if !dp.started {
		f(w)
		return
	}
	done := make(chan struct{})
	w.post(func(w *Worker) { f(w); close(done) })
	<-done
}

// Stop ends the workers, sends what the queues still hold, as far as the
// devices take it, and drops the rest as shutdown. The devices stay open.
func (dp *Dataplane) Stop() {
	dp.mu.Lock()
	balancing := dp.started && dp.balancer != nil
	dp.mu.Unlock()
	if balancing {
		dp.balancer.end()
	}
	dp.mu.Lock()
	defer dp.mu.Unlock()
	dp.stopping.Store(true)
	for _, p := range dp.ports {
		p.stopHop()
	}
	for _, w := range dp.workers {
		w.poller.Wake()
	}
	dp.wg.Wait() // producers first, then drain: nobody can add any more
	dp.started = false
	c := dp.control
	for _, w := range dp.workers {
		w.serveInbox()
		w.fwd.Purge(&w.out, packet.DropShutdown)
		w.transmit(w)
		for w.cpu.Pending() {
			w.cpu.TxAction()
		}
	}
	for _, p := range dp.ports {
		for _, t := range p.tx {
			t.qdisc.Load().Schedule(&c.cpu)
		}
	}
	for c.cpu.Pending() {
		c.cpu.TxAction()
	}
	for _, p := range dp.ports {
		for _, t := range p.tx {
			t.qdisc.Load().Reset(&c.cpu, packet.DropShutdown)
			t.clear(packet.DropShutdown)
		}
	}
	for _, w := range append(dp.workers, c) {
		w.finish()
		w.reader.Close()
	}
	dp.drainChannels()
}

// drainChannels frees what the control plane did not fetch any more.
func (dp *Dataplane) drainChannels() {
	for {
		select {
		case p := <-dp.punts:
			dp.control.cache.Put(p.p)
		case <-dp.resolves:
		case <-dp.events:
		default:
			return
		}
	}
}

// InUse counts the buffers that are not free; after Stop it is zero unless
// something leaked.
func (dp *Dataplane) InUse() (heads, tails int) { return dp.pool.InUse() }

// Close frees everything that New made. Stop comes first.
func (dp *Dataplane) Close() { dp.free() }

func (dp *Dataplane) free() {
	for _, w := range dp.workers {
		if w.ring != nil { // it never ran
			w.ring.Close()
		}
		w.poller.Close()
	}
	if dp.control != nil {
		dp.control.poller.Close()
	}
	dp.pool.Close()
}

// port gives the port with this name.
func (dp *Dataplane) port(name string) (*Port, error) {
	for _, p := range dp.ports {
		if p.Name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("there is no port %q", name)
}

// worker gives the worker with this id, the control plane's included.
func (dp *Dataplane) worker(id int) *Worker {
	if id < len(dp.workers) {
		return dp.workers[id]
	}
	return dp.control
}

// home is the worker that owns tx queue q's wake-ups.
func (dp *Dataplane) home(q int) *Worker { return dp.workers[q%len(dp.workers)] }

// lost reports that the port's device was deleted, once for each queue that
// says so, or that its connection has ended, once.
func (dp *Dataplane) lost(port int, q *tun.Queue, errno unix.Errno) {
	if err := q.Fail(errno); err != nil {
		dp.tell(Event{Port: port, Err: err})
	}
}

// tell hands e to the control plane.
func (dp *Dataplane) tell(e Event) {
	select {
	case dp.events <- e:
	default: // it happened again before the first was looked at
	}
}
