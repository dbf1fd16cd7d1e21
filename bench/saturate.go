package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/dataplane"
	"taprouter/fib"
	"taprouter/forward"
	"taprouter/packet"
	"taprouter/qdisc"
	"taprouter/tun"
)

var stoppedEntry = Entry{
	Bench: "xmit", Number: 5, Title: "CPU when flows saturate a slow line",
	About: `Flows send half more than a line of 200 Mbit/s takes, so that its queue is
stopped nearly all the time. Without care for that every run of the qdisc finds
the queue stopped, asks for another run, and a worker spins; with it the wake of
the queue schedules the next run. Shown are the workers' CPU time for each packet
that was delivered, in ns, and how often a scheduled qdisc was run for it (tx
actions): less is better.`,
	Make: makeStopped,
}

const (
	satRate    = 200e6 // bit/s
	satFrame   = 500   // bytes
	satOffered = 1.5   // of the line
	satQueues  = 4     // rx queues, read by satWorkers
	satWorkers = 2
)

// satTheirs is the CPU of a 16 core sender, in per cent of a core, by flows.
var satTheirs = map[int][2]float64{1: {38.1, 22.9}, 8: {277.0, 74.1}, 16: {150.7, 91.0}, 64: {487.5, 118.1}}

func makeStopped(ctx context.Context, r *Runner) (t Table, err error) {
	t = Table{Seed: "series 5, third patch (% of a core)", Unit: "ns/packet", A: "without stop handling", B: "with", Parameters: map[string]any{
		"line": "200 Mbit/s", "frame": satFrame, "offered": fmt.Sprintf("%.1f x line, over %d rx queues in turn whatever the flows", satOffered, satQueues), "workers": satWorkers, "ring": dataplane.DefaultRing,
	}}
	var one float64
	for _, flows := range []int{1, 8, 16, 64} {
		theirs := satTheirs[flows]
		row := Row{Name: fmt.Sprintf("%d flows", flows), Theirs: &Theirs{theirs[0], theirs[1], theirs[1] / theirs[0]}}
		row, err := r.Measure(ctx, row, saturated(flows, false), saturated(flows, true))
		if err != nil {
			return t, err
		}
		if one == 0 {
			one = row.B.Median
		}
		row.addNote(fmt.Sprintf("with: %.2fx of one flow", row.B.Median/one))
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

// saturated is the Slice of so many flows.
func saturated(flows int, stopHandling bool) Slice {
	return func(ctx context.Context, d time.Duration) (Sample, error) {
		d *= 2
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(satWorkers + 2)) // as router run does
		b, err := newBottleneck(stopHandling)
		if err != nil {
			return Sample{}, err
		}
		defer b.close()
		var wg sync.WaitGroup
		defer wg.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		wg.Go(func() { b.drain(ctx) })
		wg.Go(func() { b.offer(ctx, flows) })
		sleep(ctx, d/4)
		begin := time.Now()
		n0, cpu0, act0 := b.sample()
		sleep(ctx, d)
		n1, cpu1, act1 := b.sample()
		d = time.Since(begin)
		if err := ctx.Err(); err != nil {
			return Sample{}, err
		}
		n := float64(n1 - n0)
		busy := n * 8 * satFrame / satRate / d.Seconds()
		if busy < 0.05 {
			return Sample{}, fmt.Errorf("only %.0f packets were delivered in %v: the line was not kept busy", n, d)
		}
		return Sample{Value: float64(cpu1-cpu0) / n, Extra: map[string]float64{
			"tx actions/packet": math.Round(float64(act1-act0)/n*1000) / 1000,
			"CPU %":             math.Round(float64(cpu1-cpu0) / float64(d) * 100),
			"line %":            math.Round(busy * 100),
		}}, nil
	}
}

// A bottleneck is the data path of `router run` between socket pairs: a port
// with several rx queues, bridged to one with a slow line.
type bottleneck struct {
	dp    *dataplane.Dataplane
	peers []int // of the rx queues, then of the line's port
	qs    []*tun.Queue
}

func newBottleneck(stopHandling bool) (b *bottleneck, err error) {
	b = &bottleneck{}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	spec := qdisc.Spec{Kind: "pfifo_fast"}
	in := dataplane.PortConfig{Name: "in", TxQueueLen: ringLen, Qdisc: qdisc.Spec{Kind: "mq"}, Child: spec}
	out := dataplane.PortConfig{Name: "out", TxQueueLen: ringLen, Qdisc: spec, Line: dataplane.LineConfig{Rate: satRate, Ring: dataplane.DefaultRing}}
	for i := range satQueues + 1 {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return b, err
		}
		q := tun.NewQueue(fds[0], 0)
		b.qs, b.peers = append(b.qs, q), append(b.peers, fds[1])
		if i < satQueues {
			in.Queues = append(in.Queues, q)
		} else {
			out.Queues = append(out.Queues, q)
		}
	}
	if b.dp, err = dataplane.New(dataplane.Config{
		Workers: satWorkers, Memory: packet.Memory{Heads: 16384, Tails: 64}, Ports: []dataplane.PortConfig{in, out},
	}); err != nil {
		return b, err
	}
	routes, err := fib.Build(nil)
	if err != nil {
		return b, err
	}
	fdb := fib.NewFDB(64, 1)
	b.dp.Publish(&forward.Snapshot{
		Routes: routes, Neigh: fib.BuildNeighbours(nil),
		Ports:   []forward.Port{{Name: "in", Up: true, MTU: 1500}, {Name: "out", Up: true, MTU: 1500}},
		Bridges: []forward.Bridge{{Name: "br0", Ports: []uint16{0, 1}, FDB: fdb, Iface: forward.NoIface}},
	})
	b.dp.SetStopHandling(stopHandling)
	return b, b.dp.Start()
}

func (b *bottleneck) close() {
	if b.dp != nil {
		b.dp.SetStopHandling(true) // or the drain would not end
		b.dp.Stop()
		b.dp.Close()
	}
	for i, q := range b.qs {
		_ = q.Close()
		_ = unix.Close(b.peers[i])
	}
}

// offer sends frames at the offered rate, in one burst a millisecond.
func (b *bottleneck) offer(ctx context.Context, flows int) {
	frame := make([]byte, satFrame)
	frame[0], frame[5], frame[6], frame[11] = 2, 2, 2, 1
	binary.BigEndian.PutUint16(frame[12:], 0x0800)
	ip := frame[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], satFrame-14)
	copy(ip[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	binary.BigEndian.PutUint16(ip[24:], satFrame-34)
	const perSecond = satRate / 8 / satFrame * satOffered
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	start, sent := time.Now(), 0
	for ctx.Err() == nil {
		<-tick.C
		for due := int(time.Since(start).Seconds() * perSecond); sent < due; sent++ {
			binary.BigEndian.PutUint16(ip[20:], uint16(1000+sent%flows))
			_, err := unix.Write(b.peers[sent%satQueues], frame)
			if errors.Is(err, unix.EAGAIN) {
				continue // the router is behind: this one was offered in vain
			}
		}
	}
}

// drain reads what the line delivers.
func (b *bottleneck) drain(ctx context.Context) {
	var buf [2048]byte
	fd := b.peers[satQueues]
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		_, _ = unix.Poll(fds, 10)
		for {
			if _, err := unix.Read(fd, buf[:]); err != nil {
				break
			}
		}
		time.Sleep(time.Millisecond) // many at a time: it is not what is measured
	}
}

// sample gives packets delivered, and the workers' CPU time and tx actions.
func (b *bottleneck) sample() (n uint64, cpu time.Duration, actions uint64) {
	for _, w := range b.dp.WorkerStats() {
		cpu += w.CPU
		actions += w.Actions
	}
	return b.dp.Ports()[1].QueueStats()[0].TxPackets, cpu, actions
}
