package bql

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	Strict = true
	goleak.VerifyTestMain(m)
}

// A device that takes a fixed amount each millisecond, with a sender that
// always has more, settles at one to three times that amount, whether the
// limit begins far below or far above.
func TestLimitConverges(t *testing.T) {
	const size = 1514
	for _, start := range []uint32{0, 8 << 20} {
		for _, perTick := range []uint32{3 * size, 82 * size} { // 36 Mbit/s, 1 Gbit/s
			var d DQL
			d.Init(start, MaxLimit)
			for now := int64(0); now < 20e9; now += ms {
				for d.Avail() >= 0 {
					d.Queued(size, 1, now)
				}
				n := min(perTick, d.Stats().Inflight)
				d.Completed(n, n/size, now)
			}
			if got := d.Stats().Limit; got < perTick || got > 3*perTick {
				t.Errorf("from %d, %d bytes a ms: limit %d", start, perTick, got)
			}
		}
	}
}

// With minimum and maximum equal nothing moves the limit.
func TestLimitPinned(t *testing.T) {
	var d DQL
	d.Init(10000, 10000)
	if err := d.SetLimitMin(10000); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for now := int64(0); now < 3000*ms; now += ms {
		d.Queued(rng.Uint32N(20000), 1, now)
		d.Completed(rng.Uint32N(d.Stats().Inflight+1), 0, now)
		if got := d.Stats().Limit; got != 10000 {
			t.Fatalf("limit %d at %d ms", got, now/ms)
		}
	}
}

// A new bound waits for the next completion.
func TestBoundsTakeEffectAtCompletion(t *testing.T) {
	var d DQL
	d.Init(64<<10, 512<<10)
	_ = d.SetLimitMax(3000)
	if got := d.Avail(); got != 64<<10 {
		t.Errorf("Avail = %d before a completion, want %d", got, 64<<10)
	}
	d.Queued(1000, 1, 0)
	d.Completed(1000, 1, 0)
	if got := d.Avail(); got != 3000 {
		t.Errorf("Avail = %d after a completion, want 3000", got)
	}
}

// Direct use: each batch completes before the next is taken. The limit begins
// at one superpacket and follows the batches up to its maximum.
func TestDirectUse(t *testing.T) {
	var d DQL
	d.Init(64<<10, 512<<10)
	for range 10 {
		d.Queued(300<<10, 5, 0)
		if d.Avail() >= 0 && d.Stats().Limit < 300<<10 {
			t.Fatal("not over the limit")
		}
		d.Completed(300<<10, 5, 0)
	}
	if got := d.Stats(); got.Limit < 300<<10 || got.Limit > 512<<10 || got.Inflight != 0 || got.CompletedOps != 50 {
		t.Errorf("after batches of 300 KiB: %+v", got)
	}
}

func TestResetForgets(t *testing.T) {
	var d DQL
	d.Init(0, MaxLimit)
	d.Queued(5000, 4, 0)
	d.Completed(5000, 4, 0)
	d.Queued(9000, 6, 0)
	d.Reset(ms)
	if got, want := d.state(), (state{}); got != want {
		t.Errorf("after Reset %+v, want %+v", got, want)
	}
	if got := d.Stats(); got.EnqueueOps != 10 || got.CompletedOps != 10 {
		t.Errorf("packets queued %d, completed %d after Reset, want 10 and 10", got.EnqueueOps, got.CompletedOps)
	}
	run(t, &d, []step{{1514, 1514, 1, state{1514, 3028, 1514, 1514, 0, 1514}}})
}

// More than was queued cannot complete.
func TestExcessIsRejected(t *testing.T) {
	for _, tt := range []struct{ bytes, pkts uint32 }{{1001, 2}, {1000, 3}, {1 << 31, 1}} {
		var d DQL
		d.Init(0, MaxLimit)
		d.Queued(1000, 2, 0)
		func() {
			defer func() {
				if r := recover(); !strings.Contains(fmt.Sprint(r), "in flight are 1000 in 2") {
					t.Errorf("%d bytes in %d packets: panic %v", tt.bytes, tt.pkts, r)
				}
			}()
			d.Completed(tt.bytes, tt.pkts, 0)
		}()
		Strict = false
		d.Completed(tt.bytes, tt.pkts, 0)
		Strict = true
		if got := d.Stats(); got.Errors != 1 || got.CompletedOps > 2 || got.Inflight != 1000-min(tt.bytes, 1000) {
			t.Errorf("%d bytes in %d packets: %+v", tt.bytes, tt.pkts, got)
		}
	}
	var d DQL
	d.Init(0, MaxLimit)
	d.Queued(MaxObject+1, 1, 0)
	if got := d.Stats(); got.Inflight != 0 || got.EnqueueOps != 0 || got.Errors != 1 {
		t.Errorf("an object above the maximum was counted: %+v", got)
	}
}

func TestSetters(t *testing.T) {
	var d DQL
	d.Init(0, MaxLimit)
	for _, tt := range []struct {
		name string
		err  error
		ok   bool
	}{
		{"limit_min max", d.SetLimitMin(MaxLimit), true},
		{"limit_min max+1", d.SetLimitMin(MaxLimit + 1), false},
		{"limit_max max+1", d.SetLimitMax(MaxLimit + 1), false},
		{"stall_thrs 12 ms", d.SetStallThrs(12, 0), false},
		{"stall_thrs 13 ms", d.SetStallThrs(13, 0), true},
		{"stall_thrs 512 ms", d.SetStallThrs(512, 0), true},
		{"stall_thrs 513 ms", d.SetStallThrs(513, 0), false},
		{"stall_thrs 2^32-1 ms", d.SetStallThrs(1<<32-1, 0), false},
		{"stall_thrs 0", d.SetStallThrs(0, 0), true},
	} {
		if (tt.err == nil) != tt.ok || tt.err != nil && !errors.Is(tt.err, ErrRange) {
			t.Errorf("%s: %v", tt.name, tt.err)
		}
	}
	d.SetHoldTime(500)
	if got := d.Stats(); got.LimitMin != MaxLimit || got.LimitMax != MaxLimit || got.HoldTimeMs != 500 {
		t.Errorf("Stats = %+v", got)
	}
}

// The threshold is 100 ms, 25 jiffies.
func TestStall(t *testing.T) {
	for _, tt := range []struct {
		name             string
		queued, complete int64 // jiffies after the detector was turned on
		cnt, max         uint32
	}{
		{"held for the threshold", 1, 26, 1, 25},
		{"held for long", 1, 90, 1, 89},
		{"less than half", 1, 12, 0, 0},
		{"queued in the jiffy of the last completion", 0, 30, 0, 0},
		{"less than half, after a pause", 1000, 1011, 0, 0},
		{"more than half, after a pause", 1000, 1013, 1, 13},
	} {
		var d DQL
		d.Init(0, MaxLimit)
		const on = 1e9
		if err := d.SetStallThrs(100, on); err != nil {
			t.Fatal(err)
		}
		d.Queued(1000, 1, on+tt.queued*JiffyNsec)
		d.Completed(1000, 1, on+tt.complete*JiffyNsec)
		if got := d.Stats(); got.StallCnt != tt.cnt || got.StallMax != tt.max || got.StallThrs != 100 {
			t.Errorf("%s: count %d, max %d, want %d, %d", tt.name, got.StallCnt, got.StallMax, tt.cnt, tt.max)
		}
		if d.ClearStallMax(); d.Stats().StallMax != 0 {
			t.Errorf("%s: stall_max is still there", tt.name)
		}
	}
}

// What was queued before the last completion, or before the detector was
// turned on, is not a stall.
func TestStallLooksBackNoFurther(t *testing.T) {
	var d DQL
	d.Init(0, MaxLimit)
	_ = d.SetStallThrs(100, 0)
	for now := int64(1); now < 200; now += 20 {
		d.Queued(1000, 1, now*JiffyNsec)
		d.Completed(1000, 1, (now+9)*JiffyNsec)
	}
	d.Queued(1000, 1, 201*JiffyNsec)
	_ = d.SetStallThrs(0, 0)
	_ = d.SetStallThrs(100, 240*JiffyNsec)
	d.Completed(1000, 1, 250*JiffyNsec)
	if got := d.Stats().StallCnt; got != 0 {
		t.Errorf("%d stalls, want none", got)
	}
}

// The sender stops when it is over the limit and looks once more; the
// completer gives back and then looks for a stopped sender. The queue never
// stays stopped with nothing in flight.
func TestStopAndWake(t *testing.T) {
	const packets, size = 50000, 1514
	var d DQL
	d.Init(0, 2*size)
	_ = d.SetStallThrs(16, 0)
	var xoff atomic.Bool
	wake, device := make(chan struct{}, 1), make(chan uint32, 64)
	deadline := time.After(20 * time.Second)
	var wg sync.WaitGroup
	wg.Go(func() { // completer
		for n := range device {
			pkts := uint32(1)
			for range len(device) % 3 {
				n += <-device
				pkts++
			}
			d.Completed(n, pkts, int64(n)*ms)
			if d.Avail() >= 0 && xoff.Swap(false) {
				select {
				case wake <- struct{}{}:
				default:
				}
			}
		}
	})
	wg.Go(func() { // anybody
		for d.Stats().CompletedOps < packets/2 {
			_ = d.SetLimitMin(d.Stats().LimitMax / 2)
		}
	})
	stops := 0
	for i := range packets {
		d.Queued(size, 1, int64(i)*ms)
		device <- size
		if d.Avail() >= 0 {
			continue
		}
		xoff.Store(true)
		if d.Avail() >= 0 {
			xoff.Store(false)
		}
		for xoff.Load() {
			stops++
			select {
			case <-wake:
			case <-deadline:
				t.Fatalf("stopped at packet %d: %+v", i, d.Stats())
			}
		}
	}
	close(device)
	wg.Wait()
	if got := d.Stats(); got.Inflight != 0 || got.EnqueueOps != packets || got.CompletedOps != packets || got.Errors != 0 {
		t.Errorf("at the end: %+v", got)
	}
	if stops == 0 {
		t.Error("the queue never stopped: nothing was tested")
	}
}

// The sides do not share a cache line, nor with what is around the DQL.
func TestLayout(t *testing.T) {
	var d DQL
	for _, tt := range []struct {
		name   string
		before uintptr // end of the group before
		at     uintptr
	}{
		{"sender", 0, unsafe.Offsetof(d.queued)},
		{"completer", unsafe.Offsetof(d.history) + unsafe.Sizeof(d.history), unsafe.Offsetof(d.limit)},
		{"configuration", unsafe.Offsetof(d.windowed) + unsafe.Sizeof(d.windowed), unsafe.Offsetof(d.limitMin)},
	} {
		if tt.at-tt.before < 64 {
			t.Errorf("%s side begins %d bytes behind the one before", tt.name, tt.at-tt.before)
		}
	}
}

func TestAllocs(t *testing.T) {
	var d DQL
	d.Init(0, MaxLimit)
	_ = d.SetStallThrs(16, 0)
	now := int64(0)
	if n := testing.AllocsPerRun(1000, func() {
		now += 7 * ms
		d.Queued(3000, 2, now)
		d.Avail()
		d.Completed(3000, 2, now+20*ms)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDQL(b *testing.B) {
	var d DQL
	d.Init(0, MaxLimit)
	b.ReportAllocs()
	for b.Loop() { // a batch queued and completed, one thread
		d.Queued(3000, 2, 0)
		d.Avail()
		d.Completed(3000, 2, 0)
	}
}
