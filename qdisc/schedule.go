package qdisc

import "taprouter/internal/step"

// Schedule puts the qdisc on c's list of those to be run, unless it is on a
// list already. The wake of a tx queue ends here. __netif_schedule.
func (q *Qdisc) Schedule(c *CPU) {
	if q.state.Or(sched)&sched != 0 {
		return
	}
	q.next = nil
	if c.output == nil {
		c.output = q
	} else {
		c.outputTail.next = q
	}
	c.outputTail = q
}

// Pending reports whether TxAction has something to do.
func (c *CPU) Pending() bool { return c.output != nil }

// TakeOver moves what is scheduled on o to c. Neither may run meanwhile.
func (c *CPU) TakeOver(o *CPU) {
	if o.output == nil {
		return
	}
	if c.output == nil {
		c.output = o.output
	} else {
		c.outputTail.next = o.output
	}
	c.outputTail = o.outputTail
	o.output, o.outputTail = nil, nil
}

// TxAction runs the qdiscs that were scheduled on c until now; those that are
// scheduled meanwhile wait for the next call. net_tx_action.
func (c *CPU) TxAction() {
	q := c.output
	c.output, c.outputTail = nil, nil
	for q != nil {
		next := q.next // O7: read before sched is cleared, then it may be linked again
		c.Actions++
		if q.state.And(^uint32(sched))&deactivated == 0 && q.begin() {
			q.run(c)
			q.end(c)
		}
		q = next
	}
}

// Locked runs f as the run bit holder, waiting for the bit: only where
// producers cannot hold it for long.
func (q *Qdisc) Locked(c *CPU, f func()) {
	for !q.lock.CompareAndSwap(0, 1) {
		step.Pause()
	}
	f()
	q.end(c)
}
