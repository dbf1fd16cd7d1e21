package bql

import (
	"testing"

	"pgregory.net/rapid"
)

// A golden is the algorithm in 64 bits that never wrap, with the counters
// from 0: the slow twin of DQL.
type golden struct {
	limit, lo, hi               int64
	queued, completed, last     int64
	prevOver, prevNQ, prevLast  int64
	lowest, slackStart, holdNow int64
}

const none = noSlack

func (g *golden) queue(n int64) { g.queued += n; g.last = n }

func (g *golden) avail() int64 { return g.limit + g.completed - g.queued }

func (g *golden) complete(n, now int64) {
	over := max(g.queued-g.completed-g.limit, 0)
	comp := g.completed + n
	limit := g.limit
	busyBefore := g.prevNQ > g.completed
	allPrev := comp >= g.prevNQ
	if over > 0 && comp == g.queued || g.prevOver > 0 && allPrev {
		limit += max(comp-g.prevNQ, 0) + g.prevOver
		g.slackStart, g.lowest = now, none
	} else if comp < g.queued && busyBefore && !allPrev {
		slack := max(limit+g.prevOver-2*n, 0)
		if g.prevOver > 0 {
			slack = max(slack, g.prevLast-g.prevOver)
		}
		g.lowest = min(g.lowest, slack)
		if now > g.slackStart+g.holdNow {
			limit = max(limit-g.lowest, 0)
			g.slackStart, g.lowest = now, none
		}
	}
	limit = min(max(limit, g.lo), g.hi)
	if limit != g.limit {
		over = 0
	}
	g.limit, g.completed = limit, comp
	g.prevOver, g.prevNQ, g.prevLast = over, g.queued, g.last
}

// Whatever is queued and completed, DQL agrees with its twin; and wherever
// its counters begin, they wrap without a trace.
func TestAgainstGolden(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.Uint32Range(0, 1<<20).Draw(t, "start")
		hi := rapid.SampledFrom([]uint32{0, 1514, 64 << 10, 512 << 10, MaxLimit}).Draw(t, "max")
		var d DQL
		d.Init(start, hi)
		d.offset(-rapid.Uint32Range(0, 8<<20).Draw(t, "below 2^32"))
		g := golden{limit: int64(min(start, hi)), hi: int64(hi), lowest: none, holdNow: HoldTimeMs * ms, slackStart: -1}
		now := int64(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now += rapid.Int64Range(0, 400*ms).Draw(t, "pause")
			inflight := g.queued - g.completed
			switch rapid.IntRange(0, 9).Draw(t, "op") {
			case 0:
				lo := rapid.Uint32Range(0, 1<<20).Draw(t, "min")
				_ = d.SetLimitMin(lo)
				g.lo = int64(lo)
			case 1, 2, 3, 4:
				if inflight < 1<<29 {
					n := rapid.Uint32Range(0, 4<<20).Draw(t, "queue")
					d.Queued(n, 1, now)
					g.queue(int64(n))
				}
			default:
				n := inflight
				if rapid.Bool().Draw(t, "part") {
					n = rapid.Int64Range(0, inflight).Draw(t, "complete")
				}
				if g.slackStart < 0 {
					g.slackStart = now
				}
				d.Completed(uint32(n), 0, now)
				g.complete(n, now)
			}
			type row struct{ limit, avail, inflight, prevOver, lowest int64 }
			got := row{int64(d.limit.Load()), int64(d.Avail()), int64(d.Stats().Inflight), int64(d.prevOvlimit), int64(d.lowestSlack)}
			if want := (row{g.limit, g.avail(), g.queued - g.completed, g.prevOver, g.lowest}); got != want {
				t.Fatalf("got %+v, want %+v", got, want)
			}
		}
		if e := d.Stats().Errors; e != 0 {
			t.Fatalf("%d errors", e)
		}
	})
}

// The history remembers as much as its ring holds, no more and no less.
func TestHistoryAgainstGolden(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h history
		marks := map[int64]bool{}
		now := rapid.Int64Range(1<<16, 1<<40).Draw(t, "now")
		newest := int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.SampledFrom([]int64{0, 1, 3, 63, 64, 65, 255, 256, 300, -1, -300}).Draw(t, "pause")
			h.mark(now)
			marks[now] = true
			newest = max(newest, now)
			from := now - rapid.Int64Range(-5, 300).Draw(t, "from")
			to := now - rapid.Int64Range(-5, 150).Draw(t, "to")
			want, found := int64(0), false
			for i := max(from, (newest/64-historyWords+1)*64); i <= to && !found; i++ {
				if marks[i] {
					want, found = i, true
				}
			}
			if got, ok := h.find(from, to); ok != found || ok && got != want {
				t.Fatalf("find(%d, %d) = %d, %v, want %d, %v", from, to, got, ok, want, found)
			}
		}
	})
}
