package minheap

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	type entry struct {
		at int64
		n  int
	}
	var h Heap[entry]
	var model []entry
	for n := range 20000 {
		if rng.IntN(2) == 0 || len(model) == 0 {
			e := entry{rng.Int64N(50), n}
			h.Push(e.at, e)
			model = append(model, e)
		} else {
			slices.SortStableFunc(model, func(a, b entry) int { return int(a.at - b.at) })
			if at, ok := h.Min(); !ok || at != model[0].at {
				t.Fatalf("step %d: min %d %t, want %d", n, at, ok, model[0].at)
			}
			if got := h.Pop(); got != model[0] {
				t.Fatalf("step %d: %v, want %v", n, got, model[0])
			}
			model = model[1:]
		}
		if h.Len() != len(model) {
			t.Fatalf("step %d: %d values, want %d", n, h.Len(), len(model))
		}
	}
}
