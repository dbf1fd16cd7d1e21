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

	batch packet.List // of whoever set running, unless it is his own list
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
	p := l.Front()
	var s sum
	s.add(p)
	if p.Next != nil {
		for avail := q.t.Avail(); p.Next != nil && s.n < quota && s.bytes < avail; s.add(p) {
			p = p.Next
		}
	}
	batch := l
	if p.Next != nil {
		q.batch = l.Cut(p, s.n)
		batch = &q.batch
	}
	q.sent.plus(s)
	q.send(c, batch)
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
		q.send(c, &q.batch)
		if left -= s.n; left <= 0 {
			q.again[c.ID].set = true
			return
		}
	}
}

// send gives a batch to the device, which takes all of it, without the lock.
func (q *locked) send(c *qdisc.CPU, batch *packet.List) {
	q.mu.Unlock()
	if !q.t.Stopped() {
		q.t.Send(c, batch)
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
