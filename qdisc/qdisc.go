// Package qdisc (data path) implements queueing disciplines and the kernel's
// protocol for running them without a lock: any worker enqueues, one at a
// time drains, and nothing is left behind.
//
// run.go is the protocol, schedule.go what is left for later, enqueue.go and
// ring.go what producers do, lifecycle.go what control does, pfifo_fast.go a
// discipline, qdisc.go the types that callers see.
package qdisc

import (
	"sync/atomic"

	"taprouter/internal/step"
	"taprouter/packet"
)

// A CPU is one worker's side of its qdiscs: what it has scheduled and what
// was refused. It is not safe for concurrent use.
type CPU struct {
	ID    int         // below the number of cpus given to New
	Now   int64       // the batch clock in ns
	Drops packet.List // packets with a reason; the worker counts and frees them

	Actions uint64 // runs of scheduled qdiscs

	// What the CPU, as run bit holder, has taken out of a qdisc and on the way
	// to a tx queue; empty otherwise.
	batch packet.List

	// How long it waits for a run bit before it leaves its packets, and how
	// often that was in vain when it had no patience left.
	patience, inVain int

	output     *Qdisc // FIFO of scheduled qdiscs (softnet_data.output_queue)
	outputTail *Qdisc
}

// A Txq is what a qdisc sees of a tx queue (struct netdev_queue).
type Txq interface {
	// Stopped reports whether the stack or the driver stopped the queue.
	Stopped() bool
	// Avail is how many bytes the queue's DQL lets go; 0 without DQL.
	Avail() int
	// Arm asks for the qdisc to be scheduled at that time, in ns of the batch
	// clock (qdisc_watchdog_schedule). Only the latest call counts.
	Arm(c *CPU, at int64)
	// Send takes packets from the front of l, in order, and ends them. What
	// stays in l was refused for now. Only the run bit holder calls it.
	Send(c *CPU, l *packet.List)
}

// A Discipline decides in which order packets leave. Enqueue is called by any
// worker at any time, the rest by the run bit holder only.
type Discipline interface {
	Kind() string
	CanBypass() bool
	// Enqueue takes what it accepts from l, which is not empty, and says what
	// that was; what stays in l was refused.
	Enqueue(l *packet.List) Sum
	// Dequeue takes the next packet; now is the batch clock.
	Dequeue(now int64) *packet.Packet
	// Len is the number of packets, including those that an Enqueue which has
	// not returned is about to add: Dequeue may find none while Len is not 0.
	Len() int
}

// A Qdisc is a discipline with the run protocol around it, for one tx queue
// or, as the root of a whole port, for several.
type Qdisc struct {
	d      Discipline
	fq     *FQ   // d, if it is one
	txqs   []Txq // by packet.TxQ; one only: every packet's
	bypass bool
	spin   bool  // a stopped queue keeps missed, and so is run again and again
	limit  int64 // bytes of pool memory that may be held, 0 = any
	shards []shard

	_     [cacheLine]byte
	state step.Uint32 // sched, deactivated, missed, draining
	lock  step.Uint32 // the run bit: 1 while somebody drains
	_     [cacheLine]byte
	mem   atomic.Int64 // bytes of pool memory held
	_     [cacheLine]byte

	// Guarded by the run bit.
	requeued packet.List // refused by the device; leaves before anything else (gso_skb)
	badTxq   packet.List // taken out while another queue was being served (skb_bad_txq)

	next *Qdisc // link of CPU.output, of the CPU that set sched
}

// New puts the run protocol around d. cpus is the number of CPU ids.
func New(d Discipline, txqs []Txq, cpus int) *Qdisc {
	fq, _ := d.(*FQ)
	return &Qdisc{d: d, fq: fq, txqs: txqs, bypass: d.CanBypass(), shards: make([]shard, cpus)}
}

// Held is how many bytes of pool memory the qdisc's packets hold; anybody may
// ask.
func (q *Qdisc) Held() int { return int(q.mem.Load()) }

// Discipline gives what New got, for show and for changes in a pause.
func (q *Qdisc) Discipline() Discipline { return q.d }

// SetMemoryLimit bounds the pool memory that the qdisc may hold, in bytes.
func (q *Qdisc) SetMemoryLimit(n int) { q.limit = int64(n) }

// SetBypass turns the bypass of an empty qdisc off or on again, before
// traffic; benchmarks compare the two.
func (q *Qdisc) SetBypass(on bool) { q.bypass = on && q.d.CanBypass() }

// SetStopHandling turns off, or on again, what keeps a run from being repeated
// while its tx queue is stopped; benchmarks compare the two.
func (q *Qdisc) SetStopHandling(on bool) { q.spin = !on }

// Stats are a qdisc's counters as tc shows them. Packets are wire packets
// and bytes qdisc bytes; Qlen counts packet objects.
type Stats struct {
	Bytes, Packets    uint64
	Drops, Overlimits uint64
	Requeues          uint64
	Qlen, Backlog     uint64
	QueuedSegs        uint64 // wire packets in the qdisc
}

// Add adds the counters of another qdisc.
func (s *Stats) Add(o Stats) {
	s.Bytes += o.Bytes
	s.Packets += o.Packets
	s.Drops += o.Drops
	s.Overlimits += o.Overlimits
	s.Requeues += o.Requeues
	s.Qlen += o.Qlen
	s.Backlog += o.Backlog
	s.QueuedSegs += o.QueuedSegs
}

// A shard is one CPU's part of the counters, the CPU's own: who reads them
// holds the CPUs. Its qlen may be negative, as packets are enqueued on one CPU
// and dequeued on another: only sums mean something.
type shard struct {
	bytes, packets, drops, requeues uint64
	qlen, backlog, segs             int64
	_                               [cacheLine - 7*8]byte
}

// queued counts packets that came in (or, with sign -1, went out).
func (s *shard) queued(x *Sum, sign int) {
	s.qlen += int64(sign * x.n)
	s.backlog += int64(sign * x.bytes)
	s.segs += int64(sign * x.segs)
}

// sent counts packets on their way to the device.
func (s *shard) sent(bytes, segs int) {
	s.bytes += uint64(bytes)
	s.packets += uint64(segs)
}

// Stats adds up the shards, while no CPU runs.
func (q *Qdisc) Stats() Stats {
	var st Stats
	var qlen, backlog, segs int64
	for i := range q.shards {
		s := &q.shards[i]
		st.Bytes += s.bytes
		st.Packets += s.packets
		st.Drops += s.drops
		st.Requeues += s.requeues
		qlen += s.qlen
		backlog += s.backlog
		segs += s.segs
	}
	st.Qlen, st.Backlog, st.QueuedSegs = uint64(qlen), uint64(backlog), uint64(segs)
	return st
}

// An MQ is the root of a port with a qdisc of its own for each tx queue. It
// is never run itself: it is a place to look (net/sched/sch_mq.c).
type MQ struct {
	Children []*Qdisc // child i serves tx queue i and is class :i+1
}

// Stats adds up the children.
func (m *MQ) Stats() Stats {
	var st Stats
	for _, q := range m.Children {
		st.Add(q.Stats())
	}
	return st
}
