// Package bql (data path) implements dynamic queue limits, the kernel's
// algorithm behind byte queue limits: how many bytes may a device hold so
// that it never runs dry and never holds much more. Arithmetic only: who
// stops and wakes a tx queue is the caller's affair.
//
//	sender:    Queued(n); if Avail() < 0 { stop; if Avail() >= 0 { start } }
//	completer: Completed(n); if Avail() >= 0 { wake if stopped }
package bql

import (
	"fmt"
	"sync/atomic"
)

const (
	// MaxObject is the largest number of bytes of one Queued call
	// (DQL_MAX_OBJECT): a sixteenth of the counters' range.
	MaxObject = (1<<32 - 1) / 16
	// MaxLimit is the largest limit (DQL_MAX_LIMIT). Limit and one object
	// stay below half the counters' range, so that signed differences of
	// the wrapping counters keep their sign.
	MaxLimit = (1<<32-1)/2 - MaxObject
	// HoldTimeMs is the default time over which slack is observed before
	// the limit shrinks, in milliseconds.
	HoldTimeMs = 1000

	noSlack = 1<<32 - 1 // lowestSlack of an empty window
)

// Strict makes a completion of more than is in flight panic. It is for tests
// and must be set before the first packet; without it the completion is cut
// to what is in flight and counted in Stats.Errors.
var Strict bool

// A DQL holds the limit of one tx queue. Calls of Queued are serialised by
// the caller, and so are calls of Completed; the two may run at the same time.
// Avail, Stats and the setters may be called by anybody at any time. Reset
// excludes everything but them. Init comes first; a DQL must not be copied.
//
// Bytes are counted modulo 2^32; every comparison is of a difference.
type DQL struct {
	_ [64]byte

	// Written by the sender; done by the completer, for the sender. Two
	// counters share a word, as each store of an atomic costs as much as ten
	// plain ones.
	queued  atomic.Uint64 // packets ever queued in the high half, bytes in the low one (num_queued)
	done    atomic.Uint64 // packets ever completed, and limit + bytes ever completed (adj_limit)
	lastObj atomic.Uint32 // bytes of the last Queued
	history history

	_ [64]byte

	// Written by the completer; lastReap by SetStallThrs too.
	limit         atomic.Uint32
	stallCnt      atomic.Uint32
	stallMax      atomic.Int64 // jiffies
	lastReap      atomic.Int64 // jiffy of the last completion
	prevOvlimit   uint32       // how far in flight was over the limit, at the previous completion
	numCompleted  uint32       // bytes ever completed
	prevNumQueued uint32       // bytes queued at the previous completion
	prevLastObj   uint32       // lastObj at the previous completion
	lowestSlack   uint32       // of the window that began at slackStart
	slackStart    int64        // ns
	windowed      bool         // slackStart is set

	_ [64]byte

	// Configuration, written by control; errors by whoever meets one.
	limitMin, limitMax atomic.Uint32
	holdTimeMs         atomic.Uint32
	stallThrs          atomic.Uint32 // jiffies, 0 = off
	errors             atomic.Uint32 // calls that were cut or ignored
	start              uint32
}

// Init gives d its defaults: the limit begins at start bytes, never exceeds
// limitMax and has no minimum. The kernel's are Init(0, MaxLimit). A limitMax
// above MaxLimit is cut to it.
func (d *DQL) Init(start, limitMax uint32) {
	d.start = start
	d.limitMin.Store(0)
	d.limitMax.Store(min(limitMax, MaxLimit))
	d.holdTimeMs.Store(HoldTimeMs)
	d.Reset(0)
	d.windowed = false // the clock is not known yet
}

// Reset forgets what is in flight, and what was learned, after the queue was
// emptied other than by completions. Neither a sender nor a completer may run.
// The packet counters do not go back: completed catches up with enqueued, so
// that positions taken from them earlier count as passed.
func (d *DQL) Reset(now int64) {
	limit := d.clamp(d.start)
	ops := d.queued.Load() &^ low
	d.queued.Store(ops)
	d.lastObj.Store(0)
	d.done.Store(ops | uint64(limit))
	d.history.clear()

	d.numCompleted = 0
	d.limit.Store(limit)
	d.lastReap.Store(jiffy(now))
	d.prevOvlimit, d.prevNumQueued, d.prevLastObj = 0, 0, 0
	d.lowestSlack, d.slackStart, d.windowed = noSlack, now, true
}

// Queued counts bytes, in pkts packets, that are given to the device. Call
// it before the device can complete them. More than MaxObject bytes are not
// counted at all.
func (d *DQL) Queued(bytes, pkts uint32, now int64) {
	if bytes > MaxObject {
		d.errors.Add(1)
		return
	}
	if d.lastObj.Load() != bytes {
		d.lastObj.Store(bytes)
	}
	d.queued.Store(add(d.queued.Load(), pkts, bytes)) // D1: precedes the load in Avail
	if d.stallThrs.Load() != 0 {
		d.history.mark(jiffy(now))
	}
}

// Avail is the number of bytes that may still be queued; below zero the queue
// is over its limit and has to stop.
func (d *DQL) Avail() int {
	return int(int32(uint32(d.done.Load()) - uint32(d.queued.Load())))
}

// low is the half of a word that counts bytes.
const low = 1<<32 - 1

// add adds to the halves of a word, each modulo 2^32.
func add(w uint64, ops, bytes uint32) uint64 {
	return (w&^low + uint64(ops)<<32) | uint64(uint32(w)+bytes)
}

// Completed takes back bytes, in pkts packets, that the device is done with,
// and adjusts the limit: it grows when the device ran dry although there was
// more to send, and shrinks to what was needed when the device was busy
// throughout. now is a monotonic clock in ns.
func (d *DQL) Completed(bytes, pkts uint32, now int64) {
	word := d.queued.Load()
	queued, done := uint32(word), d.numCompleted
	ops := d.done.Load() &^ low
	if bytes > queued-done || pkts > uint32((word-ops)>>32) {
		bytes, pkts = d.cut(bytes, pkts, queued-done, uint32((word-ops)>>32))
	}
	if !d.windowed {
		d.slackStart, d.windowed = now, true
	}

	comp := done + bytes
	limit := d.limit.Load()
	over := pos(queued-done, limit)
	inProgress := queued - comp
	prevInProgress := d.prevNumQueued - done
	allPrev := int32(comp-d.prevNumQueued) >= 0

	next := limit
	switch {
	case over != 0 && inProgress == 0, d.prevOvlimit != 0 && allPrev:
		// Starved: what was held back, or came since, is missing.
		next += pos(comp, d.prevNumQueued) + d.prevOvlimit
		d.slackStart, d.lowestSlack = now, noSlack
	case inProgress != 0 && prevInProgress != 0 && !allPrev:
		next = d.shrink(limit, bytes, now)
	}
	if next = d.clamp(next); next != limit {
		d.limit.Store(next)
		over = 0
	}
	d.prevOvlimit, d.prevNumQueued, d.prevLastObj = over, queued, d.lastObj.Load()
	d.numCompleted = comp
	d.done.Store(add(ops, pkts, next+comp)) // D3: precedes the caller's look at "stopped"
	if d.stallThrs.Load() != 0 {
		d.checkStall(jiffy(now))
	}
}

// shrink notes by how much the limit exceeds what a device needs that was busy
// since the last completion; once a hold time it takes the lowest such slack
// off the limit.
func (d *DQL) shrink(limit, bytes uint32, now int64) uint32 {
	// Two intervals' worth is enough; and the part of the last object that
	// fitted under the limit was of no use.
	slack := pos(limit+d.prevOvlimit, 2*bytes)
	if d.prevOvlimit != 0 {
		slack = max(slack, pos(d.prevLastObj, d.prevOvlimit))
	}
	d.lowestSlack = min(d.lowestSlack, slack)
	if now-d.slackStart > int64(d.holdTimeMs.Load())*1e6 {
		limit = pos(limit, d.lowestSlack)
		d.slackStart, d.lowestSlack = now, noSlack
	}
	return limit
}

// cut makes a completion as small as what is in flight.
func (d *DQL) cut(bytes, pkts, inflight, ops uint32) (uint32, uint32) {
	if Strict {
		panic(fmt.Sprintf("bql: completed %d bytes in %d packets, in flight are %d in %d", bytes, pkts, inflight, ops))
	}
	d.errors.Add(1)
	return min(bytes, inflight), min(pkts, ops)
}

func (d *DQL) clamp(limit uint32) uint32 {
	return min(max(limit, d.limitMin.Load()), d.limitMax.Load())
}

// pos is a-b, or 0 if b is ahead of a.
func pos(a, b uint32) uint32 {
	if int32(a-b) > 0 {
		return a - b
	}
	return 0
}
