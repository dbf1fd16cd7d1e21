package bench

import (
	"sync/atomic"

	"taprouter/packet"
	"taprouter/qdisc"
)

// A trylock is our qdisc as it was before MISSED, in Linux 4.16 to 5.12: who
// finds the run bit taken leaves his packets and goes. They are stuck when
// whoever held the bit had looked for the last time, until somebody sends
// again. Everything else is like qdisc.Qdisc without bypass. Devices of this
// package take everything, so there is no requeue.
type trylock struct {
	d      qdisc.Discipline
	t      qdisc.Txq
	shards []shard
	again  []flag // by cpu: a run is left to do; that cpu's own

	_     [cacheLine]byte
	lock  atomic.Uint32 // the run bit
	_     [cacheLine]byte
	batch packet.List // guarded by the run bit
}

// A shard is one CPU's part of the counters, that CPU's own.
type shard struct {
	bytes, packets, drops uint64
	qlen, backlog, segs   int64
	_                     [cacheLine - 6*8]byte
}

func (h *shard) queued(s sum, sign int) {
	h.qlen += int64(sign * s.n)
	h.backlog += int64(sign * s.bytes)
	h.segs += int64(sign * s.segs)
}

func (h *shard) sent(s sum) {
	h.bytes += uint64(s.bytes)
	h.packets += uint64(s.segs)
}

func withoutMissed(t qdisc.Txq, cpus int) root {
	return &trylock{d: qdisc.NewPfifoFast(ringLen), t: t, shards: make([]shard, cpus), again: make([]flag, cpus)}
}

func (q *trylock) Xmit(c *qdisc.CPU, l *packet.List) {
	q.enqueue(c, l)
	q.tryRun(c)
}

func (q *trylock) enqueue(c *qdisc.CPU, l *packet.List) {
	s := sumOf(l)
	q.d.Enqueue(l)
	h := &q.shards[c.ID]
	if l.Len() == 0 {
		h.queued(s, 1)
		return
	}
	refused := sumOf(l)
	s.sub(refused)
	h.queued(s, 1)
	h.drops += uint64(refused.n)
	drop(c, l)
}

func (q *trylock) tryRun(c *qdisc.CPU) {
	if q.lock.CompareAndSwap(0, 1) {
		q.run(c)
		q.lock.Store(0) // and nobody looks again
	}
}

// run drains the qdisc until it is empty or the quota is used up.
func (q *trylock) run(c *qdisc.CPU) {
	for left := quota; ; {
		s := q.dequeueBatch(c, left)
		if s.n == 0 {
			return
		}
		if !q.t.Stopped() {
			q.t.Send(c, &q.batch)
		}
		if left -= s.n; left <= 0 {
			q.again[c.ID].set = true
			return
		}
	}
}

func (q *trylock) dequeueBatch(c *qdisc.CPU, budget int) (s sum) {
	if q.t.Stopped() {
		return s
	}
	for avail := q.t.Avail(); s.n == 0 || s.bytes < avail && s.n <= budget; {
		p := dequeue(q.d, c.Now)
		if p == nil {
			break
		}
		s.add(p)
		q.batch.Push(p)
	}
	if s.n > 0 {
		h := &q.shards[c.ID]
		h.queued(s, -1)
		h.sent(s)
	}
	return s
}

func (q *trylock) Action(c *qdisc.CPU) bool {
	if !q.again[c.ID].set {
		return false
	}
	q.again[c.ID].set = false
	q.tryRun(c)
	return true
}

// Flush sends what is stuck.
func (q *trylock) Flush(c *qdisc.CPU) (stuck int) {
	stuck = q.d.Len()
	for q.d.Len() > 0 {
		q.tryRun(c)
	}
	q.again[c.ID].set = false
	return stuck
}
