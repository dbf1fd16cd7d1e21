package bench

import (
	"sync"

	"taprouter/packet"
	"taprouter/qdisc"
)

// quota bounds a run in packets, as in qdisc.
const quota = packet.MaxBatch

// A locked is a qdisc in the way of the kernel before lockless qdiscs, and of
// its qdiscs other than pfifo_fast until now: one lock, held to enqueue, to
// dequeue and to count, and let go while the device is given packets. Its
// discipline is the same pfifo_fast.
type locked struct {
	t      qdisc.Txq
	bypass bool
	again  []flag // by cpu: a run is left to do; that cpu's own

	_  [cacheLine]byte
	mu sync.Mutex
	// Guarded by mu.
	d       qdisc.Discipline
	running bool
	queued  sum // what is in d
	sent    sum
	drops   int

	batch packet.List // of whoever set running
}

// A flag belongs to one thread.
type flag struct {
	set bool
	_   [cacheLine - 1]byte
}

func behindMutex(bypass bool) func(t qdisc.Txq, cpus int) root {
	return func(t qdisc.Txq, cpus int) root {
		return &locked{t: t, bypass: bypass, again: make([]flag, cpus), d: qdisc.NewPfifoFast(ringLen)}
	}
}

func (q *locked) Xmit(c *qdisc.CPU, l *packet.List) {
	q.mu.Lock()
	defer q.mu.Unlock()
	direct := q.bypass && q.queued.n == 0 && !q.running
	if !direct {
		q.enqueue(c, l)
	}
	if q.running {
		return // whoever runs it looks again before it ends
	}
	q.running = true
	if direct {
		q.xmitDirect(c, l)
	}
	q.run(c)
	q.running = false
}

func (q *locked) enqueue(c *qdisc.CPU, l *packet.List) {
	s := sumOf(l)
	q.queued.plus(s)
	q.d.Enqueue(l)
	if l.Len() > 0 {
		refused := sumOf(l)
		q.queued.sub(refused)
		q.drops += refused.n
		drop(c, l)
	}
}

// xmitDirect sends from the front of l without queueing; what DQL does not
// let go is queued.
func (q *locked) xmitDirect(c *qdisc.CPU, l *packet.List) {
	var s sum
	for avail := q.t.Avail(); l.Len() > 0 && s.n < quota && (s.n == 0 || s.bytes < avail); {
		p := l.Pop()
		s.add(p)
		q.batch.Push(p)
	}
	q.sent.plus(s)
	q.send(c)
	if l.Len() > 0 {
		q.enqueue(c, l)
	}
}

// run drains the qdisc until it is empty or the quota is used up.
func (q *locked) run(c *qdisc.CPU) {
	for left := quota; q.queued.n > 0; {
		var s sum
		for avail := q.t.Avail(); s.n <= left && (s.n == 0 || s.bytes < avail); {
			p := dequeue(q.d, c.Now)
			if p == nil {
				break
			}
			s.add(p)
			q.batch.Push(p)
		}
		q.queued.sub(s)
		q.sent.plus(s)
		q.send(c)
		if left -= s.n; left <= 0 {
			q.again[c.ID].set = true
			return
		}
	}
}

// send gives the batch to the device, which takes all of it, without the lock.
func (q *locked) send(c *qdisc.CPU) {
	q.mu.Unlock()
	if !q.t.Stopped() {
		q.t.Send(c, &q.batch)
	}
	q.mu.Lock()
}

func (q *locked) Action(c *qdisc.CPU) bool {
	if !q.again[c.ID].set {
		return false
	}
	q.again[c.ID].set = false
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.running {
		q.running = true
		q.run(c)
		q.running = false
	}
	return true
}

// Flush does nothing: whoever runs the qdisc leaves nothing behind.
func (q *locked) Flush(*qdisc.CPU) int { return 0 }
