// Package bql (data path) implements byte queue limits: the arithmetic of the
// kernel's dynamic queue limits (lib/dynamic_queue_limits.c), which finds the
// smallest number of bytes in flight that keeps a device busy.
package bql

import (
	"fmt"
	"sync/atomic"
	"time"
)

// All counters are 32 bits and wrap; differences are taken as signed.
const (
	// MaxObject is the largest number of bytes that one Queued may add.
	// DQL_MAX_OBJECT = UINT_MAX / 16.
	MaxObject = (1<<32 - 1) / 16
	// MaxLimit is the largest limit. DQL_MAX_LIMIT = UINT_MAX / 2 - MaxObject.
	MaxLimit = (1<<32-1)/2 - MaxObject
	// HoldTime is how long slack is watched before the limit shrinks, in ns.
	HoldTime = int64(time.Second)

	noSlack = 1<<32 - 1
)

// A DQL limits the bytes in flight of one tx queue. Queued and Avail belong
// to the sending side, Completed to the completing side; each side is
// serialised by its caller and the two may run at the same time. Settings
// and Stats may be used by anybody. Init comes first.
type DQL struct {
	// Written by the sending side.
	numQueued  atomic.Uint32 // bytes ever queued
	lastObjCnt atomic.Uint32 // bytes of the last Queued
	enqueueOps atomic.Uint32 // packets ever queued
	history    stallHistory
	_          [64]byte

	// Written by the completing side, read by the sending side.
	adjLimit atomic.Uint32 // limit + numCompleted
	_        [64]byte

	// Written by the completing side.
	limit         atomic.Uint32
	numCompleted  atomic.Uint32
	completedOps  atomic.Uint32 // packets ever completed
	stallCnt      atomic.Uint32
	stallMax      atomic.Int64  // ns
	excess        atomic.Uint64 // completions of more than was in flight
	prevOvlimit   uint32
	prevNumQueued uint32
	prevLastObj   uint32
	lowestSlack   uint32
	slackStart    int64 // ns
	lastReap      int64 // ns
	_             [64]byte

	// Settings.
	minLimit, maxLimit atomic.Uint32
	holdTime           atomic.Int64 // ns
	stallThrs          atomic.Int64 // ns, 0 = off
}

// Init sets the starting limit and the largest one, in bytes.
func (d *DQL) Init(start, limitMax uint32) {
	d.minLimit.Store(0)
	d.maxLimit.Store(min(limitMax, MaxLimit))
	d.holdTime.Store(HoldTime)
	d.limit.Store(min(start, d.maxLimit.Load()))
	d.adjLimit.Store(d.limit.Load())
	d.lowestSlack = noSlack
}

// Queued says that a batch of pkts packets and this many bytes goes to the
// device. More than MaxObject bytes are not counted.
func (d *DQL) Queued(bytes, pkts uint32, now int64) {
	if bytes > MaxObject {
		return
	}
	d.lastObjCnt.Store(bytes)
	d.enqueueOps.Store(d.enqueueOps.Load() + pkts)
	d.numQueued.Store(d.numQueued.Load() + bytes)
	if d.stallThrs.Load() != 0 {
		d.history.mark(now)
	}
}

// Avail is how many bytes may go; negative if too many are in flight.
func (d *DQL) Avail() int { return int(int32(d.adjLimit.Load() - d.numQueued.Load())) }

// pos is a-b, or 0 if that is negative.
func pos(a, b uint32) uint32 {
	if int32(a-b) > 0 {
		return a - b
	}
	return 0
}

func afterEq(a, b uint32) bool { return int32(a-b) >= 0 }

// Completed says that the device is done with pkts packets and this many
// bytes, and finds the limit anew. dql_completed.
func (d *DQL) Completed(bytes, pkts uint32, now int64) {
	queued, done := d.numQueued.Load(), d.numCompleted.Load()
	if over := pos(bytes, queued-done); over != 0 { // the kernel stops with BUG here
		d.excess.Add(1)
		bytes -= over
	}
	d.completedOps.Store(d.completedOps.Load() + pkts)
	var (
		comp     = done + bytes
		limit    = d.limit.Load()
		over     = pos(queued-done, limit) // how far over the limit this interval was
		inprog   = queued - comp
		prevprog = d.prevNumQueued - done
		allPrev  = afterEq(comp, d.prevNumQueued) // what the last completion left is done
	)
	switch {
	case over != 0 && inprog == 0, d.prevOvlimit != 0 && allPrev:
		// The queue ran dry while the limit held packets back: grow by what
		// was completed since the last look, and by what the limit held.
		limit += pos(comp, d.prevNumQueued) + d.prevOvlimit
		d.slackStart, d.lowestSlack = now, noSlack
	case inprog != 0 && prevprog != 0 && !allPrev:
		// Busy all the time: what was never used of the limit is slack.
		d.lowestSlack = min(d.lowestSlack, d.slack(limit, bytes))
		if now-d.slackStart > d.holdTime.Load() {
			limit = pos(limit, d.lowestSlack)
			d.slackStart, d.lowestSlack = now, noSlack
		}
	}
	limit = min(max(limit, d.minLimit.Load()), d.maxLimit.Load())
	if limit != d.limit.Load() {
		d.limit.Store(limit)
		over = 0
	}
	d.prevOvlimit, d.prevLastObj, d.prevNumQueued = over, d.lastObjCnt.Load(), queued
	d.numCompleted.Store(comp)
	d.adjLimit.Store(limit + comp) // D3: before the caller looks at the stop bit
	d.checkStall(now)
}

// slack is what the limit did not need in this interval: twice what was
// completed is enough, and of the last object only the part over the limit.
func (d *DQL) slack(limit, bytes uint32) uint32 {
	s := pos(limit+d.prevOvlimit, 2*bytes)
	if d.prevOvlimit != 0 {
		s = max(s, pos(d.prevLastObj, d.prevOvlimit))
	}
	return s
}

// Reset forgets everything in flight, while neither side runs. Unlike the
// kernel's, it derives adj_limit anew, so that Avail is right at once. The
// packet counters are brought level, so that nobody waits for packets that
// will never complete.
func (d *DQL) Reset(now int64) {
	d.numQueued.Store(0)
	d.lastObjCnt.Store(0)
	d.numCompleted.Store(0)
	d.completedOps.Store(d.enqueueOps.Load())
	d.limit.Store(d.minLimit.Load())
	d.adjLimit.Store(d.limit.Load())
	d.prevOvlimit, d.prevNumQueued, d.prevLastObj = 0, 0, 0
	d.lowestSlack, d.slackStart, d.lastReap = noSlack, now, now
	d.history.clear()
}

// EnqueueOps and CompletedOps are the counters of packets given to the
// device and finished by it, for flow tables in dql mode.
func (d *DQL) EnqueueOps() *atomic.Uint32   { return &d.enqueueOps }
func (d *DQL) CompletedOps() *atomic.Uint32 { return &d.completedOps }

// Stats are the values of /sys/class/net/DEV/queues/tx-N/byte_queue_limits.
type Stats struct {
	Limit, LimitMin, LimitMax uint32 // bytes
	HoldTime                  time.Duration
	Inflight                  uint32 // bytes
	InflightPkts              uint32
	EnqueueOps, CompletedOps  uint32
	StallThrs, StallMax       time.Duration
	StallCnt                  uint32
	Excess                    uint64 // completions of more than was in flight: a fault of the driver
}

// Stats gives the values now; the two sides may be moving.
func (d *DQL) Stats() Stats {
	enq, done := d.enqueueOps.Load(), d.completedOps.Load()
	return Stats{
		Limit: d.limit.Load(), LimitMin: d.minLimit.Load(), LimitMax: d.maxLimit.Load(),
		HoldTime: time.Duration(d.holdTime.Load()),
		Inflight: d.numQueued.Load() - d.numCompleted.Load(), InflightPkts: enq - done, EnqueueOps: enq, CompletedOps: done,
		StallThrs: time.Duration(d.stallThrs.Load()), StallMax: time.Duration(d.stallMax.Load()), StallCnt: d.stallCnt.Load(),
		Excess: d.excess.Load(),
	}
}

// SetLimitMin and SetLimitMax bound the limit, in bytes; they take effect at
// the next completion.
func (d *DQL) SetLimitMin(n uint32) error { return setLimit(&d.minLimit, "limit_min", n) }

// SetLimitMax is described at SetLimitMin.
func (d *DQL) SetLimitMax(n uint32) error { return setLimit(&d.maxLimit, "limit_max", n) }

func setLimit(v *atomic.Uint32, name string, n uint32) error {
	if n > MaxLimit {
		return fmt.Errorf("bql: %s %d: at most %d bytes", name, n, uint32(MaxLimit))
	}
	v.Store(n)
	return nil
}

// SetHoldTime sets how long slack is watched before the limit shrinks.
func (d *DQL) SetHoldTime(t time.Duration) error {
	if t < 0 {
		return fmt.Errorf("bql: hold_time %v is negative", t)
	}
	d.holdTime.Store(int64(t))
	return nil
}
