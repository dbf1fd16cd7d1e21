package xpsflow

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"taprouter/packet"
)

func TestMap(t *testing.T) {
	m := NewMap(4, 2)
	show := func(m *Map) string { return fmt.Sprint(m.Workers(0), m.Workers(1)) }
	a, err := m.With(0, []int{3, 0, 3})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := a.With(1, nil)
	for _, tt := range []struct {
		m    *Map
		want string
	}{
		{m, "[0 2] [1 3]"},
		{a, "[0 3] [1 3]"}, // worker 2 lost its only queue, worker 3 has both
		{b, "[0 3] []"},
	} {
		if got := show(tt.m); got != tt.want {
			t.Errorf("workers by queue: %s, want %s", got, tt.want)
		}
	}
	if diff := cmp.Diff([]uint16{0, 1}, a.Queues(3)); diff != "" {
		t.Errorf("queues of worker 3 (-want +got):\n%s", diff)
	}
	for _, tt := range []struct {
		queue   int
		workers []int
		want    string
	}{{2, nil, "no queue 2"}, {-1, nil, "no queue -1"}, {0, []int{4}, "no worker 4"}, {0, []int{-1}, "no worker -1"}} {
		if _, err := m.With(tt.queue, tt.workers); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("With(%d, %v): error %v, want %q", tt.queue, tt.workers, err, tt.want)
		}
	}
}

// One queue of the worker's set by hash, and one of all queues where the set
// is empty or names a queue that is not there.
func TestMapChooses(t *testing.T) {
	m := NewMap(3, 8)
	m, _ = m.With(0, []int{0})
	m, _ = m.With(6, []int{0})
	m, _ = m.With(1, nil)
	for _, tt := range []struct {
		worker int
		hash   uint32
		queues int
		want   int
	}{
		{0, 0, 8, 0},
		{0, 1<<31 - 1, 8, 0},
		{0, 1 << 31, 8, 6},
		{0, 1<<32 - 1, 8, 6},
		{0, 1<<32 - 1, 6, 5}, // queue 6 is gone
		{0, 1 << 31, 6, 3},
		{1, 0, 8, 0}, // empty set
		{1, 1<<32 - 1, 8, 7},
		{2, 1<<32 - 1, 8, 2},
	} {
		if got := m.choose(tt.worker, tt.hash, tt.queues); got != tt.want {
			t.Errorf("worker %d, hash %#x, %d queues: queue %d, want %d", tt.worker, tt.hash, tt.queues, got, tt.want)
		}
	}
}

func TestTableSizes(t *testing.T) {
	s := New(1, 2)
	for _, tt := range []struct {
		count, size int
		mode        Mode
		ok          bool
	}{
		{1, 1, Inflight, true}, {2, 2, DQL, true}, {3, 4, DQL, true}, {4096, 4096, Inflight, true}, {4097, 8192, Inflight, true},
		{-1, 8192, Inflight, false}, {MaxTable + 1, 8192, Inflight, false}, {8, 8192, Mode(2), false}, {0, 0, Inflight, true},
	} {
		if err := s.SetTable(tt.count, tt.mode); (err == nil) != tt.ok {
			t.Errorf("SetTable(%d): %v", tt.count, err)
		}
		if got := s.TableSize(); got != tt.size || tt.ok && s.Mode() != tt.mode {
			t.Errorf("after SetTable(%d, %d): size %d, mode %v, want %d", tt.count, tt.mode, got, s.Mode(), tt.size)
		}
	}
}

func TestModeNames(t *testing.T) {
	for _, m := range []Mode{Inflight, DQL} {
		if got, err := ParseMode(m.String()); got != m || err != nil {
			t.Errorf("ParseMode(%q) = %v, %v", m, got, err)
		}
	}
	if _, err := ParseMode("rfs"); err == nil {
		t.Error("ParseMode took an unknown name")
	}
}

// The word is queue+1, count, changes of queue.
func TestWord(t *testing.T) {
	var e atomic.Uint64
	step := func(want, n, use, was int, word uint64) {
		t.Helper()
		u, w, _, ok := claim(&e, want, 4, n, false)
		if u != use || w != was || !ok || e.Load() != word {
			t.Fatalf("claim(%d, %d): queue %d, was %d, %v, word %#x, want %d, %d, %#x", want, n, u, w, ok, e.Load(), use, was, word)
		}
	}
	step(2, 5, 2, -1, 0x0001_00000005_0003)
	step(1, 1, 2, 2, 0x0001_00000006_0003)
	release(&e, 6)
	step(1, 1<<20, 1, 2, 0x0002_00100000_0002)
	release(&e, 1<<20)
	e.Store(e.Load() | 0xffff<<genShift)
	step(3, 1, 3, 1, 0x0000_00000001_0004) // gen wraps
	if u, w, _, _ := claim(&e, 0, 3, 1, false); u != 0 || w != -1 || e.Load() != 0x0001_00000002_0001 {
		t.Errorf("a queue that is gone: queue %d, was %d, word %#x", u, w, e.Load())
	}
}

// More ends than packets break the invariant loudly.
func TestReleasePanics(t *testing.T) {
	var e atomic.Uint64
	claim(&e, 0, 2, 3, false)
	defer func() {
		if r := fmt.Sprint(recover()); !strings.Contains(r, "4 packets ended in a bucket that had 3 in flight") {
			t.Errorf("panic %q", r)
		}
	}()
	release(&e, 4)
}

// Packets without a hash, ports without a table or a choice are not counted.
func TestUntracked(t *testing.T) {
	one := New(2, 1)
	_ = one.SetTable(16, Inflight)
	off := New(2, 2)
	on := New(2, 2)
	_ = on.SetTable(16, Inflight)
	for _, tt := range []struct {
		name string
		s    *Steer
		hash uint32
		want uint16
	}{{"one queue", one, 7, 0}, {"no table", off, 7, 1}, {"no hash", on, 0, 1}} {
		p := &packet.Packet{Hash: tt.hash}
		tt.s.SelectBatch(1, []*packet.Packet{p})
		if p.TxQ != tt.want || p.Slot != nil || tt.s.InFlight() != 0 {
			t.Errorf("%s: queue %d, slots %v, in flight %d", tt.name, p.TxQ, p.Slot, tt.s.InFlight())
		}
		Complete(p)
	}
}

// A run is counted at once, packet by packet or in any grouping it ends.
func TestBatches(t *testing.T) {
	s := New(1, 2)
	_ = s.SetTable(16, Inflight)
	batch := func(hashes ...uint32) (pkts []*packet.Packet) {
		for _, h := range hashes {
			pkts = append(pkts, &packet.Packet{Hash: h})
		}
		s.SelectBatch(0, pkts)
		return pkts
	}
	a, b := batch(1, 1, 2, 1, 0, 17, 3), batch(1, 2, 2)
	c := s.conf.Load().table
	if got := []uint32{inflight(c.buckets[1].word.Load()), inflight(c.buckets[2].word.Load()), inflight(c.buckets[3].word.Load())}; !cmp.Equal(got, []uint32{5, 3, 1}) {
		t.Errorf("buckets 1, 2, 3 count %v, want [5 3 1]", got)
	}
	if got := s.InFlight(); got != 9 {
		t.Errorf("%d in flight, want 9", got)
	}
	Complete(a[1])
	Complete(a[1]) // nothing, it has ended
	CompleteBatch(a)
	var l packet.List
	for _, p := range b {
		l.Push(p)
	}
	CompleteList(&l)
	if got := s.InFlight(); got != 0 || l.Len() != 3 {
		t.Errorf("%d in flight at the end, list of %d", got, l.Len())
	}
}

func TestStats(t *testing.T) {
	s := New(2, 2)
	_ = s.SetTable(16, Inflight)
	sel := func(worker, n int) []*packet.Packet {
		pkts := make([]*packet.Packet, n)
		for i := range pkts {
			pkts[i] = &packet.Packet{Hash: 5}
		}
		s.SelectBatch(worker, pkts)
		return pkts
	}
	first := sel(0, 1)   // a first queue is no move
	refused := sel(1, 3) // stays
	CompleteBatch(first)
	CompleteBatch(refused)
	CompleteBatch(sel(1, 2)) // moves
	CompleteBatch(sel(1, 2))
	if got, want := s.Stats(), (Stats{Moves: 1, Refused: 3}); got != want {
		t.Errorf("Stats = %+v, want %+v", got, want)
	}
	if got := s.WorkerStats(0); got != (Stats{}) {
		t.Errorf("worker 0: %+v, want nothing", got)
	}
	if size := unsafe.Sizeof(counters{}); size%128 != 0 {
		t.Errorf("a worker's counters take %d bytes, neighbours share a line", size)
	}
}

// Tables that still count packets are kept, up to a number; then a further
// replacement is refused and changes nothing.
func TestTooManyReplaced(t *testing.T) {
	s := New(1, 2)
	_ = s.SetTable(64, Inflight)
	var held []*packet.Packet
	hold := func() {
		p := &packet.Packet{Hash: uint32(len(held) + 1)}
		s.SelectBatch(0, []*packet.Packet{p})
		held = append(held, p)
	}
	for i := range maxReplaced {
		hold()
		if err := s.SetTable(128<<i, Inflight); err != nil {
			t.Fatal(err)
		}
	}
	hold()
	size := s.TableSize()
	if err := s.SetTable(1, Inflight); !errors.Is(err, ErrBusy) || s.TableSize() != size || s.InFlight() != len(held) {
		t.Errorf("replaced once more: %v, size %d, %d in flight", err, s.TableSize(), s.InFlight())
	}
	Complete(held[2])
	if err := s.SetTable(1, Inflight); err != nil {
		t.Errorf("with one free: %v", err)
	}
	CompleteBatch(held)
	if !s.Settle() || s.InFlight() != 0 {
		t.Errorf("not settled, %d in flight", s.InFlight())
	}
}

// A worker that has loaded the configuration before a replacement, and comes
// to the bucket after it, must not count where nobody looks any more.
func TestLateWorker(t *testing.T) {
	s := New(2, 2)
	_ = s.SetTable(16, Inflight)
	late := s.conf.Load()
	busy := &packet.Packet{Hash: 1}
	s.SelectBatch(0, []*packet.Packet{busy})
	_ = s.SetTable(32, Inflight)
	if ch, ok := late.lookup(1, 1, 1); !ok || ch.use != 0 || ch.slot != busy.Slot {
		t.Errorf("bucket with packets in flight: %+v, %v, want queue 0 and the same bucket", ch, ok)
	}
	release(busy.Slot, 1)
	if _, ok := late.lookup(2, 1, 1); ok {
		t.Error("an empty bucket of a replaced table took a packet")
	}
	Complete(busy)
	if !s.Settle() || len(s.conf.Load().old) != 0 {
		t.Error("the old table is not let go")
	}
	if _, ok := late.lookup(1, 1, 1); ok {
		t.Error("a bucket of a table that was let go took a packet")
	}
}

// A flow leaves a replaced table with its first packet that finds none in
// flight there; a table under steady traffic is let go all the same.
func TestFlowsLeaveReplacedTable(t *testing.T) {
	s := New(1, 2)
	_ = s.SetTable(16, Inflight)
	p, q := &packet.Packet{Hash: 1}, &packet.Packet{Hash: 1}
	s.SelectBatch(0, []*packet.Packet{p})
	_ = s.SetTable(32, Inflight)
	old := p.Slot
	Complete(p)
	s.SelectBatch(0, []*packet.Packet{q})
	if q.Slot == old || old.Load() != retired {
		t.Errorf("counted in the old table; its bucket is %#x", old.Load())
	}
	if !s.Settle() || s.InFlight() != 1 {
		t.Error("the old table is kept")
	}
	Complete(q)
}

// More queues than there were at the beginning, in both modes.
func TestQueuesGrow(t *testing.T) {
	for _, mode := range []Mode{Inflight, DQL} {
		s := New(1, 1)
		_ = s.SetTable(16, mode)
		m, _ := s.Map().With(0, nil) // all queues, by hash
		s.SetMap(m)
		if err := s.SetQueues(4); err != nil {
			t.Fatal(err)
		}
		p := &packet.Packet{Hash: 1<<32 - 1}
		s.SelectBatch(0, []*packet.Packet{p})
		if p.TxQ != 3 || (p.Slot != nil) != (mode == Inflight) {
			t.Errorf("%v: queue %d, slots %v", mode, p.TxQ, p.Slot)
		}
		for _, n := range []int{0, -1, MaxQueues + 1} {
			if s.SetQueues(n) == nil || s.Queues() != 4 {
				t.Errorf("SetQueues(%d) succeeded", n)
			}
		}
	}
}

func TestAllocs(t *testing.T) {
	for _, mode := range []Mode{Inflight, DQL} {
		s := New(2, 2)
		_ = s.SetTable(64, Inflight)
		pin := &packet.Packet{Hash: 9}
		s.SelectBatch(0, []*packet.Packet{pin})
		_ = s.SetTable(256, mode) // a replaced table is there, too
		pkts := make([]*packet.Packet, 64)
		for i := range pkts {
			pkts[i] = &packet.Packet{Hash: uint32(i / 4)}
		}
		if n := testing.AllocsPerRun(100, func() {
			s.SelectBatch(1, pkts)
			Complete(pkts[63])
			CompleteBatch(pkts)
		}); n != 0 {
			t.Errorf("%v: %v allocations", mode, n)
		}
	}
}

func BenchmarkSelect(b *testing.B) {
	for _, mode := range []Mode{Inflight, DQL} {
		for _, run := range []int{1, 16} {
			b.Run(fmt.Sprintf("mode=%v/run=%d", mode, run), func(b *testing.B) {
				s := New(1, 4)
				_ = s.SetTable(4096, mode)
				pkts := make([]*packet.Packet, 64)
				for i := range pkts {
					pkts[i] = &packet.Packet{Hash: uint32(i/run) * 0x9e3779b9}
				}
				b.ReportAllocs()
				for b.Loop() { // 64 packets selected and completed
					s.SelectBatch(0, pkts)
					CompleteBatch(pkts)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/pkt")
			})
		}
	}
}

// A packet that meets another flow's packets in its bucket is a collision; one
// that meets its own, or an empty bucket, is not.
func TestCollisions(t *testing.T) {
	s := New(1, 2)
	if err := s.SetTable(16, Inflight); err != nil {
		t.Fatal(err)
	}
	send := func(hash uint32) *packet.Packet {
		p := &packet.Packet{Hash: hash, Segs: 1}
		s.SelectBatch(0, []*packet.Packet{p})
		return p
	}
	a, b := send(1), send(1)
	if n := s.Stats().Collisions; n != 0 {
		t.Errorf("%d collisions of a flow with itself", n)
	}
	c := send(17)
	if n := s.Stats().Collisions; n != 1 {
		t.Errorf("%d collisions, want 1", n)
	}
	for _, p := range []*packet.Packet{a, b, c} {
		Complete(p)
	}
	Complete(send(1))
	if n := s.Stats().Collisions; n != 1 {
		t.Errorf("%d collisions, want 1: the bucket was empty", n)
	}
}
