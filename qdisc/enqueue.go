package qdisc

import "taprouter/packet"

// enqueueHeld is enqueue for the run bit holder, who need not share fq's list.
func (q *Qdisc) enqueueHeld(c *CPU, l *packet.List) {
	if q.fq == nil {
		q.enqueue(c, l, packet.DropQdisc)
		return
	}
	if q.limit > 0 {
		if q.holdMemory(c, l); l.Len() == 0 {
			return
		}
	}
	s := q.fq.arrival(l)
	q.shards[c.ID].queued(&s, 1)
}

// enqueue gives l to the discipline; what does not fit goes to c.Drops.
func (q *Qdisc) enqueue(c *CPU, l *packet.List, reason packet.Reason) {
	if q.limit > 0 {
		q.holdMemory(c, l)
		if l.Len() == 0 {
			return
		}
	}
	s := q.d.Enqueue(l)
	if s.n > 0 {
		q.shards[c.ID].queued(&s, 1)
	}
	if l.Len() > 0 {
		refused := sumOf(l)
		q.charge(-refused.mem)
		q.drop(c, l, reason)
	}
}

// charge adds to the pool memory held, if that is bounded.
func (q *Qdisc) charge(n int) {
	if q.limit > 0 {
		q.mem.Add(int64(n))
	}
}

// holdMemory takes room for l; packets from the end of l that would hold
// more of the pool than the qdisc may are dropped.
func (q *Qdisc) holdMemory(c *CPU, l *packet.List) {
	want := 0
	for p := l.Front(); p != nil; p = p.Next {
		want += p.Memory()
	}
	over := q.mem.Add(int64(want)) - q.limit
	if over <= 0 {
		return
	}
	var keep, refused packet.List
	room, kept := int64(want)-over, 0
	for p := l.Pop(); p != nil; p = l.Pop() {
		if m := p.Memory(); refused.Len() == 0 && int64(kept+m) <= room {
			kept += m
			keep.Push(p)
		} else {
			refused.Push(p)
		}
	}
	q.mem.Add(int64(kept - want))
	*l = keep
	q.drop(c, &refused, packet.DropNoBuffer)
}

// dropQueued drops packets that were counted as queued.
func (q *Qdisc) dropQueued(c *CPU, l *packet.List, reason packet.Reason) {
	s := sumOf(l)
	q.shards[c.ID].queued(&s, -1)
	q.charge(-s.mem)
	q.drop(c, l, reason)
}

// drop counts the packets of l and leaves them to the worker, with this
// reason or, if that is NotDropped, with their own.
func (q *Qdisc) drop(c *CPU, l *packet.List, reason packet.Reason) {
	n := 0
	for p := l.Pop(); p != nil; p = l.Pop() {
		n += int(p.Segs - p.SegNext)
		if reason != packet.NotDropped {
			p.Drop = reason
		}
		c.Drops.Push(p)
	}
	q.shards[c.ID].drops += uint64(n)
}
