//go:build !explore

package qdisc

import (
	"fmt"
	"math"
	"slices"
	"sort"

	"taprouter/packet"
)

// This file is the slow twin of FQ: the discipline as its specification words
// it, with plain slices. Counters that have a definition (flows without a
// packet, packets of a band) are counted anew whenever somebody asks.

const (
	modelNever    = math.MaxInt64
	modelStaleAge = 3e9 // ns
	modelInternal = 8   // fast-path packets while others are queued
)

// A modelPkt is what the model knows of a packet.
type modelPkt struct {
	id     int
	hash   uint32
	prio   uint8
	length int64
	tx     int64 // earliest departure time, 0 = none
	tts    int64 // time to send
	band   int
	drop   packet.Reason
}

func (p *modelPkt) String() string {
	return fmt.Sprintf("#%d(hash %d prio %d len %d tx %d)", p.id, p.hash, p.prio, p.length, p.tx)
}

// Where a flow is.
const (
	modelDetached = iota
	modelListed
	modelThrottled
)

type modelFlow struct {
	key    uint32
	pkts   []*modelPkt // by time to send; of equal ones the older first
	credit int64
	band   int
	where  int
	age    int64 // when its last packet left, or it was detached
	next   int64 // earliest time of the next packet
}

// stale is more than the kernel has: there a flow on a list is never stale.
func (f *modelFlow) stale(now int64) bool {
	return len(f.pkts) == 0 && now-f.age > modelStaleAge
}

type modelBand struct {
	lists           [2][]*modelFlow // new, old
	credit, quantum int64
}

const (
	modelNew = iota
	modelOld
)

type fqModel struct {
	cfg      FQConfig
	fastpath bool

	intake   []*modelPkt
	internal []*modelPkt
	flows    map[uint32]*modelFlow
	bands    [3]modelBand
	turn     int
	delayed  []*modelFlow
	nextDue  int64
	dropped  []*modelPkt

	st   FQStats // the counters that have no definition
	made uint64  // flows ever made
	lost uint64  // flows that a reset took
}

func newFQModel(cfg FQConfig) *fqModel {
	m := &fqModel{cfg: cfg, fastpath: true, flows: map[uint32]*modelFlow{}, nextDue: modelNever}
	m.loadWeights()
	return m
}

func (m *fqModel) loadWeights() {
	for i := range m.bands {
		m.bands[i].quantum = int64(m.cfg.Weights[i])
	}
}

// insertPkt puts p behind everything that is not later than it.
func insertPkt(l []*modelPkt, p *modelPkt) []*modelPkt {
	i := sort.Search(len(l), func(i int) bool { return l[i].tts > p.tts })
	l = append(l, nil)
	copy(l[i+1:], l[i:])
	l[i] = p
	return l
}

func (m *fqModel) enqueue(p *modelPkt) { m.intake = append(m.intake, p) }

func (m *fqModel) qlen() int {
	n := len(m.internal)
	for _, f := range m.flows {
		n += len(f.pkts)
	}
	return n
}

func (m *fqModel) len() int { return len(m.intake) + m.qlen() }

func (m *fqModel) bandPackets(b int) (n int) {
	for _, f := range m.flows {
		for _, p := range f.pkts {
			if p.band == b {
				n++
			}
		}
	}
	return n
}

func (m *fqModel) inactive() (n int) {
	for _, f := range m.flows {
		if len(f.pkts) == 0 {
			n++
		}
	}
	return n
}

func (m *fqModel) refuse(p *modelPkt, why packet.Reason) {
	p.drop = why
	m.dropped = append(m.dropped, p)
}

func (m *fqModel) takeIn(now int64) {
	for len(m.intake) > 0 {
		m.takeOne(now)
	}
}

// takeOne is the kernel's enqueue of the oldest packet of the intake.
func (m *fqModel) takeOne(now int64) {
	p := m.intake[0]
	m.intake = m.intake[1:]

	p.band = int(m.cfg.Priomap[p.prio&15])
	if m.bandPackets(p.band) >= m.cfg.Limit {
		m.st.BandDrops[p.band]++
		m.refuse(p, packet.DropFQLimit)
		return
	}
	p.tts = now
	if p.tx != 0 {
		if end := now + int64(m.cfg.Horizon); p.tx > end {
			if m.cfg.HorizonDrop {
				m.st.HorizonDrops++
				m.refuse(p, packet.DropFQHorizon)
				return
			}
			m.st.HorizonCaps++
			p.tx = end
		}
		p.tts = p.tx
	}
	if m.fastpathOK(p, now) {
		m.st.FastpathPackets++
		m.internal = insertPkt(m.internal, p)
		return
	}
	f := m.flow(p.hash&m.cfg.OrphanMask, now)
	if len(f.pkts) >= m.cfg.FlowLimit {
		m.st.FlowsPlimit++
		m.refuse(p, packet.DropFQFlowLimit)
		return
	}
	f.band = p.band
	if f.where == modelDetached {
		m.list(f, modelNew)
		if now-f.age > int64(m.cfg.RefillDelay) {
			f.credit = max(f.credit, int64(m.cfg.Quantum))
		}
	}
	f.pkts = insertPkt(f.pkts, p)
}

func (m *fqModel) fastpathOK(p *modelPkt, now int64) bool {
	if !m.fastpath || p.tts > now || m.cfg.MaxRate != 0 {
		return false
	}
	if m.qlen() == 0 {
		return true
	}
	for _, f := range m.flows {
		if len(f.pkts) > 0 && f.where != modelThrottled {
			return false
		}
	}
	return len(m.internal) < modelInternal && m.nextDue > now
}

func (m *fqModel) flow(key uint32, now int64) *modelFlow {
	f := m.flows[key]
	if f == nil {
		f = &modelFlow{key: key, credit: int64(m.cfg.InitialQuantum), age: now}
		m.flows[key] = f
		m.made++
	}
	return f
}

// collect is the part of gc that the model does not know: which flows lay on
// the search paths. It takes them out and says whether that was allowed.
func (m *fqModel) collect(key uint32, now int64) error {
	f := m.flows[key]
	if f == nil {
		return fmt.Errorf("flow %d collected, but there is none", key)
	}
	if !f.stale(now) {
		return fmt.Errorf("flow %d collected though not stale: %d packets, where %d, idle for %d ns",
			key, len(f.pkts), f.where, now-f.age)
	}
	delete(m.flows, key)
	for i := range m.bands {
		for j, l := range m.bands[i].lists {
			m.bands[i].lists[j] = slices.DeleteFunc(l, func(g *modelFlow) bool { return g == f })
		}
	}
	m.st.GCFlows++
	return nil
}

// anyStale reports whether gc could collect a flow.
func (m *fqModel) anyStale(now int64) bool {
	for _, f := range m.flows {
		if f.stale(now) {
			return true
		}
	}
	return false
}

// list appends f to a list of its band.
func (m *fqModel) list(f *modelFlow, which int) {
	f.where = modelListed
	b := &m.bands[f.band]
	b.lists[which] = append(b.lists[which], f)
}

// dequeue takes in what arrived and serves: packet by packet while there is
// nothing to serve, everything at once otherwise.
func (m *fqModel) dequeue(now int64) *modelPkt {
	for {
		if m.qlen() > 0 {
			m.takeIn(now)
		}
		for m.qlen() == 0 && len(m.intake) > 0 {
			m.takeOne(now)
		}
		if p := m.serve(now); p != nil || len(m.intake) == 0 {
			return p
		}
	}
}

func (m *fqModel) serve(now int64) *modelPkt {
	if m.qlen() == 0 {
		return nil
	}
	if len(m.internal) > 0 {
		p := m.internal[0]
		m.internal = m.internal[1:]
		return p
	}
	m.unthrottle(now)
	retry := 0
	for {
		b := &m.bands[m.turn]
		which := -1
		if b.credit > 0 {
			for i, l := range b.lists {
				if len(l) > 0 {
					which = i
					break
				}
			}
		}
		if which < 0 {
			if !m.nextBand(&retry) {
				return nil
			}
			continue
		}
		retry = 0
		f := b.lists[which][0]
		if f.credit <= 0 {
			f.credit += int64(m.cfg.Quantum)
			b.lists[which] = b.lists[which][1:]
			m.list(f, modelOld)
			continue
		}
		if len(f.pkts) == 0 {
			b.lists[which] = b.lists[which][1:]
			if which == modelNew {
				m.list(f, modelOld)
			} else {
				f.where, f.age = modelDetached, now
			}
			continue
		}
		p := f.pkts[0]
		t := max(p.tts, f.next)
		if now < t {
			b.lists[which] = b.lists[which][1:]
			f.next = t
			m.throttle(f)
			continue
		}
		f.pkts, f.age = f.pkts[1:], now
		if m.cfg.CEThreshold >= 0 && now-t > int64(m.cfg.CEThreshold) {
			m.st.CEMark++
		}
		f.credit -= p.length
		b.credit -= p.length
		m.pace(f, p, now)
		return p
	}
}

// nextBand goes on to the next band with credit; false if three bands in
// succession had credit and nothing to send.
func (m *fqModel) nextBand(retry *int) bool {
	for *retry++; *retry <= 3; *retry++ {
		m.turn = (m.turn + 1) % 3
		b := &m.bands[m.turn]
		b.credit = min(b.credit+b.quantum, b.quantum)
		if b.credit > 0 {
			return true
		}
		*retry = 0
	}
	return false
}

func (m *fqModel) pace(f *modelFlow, p *modelPkt, now int64) {
	if !m.cfg.Pacing {
		return
	}
	rate := m.cfg.MaxRate
	if rate == 0 {
		rate = math.MaxUint64
	}
	plen := uint64(p.length)
	if p.tx == 0 {
		if rate <= m.cfg.LowRateThreshold {
			f.credit = 0
		} else {
			plen = max(plen, uint64(m.cfg.Quantum))
			if f.credit > 0 {
				return
			}
		}
	}
	if rate == math.MaxUint64 {
		return
	}
	d := int64(min(plen*1e9/rate, math.MaxInt64))
	if d > 1e9 {
		d = 1e9
		m.st.PktsTooLong++
	}
	if f.next != 0 {
		d -= min(d/2, now-f.next)
	}
	f.next = now + d
}

func (m *fqModel) throttle(f *modelFlow) {
	f.where = modelThrottled
	i := sort.Search(len(m.delayed), func(i int) bool { return m.delayed[i].next > f.next })
	m.delayed = append(m.delayed, nil)
	copy(m.delayed[i+1:], m.delayed[i:])
	m.delayed[i] = f
	m.st.Throttled++
	m.nextDue = min(m.nextDue, f.next)
}

func (m *fqModel) unthrottle(now int64) {
	if m.nextDue > now {
		return
	}
	if late := uint64(now - m.nextDue); late > 0 {
		m.st.Latency += late/8 - m.st.Latency/8
	}
	m.nextDue = modelNever
	for len(m.delayed) > 0 {
		f := m.delayed[0]
		if f.next > now {
			m.nextDue = f.next
			return
		}
		m.delayed = m.delayed[1:]
		m.list(f, modelOld)
	}
}

// change takes the new parameters.
func (m *fqModel) change(cfg FQConfig, now int64) {
	m.takeIn(now)
	m.cfg = cfg
	m.loadWeights()
	if cfg.MaxRate == 0 || !cfg.Pacing { // what waited for its rate is eligible
		for _, f := range m.flows {
			f.next = 0
		}
		for _, f := range m.delayed {
			m.list(f, modelOld)
		}
		m.delayed, m.nextDue = nil, modelNever
	}
}

// shed gives, of more packets than limit, the first to leave.
func (m *fqModel) shed(now int64) (surplus []*modelPkt) {
	for m.qlen() > m.cfg.Limit {
		p := m.dequeue(now)
		if p == nil {
			break
		}
		surplus = append(surplus, p)
	}
	return surplus
}

// reset gives every packet, first the fast path's, then by flow, and forgets
// flows and turns. Counters of events stay.
func (m *fqModel) reset(now int64) (queues [][]*modelPkt) {
	m.takeIn(now)
	queues = append(queues, m.internal)
	for _, f := range m.flows {
		queues = append(queues, f.pkts)
	}
	m.lost += uint64(len(m.flows))
	m.internal, m.delayed = nil, nil
	m.flows = map[uint32]*modelFlow{}
	for i := range m.bands {
		m.bands[i] = modelBand{}
	}
	m.loadWeights()
	m.turn, m.nextDue = 0, modelNever
	return queues
}

func (m *fqModel) stats() FQStats {
	st := m.st
	st.Flows, st.InactiveFlows, st.ThrottledFlows = len(m.flows), m.inactive(), len(m.delayed)
	for b := range st.BandPackets {
		st.BandPackets[b] = m.bandPackets(b)
	}
	st.TimeNextDelayed = m.nextDue
	return st
}
