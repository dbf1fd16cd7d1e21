package dataplane

import (
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"taprouter/classify"
	"taprouter/forward"
	"taprouter/gro"
	"taprouter/internal/minheap"
	"taprouter/offload"
	"taprouter/packet"
	"taprouter/qdisc"
	"taprouter/tun"
	"taprouter/xpsflow"
)

// A Worker is the stand-in for a CPU: one goroutine on a thread of its own.
// Everything in it belongs to that goroutine except what says otherwise.
type Worker struct {
	id    int
	dp    *Dataplane
	now   int64 // the batch clock: monotonic ns, read once a turn
	stamp int64 // of the last packet that got its tx queue: the batch clock, but no two are equal

	cpu    qdisc.CPU // scheduled qdiscs, packets that qdiscs refused
	cache  *packet.Cache
	poller *tun.Poller // Wake and WatchWritable: anybody
	reader *tun.Reader
	writer tun.Writer
	ring   *tun.Ring // nil: none; open while the worker runs
	cls    *classify.Classifier
	gro    gro.Merger
	fwd    *forward.Forwarder
	snap   *forward.Snapshot

	rx     []*rxQueue // by epoll token; nil where one has gone to another worker
	ready  []*rxQueue // those that may have something to read, in turn
	more   bool       // there were some after the last turn
	home   []*TxQueue // by epoll token less txToken
	batch  packet.Batch
	out    forward.Output
	egress []egress // by port: this batch's packets for it
	used   []int    // ports whose egress is not empty
	lists  [tun.MaxQueues]packet.List
	usedQ  []int // queues whose list is not empty
	tx     txScratch
	mod    moderation
	busy   busyWatch
	idle   bool // the last wait ended without work
	looked bool // it polled
	missed bool // in vain
	starve bool // reading ended for want of buffers

	tid      atomic.Int32
	counters workerCounters // written here, read by anybody

	timers minheap.Heap[*timer]
	ticked bool // a timer has fired in this turn

	_     [64]byte
	inbox atomic.Pointer[request] // pushed by anybody, taken here
	kicks atomic.Pointer[timer]   // asked for by other workers, taken here
	// epoch is odd while the worker may touch shared state. Written here, read
	// by quiesce: a worker that has even epoch looks at paused before it goes on.
	epoch atomic.Uint32
	_     [64]byte
}

// A txScratch is what writing to a tx queue needs: the worker's, not the
// queue's, so that it does not go from CPU to CPU with the run bit.
type txScratch struct {
	batch packet.Batch
	seg   offload.Segmenter
	hdr   [offload.MaxHeaders]byte // of the segment being written
}

// An egress collects the packets of a batch that leave by one port.
type egress struct {
	n    int
	pkts [packet.MaxBatch]*packet.Packet
}

const (
	// rawWait bounds a wait in which the worker keeps its P: it spans the gaps
	// of flowing traffic, and what comes after it can wait for the scheduler.
	rawWait = 20_000_000 // ns
	// starveWait is how long a worker that found no buffer waits for others
	// to free some.
	starveWait = 1_000_000 // ns
	txToken    = 1 << 31
)

func newWorker(dp *Dataplane, id, workers, ports int, seed classify.Seed, opts classify.Options) (*Worker, error) {
	poller, err := tun.NewPoller()
	if err != nil {
		return nil, fmt.Errorf("dataplane: worker %d: %w", id, err)
	}
	cache := dp.pool.NewCache()
	w := &Worker{
		id: id, dp: dp, cpu: qdisc.CPU{ID: id}, cache: cache, poller: poller,
		reader: tun.NewReader(cache), cls: classify.New(seed, opts), fwd: forward.New(cache),
		egress: make([]egress, ports), used: make([]int, 0, ports), usedQ: make([]int, 0, tun.MaxQueues),
	}
	w.counters.init(ports)
	if dp.uring && id < workers {
		if w.ring, err = tun.NewRing(w.reader, &w.writer); err != nil {
			poller.Close()
			return nil, fmt.Errorf("dataplane: worker %d: %w", id, err)
		}
	}
	return w, nil
}

// run is the worker's life. The thread is locked and never given back.
func (w *Worker) run() {
	runtime.LockOSThread()
	w.tid.Store(int32(unix.Gettid()))
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // ns, of this thread: departures are timed
	if w.ring != nil {
		if err := w.ring.Enable(); err != nil {
			panic(fmt.Sprintf("dataplane: worker %d: %v", w.id, err)) // only a ring that has an owner refuses
		}
		defer w.closeRing() // as only its thread can
	}
	var events []tun.Event
	for !w.dp.stopping.Load() {
		w.enter()
		w.note(events)
		w.poll()
		rest, look := w.moderate()
		w.leave()
		events = w.wait(rest, look)
	}
}

func (w *Worker) closeRing() {
	w.ring.Close()
	w.ring = nil
}

// poll is one turn of the worker, and the data path from end to end.
func (w *Worker) poll() {
	w.now = nanotime()
	w.cpu.Now = w.now
	if s := w.dp.snapshot.Load(); s != w.snap {
		w.snap = s
		w.fwd.Retry(s, w.now, &w.out) // what waited for a neighbour goes first
		w.transmit(w)
	}
	w.serveInbox()
	w.serveKicks()
	w.expire()                          // packets that leave lines now, qdiscs whose packets are due
	for n := len(w.ready); n > 0; n-- { // each readable queue gets one batch a turn
		rx := w.ready[0]
		w.ready = append(w.ready[:0], w.ready[1:]...)
		if w.receive(rx) {
			w.ready = append(w.ready, rx)
		}
	}
	w.more = len(w.ready) > 0
	w.cpu.TxAction() // qdiscs that were scheduled: woken, over their quota, missed
	w.finish()
	if w.busy.over(w.now) && w.dp.balancer != nil {
		w.dp.balancer.tell()
	}
}

// receive takes one batch from rx through every stage. It reports whether
// there may be more.
func (w *Worker) receive(rx *rxQueue) bool {
	b := &w.batch
	b.N = 0
	errno := w.reader.ReadBatch(rx.q, b, packet.MaxBatch)
	if pkts := b.Slice(); len(pkts) > 0 {
		for _, p := range pkts {
			p.In = rx.port
		}
		w.busy.frames += int64(len(pkts))
		w.cls.Batch(pkts)
		w.mod.frames += int64(len(pkts))
		w.mod.bytes += rx.count(pkts)
		if rx.gro {
			pkts = w.gro.Merge(pkts, &rx.merged)
		}
		w.fwd.Forward(w.snap, pkts, w.now, &w.out)
		w.transmit(rx.home)
	}
	switch errno {
	case 0:
		return true
	case unix.ENOBUFS:
		w.starve = true
		return true
	case unix.EAGAIN:
	default:
		w.broken(rx, errno)
	}
	rx.ready = false
	return false
}

// transmit gives every packet of w.out the tx queue that worker as prefers and
// hands it over; what the stages dropped or punted goes where it belongs.
func (w *Worker) transmit(as *Worker) {
	for p := w.out.Tx.Pop(); p != nil; p = w.out.Tx.Pop() {
		e := &w.egress[p.Out]
		if e.n == len(e.pkts) {
			w.flush(int(p.Out), as)
		}
		if e.n == 0 {
			w.used = append(w.used, int(p.Out))
		}
		e.pkts[e.n] = p
		e.n++
	}
	for _, port := range w.used {
		w.flush(port, as)
	}
	w.used = w.used[:0]
	if w.out.Punts.Len() > 0 || w.out.Resolves > 0 {
		w.punt()
	}
	w.cpu.Drops.Append(&w.out.Drops)
}

// flush sends the packets collected for a port: one list a tx queue, in
// order, each given to the queue's qdisc in one call.
func (w *Worker) flush(port int, as *Worker) {
	e := &w.egress[port]
	if e.n == 0 {
		return // flushed when it was full, and nothing since
	}
	p := w.dp.ports[port]
	pkts := e.pkts[:e.n]
	e.n = 0
	w.stamp = max(w.stamp, w.now)
	p.steer.SelectBatch(as.id, pkts)
	for _, pkt := range pkts {
		w.stamp++
		pkt.Stamp = w.stamp
		l := &w.lists[pkt.TxQ]
		if l.Len() == 0 {
			w.usedQ = append(w.usedQ, int(pkt.TxQ))
		}
		l.Push(pkt)
	}
	for _, q := range w.usedQ {
		p.tx[q].qdisc.Load().Xmit(&w.cpu, &w.lists[q])
	}
	w.usedQ = w.usedQ[:0]
}

// finish frees what was dropped since the last turn, counts it and publishes
// the counters.
func (w *Worker) finish() {
	for p := w.cpu.Drops.Pop(); p != nil; p = w.cpu.Drops.Pop() {
		w.drop(p)
	}
	w.counters.publish(w)
}

// drop ends a packet that has a reason: its flow table bucket is released
// like that of one that was sent.
func (w *Worker) drop(p *packet.Packet) {
	w.counters.drop(p)
	xpsflow.Complete(p)
	w.cache.Put(p)
}

// broken takes rx out of service after an error of its device or connection.
func (w *Worker) broken(rx *rxQueue, errno unix.Errno) {
	rx.unwatch()
	w.dp.lost(int(rx.port), rx.q, errno)
}

// adopt makes rx one of the queues that w reads, in a pause; watch sets it
// going.
func (w *Worker) adopt(rx *rxQueue) {
	i := slices.Index(w.rx, nil)
	if i < 0 {
		i = len(w.rx)
		w.rx = append(w.rx, nil)
	}
	w.rx[i] = rx
	rx.worker, rx.token = w, uint32(i)
}

// abandon undoes adopt, and watch.
func (w *Worker) abandon(rx *rxQueue) {
	w.forget(rx)
	rx.unwatch()
	w.rx[rx.token] = nil
}

// wait sleeps until there is something to do. While traffic flows the wait
// is raw: the worker keeps its P, so that the next packet does not wait for
// the Go scheduler. After an empty raw wait it sleeps in an ordinary system
// call, which costs nothing for as long as it lasts. Before it, frames may be
// left to gather for a moment, in which only Wake and the timers end the rest,
// or the worker may look for them again and again.
func (w *Worker) wait(rest, look int64) []tun.Event {
	busy := w.more || w.cpu.Pending() || w.inbox.Load() != nil || w.kicks.Load() != nil
	switch {
	case w.starve && !w.cpu.Pending(): // a run may free buffers
		w.poller.Rest(starveWait)
	case busy:
	case rest > 0:
		if rest = w.untilTimer(rest); rest > 0 {
			w.poller.Rest(rest)
		}
	case look > 0:
		if events, found := w.busyPoll(look); found {
			return events
		}
	}
	w.starve = false
	timeout, raw := int64(rawWait), true
	switch {
	case busy:
		timeout = 0
	case w.idle:
		timeout, raw = -1, false
	}
	timeout = w.untilTimer(timeout)
	events, woken := w.events(timeout, raw)
	w.idle = len(events) == 0 && !woken && timeout != 0 && !w.ticked
	w.ticked = false
	return events
}

// moderate says how long, in ns, the next wait is to rest before it begins or
// to poll; w.mod is shared state, as its counters are read in a pause.
func (w *Worker) moderate() (rest, look int64) {
	if w.looked {
		w.looked = false
		w.mod.polled(!w.missed)
	}
	if w.more || w.cpu.Pending() {
		return 0, 0
	}
	switch w.mod.how(w.now) {
	case resting:
		return w.mod.rest(), 0
	case polling:
		return 0, w.mod.poll
	}
	return 0, 0
}

// busyPoll looks for events for so many ns, until there are some or Wake was
// called. In between it lets run who else would on this CPU.
func (w *Worker) busyPoll(nsec int64) (events []tun.Event, found bool) {
	for end := nanotime() + w.untilTimer(nsec); !found && nanotime() < end; {
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		var woken bool
		events, woken = w.events(0, true)
		found = woken || len(events) > 0
	}
	w.looked, w.missed = true, !found
	if found {
		w.idle, w.ticked = false, false
	}
	return events, found
}

// events are the Poller's.
func (w *Worker) events(timeout int64, raw bool) (events []tun.Event, woken bool) {
	events, woken, err := w.poller.Wait(timeout, raw)
	if err != nil {
		panic(fmt.Sprintf("dataplane: worker %d: %v", w.id, err))
	}
	return events, woken
}

// note takes in what the wait reported.
func (w *Worker) note(events []tun.Event) {
	for _, e := range events {
		if e.Token >= txToken {
			w.writable(w.home[e.Token-txToken])
			continue
		}
		if rx := w.rx[e.Token]; rx != nil && !rx.ready {
			rx.ready = true
			w.ready = append(w.ready, rx)
		}
	}
}

// writable wakes a queue whose device has room again.
func (w *Worker) writable(t *TxQueue) {
	if t.xoff.WakeDriver() {
		t.qdisc.Load().Schedule(&w.cpu)
	}
}

// enter marks the worker inside, after the end of a pause if there is one.
// The store of epoch before the load of paused pairs with quiesce, which
// stores paused before it loads epoch: one of the two sees the other.
func (w *Worker) enter() {
	w.epoch.Add(1)
	for p := w.dp.paused.Load(); p != nil; p = w.dp.paused.Load() {
		w.epoch.Add(1)
		<-p.over
		w.epoch.Add(1)
	}
}

// leave marks the worker outside: it touches nothing shared until enter.
func (w *Worker) leave() { w.epoch.Add(1) }

// forget takes rx out of the queues to be read.
func (w *Worker) forget(rx *rxQueue) {
	for i, r := range w.ready {
		if r == rx {
			w.ready = append(w.ready[:i], w.ready[i+1:]...)
			break
		}
	}
	rx.ready = false
}
