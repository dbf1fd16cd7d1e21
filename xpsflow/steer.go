// Package xpsflow (data path) implements the choice of a packet's tx queue: a
// map from workers to the queues they prefer (XPS), and a flow table that
// keeps a forwarded flow, for which no socket remembers a queue, on its queue
// for as long as changing it could reorder the flow.
//
//	worker, hash ─▶ Map: wanted queue ─▶ bucket of hash: packets in flight? ─▶ queue
//	                                                    no: the wanted one
//	                                                    yes: stay
//
// What it promises, and what not: if two packets of a flow are selected one
// after the other and get different queues, the first has ended (it was
// written, or dropped anywhere) before the second was selected. Two workers
// that select for one flow at the same time have no order to keep. Flows of
// one bucket share its queue; make the table four times as large as the
// number of active flows.
package xpsflow

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// A Steer chooses the tx queues of one egress port. Select and SelectBatch
// are called by workers, each under its own number; everything else may be
// called by anybody at any time.
type Steer struct {
	conf    atomic.Pointer[config]
	workers []counters
}

// A config is immutable; workers load it once a run.
type config struct {
	xps    *Map
	queues int      // real_num_tx_queues
	hop    int      // added to what the map says
	track  bool     // there is, or was, more than one queue
	table  *table   // nil: off
	old    []*table // that were replaced and have packets in flight, oldest first
	ops    []ops    // by queue, at least queues of them, for mode DQL
}

// ops are the packet counters of a queue's BQL: the high halves of these words.
type ops struct{ enq, done *atomic.Uint64 }

// counters belong to one worker; others only read them.
type counters struct {
	moves, refused, collisions atomic.Uint64
	_                          [104]byte
}

// Stats says what became of the wishes of the map.
type Stats struct {
	Moves   uint64 // changes of a bucket's queue, counted by run
	Refused uint64 // packets that stayed though another queue was wanted
	// Collisions are packets that met another flow's packets in flight in
	// their bucket: too many, and the table is too small.
	Collisions uint64
}

// maxReplaced bounds the tables that wait for their packets to end.
const maxReplaced = 4

// ErrBusy says that earlier flow tables still have packets in flight.
var ErrBusy = errors.New("the flow table is still being replaced")

// New gives a Steer for workers 0..workers-1 and a port of so many tx queues,
// with the default map and no flow table.
func New(workers, queues int) *Steer {
	if workers < 1 || queues < 1 || queues > MaxQueues {
		panic(fmt.Sprintf("xpsflow: %d workers, %d queues", workers, queues))
	}
	s := &Steer{workers: make([]counters, workers)}
	s.conf.Store(&config{xps: NewMap(workers, queues), queues: queues, track: queues > 1, ops: make([]ops, queues)})
	return s
}

// update replaces the configuration by a changed copy.
func (s *Steer) update(change func(c *config) error) error {
	for {
		old := s.conf.Load()
		c := *old
		if err := change(&c); err != nil {
			return err
		}
		if s.conf.CompareAndSwap(old, &c) {
			return nil
		}
	}
}

// Map gives the map in use.
func (s *Steer) Map() *Map { return s.conf.Load().xps }

// SetMap puts m, which has as many workers as s, in the place of the map.
// Flows follow it as their packets in flight end.
func (s *Steer) SetMap(m *Map) {
	if len(m.sets) != len(s.workers) {
		panic(fmt.Sprintf("xpsflow: a map of %d workers for %d", len(m.sets), len(s.workers)))
	}
	_ = s.update(func(c *config) error { c.xps = m; return nil })
}

// Hop makes every flow prefer the queue that is n places further, modulo the
// number of queues: a test that calls it often sees flows move.
func (s *Steer) Hop(n int) {
	_ = s.update(func(c *config) error { c.hop = n % MaxQueues; return nil })
}

// Queues is the number of queues in use (real_num_tx_queues).
func (s *Steer) Queues() int { return s.conf.Load().queues }

// SetQueues changes the number of queues in use to n. The map keeps what it
// says about others. When n shrinks, wait until every worker has passed the
// end of its batch (X4), then purge the removed queues: flows leave them at
// once, because what waits there is not going to be sent. When a port that
// never had more than one queue gets more, packets already under way are not
// counted, and their flows may be reordered once.
func (s *Steer) SetQueues(n int) error {
	if n < 1 || n > MaxQueues {
		return fmt.Errorf("xps: %d queues, want 1 to %d", n, MaxQueues)
	}
	return s.update(func(c *config) error {
		c.queues, c.track = n, c.track || n > 1
		c.ops = grow(c.ops, n)
		return nil
	})
}

// SetCounters names the words that have the packet counters of a queue's BQL
// in their high 32 bits, for mode DQL.
// Without them, as with a driver that has no BQL, nothing is ever in flight.
func (s *Steer) SetCounters(queue int, enq, done *atomic.Uint64) {
	_ = s.update(func(c *config) error {
		c.ops = grow(c.ops, queue+1)
		c.ops[queue] = ops{enq, done}
		return nil
	})
}

// grow gives a copy of old with at least n entries.
func grow(old []ops, n int) []ops {
	all := make([]ops, max(len(old), n))
	copy(all, old)
	return all
}

// TableSize is the number of buckets of the flow table, 0 if it is off.
func (s *Steer) TableSize() int { return s.conf.Load().table.size() }

// BucketSize is the bytes of a bucket.
const BucketSize = int(unsafe.Sizeof(bucket{}))

// Mode is the flow table's mode; Inflight without a table.
func (s *Steer) Mode() Mode {
	if t := s.conf.Load().table; t != nil {
		return t.mode
	}
	return Inflight
}

// SetTable gives the port a flow table of at least count buckets, rounded up
// to a power of two; 0 turns it off. Flows keep their order: each stays with
// the old table until its packets counted there have ended. What was selected
// while there was no table in mode Inflight was not counted, so the first
// packets after it is turned on may pass it. ErrBusy is returned, and nothing
// is changed, if too many tables wait already.
func (s *Steer) SetTable(count int, mode Mode) error {
	if count < 0 || count > MaxTable {
		return fmt.Errorf("flow table of %d buckets, want 0 to %d", count, MaxTable)
	}
	if int(mode) >= len(modes) {
		return fmt.Errorf("flow table mode %d, want inflight or dql", mode)
	}
	t := newTable(count, mode)
	s.Settle()
	err := s.update(func(c *config) error {
		if c.table.size() == t.size() && (t == nil || c.table.mode == mode) {
			return nil
		}
		if c.table != nil && c.table.mode == Inflight {
			if len(c.old) == maxReplaced {
				return fmt.Errorf("%w: %d earlier ones have packets in flight", ErrBusy, maxReplaced)
			}
			c.old = append(c.old[:len(c.old):len(c.old)], c.table)
		}
		c.table = t
		return nil
	})
	s.Settle()
	return err
}

// Settle lets go of replaced tables that have nothing in flight and reports
// whether none is left. Until then a lookup costs a load for each of them.
// SetTable and InFlight call it; so may whoever has time.
func (s *Steer) Settle() bool {
	for _, t := range s.conf.Load().old {
		if !t.retire() {
			continue
		}
		_ = s.update(func(c *config) error {
			var rest []*table
			for _, o := range c.old {
				if o != t {
					rest = append(rest, o)
				}
			}
			c.old = rest
			return nil
		})
	}
	return len(s.conf.Load().old) == 0
}

// InFlight is the number of packets between selection and end that the table
// counts. It is exact while no packet moves.
func (s *Steer) InFlight() int {
	s.Settle()
	c := s.conf.Load()
	n := c.table.sum()
	for _, t := range c.old {
		n += t.sum()
	}
	return n
}

// Stats adds up the counters of all workers.
func (s *Steer) Stats() (sum Stats) {
	for i := range s.workers {
		one := s.WorkerStats(i)
		sum.Moves += one.Moves
		sum.Refused += one.Refused
		sum.Collisions += one.Collisions
	}
	return sum
}

// WorkerStats gives the counters of one worker.
func (s *Steer) WorkerStats(worker int) Stats {
	w := &s.workers[worker]
	return Stats{Moves: w.moves.Load(), Refused: w.refused.Load(), Collisions: w.collisions.Load()}
}
