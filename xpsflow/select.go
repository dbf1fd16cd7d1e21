package xpsflow

import (
	"sync/atomic"

	"taprouter/packet"
)

// SelectBatch chooses the queue of each packet, all bound for this port, in
// order: it sets TxQ and Slot. Neighbours with the same hash go together.
// Hash 0 says that there is none; such packets go where the map says and are
// not counted. It precedes the packets' enqueue; Complete has to follow for
// each of them.
func (s *Steer) SelectBatch(worker int, pkts []*packet.Packet) {
	for len(pkts) > 0 {
		c, hash, n := s.conf.Load(), pkts[0].Hash, 1
		for n < len(pkts) && pkts[n].Hash == hash {
			n++
		}
		run := pkts[:n]
		pkts = pkts[n:]
		want := c.want(worker, hash)
		var slot *atomic.Uint64
		if hash != 0 && c.table != nil {
			slot = c.table.stay(hash, want, n)
		}
		if slot == nil {
			want, slot = s.move(c, worker, hash, want, n)
		}
		for _, p := range run {
			p.TxQ, p.Slot = uint16(want), slot
		}
	}
}

// stay counts n packets in the bucket of hash if, as nearly always, the flow
// that used it last is the same and has the wanted queue. It gives nil if not,
// or if another worker was quicker. Only claim puts a flow's name on a bucket,
// and only when no earlier table counts the flow any more; so a bucket with
// the name needs no look at mode and earlier tables.
func (t *table) stay(hash uint32, want, n int) *atomic.Uint64 {
	b := t.bucket(hash)
	w := b.word.Load()
	if w&queueMask == uint64(want+1) && b.flow.Load() == hash && b.word.CompareAndSwap(w, w+uint64(n)*oneFlight) { // X1, as in claim
		return &b.word
	}
	return nil
}

// move chooses the queue of n packets and counts them, for whatever reason stay
// did not.
func (s *Steer) move(c *config, worker int, hash uint32, want, n int) (use int, slot *atomic.Uint64) {
	ch := choice{use: want, was: want}
	if hash != 0 && c.track {
		var ok bool
		for ch, ok = c.lookup(hash, want, n); !ok; ch, ok = c.lookup(hash, want, n) {
			c = s.conf.Load()
			want = c.want(worker, hash)
		}
	}
	w := &s.workers[worker]
	if ch.hit {
		w.collisions.Add(uint64(n))
	}
	if ch.use != want {
		w.refused.Add(uint64(n))
	} else if ch.use != ch.was && ch.was >= 0 {
		w.moves.Add(1)
	}
	return ch.use, ch.slot
}

// want is the queue that a packet would get without a flow table.
func (c *config) want(worker int, hash uint32) int {
	q := c.xps.choose(worker, hash, c.queues)
	if c.hop == 0 {
		return q
	}
	return (q + c.hop) % c.queues
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
		b := t.bucket(hash)
		if use, was, w, ok := claim(&b.word, want, c.queues, n, true); ok {
			return choice{use, was, &b.word, b.collides(hash, w, n)}, true
		}
	}
	if c.table == nil {
		return choice{use: want, was: want}, true
	}
	b := c.table.bucket(hash)
	if c.table.mode == DQL {
		use, was := selectDQL(&b.word, c, want)
		return choice{use: use, was: was}, true
	}
	use, was, w, ok := claim(&b.word, want, c.queues, n, false)
	if !ok {
		return choice{}, false
	}
	return choice{use, was, &b.word, b.collides(hash, w, n)}, true
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
	for i := 0; i < len(pkts); {
		e, n := pkts[i].Slot, uint32(0)
		for ; i < len(pkts) && pkts[i].Slot == e; i++ {
			pkts[i].Slot = nil
			n++
		}
		if e != nil {
			release(e, n)
		}
	}
}

// CompleteList completes every packet of l, which it leaves as it is.
func CompleteList(l *packet.List) {
	for p := l.Front(); p != nil; {
		e, n := p.Slot, uint32(0)
		for ; p != nil && p.Slot == e; p = p.Next {
			p.Slot = nil
			n++
		}
		if e != nil {
			release(e, n)
		}
	}
}
