//go:build explore

package qdisc

import (
	"fmt"

	"taprouter/internal/step"
	"taprouter/packet"
)

// A world is one execution of a program: a qdisc, its devices, a worker for
// each CPU and what became of every packet.
type world struct {
	q       *Qdisc
	dev     []*device
	cpus    []*CPU
	next    []int // next number by CPU
	made    int
	threads []step.Thread
	alike   int
	atEnd   func() // what ends a lasting stop, before the check

	actions    int // tx actions
	maxActions int
	errs       []error
}

// A device is the driver behind a tx queue.
type device struct {
	w       *world
	xoff    Xoff
	busy    int  // sends to refuse without a stop
	bounded bool // takes only what room says, and stops without
	room    step.Uint32
	limit   int // bytes that may be in flight, 0 = no DQL
	avail   int // what DQL lets go whatever is in flight, 0 = by limit
	flight  step.Uint32

	sending bool           // somebody is in Send
	refused *packet.Packet // must come first next time
	last    map[int]int    // highest number sent, by CPU
	sent    []*packet.Packet
}

// A fifo is the least discipline: one ring.
type fifo struct{ ring }

func (*fifo) Kind() string                     { return "fifo" }
func (*fifo) CanBypass() bool                  { return true }
func (f *fifo) Enqueue(l *packet.List) (s Sum) { f.push(l, &s); return s }
func (f *fifo) Dequeue(int64) *packet.Packet   { return f.pop() }
func (f *fifo) Len() int                       { return f.len() }

func newWorld(txqs, cpus, limit int) *world {
	w := &world{maxActions: 100, next: make([]int, cpus)}
	var qs []Txq
	for range txqs {
		d := &device{w: w, last: map[int]int{}}
		w.dev = append(w.dev, d)
		qs = append(qs, d)
	}
	f := &fifo{}
	f.init(limit)
	w.q = New(f, qs, cpus)
	for i := range cpus {
		w.cpus = append(w.cpus, &CPU{ID: i})
	}
	return w
}

// through puts another discipline in the fifo's place, before anything is sent.
func (w *world) through(d Discipline) *world {
	w.q = New(d, w.q.txqs, len(w.cpus))
	return w
}

// worker adds a thread that does f on CPU i and then what is scheduled there.
func (w *world) worker(name string, i int, f func(*CPU)) {
	w.threads = append(w.threads, step.Thread{Name: fmt.Sprintf("%s %d", name, i), Run: func() {
		f(w.cpus[i])
		w.settle(w.cpus[i])
	}})
}

// pkts makes n packets numbered on from c's last.
func (w *world) pkts(c *CPU, txq, n int) *packet.List {
	var l packet.List
	for range n {
		w.next[c.ID]++
		l.Push(&packet.Packet{Hash: uint32(c.ID<<16 | w.next[c.ID]), Segs: 1, WireLen: 100, TxQ: uint16(txq)})
	}
	w.made += n
	return &l
}

func (w *world) send(c *CPU, n int)        { w.sendTo(c, 0, n) }
func (w *world) sendTo(c *CPU, txq, n int) { w.q.Xmit(c, w.pkts(c, txq, n)) }

// queue puts n packets of CPU i into the qdisc without running it.
func (w *world) queue(i, n int) {
	w.q.enqueue(w.cpus[i], w.pkts(w.cpus[i], 0, n), packet.DropQdisc)
}

// settle does what is scheduled on c.
func (w *world) settle(c *CPU) {
	for c.Pending() {
		w.actions++
		if w.actions > w.maxActions {
			panic(fmt.Sprintf("%d tx actions", w.actions))
		}
		c.TxAction()
	}
}

// completer adds a thread that completes what device 0 has in flight until
// so many bytes are done.
func (w *world) completer(i, bytes int) {
	w.worker("completer", i, func(c *CPU) {
		for done := 0; done < bytes; {
			n := w.dev[0].complete(c)
			if done += n; n == 0 {
				step.Pause()
			}
			w.settle(c)
		}
	})
}

func (w *world) errorf(format string, args ...any) {
	w.errs = append(w.errs, fmt.Errorf(format, args...))
}

// check judges the end: every packet has come to one end, nothing waits.
func (w *world) check() error {
	if w.atEnd != nil {
		w.atEnd()
		w.settle(w.cpus[len(w.cpus)-1])
	}
	ends := map[uint32]int{}
	sent, dropped := 0, 0
	for _, d := range w.dev {
		for _, p := range d.sent {
			ends[p.Hash]++
			sent++
		}
		if d.xoff.Stopped() {
			w.errorf("a queue is stopped for ever")
		}
	}
	for _, c := range w.cpus {
		for p := c.Drops.Front(); p != nil; p = p.Next {
			ends[p.Hash]++
			dropped++
		}
		if c.Pending() {
			w.errorf("CPU %d has something scheduled", c.ID)
		}
	}
	for h, n := range ends {
		if n != 1 {
			w.errorf("packet %d of CPU %d ended %d times", h&0xffff, h>>16, n)
		}
	}
	left := w.q.d.Len() + w.q.requeued.Len() + w.q.badTxq.Len()
	if left != 0 || len(ends) != w.made {
		w.errorf("%d packets left behind: made %d, sent %d, dropped %d", left, w.made, sent, dropped)
	}
	if st := w.q.Stats(); st.Qlen != 0 || st.Backlog != 0 || st.Requeues > 100 || w.q.mem.Load() != 0 {
		w.errorf("counters at the end: %+v, %d bytes held", st, w.q.mem.Load())
	}
	if w.q.lock.Load() != 0 || w.q.state.Load()&sched != 0 {
		w.errorf("lock %d, state %#b at the end", w.q.lock.Load(), w.q.state.Load())
	}
	if len(w.errs) > 0 {
		return w.errs[0]
	}
	return nil
}

func (d *device) Stopped() bool   { return d.xoff.Stopped() }
func (d *device) Arm(*CPU, int64) {}

func (d *device) Avail() int {
	switch {
	case d.avail != 0:
		return d.avail
	case d.limit == 0:
		return 1 << 20
	}
	return d.limit - int(d.flight.Load())
}

// Send takes what there is room for and watches over the order.
func (d *device) Send(_ *CPU, l *packet.List) {
	if d.sending {
		d.w.errorf("two threads in the device")
	}
	d.sending = true
	step.Point("device")
	if p := l.Front(); d.refused != nil && d.refused != p {
		d.w.errorf("packet %#x overtook %#x, which was refused before", p.Hash, d.refused.Hash)
	}
	d.refused = nil
	for l.Len() > 0 && d.take() {
		d.end(l.Pop())
	}
	d.refused = l.Front()
	d.sending = false
}

// take reports whether there is room for one packet, and stops if not.
func (d *device) take() bool {
	switch {
	case d.busy > 0:
		d.busy--
		return false
	case !d.bounded:
		return true
	}
	for d.room.Load() == 0 {
		d.xoff.StopDriver()
		if d.room.Load() == 0 {
			return false
		}
		d.xoff.WakeDriver()
	}
	d.room.Add(^uint32(0))
	return true
}

// end is a packet in the device's hands.
func (d *device) end(p *packet.Packet) {
	cpu, n := int(p.Hash>>16), int(p.Hash&0xffff)
	if n <= d.last[cpu] {
		d.w.errorf("packet %d of CPU %d after packet %d", n, cpu, d.last[cpu])
	}
	d.last[cpu] = n
	d.sent = append(d.sent, p)
	if d.limit == 0 {
		return
	}
	d.flight.Add(p.WireLen)
	if d.Avail() < 0 {
		d.xoff.StopStack(d.Avail)
	}
}

// addRoom is the interrupt that reports that the device has room for n more.
func (d *device) addRoom(c *CPU, n uint32) {
	d.room.Add(n)
	if d.xoff.WakeDriver() {
		d.w.q.Schedule(c)
	}
}

// complete is the interrupt that reports that everything in flight is done.
func (d *device) complete(c *CPU) int {
	n := d.flight.Load()
	if n == 0 {
		return 0
	}
	d.flight.Add(-n)
	if d.Avail() >= 0 && d.xoff.WakeStack() {
		d.w.q.Schedule(c)
	}
	return int(n)
}
