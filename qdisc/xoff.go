package qdisc

import "taprouter/internal/step"

// An Xoff holds the stop bits of a tx queue (struct netdev_queue.state). The
// zero value is a running queue. Each side sets its bit and then looks again
// at what made it stop; the other side changes that first and then looks at
// the bit: at least one of the two sees the other.
type Xoff struct{ bits step.Uint32 }

// Causes of a stop.
const (
	drvXoff   = 1 << iota // __QUEUE_STATE_DRV_XOFF: the device has no room
	stackXoff             // __QUEUE_STATE_STACK_XOFF: DQL is over its limit
	frozen                // __QUEUE_STATE_FROZEN
)

// Stopped reports whether nothing may be sent, for any cause.
func (x *Xoff) Stopped() bool { return x.bits.Load() != 0 }

// DriverStopped reports whether the device had no room; a list that is being
// sent goes on over the DQL limit but not over this.
func (x *Xoff) DriverStopped() bool { return x.bits.Load()&(drvXoff|frozen) != 0 }

// StopStack stops the queue because DQL is over its limit, unless a
// completion has made avail non-negative meanwhile. netdev_tx_sent_queue.
func (x *Xoff) StopStack(avail func() int) {
	x.bits.Or(stackXoff)
	if avail() >= 0 { // D2, pairs with WakeStack: completions come first, then the bit is read
		x.bits.And(^uint32(stackXoff))
	}
}

// WakeStack ends StopStack after a completion. It reports whether the qdisc
// has to be scheduled: the bit was set and no other cause is left.
func (x *Xoff) WakeStack() bool {
	if x.bits.Load()&stackXoff == 0 {
		return false
	}
	return x.bits.And(^uint32(stackXoff)) == stackXoff
}

// StopDriver stops the queue because the device has no room. The caller then
// arranges for a wake that also comes if there is room already.
func (x *Xoff) StopDriver() { x.bits.Or(drvXoff) }

// WakeDriver ends StopDriver. It reports whether the qdisc has to be
// scheduled: the bit was set. netif_tx_wake_queue.
func (x *Xoff) WakeDriver() bool { return x.bits.And(^uint32(drvXoff))&drvXoff != 0 }
