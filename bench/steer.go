package bench

import (
	"context"
	"fmt"
	"time"

	"taprouter/control/api"
)

var hopEntry = Entry{
	Bench: "steer", Number: 7, Root: true, Title: "TCP whose preferred queue hops, queues with unequal backlog",
	About: `One TCP stream crosses the router to a port of four tx queues that share one
line, in turn. The queue that the stream prefers moves on every millisecond, and
other traffic keeps 0, 2, 5 and 10 ms waiting in the four. Without a flow table
the stream follows at once and overtakes itself; with mode inflight it moves only
when nothing of it is on the way; dql is the scheme as it was published. Shown is
what the receiver reads, and how disordered it came: by TCP's own count and by
the router's. Old kernels' TCP (tcp_recovery=0, tcp_reordering=3) takes three
segments out of order for a loss, new ones wait for a quarter of a round trip.`,
	Make: makeHop,
}

const (
	hopQueues = 4
	hopRate   = 500 // Mbit/s, of the line
	hopPeriod = time.Millisecond
)

// hopBacklog is what other traffic keeps waiting in each queue.
var hopBacklog = [hopQueues]time.Duration{0, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond}

// A tcpKind says how host a's TCP tells reordering from loss.
type tcpKind struct {
	name   string
	values map[string]string
}

var tcpKinds = []tcpKind{
	{"tcp_recovery=1", map[string]string{"tcp_recovery": "1", "tcp_reordering": "3"}},
	{"tcp_recovery=0 tcp_reordering=3", map[string]string{"tcp_recovery": "0", "tcp_reordering": "3"}},
}

func makeHop(ctx context.Context, r *Runner) (t Table, err error) {
	t = Table{Seed: "series 2", Unit: "Mbit/s", A: "no table", B: "with a table", Parameters: map[string]any{
		"line": fmt.Sprintf("%d Mbit/s shared", hopRate), "queues": hopQueues, "hop": hopPeriod.String(), "backlog": "0, 2, 5, 10 ms", "flow table": flowTable,
	}}
	for _, sprayed := range []bool{false, true} {
		rows, err := hopRows(ctx, r, sprayed)
		t.Rows = append(t.Rows, rows...)
		if err != nil {
			return t, err
		}
	}
	return t, nil
}

// hopRows makes the rows for an ingress that one worker reads, or one that is
// sprayed over several.
func hopRows(ctx context.Context, r *Runner, sprayed bool) (rows []Row, err error) {
	in := "queues: 1"
	if sprayed {
		in = "queues: 4, steering: random"
	}
	s, err := newScene(ctx, r, in, fmt.Sprintf("queues: %d, line: {rate: %dmbit, ring: 256, shared: true}", hopQueues, hopRate))
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := s.close(); err == nil {
			err = cerr
		}
	}()
	for q, d := range hopBacklog {
		if err := s.set(ctx, "load", api.Change{Dev: s.devB, Queue: q, Period: d}); err != nil {
			return nil, err
		}
	}
	if err := s.set(ctx, "hop", api.Change{Dev: s.devB, Period: hopPeriod}); err != nil {
		return nil, err
	}
	for _, kind := range tcpKinds {
		if err := s.sysctl(kind.values); err != nil {
			return nil, err
		}
		for _, mode := range []string{"inflight", "dql"} {
			row := Row{Name: mode + ", " + kind.name}
			if mode == "inflight" && !sprayed {
				row.Theirs = &Theirs{3884, 8897, 2.29}
			}
			if sprayed {
				row.Name += ", ingress sprayed"
				row.Note = "for information: read by several workers, the stream has no order that could be kept"
			}
			row, err := r.Measure(ctx, row, s.hop(0, mode), s.hop(flowTable, mode))
			if err != nil {
				return rows, err
			}
			rows = append(rows, row)
			if sprayed {
				break // one mode is enough
			}
		}
	}
	return rows, nil
}

// hop is the Slice with a flow table of so many buckets.
func (s *scene) hop(buckets int, mode string) Slice {
	return func(ctx context.Context, d time.Duration) (Sample, error) {
		d *= sceneSlice
		if err := s.set(ctx, "flow_table", api.Change{Dev: s.devB, Buckets: buckets, Mode: mode}); err != nil {
			return Sample{}, err
		}
		before, err := s.disorder(ctx)
		if err != nil {
			return Sample{}, err
		}
		b, err := s.startBulk(ctx, d+d/5)
		if err != nil {
			return Sample{}, err
		}
		sleep(ctx, d/5) // the stream finds its speed
		mbit, err := b.goodput(ctx, func() error { sleep(ctx, d); return ctx.Err() })
		if err != nil {
			return Sample{}, err
		}
		if err := b.wait(ctx); err != nil {
			return Sample{}, err
		}
		after, err := s.disorder(ctx)
		if err != nil {
			return Sample{}, err
		}
		return Sample{Value: mbit, Extra: map[string]float64{
			"TCPOFOQueue": after.ofo - before.ofo, "reordered": after.reordered - before.reordered,
			"moves": after.moves - before.moves, "refused": after.refused - before.refused, "retransmits": float64(b.stats.Retransmits),
		}}, nil
	}
}

type disorderCounts struct{ ofo, reordered, moves, refused float64 }

func (s *scene) disorder(ctx context.Context) (c disorderCounts, err error) {
	x, err := s.steering(ctx)
	if err != nil {
		return c, err
	}
	k, err := s.b.Counters(ctx)
	return disorderCounts{float64(k["TcpExt.TCPOFOQueue"]), float64(x.Reordered), float64(x.Moves), float64(x.Refused)}, err
}
