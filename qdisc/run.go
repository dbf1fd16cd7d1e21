package qdisc

import "taprouter/packet"

// State bits (enum qdisc_state_t). missed and draining are set by anybody and
// cleared only by the holder of the run bit, who looks again afterwards.
const (
	sched       = 1 << iota // in the output list of one CPU
	deactivated             // being taken down: a scheduled run skips it
	missed                  // somebody could not run it: run it again
	draining                // packets may be left and the queue is stopped: its wake schedules
	nonEmpty    = missed | draining
)

const (
	// quota bounds a run in packets (net.core.dev_weight), to what a worker
	// reads at once, or a queue would fill turn by turn: then other work of
	// the worker gets its turn.
	quota = packet.MaxBatch
	// slowBulk is how many further packets a root qdisc takes out for the
	// queue that it serves (try_bulk_dequeue_skb_slow).
	slowBulk = 8
	// How long a sender waits for the run bit before his first look and his
	// last, in turns of an empty loop, a fraction of a ns each.
	minPatience, maxPatience = 512, 8192
	// tryAgain is after how many attempts without patience a sender has it again.
	tryAgain = 256
)

// Xmit queues every packet of l, all for one tx queue, and empties l. An
// empty qdisc is passed by as far as the queue's DQL lets bytes go. What is
// refused goes to c.Drops. __dev_xmit_skb.
func (q *Qdisc) Xmit(c *CPU, l *packet.List) {
	if l.Len() == 0 {
		return
	}
	if q.bypass && (q.try() || q.wait(c)) {
		if !q.empty() && q.fq == nil {
			q.run(c) // what somebody missed goes first; fq has it in order
		}
		// Look again: since the first look somebody may have requeued a packet
		// or missed the run bit, and nothing may overtake those.
		if q.empty() && q.mayPass(c, l) {
			q.xmitDirect(c, l)
		} else {
			q.enqueueHeld(c, l)
			q.run(c)
		}
		q.end(c)
		return
	}
	q.enqueue(c, l, packet.DropQdisc)
	if q.begin() {
		q.run(c)
		q.end(c)
	}
}

// mayPass reports whether an empty discipline lets l pass.
func (q *Qdisc) mayPass(c *CPU, l *packet.List) bool { return q.fq == nil || q.fqMayPass(c, l) }

func (q *Qdisc) fqMayPass(c *CPU, l *packet.List) bool {
	return q.fq.mayPass(c.Now, l) && !q.txq(l.Front()).Stopped()
}

// empty is a hint: nothing is known to wait.
func (q *Qdisc) empty() bool { return q.state.Load()&nonEmpty == 0 }

// try takes the run bit if it is free.
func (q *Qdisc) try() bool { return q.lock.Load() == 0 && q.lock.CompareAndSwap(0, 1) }

// wait tries for a moment to become the one who drains: where the device is
// quick, that comes sooner than the packets would get over to the CPU of the
// one who drains now. The moment grows as it is of use, and shrinks if it is not.
// Each pause between looks is twice the last: a look takes the bit's cache line
// from the owner, who else sends burst upon burst at the price of one thread.
func (q *Qdisc) wait(c *CPU) bool {
	for pause := minPatience; pause <= c.patience; pause *= 2 { // none under the explorer: more looks are no other interleaving
		for range pause {
		}
		if q.try() {
			c.patience = maxPatience
			return true
		}
	}
	if c.patience -= c.patience / 64; c.patience < minPatience {
		if c.inVain++; c.inVain%tryAgain == 0 {
			c.patience = maxPatience
		}
	}
	return false
}

// begin tries to become the one who drains. If that fails, whoever drains
// now will see missed and see to what was enqueued before. qdisc_run_begin.
func (q *Qdisc) begin() bool {
	if q.try() {
		return true
	}
	// O1, O2: a read-modify-write even if the bit is set: it orders the packet
	// published before against the owner's clear and re-scan.
	if q.state.Or(missed)&missed != 0 {
		return false
	}
	// The owner may have let go between the first try and the bit.
	return q.try()
}

// end lets go of the run bit and only then looks for those who missed it.
// qdisc_run_end.
func (q *Qdisc) end(c *CPU) {
	q.lock.Store(0) // O3: sequentially consistent, before the load
	if q.state.Load()&missed != 0 {
		q.Schedule(c)
	}
}

// xmitDirect sends from the front of l without queueing; what DQL does not
// let go is queued behind. Run bit holder, qdisc empty.
func (q *Qdisc) xmitDirect(c *CPU, l *packet.List) {
	p, n := l.Front(), 1
	t := q.txq(p)
	bytes, segs := int(p.WireLen), int(p.Segs-p.SegNext)
	if p.Next != nil {
		for avail := t.Avail(); p.Next != nil && n < quota && bytes < avail; n++ {
			p = p.Next
			bytes += int(p.WireLen)
			segs += int(p.Segs - p.SegNext)
		}
	}
	batch := l
	if p.Next != nil {
		c.batch = l.Cut(p, n)
		batch = &c.batch
	}
	q.shards[c.ID].sent(bytes, segs)
	if q.fq != nil {
		q.fq.passed(n)
	}
	ok := q.send(c, t, batch)
	if l.Len() > 0 {
		q.enqueueHeld(c, l)
	} else if q.empty() {
		return
	}
	if ok {
		q.run(c)
	}
}

// run drains the qdisc until it is empty, its queue stops or the quota is
// used up. __qdisc_run.
func (q *Qdisc) run(c *CPU) {
	for left := quota; ; {
		n := q.dequeueBatch(c, left)
		if n == 0 || !q.send(c, q.txq(c.batch.Front()), &c.batch) {
			return
		}
		if left -= n; left <= 0 {
			q.state.Or(missed) // end schedules it
			return
		}
	}
}

// send gives the batch to its tx queue and keeps what that refuses. It reports
// whether all of it went. sch_direct_xmit.
func (q *Qdisc) send(c *CPU, t Txq, batch *packet.List) bool {
	if t.Stopped() {
		q.maybeClearMissed(t)
	} else {
		t.Send(c, batch)
	}
	if batch.Len() == 0 {
		return true
	}
	q.requeue(c, batch)
	return false
}

// requeue keeps what is left of the batch in front of everything else.
// dev_requeue_skb.
func (q *Qdisc) requeue(c *CPU, batch *packet.List) {
	s := sumOf(batch)
	batch.Append(&q.requeued) // the batch was the front of it, or it is empty
	q.requeued, *batch = *batch, packet.List{}
	q.shards[c.ID].queued(&s, 1)
	q.shards[c.ID].requeues += uint64(s.n)
	q.charge(s.mem)
	q.state.Or(missed) // no schedule: end sees to that
}

// maybeClearMissed is what a run does that finds its tx queue stopped: it
// asks for no further run, as the wake will schedule one, but keeps in mind
// that packets wait. qdisc_maybe_clear_missed.
func (q *Qdisc) maybeClearMissed(t Txq) {
	if q.spin {
		return
	}
	q.state.And(^uint32(missed))
	// O5: after the clear, look whether the queue is still stopped. A wake in
	// between found the run bit taken and its missed has just been cleared.
	if t.Stopped() {
		q.state.Or(draining)
	} else {
		q.state.Or(missed)
	}
}

// dequeueBatch fills the batch with packets for one tx queue: one and at most
// budget more, all of them requeued or all from the discipline. It gives their
// number; 0 ends the run. dequeue_skb, which takes a requeued one alone: here a
// device may take a batch with one call, and have refused most of one.
func (q *Qdisc) dequeueBatch(c *CPU, budget int) int {
	var s Sum
	from := &q.requeued
	if from.Len() == 0 {
		if len(q.txqs) == 1 && q.txqs[0].Stopped() {
			q.intake(c)
			q.maybeClearMissed(q.txqs[0])
			return 0
		}
		from = &q.badTxq
	}
	fresh := from == &q.badTxq // not yet counted as sent
	p := from.Front()
	if p == nil {
		p = q.dequeue(c)
	} else if t := q.txq(p); t.Stopped() {
		q.intake(c)
		q.maybeClearMissed(t)
		return 0
	} else {
		from.Pop()
	}
	if p == nil {
		return 0
	}
	q.take(c, p, &s)
	switch {
	case !fresh:
		q.bulkRequeued(c, &s, budget)
	case len(q.txqs) == 1:
		q.bulkFast(c, &s, budget)
	default:
		q.bulkSlow(c, &s) // badTxq is empty now: it never holds more than one
	}
	q.shards[c.ID].queued(&s, -1)
	if fresh {
		q.shards[c.ID].sent(s.bytes, s.segs)
	}
	q.charge(-s.mem)
	return s.n
}

// take adds p to the batch.
func (q *Qdisc) take(c *CPU, p *packet.Packet, s *Sum) {
	s.add(p)
	c.batch.Push(p)
}

// bulkRequeued is bulkFast for what was requeued: all of one tx queue.
func (q *Qdisc) bulkRequeued(c *CPU, s *Sum, budget int) {
	for avail := q.txq(c.batch.Front()).Avail(); s.bytes < avail && s.n <= budget && q.requeued.Len() > 0; {
		q.take(c, q.requeued.Pop(), s)
	}
}

// bulkFast takes further packets for as long as DQL lets bytes go; the last
// may go over.
func (q *Qdisc) bulkFast(c *CPU, s *Sum, budget int) {
	for avail := q.txqs[0].Avail(); s.bytes < avail && s.n <= budget; {
		p := q.dequeue(c)
		if p == nil {
			return
		}
		q.take(c, p, s)
	}
}

// bulkSlow takes a few further packets of the same tx queue. The first of
// another queue waits in badTxq, still counted as queued, and ends the batch.
func (q *Qdisc) bulkSlow(c *CPU, s *Sum) {
	txq := c.batch.Front().TxQ
	for range slowBulk {
		p := q.dequeue(c)
		if p == nil {
			return
		}
		if p.TxQ != txq {
			q.badTxq.Push(p)
			return
		}
		q.take(c, p, s)
	}
}

// dequeue takes a packet from the discipline. Only when that is empty are
// missed and draining cleared, and then it is looked at once more: a
// producer that saw missed set has left its packet to us. pfifo_fast_dequeue.
func (q *Qdisc) dequeue(c *CPU) *packet.Packet {
	p := q.d.Dequeue(c.Now)
	if p == nil && !q.empty() {
		q.state.And(^uint32(nonEmpty)) // O4: before the second look
		p = q.d.Dequeue(c.Now)
	}
	if p == nil {
		q.noteUnfilled()
		if q.fq != nil {
			q.endDropped(c)
			q.arm(c)
		}
	}
	return p
}

// endDropped ends what fq has dropped.
func (q *Qdisc) endDropped(c *CPU) {
	if l := q.fq.TakeDropped(); l.Len() > 0 {
		q.dropQueued(c, &l, packet.NotDropped)
	}
}

// arm asks for the run in which fq, in which Dequeue found nothing, will have
// a packet.
func (q *Qdisc) arm(c *CPU) {
	if at := q.fq.Due(); at != never {
		q.txqs[0].Arm(c, at+q.fq.TimerSlack())
	}
}

// intake applies the limits of fq to what has arrived while its tx queue is
// stopped. It does not arm: what is due meanwhile waits for
// the queue's wake, and a run for it would find the queue stopped, again and again.
func (q *Qdisc) intake(c *CPU) {
	if q.fq != nil {
		q.fq.Intake(c.Now)
		q.endDropped(c)
	}
}

// noteUnfilled remembers that the discipline, in which Dequeue found nothing,
// is not empty: its packets wait for their time, or a producer has reserved
// places and not yet filled them, and others may have filled those behind. All
// of them leave when that producer runs the qdisc; until then none of the
// others may take the bypass, as it would overtake its own packets.
func (q *Qdisc) noteUnfilled() {
	if q.d.Len() > 0 {
		q.state.Or(draining)
	}
}

// txq is the tx queue that p leaves by.
func (q *Qdisc) txq(p *packet.Packet) Txq {
	if len(q.txqs) == 1 {
		return q.txqs[0]
	}
	return q.txqs[p.TxQ]
}
