package netns

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// every gives all combinations of levels: one of each factor, of which
// factor i has levels[i], as far as they are valid.
func every(levels []int, valid func([]int) bool) (all [][]int) {
	c := make([]int, len(levels))
	for {
		if valid(c) {
			all = append(all, slices.Clone(c))
		}
		i := len(c) - 1
		for ; i >= 0 && c[i]+1 == levels[i]; i-- {
			c[i] = 0
		}
		if i < 0 {
			return all
		}
		c[i]++
	}
}

// A pair is a level of each of two factors, a < b.
type pair struct{ a, levelA, b, levelB int }

func pairsOf(c []int) (all []pair) {
	for b := range c {
		for a := range b {
			all = append(all, pair{a, c[a], b, c[b]})
		}
	}
	return all
}

// pairwise picks a few of all combinations in which every pair of levels
// occurs that occurs at all: always the one with the most new pairs.
func pairwise(all [][]int) (few [][]int) {
	all = slices.Clone(all)
	rng := rand.New(rand.NewPCG(1, 2))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	left := map[pair]bool{}
	for _, c := range all {
		for _, p := range pairsOf(c) {
			left[p] = true
		}
	}
	for len(left) > 0 {
		best, most := 0, 0
		for i, c := range all[:min(len(all), 4000)] {
			n := 0
			for _, p := range pairsOf(c) {
				if left[p] {
					n++
				}
			}
			if n > most {
				best, most = i, n
			}
		}
		if most == 0 { // what is left is rare
			rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			continue
		}
		few = append(few, all[best])
		for _, p := range pairsOf(all[best]) {
			delete(left, p)
		}
	}
	return few
}

func TestPairwise(t *testing.T) {
	all := every([]int{3, 2, 5, 4}, func(c []int) bool { return c[0] != 1 || c[2] < 2 })
	if len(all) != 3*2*5*4-2*3*4 {
		t.Errorf("%d combinations", len(all))
	}
	few := pairwise(all)
	count := func(cs [][]int) map[pair]bool {
		seen := map[pair]bool{}
		for _, c := range cs {
			for _, p := range pairsOf(c) {
				seen[p] = true
			}
		}
		return seen
	}
	if want, got := len(count(all)), len(count(few)); got != want || len(few) > 30 {
		t.Errorf("%d combinations hold %d pairs, want all %d", len(few), got, want)
	}
}
