package dataplane

import (
	"errors"
	"sync/atomic"
	"time"
)

// A balancer has an idle worker read an rx queue of one that has several busy
// ones. It does for workers what irqbalance does for CPUs and pmd-auto-lb for
// the threads of Open vSwitch.
//
// On one worker both directions of a connection share a cache, and less time
// goes into waking; on two they run at the same time. Which is better depends
// on what the kernel does in our system calls (in the write of an
// acknowledgement a TCP sender's next segments are made), so it is tried.
//
// A worker that reads much says so; until then the balancer sleeps.
type balancer struct {
	workers int
	read    func(all []rxLoad)            // what each rx queue has brought so far
	move    func(queue, worker int) error // has the worker read the queue

	crowded chan struct{} // a worker reads many frames
	stop    chan struct{}
	ended   chan struct{}
	moves   atomic.Uint64 // that paid

	now, seen []rxLoad // of this look and the last one
	when      time.Time
}

// An rxLoad is what an rx queue brings: in all, or a second.
type rxLoad struct {
	home, worker  int // workers: whose it is, who reads it
	frames, bytes float64
}

const (
	// crowdedFrom is the frames a second from which a worker may be too busy:
	// superpackets do not come so fast.
	crowdedFrom = 100_000
	// busyFrom is the frames a second of a queue that is worth moving.
	busyFrom = 1000
	// idleTo is the frames a second up to which a worker may be given a queue.
	idleTo = 10_000

	balanceWindow = 20 * time.Millisecond
	balanceTrial  = 8   // windows, by turns at home and away
	balanceHold   = 250 // windows for which a queue stays away before that is tried again
	balanceLook   = 5   // windows between looks whether there is still reason for it
	balanceRetry  = 100 // windows before a trial after one in vain
)

func newBalancer(workers, queues int, read func([]rxLoad), move func(queue, worker int) error) *balancer {
	return &balancer{
		workers: workers, read: read, move: move, now: make([]rxLoad, queues), seen: make([]rxLoad, queues),
		crowded: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{}),
	}
}

// end stops the balancer and waits for it.
func (b *balancer) end() {
	close(b.stop)
	<-b.ended
}

func (b *balancer) run() {
	defer close(b.ended)
	for {
		select {
		case <-b.stop:
			return
		case <-b.crowded:
			b.round()
		}
	}
}

// round moves what pays, holds it for a while and undoes it.
func (b *balancer) round() {
	var away []rxLoad // by queue
	var queues []int
	b.look()
	for {
		loads := b.watch(1)
		q, to := choose(loads, b.workers)
		if q < 0 || !b.pays(q, loads[q].home, to) {
			break
		}
		queues, away = append(queues, q), append(away, loads[q])
	}
	if len(away) == 0 {
		b.sleep(balanceRetry)
		return
	}
	for n := 0; n < balanceHold; n += balanceLook {
		if loads := b.watch(balanceLook); loads == nil || !needed(loads) {
			break
		}
	}
	for i, q := range queues {
		for b.move(q, away[i].home) != nil && b.sleep(1) {
		}
	}
}

// pays tries whether more comes when worker to reads queue q, and leaves it so
// if it does.
func (b *balancer) pays(q, home, to int) bool {
	var came [2]float64
	var err error
	for i := 0; i < balanceTrial && err == nil; i++ {
		err = b.move(q, []int{home, to}[i%2])
		b.look()
		for _, l := range b.watch(1) {
			came[i%2] += l.bytes
		}
	}
	if err == nil && 10*came[1] > 11*came[0] {
		b.moves.Add(1)
		return true
	}
	_ = b.move(q, home)
	return false
}

// watch gives what each queue brings a second, for so many windows; nil after
// the end.
func (b *balancer) watch(windows int) []rxLoad {
	if !b.sleep(windows) {
		return nil
	}
	return b.look()
}

// sleep reports whether the balancer is to go on.
func (b *balancer) sleep(windows int) bool {
	t := time.NewTimer(time.Duration(windows) * balanceWindow)
	defer t.Stop()
	select {
	case <-b.stop:
		return false
	case <-t.C:
		return true
	}
}

// look gives what each queue brought a second since the last look.
func (b *balancer) look() []rxLoad {
	b.now, b.seen = b.seen, b.now
	b.read(b.now)
	now := time.Now()
	took := now.Sub(b.when).Seconds()
	b.when = now
	loads := make([]rxLoad, len(b.now))
	for i, l := range b.now {
		loads[i] = rxLoad{l.home, l.worker, (l.frames - b.seen[i].frames) / took, (l.bytes - b.seen[i].bytes) / took}
	}
	return loads
}

// choose finds the busiest worker and, if it is crowded, the second busiest of
// its queues and an idle worker to read it; -1 if there is none.
func choose(loads []rxLoad, workers int) (queue, to int) {
	frames := make([]float64, workers)
	for _, l := range loads {
		frames[l.worker] += l.frames
	}
	from := 0
	for w, n := range frames {
		if n > frames[from] {
			from = w
		}
		if n < frames[to] {
			to = w
		}
	}
	if frames[from] < crowdedFrom || frames[to] > idleTo {
		return -1, 0
	}
	first, second := -1, -1
	for i, l := range loads {
		switch {
		case l.worker != from || l.frames < busyFrom:
		case first < 0 || l.frames > loads[first].frames:
			first, second = i, first
		case second < 0 || l.frames > loads[second].frames:
			second = i
		}
	}
	return second, to
}

// needed reports whether each queue that is away left a worker that would be
// busy with it, and has come to one that has not got busy itself.
func needed(loads []rxLoad) bool {
	own := map[int]float64{}
	for _, l := range loads {
		own[l.home] += l.frames
	}
	for _, l := range loads {
		if l.worker != l.home && (own[l.home] < crowdedFrom/2 || own[l.worker] > 2*idleTo) {
			return false
		}
	}
	return true
}

// A busyWatch tells when its worker reads many frames.
type busyWatch struct {
	frames int64 // in this window
	began  int64 // when it did, batch clock
}

// over reports, at most once a window, that the worker is crowded.
func (b *busyWatch) over(now int64) bool {
	took := now - b.began
	if took < int64(balanceWindow) {
		return false
	}
	crowded := b.frames > crowdedFrom*took/int64(time.Second)
	b.frames, b.began = 0, now
	return crowded
}

// tell has the balancer look, if it is not at work already.
func (b *balancer) tell() {
	select {
	case b.crowded <- struct{}{}:
	default:
	}
}

// newBalancer makes one that balances the workers of dp.
func (dp *Dataplane) newBalancer() *balancer {
	var queues []*rxQueue
	for _, p := range dp.ports {
		queues = append(queues, p.rx...)
	}
	read := func(all []rxLoad) {
		_ = dp.quiesce(func() error {
			for i, rx := range queues {
				all[i] = rxLoad{rx.home.id, rx.worker.id, float64(rx.frames), float64(rx.bytes)}
			}
			return nil
		})
	}
	return newBalancer(len(dp.workers), len(queues), read, func(q, w int) error { return dp.move(queues[q], dp.workers[w]) })
}

var errParked = errors.New("what the queue brought waits for a neighbour")

// move has w read rx. While the workers are quiet nothing that was read is in
// a worker's hands, except for what waits for a neighbour: rx does not move
// away from that. The tx queues of what it brings stay those that its home
// prefers.
func (dp *Dataplane) move(rx *rxQueue, w *Worker) error {
	return dp.quiesce(func() error {
		from, watched := rx.worker, rx.watched
		if from == w {
			return nil
		}
		if from.fwd.Parked() > 0 {
			return errParked
		}
		from.abandon(rx)
		w.adopt(rx)
		w.stamp = max(w.stamp, from.stamp)
		if !watched {
			return nil
		}
		err := rx.watch()
		if err != nil {
			w.abandon(rx)
			from.adopt(rx)
			err = errors.Join(err, rx.watch())
		}
		return err
	})
}

// Moves is how often a queue went to another worker because more came so.
func (dp *Dataplane) Moves() uint64 {
	if dp.balancer == nil {
		return 0
	}
	return dp.balancer.moves.Load()
}
