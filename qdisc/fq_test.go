//go:build !explore

package qdisc

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"taprouter/packet"
)

// Priorities of the default priomap, by band.
var fqPrio = [Bands]uint8{6, 0, 1}

// An fqBed is an FQ with a clock.
type fqBed struct {
	t   testing.TB
	f   *FQ
	now int64
}

func newFQBed(t testing.TB, edit func(*FQConfig)) *fqBed {
	cfg := DefaultFQ(1500)
	if edit != nil {
		edit(&cfg)
	}
	if err := cfg.Check(); err != nil {
		t.Fatal(err)
	}
	return &fqBed{t: t, f: NewFQ(cfg), now: 3600e9}
}

func fqPkt(hash uint32, prio uint8, length int) *packet.Packet {
	return &packet.Packet{Hash: hash, Priority: prio, WireLen: uint32(length), Segs: 1}
}

// put enqueues packets without taking them in.
func (b *fqBed) put(pkts ...*packet.Packet) {
	var l packet.List
	for _, p := range pkts {
		l.Push(p)
	}
	b.f.Enqueue(&l)
}

func (b *fqBed) take() *packet.Packet { return b.f.Dequeue(b.now) }

// must takes a packet, which must be there and be want unless that is nil.
func (b *fqBed) must(want *packet.Packet) *packet.Packet {
	b.t.Helper()
	p := b.take()
	switch {
	case p == nil:
		b.t.Fatalf("nothing leaves of %d packets, due %d, now %d", b.f.Len(), b.f.Due(), b.now)
	case want != nil && p != want:
		b.t.Fatalf("got the packet of flow %d prio %d, want flow %d prio %d", p.Hash, p.Priority, want.Hash, want.Priority)
	}
	return p
}

// none checks that no packet leaves now, and gives when one will.
func (b *fqBed) none() int64 {
	b.t.Helper()
	if p := b.take(); p != nil {
		b.t.Fatalf("flow %d prio %d leaves, want nothing", p.Hash, p.Priority)
	}
	return b.f.Due()
}

// next takes the next packet and waits for it if need be.
func (b *fqBed) next() *packet.Packet {
	b.t.Helper()
	if p := b.take(); p != nil {
		return p
	}
	due := b.f.Due()
	if due <= b.now || due == math.MaxInt64 {
		b.t.Fatalf("%d packets, nothing leaves, due %d, now %d", b.f.Len(), due, b.now)
	}
	b.now = due
	return b.must(nil)
}

// slow turns the fast path off.
func (b *fqBed) slow() *fqBed { setFastPath(b.f, false); return b }

// detach makes every flow leave its list, all of them being empty: looking
// for a packet that has to wait, Dequeue passes all of them.
func (b *fqBed) detach() {
	b.t.Helper()
	p := fqPkt(math.MaxUint32, 0, 60)
	p.TxTime = b.now + 1
	b.put(p)
	b.none()
	b.now++
	b.must(p)
}

// The tests TestFQ1 to TestFQ11 are the failure modes of the kernel's fq, most
// of which it once had; the commits that mended them are named.

// A band has credit and nothing to send, another the reverse: the search must
// go on until the packet is found (06e4dd18f868).
func TestFQ1StallOfBands(t *testing.T) {
	for _, weights := range [][Bands]uint32{{589824, 196608, 65536}, {16384, 16384, 16384}} {
		for _, length := range []int{60, 1514, 65549} {
			for before := range 60 { // packets that leave first: turns and credits differ
				for band, prio := range fqPrio {
					b := newFQBed(t, func(c *FQConfig) { c.Weights = weights }).slow()
					for i := range before {
						b.put(fqPkt(uint32(i), fqPrio[i*7%5%3], length))
						b.must(nil)
					}
					want := fqPkt(1000, prio, length)
					b.put(want)
					if p := b.take(); p != want {
						t.Fatalf("weights %v, %d packets of %d bytes before: band %d stalls", weights, before, length, band)
					}
				}
			}
		}
	}
}

// A weight below the length of a GSO packet: a deep debt takes several refills
// (bc21000e99f9).
func TestFQ2SmallWeights(t *testing.T) {
	for band, prio := range fqPrio {
		b := newFQBed(t, func(c *FQConfig) { c.Weights = [Bands]uint32{16384, 16384, 16384} }).slow()
		for range 50 {
			b.put(fqPkt(1, prio, 65549), fqPkt(2, prio, 65549))
		}
		for i := range 100 {
			if b.take() == nil {
				t.Fatalf("band %d: nothing leaves after %d of 100 packets", band, i)
			}
		}
	}
}

// A flow is due but not yet released: its next packet must not take the fast
// path past it (122aba8c8061).
func TestFQ3FastPathKeepsOrder(t *testing.T) {
	for _, together := range []bool{false, true} { // a second flow waits for later
		b := newFQBed(t, nil)
		first, second := fqPkt(7, 0, 100), fqPkt(7, 0, 100)
		first.TxTime = b.now + 1e6
		b.put(first)
		if together {
			other := fqPkt(8, 0, 100)
			other.TxTime = b.now + 1e9
			b.put(other)
		}
		if due := b.none(); due != first.TxTime {
			t.Fatalf("due %d, want %d", due, first.TxTime)
		}
		b.now = first.TxTime + 1000
		b.put(second)
		b.must(first)
		b.must(second)
	}
}

// A reset forgets that flows were waiting: no timer, and the fast path is
// open, also when that time has come.
func TestFQ4Reset(t *testing.T) {
	b := newFQBed(t, nil)
	late := fqPkt(7, 0, 100)
	late.TxTime = b.now + 1e6
	b.put(late, fqPkt(8, 0, 100))
	b.must(nil)
	b.none()
	b.put(fqPkt(9, 0, 100)) // still in the intake
	var all packet.List
	b.f.Reset(&all)
	if all.Len() != 2 || b.f.Len() != 0 {
		t.Fatalf("reset gave %d packets and left %d, want 2 and 0", all.Len(), b.f.Len())
	}
	st := b.f.Stats()
	if st.Flows != 0 || st.InactiveFlows != 0 || st.ThrottledFlows != 0 || st.BandPackets != [Bands]int{} {
		t.Errorf("after reset: %+v", st)
	}
	if due := b.none(); due != math.MaxInt64 {
		t.Errorf("due %d after reset, want never", due)
	}
	for range 2 {
		before := b.f.Stats().FastpathPackets
		p, q := fqPkt(1, 0, 100), fqPkt(2, 0, 100)
		b.put(p, q)
		b.f.Intake(b.now)
		b.must(p)
		b.must(q)
		if n := b.f.Stats().FastpathPackets - before; n != 2 {
			t.Errorf("%d of 2 packets took the fast path", n)
		}
		b.now = late.TxTime + 1
	}
}

// A bulk flow gets its turn beside flows that are new whenever a packet can
// leave: an empty new flow passes through the old ones before it may be new
// again.
func TestFQ5NewFlowsDoNotStarveOld(t *testing.T) {
	for _, tt := range []struct {
		name        string
		flows       int // that have a packet each in turn; no. 0 is the bulk flow
		every, slot int // a packet of theirs every so many slots, of so many ns
		want        int // bulk packets in 20 000 slots
	}{
		{"a hundred that return refilled", 100, 1, 1e6, 100}, // its share is 1 of 101
		{"a thousand new ones a second", 1e9, 2, 500e3, 9000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newFQBed(t, func(c *FQConfig) { c.OrphanMask = math.MaxUint32 }).slow()
			b.backlog([]*packet.Packet{fqPkt(0, 0, 1514)}, 50)
			bulk := 0
			for i := range 20000 {
				if i%tt.every == 0 {
					b.put(fqPkt(uint32(1+i%tt.flows), 0, 1514))
				}
				if p := b.must(nil); p.Hash == 0 {
					bulk++
					b.put(p)
				}
				b.now += int64(tt.slot)
			}
			if bulk < tt.want {
				t.Errorf("the bulk flow got %d of 20000 slots, want %d or more", bulk, tt.want)
			}
		})
	}
}

// Every flow without packets counts as inactive, whatever list it is on.
func TestFQ6InactiveIsExact(t *testing.T) {
	b := newFQBed(t, func(c *FQConfig) { c.OrphanMask = math.MaxUint32 }).slow()
	for i := range 2000 {
		p := fqPkt(uint32(i*37%500), fqPrio[i%3], 60+i%1400)
		if i%5 == 0 {
			p.TxTime = b.now + int64(i)*1000
		}
		b.put(p)
	}
	for b.f.Len() > 0 {
		b.next()
	}
	if st := b.f.Stats(); st.Flows != 500 || st.InactiveFlows != 500 || st.ThrottledFlows != 0 || st.BandPackets != [Bands]int{} {
		t.Errorf("drained: %+v, want 500 flows, all inactive", st)
	}
}

// gc takes flows that are stale and no others, and a lookup that met stale
// flows on its way still finds its own. TestFQModel has the random part.
func TestFQ7CollectsStaleFlowsOnly(t *testing.T) {
	const flows = 200
	for _, listed := range []bool{true, false} {
		var collected uint64
		for live := range uint32(flows) {
			b := newFQBed(t, func(c *FQConfig) { c.Buckets, c.OrphanMask = 2, math.MaxUint32 }).slow()
			for i := range uint32(flows) {
				b.put(fqPkt(i, 0, 100))
			}
			for range flows {
				b.must(nil)
			}
			made, idle := flows, b.now
			if !listed {
				b.detach()
				made++
			}
			kept := fqPkt(live, 0, 100)
			b.put(kept)
			b.f.Intake(b.now)
			b.now = idle + int64(fqFlowAge) // stale in a moment
			b.put(fqPkt(1000, 0, 100))
			b.f.Intake(b.now)
			if st := b.f.Stats(); st.GCFlows != 0 {
				t.Fatalf("%d flows collected when they were 3 s old", st.GCFlows)
			}
			b.now++
			again := fqPkt(live, 0, 100)
			b.put(again)
			b.f.Intake(b.now)
			st := b.f.Stats()
			if st.Flows+int(st.GCFlows) != made+1 || st.Flows-st.InactiveFlows != 2 {
				t.Fatalf("flow %d: %+v, want 2 active of %d ever made", live, st, made+1)
			}
			collected += st.GCFlows
			var got []*packet.Packet
			for range 3 {
				got = append(got, b.must(nil))
			}
			if got[0] != kept && got[1] != kept || got[2] != again && got[1] != again {
				t.Fatalf("flow %d was not found again", live)
			}
		}
		if collected < flows {
			t.Errorf("%d flows collected in %d lookups past stale ones", collected, flows)
		}
	}
}

// backlog keeps flows full: a packet that has left comes again.
func (b *fqBed) backlog(flows []*packet.Packet, depth int) {
	for range depth {
		for _, p := range flows {
			q := *p
			b.put(&q)
		}
	}
	b.f.Intake(b.now)
}

func within(got, want, part float64) bool { return math.Abs(got-want) <= part*want }

// Bands of equal load share by weight.
func TestFQ8SharesOfBands(t *testing.T) {
	b := newFQBed(t, nil)
	var flows []*packet.Packet
	for i := range 30 {
		flows = append(flows, fqPkt(uint32(i), fqPrio[i%3], 1514))
	}
	b.backlog(flows, 20)
	const rounds, round = 40, 851968 // sum of the weights
	var bytes [Bands]float64
	for total := 0; total < rounds*round; total += 1514 {
		p := b.must(nil)
		bytes[Priomap[p.Priority]] += 1514
		b.put(p)
	}
	for band, share := range []float64{9, 3, 1} {
		if want := rounds * round * share / 13; !within(bytes[band], want, 0.02) {
			t.Errorf("band %d: %.0f bytes, want %.0f", band, bytes[band], want)
		}
	}
}

// A flow keeps to maxrate, and no burst is longer than its credit and a packet.
func TestFQ9MaxRate(t *testing.T) {
	for _, rate := range []uint64{20_000, 68_750, 68_751, 100_000, 1e6, 125e6, 4e9} {
		for _, length := range []int{60, 1514, 9014, 65549} {
			if uint64(length) > rate {
				continue // over a second a packet
			}
			t.Run(fmt.Sprintf("rate=%d/length=%d", rate, length), func(t *testing.T) { checkRate(t, rate, length) })
		}
	}
}

func checkRate(t *testing.T, rate uint64, length int) {
	b := newFQBed(t, func(c *FQConfig) { c.MaxRate = rate })
	cfg := b.f.Config()
	b.backlog([]*packet.Packet{fqPkt(1, 0, length)}, 50)
	burst := func() (bytes int) {
		p := b.next()
		for ; p != nil; p = b.take() {
			if bytes += length; bytes > 1<<21 {
				t.Fatal("no pause after 2 MB")
			}
			b.put(p)
		}
		return bytes
	}
	if n := burst(); n > int(cfg.InitialQuantum)+length {
		t.Errorf("the first burst has %d bytes, want no more than initial_quantum and a packet", n)
	}
	burst()
	start, bytes, most := b.now, 0, 0
	for range 2000 { // each is at least a packet
		n := burst()
		bytes, most = bytes+n, max(most, n)
	}
	burst() // the bytes so far took until here
	if most > int(cfg.Quantum)+length {
		t.Errorf("a burst has %d bytes, want no more than quantum and a packet", most)
	}
	if got := float64(bytes) / (float64(b.now-start) / 1e9); !within(got, float64(rate), 0.01) {
		t.Errorf("%.0f bytes/s, want %d", got, rate)
	}
	// After a pause the flow may catch up by a quantum, no more.
	for b.f.Len() > 0 {
		b.next()
	}
	b.now += 2e9
	b.backlog([]*packet.Packet{fqPkt(1, 0, length)}, 50)
	if n := burst(); n > int(cfg.Quantum)+length {
		t.Errorf("the burst after a pause has %d bytes", n)
	}
}

// The kernel serves a new flow in the band of its packet before, band 0 for a
// fresh one. Here it waits for its own band's turn from the first packet on.
func TestFQ10BandOfFirstService(t *testing.T) {
	for _, returning := range []bool{false, true} { // a flow of band 0 comes back in band 2
		b := newFQBed(t, nil).slow()
		if returning {
			b.put(fqPkt(99, fqPrio[0], 60))
			b.must(nil)
			b.detach()
		}
		b.backlog([]*packet.Packet{fqPkt(1, fqPrio[0], 1514), fqPkt(2, fqPrio[0], 1514)}, 90)
		again := func(want uint8) {
			p := b.must(nil)
			if p.Priority != want {
				t.Fatalf("a packet of priority %d leaves, want %d", p.Priority, want)
			}
			b.put(p)
		}
		again(fqPrio[0]) // band 0 has its turn
		b.put(fqPkt(99, fqPrio[2], 1514))
		for range 380 { // 389 packets are its weight; a returning flow's was taken off
			again(fqPrio[0])
		}
		for i := 0; ; i++ {
			if p := b.must(nil); p.Hash == 99 {
				break
			} else if i > 20 {
				t.Fatal("band 2 gets no turn")
			}
		}
	}
}

// A lowered limit holds for all bands together at once, and takes the first
// to leave; what is left stays in order.
func TestFQ11ChangeOfLimit(t *testing.T) {
	b := newFQBed(t, nil).slow()
	var flows []*packet.Packet
	for i := range 9 {
		flows = append(flows, fqPkt(uint32(i), fqPrio[i%3], 500))
	}
	b.backlog(flows, 20)
	b.put(fqPkt(100, 0, 500)) // still in the intake
	cfg := b.f.Config()
	cfg.Limit, cfg.Buckets = 60, 64
	var surplus packet.List
	b.f.Change(cfg, &surplus)
	if surplus.Len() != 121 || b.f.Len() != 60 {
		t.Fatalf("limit 60 of 181: surplus %d, left %d", surplus.Len(), b.f.Len())
	}
	for range 60 {
		b.must(nil)
	}
	b.none()
	if st := b.f.Stats(); st.Flows != st.InactiveFlows || st.BandPackets != [Bands]int{} {
		t.Errorf("drained: %+v", st)
	}
}

// Backlogged flows with packets of different lengths get equal bytes.
func TestFQFairness(t *testing.T) {
	lengths := []int{60, 1514, 590, 9014, 128, 1000}
	for _, n := range []int{2, 10, 100, 1000} {
		t.Run(fmt.Sprintf("flows=%d", n), func(t *testing.T) {
			b := newFQBed(t, func(c *FQConfig) { c.OrphanMask = math.MaxUint32 })
			var flows []*packet.Packet
			for i := range n {
				flows = append(flows, fqPkt(uint32(i)*2654435761, 0, lengths[i%len(lengths)]))
			}
			b.backlog(flows, 4+40/n) // more than the fast path takes
			if n >= 100 && raceEnabled {
				t.Skip("too many packets")
			}
			perFlow := 4_000_000
			if n == 1000 {
				perFlow = 1_500_000 // 1 % is still more than a quantum and a packet
			}
			bytes := map[uint32]float64{}
			for total := 0; total < n*perFlow; {
				p := b.must(nil)
				bytes[p.Hash] += float64(p.WireLen)
				total += int(p.WireLen)
				b.put(p)
			}
			for _, p := range flows {
				if !within(bytes[p.Hash], float64(perFlow), 0.01) {
					t.Errorf("a flow of %d byte packets got %.0f bytes, want %d", p.WireLen, bytes[p.Hash], perFlow)
				}
			}
		})
	}
}

// Flows that are paced together keep to their rate each.
func TestFQPacedTogether(t *testing.T) {
	for _, rate := range []uint64{50_000, 1e6} {
		b := newFQBed(t, func(c *FQConfig) { c.MaxRate, c.OrphanMask = rate, math.MaxUint32 })
		var flows []*packet.Packet
		for i := range 20 {
			flows = append(flows, fqPkt(uint32(i), fqPrio[i%3], 300+60*i))
		}
		b.backlog(flows, 20)
		for end := b.now + 2e9; b.now < end; { // the initial credit is gone
			b.put(b.next())
		}
		bytes := make([]float64, len(flows))
		start := b.now
		for end := start + 30e9; b.now < end; {
			p := b.next()
			bytes[p.Hash] += float64(p.WireLen)
			b.put(p)
		}
		for i, n := range bytes {
			if got := n / (float64(b.now-start) / 1e9); !within(got, float64(rate), 0.01) {
				t.Errorf("flow %d: %.0f bytes/s, want %d", i, got, rate)
			}
		}
	}
}

// A million flows of a packet each, in different orders of keys: gc holds the
// number of flows and of flow objects near that of the last three seconds.
// Every flow stays on a list, as the next one is new whenever it is served.
func TestFQMillionFlows(t *testing.T) {
	total := 1_000_000
	if raceEnabled || testing.Short() {
		total = 100_000
	}
	orders := map[string]func(i uint32) uint32{
		"rising":    func(i uint32) uint32 { return i },
		"falling":   func(i uint32) uint32 { return math.MaxUint32 - i },
		"scattered": func(i uint32) uint32 { return i * 0x85ebca6b },
	}
	for name, key := range orders {
		t.Run(name, func(t *testing.T) {
			const step = 300 * time.Microsecond
			const live = int(fqFlowAge / step) // 10 000
			b := newFQBed(t, func(c *FQConfig) { c.OrphanMask = math.MaxUint32 }).slow()
			most, p := 0, fqPkt(0, 0, 100)
			for i := range total {
				p.Hash = key(uint32(i))
				b.put(p)
				p = b.must(p)
				b.now += int64(step)
				most = max(most, b.f.Stats().Flows)
			}
			b.none()
			st := b.f.Stats()
			if st.Flows != st.InactiveFlows || st.ThrottledFlows != 0 {
				t.Errorf("at the end: %+v", st)
			}
			if uint64(st.Flows)+st.GCFlows != uint64(total) {
				t.Errorf("%d flows and %d collected, %d were made", st.Flows, st.GCFlows, total)
			}
			if most > 4*live {
				t.Errorf("%d flows at a time, %d of them younger than 3 s", most, live)
			}
			if n := b.objects(); n > most+fqSlab {
				t.Errorf("%d flow objects for %d flows at most", n, most)
			}
			t.Logf("at most %d flows, %d younger than 3 s; %d objects", most, live, b.objects())
		})
	}
}

// objects counts the flow objects in use and free.
func (b *fqBed) objects() int {
	n := b.f.Stats().Flows
	for w := b.f.free; w != nil; w = w.next {
		n++
	}
	return n
}

func TestFQAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	tests := []struct {
		name string
		edit func(*FQConfig)
		slow bool
	}{
		{"fast path", nil, false},
		{"slow path", nil, true},
		{"paced", func(c *FQConfig) { c.MaxRate = 1e6 }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newFQBed(t, tt.edit)
			setFastPath(b.f, !tt.slow)
			var l packet.List
			for i := range 256 {
				l.Push(fqPkt(uint32(i)*977, fqPrio[i%3], 60+i*5))
			}
			round := func() {
				b.f.Enqueue(&l)
				for b.f.Len() > 0 {
					l.Push(b.next())
				}
			}
			round()
			if n := testing.AllocsPerRun(100, round); n != 0 {
				t.Errorf("%v allocations a round of 256 packets", n)
			}
			st := b.f.Stats()
			if (st.FastpathPackets > 0) == (tt.slow || tt.edit != nil) || (st.Throttled > 0) != (tt.edit != nil) {
				t.Errorf("not the path that was meant: %+v", st)
			}
		})
	}
	// Flows come and are collected: their objects serve again.
	t.Run("flows come and go", func(t *testing.T) {
		b := newFQBed(t, func(c *FQConfig) { c.OrphanMask, c.Buckets = math.MaxUint32, 2 }).slow()
		p, i := fqPkt(0, 0, 100), uint32(0)
		round := func() {
			for range 100 {
				i++
				p.Hash = i * 0x85ebca6b
				b.put(p)
				p = b.must(p)
				b.now += 10e6
			}
		}
		for range 100 {
			round()
		}
		if n := testing.AllocsPerRun(100, round); n != 0 {
			t.Errorf("%v allocations a round of 100 new flows", n)
		}
	})
}

// Packets of an empty fq pass by its flows one by one, at most eight wait
// there while others are queued, and none passes a flow that could be served.
func TestFQFastPath(t *testing.T) {
	b := newFQBed(t, nil)
	for i := range 20 {
		b.put(fqPkt(uint32(i), 0, 100))
	}
	for i := range 20 {
		if p := b.must(nil); p.Hash != uint32(i) {
			t.Fatalf("packet %d leaves, want %d", p.Hash, i)
		}
		if i == 0 && b.f.Stats().FastpathPackets != 1 {
			t.Fatal("the first packet did not take the fast path")
		}
	}
	b = newFQBed(t, nil)
	for i := range 20 {
		b.put(fqPkt(uint32(i), 0, 100))
	}
	b.f.Intake(b.now)
	if st := b.f.Stats(); st.FastpathPackets != fqFastPath || st.Flows != 20-fqFastPath || st.BandPackets != [Bands]int{0, 12, 0} {
		t.Errorf("20 packets at once: %+v, want 8 on the fast path and 12 flows", st)
	}
	for range fqFastPath {
		b.must(nil)
	}
	b.put(fqPkt(100, 0, 100))
	b.must(nil)
	if st := b.f.Stats(); st.FastpathPackets != fqFastPath {
		t.Error("a packet passed flows that could be served")
	}
}

// What waits for its time does not hold up what arrived behind it.
func TestFQWaitingPacketHoldsUpNothing(t *testing.T) {
	b := newFQBed(t, nil)
	late, soon := fqPkt(1, 0, 100), fqPkt(2, 0, 100)
	late.TxTime = b.now + 1e6
	b.put(late, soon)
	b.must(soon)
	if due := b.none(); due != late.TxTime {
		t.Errorf("due %d, want %d", due, late.TxTime)
	}
	b.now = late.TxTime
	b.must(late)
}

// Every limit has its reason and its counter; a band's does not count others.
func TestFQLimits(t *testing.T) {
	b := newFQBed(t, func(c *FQConfig) { c.Limit, c.FlowLimit, c.Horizon = 5, 2, time.Second }).slow()
	far := fqPkt(9, fqPrio[1], 100)
	far.TxTime = b.now + 1e9 + 1
	edge := fqPkt(8, fqPrio[1], 100)
	edge.TxTime = b.now + 1e9
	for range 4 {
		b.put(fqPkt(1, fqPrio[0], 100)) // 2 of 4 stay
	}
	for i := range 7 {
		b.put(fqPkt(uint32(10+i), fqPrio[2], 100)) // 5 of 7 stay
	}
	b.put(far, edge)
	b.f.Intake(b.now)
	got := map[packet.Reason]int{}
	dropped := b.f.TakeDropped()
	for p := dropped.Pop(); p != nil; p = dropped.Pop() {
		got[p.Drop]++
	}
	if got[packet.DropFQFlowLimit] != 2 || got[packet.DropFQLimit] != 2 || got[packet.DropFQHorizon] != 1 || len(got) != 3 {
		t.Errorf("dropped %v", got)
	}
	st := b.f.Stats()
	if st.FlowsPlimit != 2 || st.BandDrops != [Bands]uint64{0, 0, 2} || st.HorizonDrops != 1 || st.BandPackets != [Bands]int{2, 1, 5} || b.f.Len() != 8 {
		t.Errorf("%+v, %d packets", st, b.f.Len())
	}

	b = newFQBed(t, func(c *FQConfig) { c.Horizon, c.HorizonDrop = time.Second, false })
	b.put(far)
	if due := b.none(); due != b.now+1e9 || far.TxTime != due || b.f.Stats().HorizonCaps != 1 {
		t.Errorf("beyond the horizon: due in %d ns, TxTime in %d", due-b.now, far.TxTime-b.now)
	}
}

// The flow key is what orphan_mask leaves of the hash.
func TestFQOrphanMask(t *testing.T) {
	for mask, want := range map[uint32]int{0: 1, 1: 2, 0xf0: 16, 1023: 1024, math.MaxUint32: 4096} {
		b := newFQBed(t, func(c *FQConfig) { c.OrphanMask, c.FlowLimit = mask, 10000 }).slow()
		for i := range uint32(4096) {
			b.put(fqPkt(i, 0, 100))
		}
		b.f.Intake(b.now)
		if n := b.f.Stats().Flows; n != want {
			t.Errorf("mask %#x: %d flows, want %d", mask, n, want)
		}
	}
}

// ipv4Sum is the checksum of an IPv4 header: 0 over one that is right.
func ipv4Sum(h []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(h); i += 2 {
		sum += uint32(h[i])<<8 | uint32(h[i+1])
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// A packet that waited for longer than ce_threshold is marked if its ends
// know ECN, and counted in any case.
func TestFQCEMark(t *testing.T) {
	bed := newBed(t, 1, 1)
	for _, raw := range []bool{false, true} {
		for _, v6 := range []bool{false, true} {
			for tos := range 256 {
				for _, late := range []int64{0, 1} {
					l3 := 14
					if raw {
						l3 = 0
					}
					frame := make([]byte, l3+40)
					h := frame[l3:]
					if v6 {
						h[0], h[1] = 0x60|byte(tos>>4), byte(tos<<4)|0xf
					} else {
						copy(h, []byte{0x45, byte(tos), 0, 40, 0x12, byte(tos * 7), 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2})
						sum := ipv4Sum(h[:20])
						h[10], h[11] = byte(sum>>8), byte(sum)
					}
					p := bed.c.Get()
					p.Set(frame)
					p.L3, p.WireLen, p.Flags = uint16(l3), 60, packet.IPv4
					if v6 {
						p.Flags = packet.IPv6
					}
					if raw {
						p.Flags |= packet.Raw
					}
					b := newFQBed(t, func(c *FQConfig) { c.CEThreshold = time.Millisecond }).slow()
					b.put(p)
					b.f.Intake(b.now)
					b.now += 1e6 + late
					b.must(p)

					got := p.Bytes()[l3:]
					gotTOS := int(got[1])
					if v6 {
						gotTOS = int(got[0]&0xf)<<4 | int(got[1]>>4)
					}
					want := tos
					if late > 0 && tos&3 != 0 {
						want |= 3
					}
					if gotTOS != want || v6 && (got[0]>>4 != 6 || got[1]&0xf != 0xf) || !v6 && ipv4Sum(got[:20]) != 0 {
						t.Errorf("raw %t v6 %t: TOS %#x is %#x %d ns over the threshold, want %#x; header %x", raw, v6, tos, gotTOS, late, want, got[:20])
					}
					if n := b.f.Stats().CEMark; n != uint64(late) {
						t.Errorf("ce_mark %d, want %d", n, late)
					}
					bed.c.Put(p)
				}
			}
		}
	}
}

// Workers enqueue while one dequeues: nothing is lost and the packets of each
// worker's flow leave in order.
func TestFQStressIntake(t *testing.T) {
	const workers = 3
	each := 200_000
	if raceEnabled || testing.Short() {
		each = 20_000
	}
	for _, fast := range []bool{true, false} {
		b := newFQBed(t, func(c *FQConfig) { c.Limit, c.FlowLimit = 1<<20, 1<<20 })
		setFastPath(b.f, fast)
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for i := 0; i < each; {
					var l packet.List
					for n := i%7 + 1; n > 0 && i < each; n-- {
						p := fqPkt(uint32(w), 0, 100)
						p.Stamp = int64(i)
						l.Push(p)
						i++
					}
					b.f.Enqueue(&l)
				}
			})
		}
		var next [workers]int64
		for total := 0; total < workers*each; {
			p := b.take()
			if p == nil {
				runtime.Gosched()
				continue
			}
			if p.Stamp != next[p.Hash] {
				t.Fatalf("worker %d: packet %d leaves, want %d", p.Hash, p.Stamp, next[p.Hash])
			}
			next[p.Hash]++
			total++
		}
		wg.Wait()
		if p := b.take(); p != nil || b.f.Len() != 0 {
			t.Errorf("more packets leave than came: %v, Len %d", p, b.f.Len())
		}
	}
}

// The test with fq behind the run protocol: nothing is left behind in
// its intake, and each sender's packets of a flow leave in order. With a
// device that stops packets take both paths.
func TestFQStressBursts(t *testing.T) {
	for n := 1; n <= 4; n++ {
		for _, stops := range []bool{false, true} {
			t.Run(fmt.Sprintf("senders=%d/stops=%t", n, stops), func(t *testing.T) {
				cfg := DefaultFQ(1500)
				cfg.Limit, cfg.FlowLimit = 1<<20, 1<<20
				f := NewFQ(cfg)
				setFastPath(f, stops)
				c := newCrowd(t, n, 1, f)
				for _, s := range c.senders {
					s.mixed = true
				}
				var helper func()
				if k := c.devs[0]; stops {
					k.bounded = true
					helper = func() {
						if k.xoff.Stopped() {
							k.addRoom(c.control, 70)
						}
					}
				}
				c.rounds(bursts(t)/200/n, helper)
				for more := 100; stops && f.Stats().Flows == 0 && more > 0; more-- {
					c.rounds(bursts(t)/200/n, helper) // a lone sender may never have met a stopped device
				}
				if c.dropped.Load() != 0 {
					t.Errorf("%d packets dropped", c.dropped.Load())
				}
				if st := f.Stats(); st.Flows != st.InactiveFlows || (st.FastpathPackets > 0) != stops || st.Flows == 0 {
					t.Errorf("at the end: %+v, want no packet left and both paths taken, or one", st)
				}
			})
		}
	}
}

// A flow is a cache line: lists of thousands of them are walked.
func TestFQFlowSize(t *testing.T) {
	if n := unsafe.Sizeof(fqFlow{}); n != 64 {
		t.Errorf("a flow has %d bytes, want 64", n)
	}
}

// The clock of the next holder of the run bit may be behind: a flow's packets
// keep their order all the same.
func TestFQClockBack(t *testing.T) {
	cfg := DefaultFQ(1500)
	cfg.NoFastPath = true
	f := NewFQ(cfg)
	pkts := make([]packet.Packet, 20)
	for i := range pkts {
		pkts[i] = packet.Packet{Hash: 1, WireLen: 100, Segs: 1, Stamp: int64(i)}
		f.Enqueue(list(pkts[i : i+1]))
		f.Intake(int64(1000 - 10*i))
	}
	for i := range pkts {
		if p := f.Dequeue(900); p == nil || p.Stamp != int64(i) {
			t.Fatalf("packet %d: got %v", i, p)
		}
	}
}

// setFastPath changes that and nothing else.
func setFastPath(f *FQ, on bool) {
	cfg := f.Config()
	cfg.NoFastPath = !on
	f.configure(cfg)
}
