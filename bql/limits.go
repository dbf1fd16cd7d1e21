package bql

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// ErrRange is wrapped by the errors of the setters.
var ErrRange = errors.New("out of range")

// Stats is a snapshot of a DQL, under the names of
// /sys/class/net/DEV/queues/tx-N/byte_queue_limits.
type Stats struct {
	Limit, LimitMin, LimitMax uint32 // bytes
	HoldTimeMs                uint32
	Inflight                  uint32 // bytes
	EnqueueOps, CompletedOps  uint32 // packets
	StallThrs                 uint32 // ms, 0 = off
	StallCnt                  uint32
	StallMax                  uint32 // jiffies, as the kernel prints it
	Errors                    uint32 // calls that were cut or ignored: a bug of the caller
}

// Stats gives a snapshot. Its parts may be some packets apart while the queue
// runs.
func (d *DQL) Stats() Stats {
	// Completions first: a later look at what was queued is never behind.
	done, limit := d.done.Load(), d.limit.Load()
	queued := d.queued.Load()
	return Stats{
		Limit:        limit,
		LimitMin:     d.limitMin.Load(),
		LimitMax:     d.limitMax.Load(),
		HoldTimeMs:   d.holdTimeMs.Load(),
		Inflight:     pos(uint32(queued), uint32(done)-limit),
		EnqueueOps:   uint32(queued >> 32),
		CompletedOps: uint32(done >> 32),
		StallThrs:    d.stallThrs.Load() * jiffyMs,
		StallCnt:     d.stallCnt.Load(),
		StallMax:     uint32(d.stallMax.Load()),
		Errors:       d.errors.Load(),
	}
}

// EnqueueOps has the count of packets queued in its high 32 bits, for the flow
// table's dql mode. It is to be read only, and wraps.
func (d *DQL) EnqueueOps() *atomic.Uint64 { return &d.queued }

// CompletedOps has the count of packets completed; see EnqueueOps.
func (d *DQL) CompletedOps() *atomic.Uint64 { return &d.done }

// SetLimitMin sets the least limit in bytes, from the next completion on. If
// it is above the maximum the maximum wins.
func (d *DQL) SetLimitMin(bytes uint32) error { return setLimit(&d.limitMin, "limit_min", bytes) }

// SetLimitMax sets the greatest limit in bytes, from the next completion on.
func (d *DQL) SetLimitMax(bytes uint32) error { return setLimit(&d.limitMax, "limit_max", bytes) }

func setLimit(v *atomic.Uint32, name string, bytes uint32) error {
	if bytes > MaxLimit {
		return fmt.Errorf("bql: %s %d: %w: at most %d bytes", name, bytes, ErrRange, uint32(MaxLimit))
	}
	v.Store(bytes)
	return nil
}

// SetHoldTime sets for how many milliseconds slack is observed before the
// limit shrinks.
func (d *DQL) SetHoldTime(ms uint32) { d.holdTimeMs.Store(ms) }

// SetStallThrs sets how long a completion may be missing before it counts as
// a stall, in milliseconds, rounded up to jiffies; 0 turns the detector off.
func (d *DQL) SetStallThrs(ms uint32, now int64) error {
	thrs := (uint64(ms) + jiffyMs - 1) / jiffyMs
	if thrs != 0 && (thrs < stallThrsMin || thrs > stallThrsMax) {
		return fmt.Errorf("bql: stall_thrs %d: %w: 0, or %d to %d ms", ms, ErrRange,
			(stallThrsMin-1)*jiffyMs+1, stallThrsMax*jiffyMs)
	}
	if d.stallThrs.Load() == 0 {
		d.lastReap.Store(jiffy(now)) // what was queued unseen is not looked for
	}
	d.stallThrs.Store(uint32(thrs))
	return nil
}

// ClearStallMax forgets the longest stall. A completion at the same time may
// put its own back.
func (d *DQL) ClearStallMax() { d.stallMax.Store(0) }
