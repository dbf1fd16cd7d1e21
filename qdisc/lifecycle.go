package qdisc

import (
	"fmt"

	"taprouter/packet"
)

// Deactivate keeps scheduled runs away from the qdisc. Senders may still
// hold it: the caller waits until each of them has seen another one.
func (q *Qdisc) Deactivate() { q.state.Or(deactivated) }

// Activate undoes Deactivate and schedules the qdisc, as what it kept has
// nobody else to run it.
func (q *Qdisc) Activate(c *CPU) {
	q.state.And(^uint32(deactivated))
	q.Schedule(c)
}

// Reset drops everything in the qdisc with this reason, taking the run bit.
// What is sent meanwhile is dropped or kept.
func (q *Qdisc) Reset(c *CPU, reason packet.Reason) {
	q.Locked(c, func() {
		var all packet.List
		q.takeAll(c, &all)
		q.drop(c, &all, reason)
	})
}

// takeAll takes every packet in the order in which it would have left. Run
// bit holder only.
func (q *Qdisc) takeAll(c *CPU, all *packet.List) {
	q.state.And(^uint32(nonEmpty)) // O4: like any clear, before the look
	all.Append(&q.requeued)
	all.Append(&q.badTxq)
	if q.fq != nil {
		q.fq.Reset(all)
		q.endDropped(c)
	}
	for p := q.d.Dequeue(c.Now); p != nil; p = q.d.Dequeue(c.Now) {
		all.Push(p)
	}
	q.noteUnfilled()
	s := sumOf(all)
	q.shards[c.ID].queued(&s, -1)
	q.charge(-s.mem)
}

// MoveTo moves the backlog, in the order in which it would have left, into
// the qdiscs that to names for each packet, and schedules those on c. What
// they refuse is dropped as graft, what has no qdisc any more as no_queue. Nobody may send through either side
// meanwhile.
func (q *Qdisc) MoveTo(c *CPU, to func(*packet.Packet) *Qdisc) {
	q.Locked(c, func() {
		var all, run packet.List
		q.takeAll(c, &all)
		for p := all.Pop(); p != nil; {
			target, next := to(p), all.Pop()
			run.Push(p)
			if next == nil || to(next) != target {
				if target == nil {
					q.drop(c, &run, packet.DropNoQueue)
				} else {
					target.enqueue(c, &run, packet.DropGraft)
					target.state.Or(draining) // no bypass past what has not been run
					target.Schedule(c)
				}
			}
			p = next
		}
	})
}

// Change changes the parameters of an fq. What a lower limit has no room for
// is dropped as purge. Nobody may send meanwhile.
func (q *Qdisc) Change(c *CPU, cfg FQConfig) error {
	if q.fq == nil {
		return fmt.Errorf("%s has no parameters to change", q.d.Kind())
	}
	if err := cfg.Check(); err != nil {
		return err
	}
	q.Locked(c, func() {
		var surplus packet.List
		q.fq.Change(cfg, &surplus)
		q.dropQueued(c, &surplus, packet.DropPurge)
		q.endDropped(c)
		q.state.Or(missed) // what had to wait may be allowed to leave now
	})
	return nil
}

// Resize changes the length of a discipline that has one, in packets. What
// does not fit any more is dropped as purge. Nobody may send meanwhile.
func (q *Qdisc) Resize(c *CPU, txqueuelen int) {
	d, ok := q.d.(interface {
		Resize(txqueuelen int, surplus *packet.List)
	})
	if !ok {
		return
	}
	q.Locked(c, func() {
		var surplus packet.List
		d.Resize(txqueuelen, &surplus)
		q.dropQueued(c, &surplus, packet.DropPurge)
	})
}
