package traffic

import (
	"math/rand/v2"
	"testing"
)

func TestTracker(t *testing.T) {
	tests := []struct {
		name                           string
		seqs                           []uint64
		packets, reordered, duplicates uint64
	}{
		{"none", nil, 0, 0, 0},
		{"in order", []uint64{0, 1, 2, 3}, 4, 0, 0},
		{"gap", []uint64{0, 3, 4}, 3, 0, 0},
		{"begins late", []uint64{70000, 70001}, 2, 0, 0},
		{"swapped", []uint64{1, 0, 2}, 3, 1, 0},
		{"duplicate of the highest", []uint64{0, 1, 1}, 3, 0, 1},
		{"duplicate of an older one", []uint64{0, 1, 2, 0}, 4, 0, 1},
		{"late, then twice", []uint64{0, 2, 1, 1}, 4, 1, 1},
		{"older than the window", []uint64{0, 1 << 17, 5}, 3, 1, 0},
		{"window wiped by a jump", []uint64{0, 1, 1<<17 + 1, 1<<17 - 3}, 4, 1, 0},
	}
	for _, tt := range tests {
		var got Tracker
		for _, s := range tt.seqs {
			got.Add(s)
		}
		if got.Packets != tt.packets || got.Reordered != tt.reordered || got.Duplicates != tt.duplicates {
			t.Errorf("%s: %d packets, %d reordered, %d duplicates; want %d, %d, %d", tt.name,
				got.Packets, got.Reordered, got.Duplicates, tt.packets, tt.reordered, tt.duplicates)
		}
	}
}

// slowTracker remembers everything.
type slowTracker struct {
	seen                  map[uint64]bool
	max                   uint64
	reordered, duplicates uint64
}

func (t *slowTracker) add(seq uint64) {
	switch {
	case t.seen[seq]:
		t.duplicates++
	case seq < t.max:
		t.reordered++
	}
	t.seen[seq] = true
	t.max = max(t.max, seq)
}

func TestTrackerGolden(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		slow := slowTracker{seen: map[uint64]bool{}}
		var fast Tracker
		var at uint64
		for range 5000 {
			at += rng.Uint64N(4) // gaps
			if rng.IntN(2000) == 0 {
				at += window + rng.Uint64N(window)
			}
			seq := at
			if rng.IntN(5) == 0 {
				seq -= min(seq, rng.Uint64N(300))
			}
			fast.Add(seq)
			slow.add(seq)
		}
		if fast.Reordered != slow.reordered || fast.Duplicates != slow.duplicates || fast.Unique() != uint64(len(slow.seen)) {
			t.Errorf("seed %d: %d reordered, %d duplicates, %d unique; want %d, %d, %d", seed,
				fast.Reordered, fast.Duplicates, fast.Unique(), slow.reordered, slow.duplicates, len(slow.seen))
		}
	}
}
