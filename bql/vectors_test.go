package bql

import "testing"

const ms = 1_000_000 // ns

// state is a row of the test vectors.
type state struct {
	limit, adj, nq, nc, prevOv uint32
	avail                      int
}

func (d *DQL) state() state {
	return state{d.limit.Load(), uint32(d.done.Load()), uint32(d.queued.Load()), d.numCompleted, d.prevOvlimit, d.Avail()}
}

// offset lets every counter begin at n.
func (d *DQL) offset(n uint32) {
	d.queued.Store(add(d.queued.Load(), 0, n))
	d.numCompleted += n
	d.done.Store(add(d.done.Load(), 0, n))
	d.prevNumQueued += n
}

// A step queues, then completes, in one packet each; 0 leaves that part out.
type step struct {
	q, c uint32
	t    int64 // ms
	want state
}

func run(t *testing.T, d *DQL, steps []step) {
	t.Helper()
	for i, s := range steps {
		if s.q != 0 {
			d.Queued(s.q, 1, s.t*ms)
		}
		if s.c != 0 {
			d.Completed(s.c, 1, s.t*ms)
		}
		if got := d.state(); got != s.want {
			t.Fatalf("step %d (queued %d, completed %d): got %+v, want %+v", i, s.q, s.c, got, s.want)
		}
	}
}

// From nothing the limit grows by what the device could have taken.
func TestVectorBootstrap(t *testing.T) {
	var d DQL
	d.Init(0, MaxLimit)
	run(t, &d, []step{
		{1514, 0, 0, state{0, 0, 1514, 0, 0, -1514}},
		{0, 1514, 1, state{1514, 3028, 1514, 1514, 0, 1514}},
		{1514, 0, 1, state{1514, 3028, 3028, 1514, 0, 0}},
		{0, 1514, 2, state{1514, 4542, 3028, 3028, 0, 1514}},
		{1514, 0, 2, state{1514, 4542, 4542, 3028, 0, 0}},
		{1514, 0, 2, state{1514, 4542, 6056, 3028, 0, -1514}},
		{0, 3028, 3, state{4542, 10598, 6056, 6056, 0, 4542}},
		{4542, 0, 3, state{4542, 10598, 10598, 6056, 0, 0}},
		{0, 4542, 4, state{4542, 15140, 10598, 10598, 0, 4542}},
		{4542, 1514, 5, state{4542, 16654, 15140, 12112, 0, 1514}},
		{0, 3028, 6, state{4542, 19682, 15140, 15140, 0, 4542}},
	})
}

// After a hold time of busy intervals the lowest slack goes.
func TestVectorShrink(t *testing.T) {
	var d DQL
	d.Init(0, MaxLimit)
	run(t, &d, []step{
		{10000, 10000, 0, state{10000, 20000, 10000, 10000, 0, 10000}},
		{10000, 2000, 10, state{10000, 22000, 20000, 12000, 0, 2000}},
		{2000, 2000, 20, state{10000, 24000, 22000, 14000, 0, 2000}},
	})
	if d.lowestSlack != 6000 {
		t.Errorf("lowest slack %d, want 6000", d.lowestSlack)
	}
	run(t, &d, []step{{2000, 2000, 1021, state{4000, 20000, 24000, 16000, 0, -4000}}})
	if d.lowestSlack != noSlack {
		t.Errorf("lowest slack %d after the limit shrank, want none", d.lowestSlack)
	}
	run(t, &d, []step{{500, 2000, 1030, state{4000, 22000, 24500, 18000, 4500, -2500}}})
	if d.lowestSlack != 0 {
		t.Errorf("lowest slack %d, want 0", d.lowestSlack)
	}
}

// The hold time has to be over, not just reached.
func TestHoldTimeIsExclusive(t *testing.T) {
	for _, tt := range []struct {
		at    int64
		limit uint32
	}{{1000 * ms, 10000}, {1000*ms + 1, 4000}} {
		var d DQL
		d.Init(0, MaxLimit)
		d.Queued(10000, 1, 0)
		d.Completed(10000, 1, 0)
		for _, now := range []int64{10 * ms, 20 * ms, tt.at} {
			d.Queued(10000, 1, now)
			d.Completed(2000, 1, now)
		}
		if got := d.Stats().Limit; got != tt.limit {
			t.Errorf("limit %d at %d ns, want %d", got, tt.at, tt.limit)
		}
	}
}

func TestVectorWrap(t *testing.T) {
	const base = 1<<32 - 1500
	var d DQL
	d.Init(0, MaxLimit)
	d.offset(base)
	run(t, &d, []step{
		{1000, 0, 0, state{0, base, base + 1000, base, 0, -1000}},
		{0, 1000, 1, state{1000, 500, base + 1000, base + 1000, 0, 1000}},
		{600, 0, 1, state{1000, 500, 100, base + 1000, 0, 400}},
		{600, 0, 1, state{1000, 500, 700, base + 1000, 0, -200}},
		{0, 600, 2, state{1000, 1100, 700, 100, 200, 400}},
		{0, 600, 3, state{1200, 1900, 700, 700, 0, 1200}},
	})
}

func TestVectorClamp(t *testing.T) {
	var d DQL
	d.Init(1514, 8000)
	if err := d.SetLimitMin(1514); err != nil {
		t.Fatal(err)
	}
	d.done.Store(0) // the vector begins where the kernel's reset leaves it
	run(t, &d, []step{
		{5000, 0, 0, state{1514, 0, 5000, 0, 0, -5000}},
		{0, 5000, 1, state{6514, 11514, 5000, 5000, 0, 6514}},
		{9000, 0, 1, state{6514, 11514, 14000, 5000, 0, -2486}},
		{0, 9000, 2, state{8000, 22000, 14000, 14000, 0, 8000}},
		{9000, 9000, 3, state{8000, 31000, 23000, 23000, 1000, 8000}},
	})
}
