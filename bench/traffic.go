package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"taprouter/packet"
	"taprouter/qdisc"
	"taprouter/xpsflow"
)

const (
	wireLen   = 64   // bytes of every packet
	ringLen   = 1000 // packets of a band
	flowTable = 4096 // buckets
)

// A root is a qdisc as senders see it.
type root interface {
	// Xmit takes what it accepts from l and empties l; c.Drops gets the rest.
	Xmit(c *qdisc.CPU, l *packet.List)
	// Action does a part of what was left for later on c, if anything was.
	Action(c *qdisc.CPU) bool
	// Flush sends what is left once there is no sender any more, and gives
	// the number of packets that nobody would have sent.
	Flush(c *qdisc.CPU) int
}

// A traffic describes threads that send as fast as they can, in the shape of
// pktgen's queue_xmit mode, to devices that take everything.
type traffic struct {
	threads int
	burst   int  // packets, up to packet.MaxBatch
	queues  int  // tx queues with a root each; thread i uses queue i mod queues
	flows   int  // of each thread, in turn by burst; 0 is 1
	steered bool // a flow table chooses the queue instead
	root    func(t qdisc.Txq, cpus int) root
}

// slice is the Slice that measures packets/s delivered.
func (t traffic) slice(ctx context.Context, d time.Duration) (Sample, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(t.threads + 2)) // as router run does
	return newRig(t).run(ctx, d)
}

// A rig is the traffic of one slice.
type rig struct {
	traffic
	roots   []root // by queue
	devs    []*device
	steer   *xpsflow.Steer // nil unless steered
	senders []*sender
	control qdisc.CPU // of whoever flushes
	begin   time.Time // of the batch clocks
	stop    atomic.Bool
}

func newRig(t traffic) *rig {
	t.flows = max(t.flows, 1)
	r := &rig{traffic: t, control: qdisc.CPU{ID: t.threads}, begin: time.Now()}
	order := make([]flows, t.threads)
	for i := range order {
		order[i].want = make([]int64, t.flows)
	}
	for range t.queues {
		d := newDevice(order)
		r.devs = append(r.devs, d)
		r.roots = append(r.roots, t.root(d, t.threads+1))
	}
	if t.steered {
		r.steer = xpsflow.New(t.threads, t.queues)
		if err := r.steer.SetTable(flowTable, xpsflow.Inflight); err != nil {
			panic(err) // the table is new and its size is allowed
		}
	}
	for i := range t.threads {
		r.senders = append(r.senders, newSender(r, i))
	}
	return r
}

// run lets the senders send, and counts what is delivered between a moment
// when all have begun and a moment before the first of them ends.
func (r *rig) run(ctx context.Context, d time.Duration) (Sample, error) {
	var ready, ended sync.WaitGroup
	start := make(chan struct{})
	ready.Add(len(r.senders))
	for _, s := range r.senders {
		ended.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			<-start
			s.run()
		})
	}
	ready.Wait()
	close(start)
	sleep(ctx, d/10)
	n0, t0 := r.delivered()
	n1, t1 := n0, t0
	for n := 0; n == 0 || n1 == n0 && n < 100; n++ { // more than once if no sender had a core
		sleep(ctx, d)
		n1, t1 = r.delivered()
	}
	r.stop.Store(true)
	ended.Wait()
	if err := ctx.Err(); err != nil {
		return Sample{}, err
	}
	left, err := r.settle()
	rate := float64(n1-n0) / t1.Sub(t0).Seconds()
	return Sample{Value: rate, Extra: map[string]float64{
		"ns/packet":   1e9 / max(rate, 1),
		"refused %":   100 * r.refused(),
		"left behind": float64(left),
	}}, err
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// delivered counts packets at a moment that is known to 50 µs, if the
// scheduler lets us have one.
func (r *rig) delivered() (n uint64, now time.Time) {
	for range 20 {
		n, now = 0, time.Now()
		for _, d := range r.devs {
			for i := range d.done {
				n += d.done[i].Load()
			}
		}
		if time.Since(now) < 50*time.Microsecond {
			break
		}
	}
	return n, now
}

// refused is the part of the packets that the qdiscs refused.
func (r *rig) refused() float64 {
	var refused, accepted uint64
	for _, s := range r.senders {
		refused += s.refused
		accepted += s.accepted
	}
	return float64(refused) / float64(max(refused+accepted, 1))
}

// settle sends what is left and judges the slice: nothing may be lost, and
// every flow is in order. It gives the number of packets that were stuck.
func (r *rig) settle() (left int, err error) {
	for again := true; again; {
		again = false
		for _, s := range r.senders {
			for _, q := range r.roots {
				again = q.Action(&s.cpu) || again
			}
		}
	}
	for _, q := range r.roots {
		left += q.Flush(&r.control)
	}
	var accepted uint64
	for _, s := range r.senders {
		accepted += s.accepted
	}
	for i, d := range r.devs {
		if w := d.wrong; w.n > 0 {
			return left, fmt.Errorf("queue %d reordered %d packets: of thread %d, flow %d came packet %d where %d was to come",
				i, w.n, w.thread, w.flow, w.sequence, w.expected)
		}
	}
	if n, _ := r.delivered(); n != accepted {
		return left, fmt.Errorf("lost packets: %d were accepted, %d delivered", accepted, n)
	}
	if r.steer != nil && r.steer.InFlight() != 0 {
		return left, fmt.Errorf("the flow table still counts %d packets", r.steer.InFlight())
	}
	return left, nil
}
