package qdisc

import (
	"math"

	"taprouter/internal/minheap"
	"taprouter/internal/step"
	"taprouter/packet"
)

// An FQ is Fair Queue (net/sched/sch_fq.c) for packets without sockets: a
// flow is what shares the bits of the flow hash in orphan_mask. Flows of a
// band take turns, each with a credit in bytes; bands take turns by weight; a
// flow that has a rate, or whose packets carry departure times, waits for them
// in delayed. A packet that meets no flow that could be served now takes the
// fast path: no flow is looked up for it.
//
//	workers ─▶ in ─▶ [ internal (fast path)              ]
//	          intake [ band 0: new flows, old flows      ] ─▶ Dequeue
//	                 [ band 1, band 2; delayed: throttled ]
//
// Workers push to in without a lock; everything else belongs to the run bit
// holder, who alone applies limits, so that they are exact.
type FQ struct {
	// Read mostly.
	cfg     FQConfig
	buckets [][]fqSlot // ordered by key
	shift   uint       // of the multiplied key: 32 - log2(buckets)

	_  [cacheLine]byte
	in step.Pointer[packet.Packet] // what workers left, the last on top
	_  [cacheLine]byte

	// Read and written with every packet.
	arrived     packet.List // taken from in, the oldest first
	internal    fqFlow      // the fast path: in no band and no bucket
	qlen        int         // packets, arrived not included
	bandPackets [Bands]int  // without the fast path's
	bands       [Bands]fqBand
	band        int // that is being served
	flows       int
	inactive    int // flows without packets
	delayed     minheap.Heap[*fqFlow]
	nextDelayed int64 // no flow of delayed is due before; never if there is none
	now         int64
	fastpath    uint64

	// Seldom.
	dropped packet.List
	free    *fqFlow
	stats   FQStats
}

// never is the due time of nothing.
const never = math.MaxInt64

// An fqFlow is the packets of one flow, in the order of their departure times.
// It is one cache line.
type fqFlow struct {
	packets    packet.List
	next, prev *fqFlow // of the list it is on; next: of the free ones
	nextAt     int64   // the earliest time of the next packet, by rate
	age        int64   // when its last packet left or, if later, when it was detached
	credit     int32   // bytes; it is served while this is above 0
	band       uint8
	state      fqState
}

type fqState uint8

const (
	detached  fqState = iota // on no list
	listed                   // new or old flow of its band; it may have no packet
	throttled                // in delayed
	collected                // about to be freed
)

// An fqBand has the flows of one band; new ones go first.
type fqBand struct {
	new, old fqList
	credit   int64 // bytes it may send before it is others' turn
}

// An fqList is a FIFO of flows, a ring through a flow that is none: gc takes
// flows out of the middle. It must not be copied.
type fqList struct{ ends fqFlow }

// first is the flow that was pushed first; nil if there is none.
func (l *fqList) first() *fqFlow {
	if l.ends.next == &l.ends {
		return nil
	}
	return l.ends.next
}

func (l *fqList) push(f *fqFlow) {
	e := &l.ends
	if e.next == nil {
		e.next, e.prev = e, e
	}
	f.next, f.prev, f.state = e, e.prev, listed
	e.prev.next, e.prev = f, f
}

// unlink takes f off its list.
func (f *fqFlow) unlink() {
	f.prev.next, f.next.prev = f.next, f.prev
	f.next, f.prev = nil, nil
}

// FQStats are the counters of fq that tc shows. Packets are packet objects.
type FQStats struct {
	Flows, InactiveFlows, ThrottledFlows int
	BandPackets                          [Bands]int
	TimeNextDelayed                      int64  // monotonic ns, MaxInt64 if nothing is throttled
	GCFlows                              uint64 // flows collected
	FastpathPackets                      uint64
	Throttled                            uint64 // how often a flow was
	Latency                              uint64 // by which flows are released late, a moving average in ns
	CEMark                               uint64
	FlowsPlimit                          uint64 // dropped for flow_limit
	PktsTooLong                          uint64 // whose time at the flow's rate is over a second
	HorizonDrops, HorizonCaps            uint64
	BandDrops                            [Bands]uint64 // dropped for limit
}

// NewFQ makes an fq. cfg is in range (see FQConfig.Check).
func NewFQ(cfg FQConfig) *FQ {
	f := &FQ{nextDelayed: never}
	f.configure(cfg)
	return f
}

func (f *FQ) configure(cfg FQConfig) {
	if cfg.Buckets != len(f.buckets) {
		old := f.buckets
		f.buckets = make([][]fqSlot, cfg.Buckets)
		f.shift = 32
		for n := cfg.Buckets; n > 1; n /= 2 {
			f.shift--
		}
		f.rehash(old)
	}
	f.cfg = cfg
}

// Kind is the qdisc's name in tc.
func (f *FQ) Kind() string { return "fq" }

// CanBypass: what meets an empty fq has taken its fast path when it passes.
func (f *FQ) CanBypass() bool { return true }

// Config gives the parameters.
func (f *FQ) Config() FQConfig { return f.cfg }

// Enqueue leaves all of l to the run bit holder. Any worker may call it.
func (f *FQ) Enqueue(l *packet.List) (s Sum) {
	bottom := l.Front()
	var top *packet.Packet
	for p := l.Pop(); p != nil; p = l.Pop() {
		s.add(p)
		p.Next = top
		top = p
	}
	for {
		old := f.in.Load()
		bottom.Next = old
		if f.in.CompareAndSwap(old, top) { // O1: release, pairs with the swap in fetch
			return s
		}
	}
}

// arrival is Enqueue for the run bit holder: l comes behind what workers have
// left.
func (f *FQ) arrival(l *packet.List) Sum {
	s := sumOf(l)
	f.fetchAll()
	f.arrived.Append(l)
	return s
}

// fetch takes the oldest packet of those that have arrived.
func (f *FQ) fetch() *packet.Packet {
	if p := f.arrived.Pop(); p != nil {
		return p
	}
	f.fetchAll()
	return f.arrived.Pop()
}

// fetchAll moves what workers left to the end of arrived, in their order.
func (f *FQ) fetchAll() {
	if f.in.Load() == nil {
		return
	}
	last := f.in.Swap(nil)
	var oldest *packet.Packet
	n := 0
	for p := last; p != nil; n++ {
		next := p.Next
		p.Next = oldest
		oldest, p = p, next
	}
	left := packet.Chain(oldest, last, n)
	f.arrived.Append(&left)
}

// mayPass reports whether all of l, which finds fq empty, takes the fast path.
func (f *FQ) mayPass(now int64, l *packet.List) bool {
	if f.tick(now); !f.straight() {
		return false
	}
	for p := l.Front(); p != nil; p = p.Next {
		if p.TxTime != 0 {
			return false
		}
	}
	return true
}

// passed counts n packets that did.
func (f *FQ) passed(n int) { f.fastpath += uint64(n) }

// tick sets the clock. Who holds the run bit brings the clock of its batch,
// which may have begun before that of the holder before; but what arrives now
// must not get an earlier time than what arrived then.
func (f *FQ) tick(now int64) { f.now = max(f.now, now) }

// Intake queues everything that has arrived; what limits refuse is for
// TakeDropped.
func (f *FQ) Intake(now int64) {
	f.tick(now)
	for p := f.fetch(); p != nil; p = f.fetch() {
		f.enqueue(p)
	}
}

// TakeDropped gives the packets that were refused, each with its reason.
func (f *FQ) TakeDropped() packet.List {
	l := f.dropped
	f.dropped = packet.List{}
	return l
}

func (f *FQ) drop(p *packet.Packet, reason packet.Reason) {
	p.Drop = reason
	f.dropped.Push(p)
}

// enqueue queues p. fq_enqueue.
func (f *FQ) enqueue(p *packet.Packet) {
	band := f.cfg.Priomap[p.Priority&15]
	if f.bandPackets[band] >= f.cfg.Limit {
		f.stats.BandDrops[band]++
		f.drop(p, packet.DropFQLimit)
		return
	}
	p.DueAt = f.now
	if p.TxTime != 0 {
		if end := f.now + int64(f.cfg.Horizon); p.TxTime > end {
			if f.cfg.HorizonDrop {
				f.stats.HorizonDrops++
				f.drop(p, packet.DropFQHorizon)
				return
			}
			f.stats.HorizonCaps++
			p.TxTime = end
		}
		p.DueAt = p.TxTime
	}
	if f.fast(p) {
		f.fastpath++
		f.qlen++
		insert(&f.internal.packets, p)
		return
	}
	w := f.flow(p.Hash & f.cfg.OrphanMask)
	if w.packets.Len() >= f.cfg.FlowLimit {
		f.stats.FlowsPlimit++
		f.drop(p, packet.DropFQFlowLimit)
		return
	}
	// The kernel lists a flow under the band of its packet before; here it
	// is that of this one.
	w.band, p.Band = band, band
	if w.state == detached {
		f.bands[band].new.push(w)
		if f.now-w.age > int64(f.cfg.RefillDelay) {
			w.credit = max(w.credit, int32(f.cfg.Quantum))
		}
	}
	if w.packets.Len() == 0 {
		f.inactive--
	}
	f.bandPackets[band]++
	f.qlen++
	insert(&w.packets, p)
}

// insert puts p where its departure time belongs, behind its equals: nearly
// always at the end.
func insert(l *packet.List, p *packet.Packet) {
	if b := l.Back(); b == nil || p.DueAt >= b.DueAt {
		l.Push(p)
		return
	}
	var later packet.List
	later, *l = *l, packet.List{}
	for later.Front() != nil && later.Front().DueAt <= p.DueAt {
		l.Push(later.Pop())
	}
	l.Push(p)
	l.Append(&later)
}

// straight reports whether nothing is held up that has no reason to wait.
func (f *FQ) straight() bool { return f.cfg.MaxRate == 0 && !f.cfg.NoFastPath }

// fast reports whether p may pass without a flow: no flow has anything that
// could be sent now, and none will have before p. fq_fastpath_check.
func (f *FQ) fast(p *packet.Packet) bool {
	if p.DueAt > f.now || !f.straight() {
		return false
	}
	return f.qlen == 0 || f.flows == f.inactive+f.delayed.Len() && f.internal.packets.Len() < fqFastPath && f.nextDelayed > f.now
}

// Dequeue takes the next packet that may leave now; nil if there is none, and
// then Due says when there will be one.
func (f *FQ) Dequeue(now int64) *packet.Packet {
	f.tick(now)
	if f.qlen == 0 {
		if p := f.arrive(); p != nil || f.qlen == 0 {
			return p
		}
		if p := f.take(); p != nil {
			return p
		}
		// What arrived first has to wait; what came behind it need not.
	}
	f.Intake(now)
	return f.take()
}

// take takes the next packet of those that are queued. fq_dequeue.
func (f *FQ) take() *packet.Packet {
	if p := f.internal.packets.Pop(); p != nil {
		f.qlen--
		return p
	}
	f.release()
	for {
		b := f.pick()
		if b == nil {
			return nil
		}
		if p := f.serve(b); p != nil {
			return p
		}
	}
}

// arrive takes in the next packet that no limit refuses: it gives one that
// meets an empty fq and may leave at once, and queues another. An empty fq
// takes in no more at a time, so that each packet of a burst meets it empty.
func (f *FQ) arrive() *packet.Packet {
	for p := f.fetch(); p != nil; p = f.fetch() {
		if p.TxTime == 0 && f.straight() {
			f.fastpath++
			return p
		}
		if f.enqueue(p); f.qlen != 0 {
			break
		}
	}
	return nil
}

// pick gives the band whose turn it is; nil if none has a flow that may send.
// A band in debt gets its weight once in a round until it is out of debt.
func (f *FQ) pick() *fqBand {
	for idle := 0; ; {
		b := &f.bands[f.band]
		if b.credit > 0 && (b.new.first() != nil || b.old.first() != nil) {
			return b
		}
		if idle++; idle > Bands {
			return nil
		}
		f.band = (f.band + 1) % Bands
		b = &f.bands[f.band]
		weight := int64(f.cfg.Weights[f.band])
		if b.credit = min(b.credit+weight, weight); b.credit <= 0 {
			idle = 0
		}
	}
}

// serve gives the first flow of b its turn: a packet, or nil if the flow had
// none that may leave and was put elsewhere.
func (f *FQ) serve(b *fqBand) *packet.Packet {
	w, isNew := b.new.first(), true
	if w == nil {
		w, isNew = b.old.first(), false
	}
	if w.credit <= 0 {
		w.credit += int32(f.cfg.Quantum)
		w.unlink()
		f.bands[w.band].old.push(w)
		return nil
	}
	p := w.packets.Front()
	if p == nil {
		w.unlink()
		if isNew { // once through the old ones, so that new ones do not starve them
			f.bands[w.band].old.push(w)
		} else {
			w.state, w.age = detached, f.now
		}
		return nil
	}
	at := max(p.DueAt, w.nextAt)
	if at > f.now {
		w.unlink()
		w.nextAt = at
		f.throttle(w)
		return nil
	}
	w.packets.Pop()
	f.qlen--
	f.bandPackets[p.Band]--
	if w.packets.Len() == 0 {
		f.inactive++
		w.age = f.now
	}
	if f.cfg.CEThreshold >= 0 && f.now-at > int64(f.cfg.CEThreshold) {
		markCE(p)
		f.stats.CEMark++
	}
	w.credit -= int32(p.WireLen)
	b.credit -= int64(p.WireLen)
	f.pace(w, p)
	return p
}

// pace sets when the flow's next packet may leave, if it has a rate.
func (f *FQ) pace(w *fqFlow, p *packet.Packet) {
	rate := f.cfg.MaxRate
	if !f.cfg.Pacing || rate == 0 {
		return
	}
	bytes := uint64(p.WireLen)
	if p.TxTime == 0 {
		if rate <= f.cfg.LowRateThreshold {
			w.credit = 0 // one packet a visit
		} else if bytes = max(bytes, uint64(f.cfg.Quantum)); w.credit > 0 {
			return
		}
	}
	const second = 1_000_000_000
	d := int64(bytes * second / rate)
	if d > second {
		d = second
		f.stats.PktsTooLong++
	}
	if w.nextAt != 0 { // make good for being late
		d -= min(d/2, f.now-w.nextAt)
	}
	w.nextAt = f.now + d
}

func (f *FQ) throttle(w *fqFlow) {
	w.state = throttled
	f.delayed.Push(w.nextAt, w)
	f.stats.Throttled++
	f.nextDelayed = min(f.nextDelayed, w.nextAt)
}

// release makes flows that are due old flows. fq_check_throttled.
func (f *FQ) release() {
	if f.nextDelayed > f.now {
		return
	}
	if late := uint64(f.now - f.nextDelayed); late > 0 {
		f.stats.Latency += late/8 - f.stats.Latency/8
	}
	f.nextDelayed = never
	for {
		at, ok := f.delayed.Min()
		if !ok {
			return
		}
		if at > f.now {
			f.nextDelayed = at
			return
		}
		w := f.delayed.Pop()
		f.bands[w.band].old.push(w)
	}
}

// Due is when Dequeue, which found nothing, will find a packet: the earliest
// departure, MaxInt64 if nothing waits for one.
func (f *FQ) Due() int64 { return f.nextDelayed }

// TimerSlack is by how many ns a timer for Due may be late.
func (f *FQ) TimerSlack() int64 { return int64(f.cfg.TimerSlack) }

// Len is the number of packets, those included that workers have left.
func (f *FQ) Len() int {
	n := f.qlen + f.arrived.Len()
	for p := f.in.Load(); p != nil; p = p.Next {
		n++
	}
	return n
}

// Stats gives the counters. Run bit holder only.
func (f *FQ) Stats() FQStats {
	st := f.stats
	st.Flows, st.InactiveFlows, st.ThrottledFlows = f.flows, f.inactive, f.delayed.Len()
	st.BandPackets, st.TimeNextDelayed, st.FastpathPackets = f.bandPackets, f.nextDelayed, f.fastpath
	return st
}

// Change puts other parameters into force. Every packet stays, except that
// of more than limit the first to leave go to surplus.
func (f *FQ) Change(cfg FQConfig, surplus *packet.List) {
	f.Intake(f.now)
	f.configure(cfg)
	if cfg.MaxRate == 0 || !cfg.Pacing {
		// Nothing waits for its rate any more. Without this a flow's later
		// packets would take the fast path past those that are throttled.
		for _, b := range f.buckets {
			for _, s := range b {
				s.flow.nextAt = 0
			}
		}
		f.unthrottle()
	}
	for f.qlen > cfg.Limit {
		p := f.Dequeue(f.now)
		if p == nil {
			return
		}
		surplus.Push(p)
	}
}

// Reset takes every packet, in the order in which they would leave if none had
// to wait for its time, and forgets every flow.
func (f *FQ) Reset(all *packet.List) {
	f.Intake(f.now)
	all.Append(&f.internal.packets)
	cfg, now := f.cfg, f.now
	f.cfg.MaxRate, f.cfg.CEThreshold, f.now = 0, -1, never
	f.unthrottle()
	for b := f.pick(); b != nil; b = f.pick() {
		if p := f.serve(b); p != nil {
			all.Push(p)
		}
	}
	f.cfg, f.now = cfg, now
	f.qlen = 0
	f.forget()
}

// unthrottle makes every flow that waits an old flow, which waits again when
// it is served and its packet's time has not come.
func (f *FQ) unthrottle() {
	for f.delayed.Len() > 0 {
		w := f.delayed.Pop()
		f.bands[w.band].old.push(w)
	}
	f.nextDelayed = never
}
