package xpsflow

import (
	"sync/atomic"

	"taprouter/packet"
)

// SelectBatch chooses the queue of each packet, all bound for this port, in
// order: it sets TxQ and Slot. Neighbours with the same hash go together.
// It precedes the packets' enqueue; Complete has to follow for each of them.
func (s *Steer) SelectBatch(worker int, pkts []*packet.Packet) {
	for len(pkts) > 0 {
		hash, n := pkts[0].Hash, 1
		for n < len(pkts) && pkts[n].Hash == hash {
			n++
		}
		s.Select(worker, hash, pkts[:n])
		pkts = pkts[n:]
	}
}

// Select chooses one queue for a run of packets of the same hash: it sets TxQ
// and Slot of each. Hash 0 says that there is none; such packets go where the
// map says and are not counted.
func (s *Steer) Select(worker int, hash uint32, pkts []*packet.Packet) {
	if len(pkts) == 0 {
		return
	}
	c := s.conf.Load()
	want := c.want(worker, hash)
	ch, ok := choice{use: want, was: want}, true
	if hash != 0 && c.track {
		for ch, ok = c.lookup(hash, want, len(pkts)); !ok; ch, ok = c.lookup(hash, want, len(pkts)) {
			c = s.conf.Load()
			want = c.want(worker, hash)
		}
	}
	for _, p := range pkts {
		p.TxQ = uint16(ch.use)
		p.Slot = ch.slot
	}
	w := &s.workers[worker]
	if ch.hit {
		w.collisions.Store(w.collisions.Load() + uint64(len(pkts)))
	}
	if ch.use != want {
		w.refused.Store(w.refused.Load() + uint64(len(pkts)))
	} else if ch.use != ch.was && ch.was >= 0 {
		w.moves.Store(w.moves.Load() + 1)
	}
}

// want is the queue that a packet would get without a flow table.
func (c *config) want(worker int, hash uint32) int {
	q := c.xps.choose(worker, hash, c.queues)
	if c.hop != 0 {
		q = (q + c.hop) % c.queues
	}
	return q
}

// A choice is the outcome of a lookup.
type choice struct {
	use  int            // the queue to take
	was  int            // the queue of the packets before; -1: none, or it is gone
	slot *atomic.Uint64 // counts the packets; nil: nothing does
	hit  bool           // another flow's packets were in flight in the bucket
}

// lookup finds the queue of n packets: in the first table of old, oldest
// first, that has the flow's packets in flight, else in the present one. A
// bucket that is found empty in a replaced table is retired, and from then on
// its flows are counted in the next; so a flow is counted in one table at a
// time. ok is false for a worker that comes late, with a configuration from
// before a replacement, and meets a retired bucket: it has to look again.
func (c *config) lookup(hash uint32, want, n int) (ch choice, ok bool) {
	for _, t := range c.old {
		e := t.slot(hash)
		if use, was, w, ok := claim(e, want, c.queues, n, true); ok {
			return choice{use, was, e, t.collides(hash, w, n)}, true
		}
	}
	if c.table == nil {
		return choice{use: want, was: want}, true
	}
	e := c.table.slot(hash)
	if c.table.mode == DQL {
		use, was := selectDQL(e, c, want)
		return choice{use: use, was: was}, true
	}
	use, was, w, ok := claim(e, want, c.queues, n, false)
	if !ok {
		return choice{}, false
	}
	return choice{use, was, e, c.table.collides(hash, w, n)}, true
}

// selectDQL is the published scheme with its faults, which are there to be
// seen: a flow stays if its queue has completed fewer packets than the bucket
// remembers were queued.
//   - What waits in the qdisc is in neither counter.
//   - The number remembered excludes the packet itself, so the last packet of
//     a flow is never protected.
//   - Another flow's completions count as this one's.
//   - Load, decide and store are not one step: a concurrent store is lost.
func selectDQL(e *atomic.Uint64, c *config, want int) (use, was int) {
	w := e.Load()
	use, was = want, int(int32(uint32(w)))
	if was < 0 || was >= c.queues {
		was = -1
	}
	if was >= 0 && was != want && int32(c.ops[was].completed()-uint32(w>>32)) < 0 {
		use = was
	}
	e.Store(uint64(c.ops[use].enqueued())<<32 | uint64(use))
	return use, was
}

func (o ops) enqueued() uint32 {
	if o.enq == nil {
		return 0
	}
	return uint32(o.enq.Load() >> 32)
}

func (o ops) completed() uint32 {
	if o.done == nil {
		return 0
	}
	return uint32(o.done.Load() >> 32)
}

// Complete tells the flow table that p has ended, sent or dropped anywhere.
// It is to be called once for each selected packet, by its owner; further
// calls do nothing until p is selected again.
func Complete(p *packet.Packet) {
	if e := p.Slot; e != nil {
		p.Slot = nil
		release(e, 1)
	}
}

// CompleteBatch completes packets; neighbours of one bucket cost one add.
func CompleteBatch(pkts []*packet.Packet) {
	var r run
	for _, p := range pkts {
		r.end(p)
	}
	r.flush()
}

// CompleteList completes every packet of l, which it leaves as it is.
func CompleteList(l *packet.List) {
	var r run
	for p := l.Front(); p != nil; p = p.Next {
		r.end(p)
	}
	r.flush()
}

// A run is a number of packets of one bucket that have ended.
type run struct {
	slot *atomic.Uint64
	n    uint32
}

func (r *run) end(p *packet.Packet) {
	e := p.Slot
	if e == nil {
		return
	}
	p.Slot = nil
	if e != r.slot {
		r.flush()
		r.slot, r.n = e, 0
	}
	r.n++
}

func (r *run) flush() {
	if r.slot != nil {
		release(r.slot, r.n)
	}
}
