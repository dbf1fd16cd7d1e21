package dataplane

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/packet"
	"taprouter/qdisc"
	"taprouter/tun"
	"taprouter/xpsflow"
)

// soakTime is how long TestSoak runs: a moment, unless ROUTER_SOAK_TIME says
// otherwise (make test: 1m, make soak: 10m).
func soakTime(t *testing.T) time.Duration {
	v := os.Getenv("ROUTER_SOAK_TIME")
	if v == "" || testing.Short() {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatalf("ROUTER_SOAK_TIME: %v", err)
	}
	return d
}

// A soak sends random bursts from port 0 to three others, of which one has
// little room and is read now and then, one a line for each tx queue with a
// delay, and one a shared line, while everything that can be changed live is
// changed at random. In the end every queue is empty, every bucket at zero,
// and every packet was either read from a socket or counted with a reason.
func TestSoak(t *testing.T) {
	const queues, ports = 4, 4
	limit := soakTime(t)
	seed := rand.Uint64()
	useIO(t, []tun.IO{tun.IOReadv, tun.IOUring}[seed%2])
	t.Logf("%v, seed %d, io_uring %v", limit, seed, withRing)
	r := newRig(t, 3, ports, queues, func(p *PortConfig) {
		switch p.Name {
		case "p0":
			p.GRO = true
		case "p1":
			for _, q := range p.Queues {
				_ = unix.SetsockoptInt(q.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF, 16<<10)
			}
		case "p2":
			p.Line = LineConfig{Rate: 200e6, Ring: 64, Delay: 2 * time.Millisecond}
		case "p3":
			p.Line = LineConfig{Rate: 300e6, Ring: 32, Shared: true}
			p.Child = qdisc.Spec{Kind: "fq", FQ: qdisc.DefaultFQ(1500)}
		}
	})
	r.learn()
	before := r.dp.Totals()
	stop := make(chan struct{})
	var sent, read atomic.Uint64
	var senders, changes, readers sync.WaitGroup
	for q := range queues {
		senders.Go(func() { r.burst(rand.New(rand.NewPCG(seed, uint64(q))), q, stop, &sent) })
	}
	changes.Go(func() { r.changeAll(rand.New(rand.NewPCG(seed, 99)), stop) })
	quiet := make(chan struct{})
	for port := range ports {
		for q := range queues {
			readers.Go(func() { r.readAll(port, q, quiet, &read) })
		}
	}
	time.Sleep(limit) // the time of the soak
	close(stop)
	senders.Wait()
	changes.Wait()
	r.settle()
	after := r.dp.Totals()
	wanted := after.Sent - before.Sent
	for end := time.Now().Add(5 * time.Second); read.Load() < wanted && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	close(quiet)
	readers.Wait()
	t.Logf("%d frames sent, %d received and %d made, %d delivered, %d dropped", sent.Load(), after.Received-before.Received, after.Injected, wanted, after.Dropped-before.Dropped)
	if got := after.Received - before.Received; got != sent.Load() {
		t.Errorf("%d frames received, %d were sent", got, sent.Load())
	}
	if !after.Balanced() || after.Queued != 0 || after.Parked != 0 {
		t.Errorf("does not add up: %+v", after)
	}
	if read.Load() != wanted {
		t.Errorf("%d frames came out of the sockets, %d were written", read.Load(), wanted)
	}
	var merged uint64
	for _, q := range r.dp.Ports()[0].QueueStats() {
		merged += q.GRO.Merged
	}
	if t.Logf("%d frames were merged into others", merged); merged == 0 {
		t.Error("nothing was merged")
	}
	for _, p := range r.dp.Ports() {
		if n := p.Steer().InFlight(); n != 0 {
			t.Errorf("%s: %d packets in flight at the end", p.Name, n)
		}
		if n := p.Reordered(); n != 0 {
			t.Errorf("%s: %d packets reordered", p.Name, n)
		}
		for q, tq := range p.tx {
			if st := tq.dql.Stats(); st.Inflight != 0 || st.Errors != 0 {
				t.Errorf("%s queue %d: BQL %+v at the end", p.Name, q, st)
			}
		}
		root, children := p.Qdiscs()
		for _, q := range append(children, root) {
			if f := q.FQ; f != nil && f.Stats.Flows != f.Stats.InactiveFlows {
				t.Errorf("%s: %+v: a drained fq has active flows", p.Name, f.Stats)
			}
		}
	}
}

// burst sends random bursts into rx queue q of port 0. A flow is of one
// queue, so that its order is defined.
func (r *rig) burst(rng *rand.Rand, q int, stop chan struct{}, sent *atomic.Uint64) {
	seq := uint32(0)
	for {
		select {
		case <-stop:
			return
		default:
		}
		dst, flow := byte(2+rng.IntN(3)), uint16(1+q*64+rng.IntN(16))
		for range 1 + rng.IntN(64) {
			if rng.IntN(8) == 0 {
				dst, flow = byte(2+rng.IntN(3)), uint16(1+q*64+rng.IntN(16))
			}
			seq++
			if r.peers[0][q].TrySend(datagram(dst, 1, flow, seq)) != nil {
				break // the ring is full
			}
			sent.Add(1)
		}
		if rng.IntN(3) == 0 {
			time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
		}
	}
}

// readAll reads what queue q of a port is given; port 1 by fits and starts.
func (r *rig) readAll(port, q int, quiet chan struct{}, read *atomic.Uint64) {
	var buf [2048]byte
	fd := r.peers[port][q].FD
	for n := 0; ; n++ {
		if _, err := unix.Read(fd, buf[:]); err == nil {
			read.Add(1)
			if port == 1 && n%500 == 0 {
				time.Sleep(3 * time.Millisecond)
			}
			continue
		}
		select {
		case <-quiet:
			return
		case <-time.After(500 * time.Microsecond):
		}
	}
}

// settle waits until nothing is on its way any more.
func (r *rig) settle() {
	last := r.dp.Totals()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
		now := r.dp.Totals()
		if now == last && now.Queued == 0 {
			return
		}
		last = now
	}
	r.t.Errorf("after 10 s without traffic: %+v", last)
}

// changeAll makes random changes of ports 1 to 3 until stop, and leaves what
// can be left.
func (r *rig) changeAll(rng *rand.Rand, stop chan struct{}) {
	kinds := func() qdisc.Spec {
		fq := qdisc.DefaultFQ(1500)
		fq.Limit, fq.FlowLimit = 1+rng.IntN(2000), 1+rng.IntN(500)
		if rng.IntN(3) == 0 {
			fq.MaxRate = uint64(1_000_000 + rng.IntN(20_000_000))
		}
		return qdisc.Spec{Kind: []string{"pfifo_fast", "fq"}[rng.IntN(2)], FQ: fq}
	}
	nothing := func(*tun.Queue) error { return nil }
	done := map[string]int{}
	for {
		select {
		case <-stop:
			for _, dev := range []string{"p1", "p2", "p3"} {
				for q := range 4 {
					if dev != "p1" {
						r.check(r.dp.SetLoad(dev, q, 0))
					}
				}
				r.check(r.dp.SetHop(dev, 0))
			}
			r.t.Logf("changes: %v", done)
			return
		case <-time.After(time.Duration(rng.IntN(4000)) * time.Microsecond):
		}
		dev, q := fmt.Sprintf("p%d", 1+rng.IntN(3)), rng.IntN(4)
		what := []string{"root", "mq", "child", "change", "len", "table", "map", "hop", "queues", "bql", "load", "down", "gro", "move"}[rng.IntN(14)]
		done[what]++
		switch what {
		case "root":
			r.check(r.dp.ReplaceQdisc(dev, -1, kinds(), qdisc.Spec{}))
		case "mq":
			r.check(r.dp.ReplaceQdisc(dev, -1, qdisc.Spec{Kind: "mq"}, kinds()))
		case "child":
			_ = r.dp.ReplaceQdisc(dev, q, kinds(), qdisc.Spec{}) // refused without mq
		case "change":
			_ = r.dp.ChangeQdisc(dev, q, kinds().FQ) // refused without an fq there
		case "len":
			r.check(r.dp.SetTxQueueLen(dev, 1+rng.IntN(1000)))
		case "table":
			_ = r.dp.SetFlowTable(dev, 1<<rng.IntN(10), xpsflow.Inflight) // refused while four are being replaced
		case "map":
			r.check(r.dp.SetWorkers(dev, q, [][]int{{}, {0}, {1}, {2}, {0, 1, 2}}[rng.IntN(5)]))
		case "hop":
			r.check(r.dp.SetHop(dev, []time.Duration{0, minHop, time.Millisecond}[rng.IntN(3)]))
		case "queues":
			r.check(r.dp.SetQueues(dev, 1+rng.IntN(4), nothing, nothing))
		case "bql":
			r.check(r.dp.SetBQL(dev, q, []string{"limit_min", "limit_max"}[rng.IntN(2)], uint64(rng.IntN(100_000))))
		case "load":
			if dev != "p1" {
				r.check(r.dp.SetLoad(dev, q, time.Duration(rng.IntN(3))*time.Millisecond))
			}
		case "gro": // of what is read: only port 0 has traffic
			r.check(r.dp.SetGRO("p0", rng.IntN(3) > 0))
		case "move":
			r.check(r.dp.move(r.dp.ports[rng.IntN(4)].rx[q], r.dp.workers[rng.IntN(3)]))
		case "down":
			if rng.IntN(4) == 0 {
				r.dp.PortDown(int(dev[1]-'0'), packet.DropLinkDown)
			}
		}
	}
}

func (r *rig) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Error(err)
	}
}
