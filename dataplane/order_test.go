package dataplane

import (
	"math/rand/v2"
	"testing"

	"taprouter/packet"
)

// A batch counts like its packets one by one, and both like a map of the
// latest stamp of each flow.
func TestOrderWatch(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	var batched, single orderWatch
	type flow struct {
		hash uint32
		prio uint8
	}
	latest, want := map[flow]int64{}, uint64(0)
	now := int64(1) << stampBits // across the end of the stamp's low bits
	now -= 5000
	for range 5000 {
		var pkts []*packet.Packet
		for range 1 + rng.IntN(64) {
			now += rng.Int64N(3)
			p := &packet.Packet{Hash: rng.Uint32N(20), Priority: uint8(rng.IntN(2)), Stamp: now, Segs: 1 + uint16(rng.IntN(3))}
			if rng.IntN(50) == 0 {
				p.Stamp -= rng.Int64N(100)
			}
			pkts = append(pkts, p)
			single.see([]*packet.Packet{p})
			f := flow{p.Hash, p.Priority}
			switch last, known := latest[f]; {
			case p.Hash == 0:
			case known && p.Stamp < last:
				want += uint64(p.Segs)
			default:
				latest[f] = p.Stamp
			}
		}
		batched.see(pkts)
	}
	if b, s := batched.reordered.Load(), single.reordered.Load(); b != want || s != want || want == 0 {
		t.Errorf("%d in batches, %d one by one, want %d", b, s, want)
	}
}

func BenchmarkOrderWatch(b *testing.B) {
	var o orderWatch
	pkts := make([]*packet.Packet, 32)
	for i := range pkts {
		pkts[i] = &packet.Packet{Hash: uint32(i/8) + 1, Segs: 1}
	}
	stamp := int64(0)
	for b.Loop() {
		for _, p := range pkts {
			stamp++
			p.Stamp = stamp
		}
		o.see(pkts)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(pkts)), "ns/pkt")
}
