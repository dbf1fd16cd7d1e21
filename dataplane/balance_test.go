package dataplane

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"taprouter/fib"
	"taprouter/forward"
	"taprouter/tun"
)

func TestChoose(t *testing.T) {
	for name, tt := range map[string]struct {
		loads     []rxLoad
		workers   int
		queue, to int
	}{
		"nothing":                     {nil, 2, -1, 0},
		"data and acknowledgements":   {[]rxLoad{{0, 0, 300e3, 0}, {1, 1, 0, 0}, {0, 0, 8e3, 0}, {1, 1, 0, 0}}, 2, 2, 1},
		"superpackets":                {[]rxLoad{{0, 0, 25e3, 0}, {0, 0, 20e3, 0}}, 2, -1, 0},
		"one queue":                   {[]rxLoad{{0, 0, 500e3, 0}, {0, 0, 500, 0}}, 2, -1, 0},
		"the other worker is busy":    {[]rxLoad{{0, 0, 300e3, 0}, {0, 0, 8e3, 0}, {1, 1, 50e3, 0}}, 2, -1, 0},
		"two heavy ones and answers":  {[]rxLoad{{1, 1, 200e3, 0}, {1, 1, 9e3, 0}, {1, 1, 150e3, 0}}, 2, 2, 0},
		"the idlest of four":          {[]rxLoad{{0, 0, 9e3, 0}, {1, 1, 200e3, 0}, {1, 1, 90e3, 0}, {2, 2, 5e3, 0}, {3, 3, 6e3, 0}}, 4, 2, 2},
		"what is away counts there":   {[]rxLoad{{0, 0, 200e3, 0}, {0, 0, 90e3, 0}, {0, 1, 90e3, 0}}, 2, -1, 0},
		"a third worker after one is": {[]rxLoad{{0, 0, 200e3, 0}, {0, 0, 90e3, 0}, {0, 1, 90e3, 0}, {2, 2, 0, 0}}, 3, 1, 2},
	} {
		q, to := choose(tt.loads, tt.workers)
		if q != tt.queue || q >= 0 && to != tt.to {
			t.Errorf("%s: queue %d to worker %d, want %d to %d", name, q, to, tt.queue, tt.to)
		}
	}
}

func TestNeeded(t *testing.T) {
	for name, tt := range map[string]struct {
		loads []rxLoad
		want  bool
	}{
		"all at home":            {[]rxLoad{{0, 0, 0, 0}, {1, 1, 0, 0}}, true},
		"still busy together":    {[]rxLoad{{0, 0, 80e3, 0}, {0, 1, 9e3, 0}, {1, 1, 0, 0}}, true},
		"not busy any more":      {[]rxLoad{{0, 0, 30e3, 0}, {0, 1, 9e3, 0}, {1, 1, 0, 0}}, false},
		"helper has got its own": {[]rxLoad{{0, 0, 300e3, 0}, {0, 1, 9e3, 0}, {1, 1, 30e3, 0}}, false},
	} {
		if got := needed(tt.loads); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A fakeLoad is two rx queues of worker 0, of which the second may go to
// worker 1. What they bring depends on who reads it.
type fakeLoad struct {
	mu     sync.Mutex
	rate   [2]float64 // bytes a second with queue 1 at home, and away
	frames float64    // a second
	total  [2]rxLoad
	last   time.Time
	refuse bool
	moves  int
}

func (f *fakeLoad) read(all []rxLoad) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.run()
	copy(all, f.total[:])
}

// run brings what has come since the last call.
func (f *fakeLoad) run() {
	now := time.Now()
	took := now.Sub(f.last).Seconds()
	f.last = now
	f.total[0].bytes += took * f.rate[f.total[1].worker]
	for i := range f.total {
		f.total[i].frames += took * f.frames
	}
}

func (f *fakeLoad) move(q, w int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.run()
	if f.refuse {
		return errParked
	}
	if f.total[q].worker != w {
		f.moves++
	}
	f.total[q].worker = w
	return nil
}

func (f *fakeLoad) away() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.total[1].worker != 0
}

// eventually waits for something that is to come in windows.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not within 10 s: " + what)
		}
	}
}

// A queue that brings more elsewhere stays there for as long as there is
// reason for it.
func TestBalancePays(t *testing.T) {
	f := &fakeLoad{rate: [2]float64{1e9, 1.3e9}, frames: 150e3, last: time.Now()}
	b := newBalancer(2, 2, f.read, f.move)
	go b.run()
	defer b.end()
	time.Sleep(3 * balanceWindow)
	if f.away() {
		t.Fatal("moved, and no worker was crowded")
	}
	b.tell()
	eventually(t, "a move that pays", func() bool { return b.moves.Load() == 1 })
	for range 3 * balanceLook {
		if time.Sleep(balanceWindow); !f.away() {
			t.Fatal("brought back, and the load is as before")
		}
	}
	f.mu.Lock()
	f.run()
	f.frames = 1000
	f.mu.Unlock()
	eventually(t, "back at home", func() bool { return !f.away() })
}

// A queue that brings no more elsewhere comes back.
func TestBalanceInVain(t *testing.T) {
	f := &fakeLoad{rate: [2]float64{1e9, 1.05e9}, frames: 150e3, last: time.Now()}
	b := newBalancer(2, 2, f.read, f.move)
	go b.run()
	b.tell()
	eventually(t, "a trial", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.moves == balanceTrial
	})
	if time.Sleep(3 * balanceWindow); f.away() || b.moves.Load() != 0 {
		t.Errorf("away %v, %d moves, want none", f.away(), b.moves.Load())
	}
	b.end()
	if f.away() {
		t.Error("away after the end")
	}
}

// The end comes at any moment, and a move may be refused.
func TestBalanceEnds(t *testing.T) {
	for i := range 20 {
		f := &fakeLoad{rate: [2]float64{1e9, 2e9}, frames: 150e3, last: time.Now(), refuse: i%4 == 0}
		b := newBalancer(2, 2, f.read, f.move)
		go b.run()
		b.tell()
		time.Sleep(time.Duration(i) * balanceWindow)
		b.end()
		if f.away() {
			t.Errorf("away after the end at window %d", i)
		}
		if f.refuse && b.moves.Load() != 0 {
			t.Error("a refused move paid")
		}
	}
}

// Rx queues go from worker to worker while they bring packets in: none is
// lost unless it is counted, read twice or overtaken.
func TestMoveUnderTraffic(t *testing.T) { eachIO(t, testMoveUnderTraffic) }

func testMoveUnderTraffic(t *testing.T) {
	r := newRig(t, 3, 2, 3, nil)
	r.learn()
	r.check(r.dp.SetQueues("p1", 1, keep, keep)) // one tx queue, so that collect sees the order
	count := uint32(3000)
	if testing.Short() {
		count = 500
	}
	start, stop := make(chan struct{}), make(chan struct{})
	var moves, senders sync.WaitGroup
	for g := range 2 {
		moves.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 7))
			<-start
			for n := 0; ; n++ {
				select {
				case <-stop:
					if n < 20 {
						t.Errorf("only %d moves", n)
					}
					return
				default:
				}
				rx := r.dp.ports[rng.IntN(2)].rx[rng.IntN(3)]
				r.check(r.dp.move(rx, r.dp.workers[rng.IntN(3)]))
				time.Sleep(time.Duration(rng.IntN(500)) * time.Microsecond)
			}
		})
	}
	for q := range 3 {
		senders.Go(func() { <-start; r.send(q, 4, uint16(10*(q+1)), count) })
	}
	want := 3 * 4 * int(count)
	done := make(chan int)
	go func() { done <- r.collect(want) }()
	close(start)
	senders.Wait()
	got := <-done
	close(stop)
	moves.Wait()
	tot := r.dp.Totals()
	if tot.Received != uint64(want)+2 || uint64(got)+2 != tot.Sent || !tot.Balanced() { // two that learn sent
		t.Errorf("%d frames sent, %d came: %+v", want, got, tot)
	}
	if n := r.dp.ports[1].Reordered(); n != 0 {
		t.Errorf("%d reordered", n)
	}
	for range 2 { // everything is still read by somebody, once
		r.send(0, 1, 90, 5)
		if got := r.collect(5); got != 5 {
			t.Errorf("afterwards %d of 5 came", got)
		}
	}
}

// Packets that wait for a neighbour are in the hands of the worker that read
// them: what comes behind them stays there.
func TestMoveBehindParked(t *testing.T) {
	r := newRig(t, 2, 2, 2, nil)
	mac := [6]byte{2, 5: 2} // as frame addresses it
	s := &forward.Snapshot{Neigh: fib.BuildNeighbours(nil)}
	for i := range 2 {
		s.Ports = append(s.Ports, forward.Port{Name: r.dp.ports[i].Name, Up: true, MTU: 1500, Bridge: -1, Routed: true})
		s.Ifaces = append(s.Ifaces, forward.Iface{Port: uint16(i), Bridge: -1, MAC: fib.MAC(mac[:]), MTU: 1500})
	}
	s.Routes = must(fib.Build([]fib.Route{{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Iface: 1, Kind: fib.Connected}}))
	r.dp.Publish(s)
	for seq := range uint32(3) {
		r.peers[0][0].Send(datagram(2, 1, 5, seq))
	}
	eventually(t, "three parked", func() bool { return r.dp.Totals().Parked == 3 })
	rx, to := r.dp.ports[0].rx[0], r.dp.workers[1]
	if err := r.dp.move(rx, to); !errors.Is(err, errParked) {
		t.Fatalf("move = %v, want %v", err, errParked)
	}
	known := *s
	known.Neigh = fib.BuildNeighbours([]fib.Neigh{{Iface: 1, Addr: netip.MustParseAddr("10.0.0.2"), MAC: [6]byte{2, 0xaa}}})
	r.dp.Publish(&known)
	eventually(t, "none parked", func() bool { return r.dp.Totals().Parked == 0 })
	r.check(r.dp.move(rx, to))
	for seq := range uint32(3) {
		r.peers[0][0].Send(datagram(2, 1, 5, 3+seq))
	}
	if got := r.collect(6); got != 6 {
		t.Errorf("%d of 6 came", got)
	}
}

// A queue that another worker reads may go away and come back. What it brings
// keeps the tx queue that its home prefers.
func TestMovedQueueComesAndGoes(t *testing.T) {
	r := newRig(t, 2, 2, 2, nil)
	r.learn()
	p := r.dp.ports[0]
	pass := func(what string) {
		t.Helper()
		before := r.dp.ports[1].QueueStats()
		r.send(1, 2, 20, 50)
		if got := r.collect(100); got != 100 {
			t.Errorf("%s: %d of 100 came", what, got)
		}
		if n := r.dp.ports[1].QueueStats()[1].TxPackets - before[1].TxPackets; n != 100 {
			t.Errorf("%s: %d of 100 by tx queue 1", what, n)
		}
	}
	r.check(r.dp.move(p.rx[1], r.dp.workers[0]))
	pass("moved")
	if w := p.RxWorker(1); w != 0 {
		t.Errorf("RxWorker = %d, want 0", w)
	}
	r.check(r.dp.SetQueues("p0", 1, keep, keep))
	r.check(r.dp.move(p.rx[1], r.dp.workers[1])) // not read: moved all the same
	r.check(r.dp.move(p.rx[1], r.dp.workers[0]))
	r.check(r.dp.SetQueues("p0", 2, keep, keep))
	pass("back")
	r.check(r.dp.move(p.rx[1], r.dp.workers[1]))
	pass("home")
}

func keep(*tun.Queue) error { return nil }
