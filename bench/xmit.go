package bench

import (
	"context"

	"taprouter/qdisc"
)

const (
	single = "one queue"
	multi  = "mq"
)

var lockEntry = Entry{
	Bench: "xmit", Number: 1, Title: "pfifo_fast for one queue, behind a mutex and lockless",
	About: `All threads send to one qdisc. A: enqueue, dequeue and counters under one
mutex, let go only while the device is called. B: our lockless qdisc. With one
thread the ratio is the price of the atomics; with more, what the lock costs.
The mutex puts waiters to sleep, where the kernel's lock lets them spin.`,
	Make: func(ctx context.Context, r *Runner) (Table, error) { return lockTable(ctx, r, 1) },
}

var mqEntry = Entry{
	Bench: "xmit", Number: 2, Title: "pfifo_fast under mq, a queue a thread, behind a mutex and lockless",
	About: `As table 1, but each thread has a qdisc of its own, so nothing is contended:
the ratio should stay near that of one thread, and packets/s grow with threads
up to the number of cores.`,
	Make: func(ctx context.Context, r *Runner) (Table, error) { return lockTable(ctx, r, 2) },
}

var bypassEntry = Entry{
	Bench: "xmit", Number: 3, Title: "bypass of an empty qdisc off and on",
	About: `Our qdisc with and without the bypass: packets that meet an empty qdisc go
straight to the device. Under mq and with one thread it is always empty, and
the ratio is what the way through the ring costs. Threads that share a queue
meet it empty less often.`,
	Make: bypassTable,
}

var missedEntry = Entry{
	Bench: "xmit", Number: 4, Title: "run protocol without and with MISSED",
	About: `A: who finds the run bit taken leaves his packets and goes, as in Linux 4.16 to
5.12; "left behind" counts those that were stuck at the end of a slice.
B: ours, where he sets MISSED and the holder looks again. The ratio is the price
of never leaving a packet behind; near 1 is right. Bypass is off in both.`,
	Make: missedTable,
}

// lockTable is table 1 or 2.
func lockTable(ctx context.Context, r *Runner, number int) (Table, error) {
	t := newTable(r, "series 1", "mutex", "lockless", "on")
	name, theirs := single, published{
		1: {1458825, 1421602}, 2: {1753176, 1754890}, 4: {1120515, 3332777}, 8: {1000384, 2940079}, 12: {990430, 2857581},
	}
	if number == 2 {
		name, theirs = multi, published{
			1: {1444208, 1435952}, 2: {2679221, 2855443}, 4: {4902381, 5271192}, 8: {9660498, 9968382}, 12: {13724726, 13384199},
		}
	}
	err := t.measure(ctx, r, name, r.threads(1, 2, 4, 8, 12), theirs, behindMutex(true), lockless(true))
	return t, err
}

func bypassTable(ctx context.Context, r *Runner) (Table, error) {
	t := newTable(r, "series 2", "bypass off", "bypass on", "off in A, on in B")
	err := t.measure(ctx, r, multi, r.threads(1, 2, 4, 8), published{
		1: {2465e3, 2889e3}, 2: {4304e3, 5188e3}, 4: {7898e3, 9589e3},
	}, lockless(false), lockless(true))
	if err != nil {
		return t, err
	}
	err = t.measure(ctx, r, single, r.threads(1, 2, 4, 8), published{
		1: {2556e3, 2827e3}, 2: {2900e3, 2900e3}, 4: {5000e3, 5000e3}, 8: {4700e3, 4700e3},
	}, lockless(false), lockless(true))
	return t, err
}

func missedTable(ctx context.Context, r *Runner) (Table, error) {
	t := newTable(r, "series 5", "without MISSED", "with MISSED", "off")
	err := t.measure(ctx, r, single, r.threads(1, 2, 4, 8, 16), published{
		1: {2.61e6, 2.60e6}, 2: {3.97e6, 3.82e6}, 4: {5.62e6, 5.59e6}, 8: {2.78e6, 2.77e6}, 16: {2.22e6, 2.22e6},
	}, withoutMissed, lockless(false))
	return t, err
}

// published are packets/s of A and B by threads.
type published map[int][2]float64

func (p published) row(threads int) *Theirs {
	v, ok := p[threads]
	if !ok {
		return nil
	}
	return &Theirs{A: v[0], B: v[1], Ratio: v[1] / v[0]}
}

func newTable(r *Runner, seed, a, b, bypass string) Table {
	return Table{Seed: seed, Unit: "packets/s", A: a, B: b, Parameters: map[string]any{
		"packet_bytes": wireLen, "txqueuelen": ringLen, "bypass": bypass, "bql": "on", "flow_table": "off", "statistics": "on",
		"rounds": r.Rounds, "slice_ms": r.Duration.Milliseconds(), "gomaxprocs": "threads + 2", "published_burst": 1,
	}}
}

// measure adds a row for each burst and number of threads.
func (t *Table) measure(ctx context.Context, r *Runner, name string, threads []int, theirs published, a, b func(qdisc.Txq, int) root) error {
	for _, burst := range r.Bursts {
		for _, n := range threads {
			tr := traffic{threads: n, burst: burst, queues: 1}
			if name == multi {
				tr.queues = n
			}
			ta, tb := tr, tr
			ta.root, tb.root = a, b
			row, err := r.Measure(ctx, Row{Name: name, Threads: n, Burst: burst, Theirs: theirs.row(n)}, ta.slice, tb.slice)
			if err != nil {
				return err
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return nil
}
