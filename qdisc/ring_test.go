//go:build !explore

package qdisc

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"taprouter/packet"
)

func list(pkts []packet.Packet) *packet.List {
	var l packet.List
	for i := range pkts {
		l.Push(&pkts[i])
	}
	return &l
}

// The ring against a slice, with every limit small enough to be met often,
// and indexes that wrap.
func TestRingGolden(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for limit := range 20 {
		var r ring
		r.init(limit)
		start := uint32(math.MaxUint32 - 30)
		r.head.Store(start)
		r.tail.Store(start)
		r.next = start
		var golden []*packet.Packet
		for range 500 {
			if rng.IntN(2) == 0 {
				l := list(make([]packet.Packet, rng.IntN(40)))
				unfreed := int(r.next - r.tail.Load())
				if unfreed >= freeBatch || r.left == 0 && unfreed != 0 {
					t.Fatalf("limit %d: %d places taken and not freed", limit, unfreed)
				}
				room := limit - len(golden) - unfreed
				want := max(0, l.Len()-room)
				for p := l.Front(); p != nil && room > 0; p = p.Next {
					golden = append(golden, p)
					room--
				}
				before := l.Len()
				var s Sum
				r.push(l, &s)
				if l.Len() != want || s.n != before-want {
					t.Fatalf("limit %d: push of %d left %d and counted %d, want %d left", limit, before, l.Len(), s.n, want)
				}
			} else {
				for range rng.IntN(7) {
					var want *packet.Packet
					if len(golden) > 0 {
						want, golden = golden[0], golden[1:]
					}
					if got := r.pop(); got != want {
						t.Fatalf("limit %d: pop gave another packet", limit)
					}
				}
			}
			if r.len() != len(golden) {
				t.Fatalf("limit %d: len %d, want %d", limit, r.len(), len(golden))
			}
		}
	}
}

// Producers and a consumer in rings of few places: every packet once, each
// producer's in order.
func TestRingStress(t *testing.T) {
	total := 200_000
	if testing.Short() || raceEnabled {
		total = 20_000
	}
	for _, tt := range []struct{ producers, limit, batch int }{{1, 1, 1}, {2, 1, 3}, {3, 5, 4}, {4, 64, 32}} {
		t.Run(fmt.Sprintf("producers=%d/limit=%d", tt.producers, tt.limit), func(t *testing.T) {
			var r ring
			r.init(tt.limit)
			start := make(chan struct{})
			var wg sync.WaitGroup
			for id := range tt.producers {
				wg.Go(func() {
					<-start
					pkts := make([]packet.Packet, total/tt.producers)
					for n := 0; n < len(pkts); {
						k := min(tt.batch, len(pkts)-n)
						for i := range k {
							pkts[n+i].In, pkts[n+i].Stamp = uint16(id), int64(n+i)
						}
						l := list(pkts[n : n+k])
						var s Sum
						if r.push(l, &s); s.n == 0 {
							runtime.Gosched()
						}
						n += s.n
					}
				})
			}
			close(start)
			next := make([]int64, tt.producers)
			for n := 0; n < total/tt.producers*tt.producers; {
				if r.len() > tt.limit {
					t.Fatalf("%d packets in a ring of %d", r.len(), tt.limit)
				}
				p := r.pop()
				if p == nil {
					runtime.Gosched()
					continue
				}
				if p.Stamp != next[p.In] {
					t.Fatalf("producer %d: packet %d where %d was to come", p.In, p.Stamp, next[p.In])
				}
				next[p.In]++
				n++
			}
			wg.Wait()
			if r.len() != 0 || r.pop() != nil {
				t.Error("the ring is not empty at the end")
			}
		})
	}
}

// Words that different threads write lie on different lines.
func TestLayout(t *testing.T) {
	var r ring
	var q Qdisc
	var f FQ
	words := []struct {
		name string
		offs []uintptr
	}{
		{"ring", []uintptr{unsafe.Offsetof(r.limit), unsafe.Offsetof(r.head), unsafe.Offsetof(r.tail), unsafe.Sizeof(r)}},
		{"Qdisc", []uintptr{unsafe.Offsetof(q.shards), unsafe.Offsetof(q.state), unsafe.Offsetof(q.mem), unsafe.Offsetof(q.requeued)}},
		{"FQ", []uintptr{unsafe.Offsetof(f.shift), unsafe.Offsetof(f.in), unsafe.Offsetof(f.arrived)}},
	}
	for _, w := range words {
		for i := 1; i < len(w.offs); i++ {
			if d := w.offs[i] - w.offs[i-1]; d < cacheLine {
				t.Errorf("%s: words %d and %d are %d bytes apart, want at least %d", w.name, i-1, i, d, cacheLine)
			}
		}
	}
	if n := unsafe.Sizeof(shard{}); n != cacheLine {
		t.Errorf("a shard has %d bytes, want %d", n, cacheLine)
	}
}

// Per packet: taken from a list, put into the ring and out again.
func BenchmarkRing(b *testing.B) {
	for _, batch := range []int{1, 32} {
		b.Run(fmt.Sprintf("producers=1/batch=%d", batch), func(b *testing.B) {
			var r ring
			r.init(1000)
			pkts := make([]packet.Packet, batch)
			b.ReportAllocs()
			for b.Loop() {
				l := list(pkts)
				var s Sum
				r.push(l, &s)
				for r.pop() != nil {
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/pkt")
		})
	}
}
