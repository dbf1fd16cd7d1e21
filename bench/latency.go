package bench

import (
	"context"
	"fmt"
	"math"
	"time"

	"taprouter/bql"
	"taprouter/control/api"
	ends "taprouter/internal/traffic"
)

var latencyEntry = Entry{
	Bench: "xmit", Number: 8, Root: true, Title: "round trip under a TCP stream on a slow line",
	About: `A TCP stream saturates a line of 10 Mbit/s behind a ring of 256 descriptors,
and a probe is sent through the same queue every 10 ms. In the first row the
probe goes before the stream's packets (IPv4 TOS 0x10, band 0 of pfifo_fast), but
not before those that are in the ring already: byte queue limits keep that
short. In the second it is not marked, and fq gives it its turn. The value is
the 99th percentile of the round trip in ms: less is better.`,
	Make: makeLatency,
}

const (
	latencyRate = 10 // Mbit/s
	latencyRing = 256
	lowDelay    = 0x10 // IPTOS_LOWDELAY: priority 6, band 0
)

// A way is how the queue is set up, and how the probe is marked.
type way struct {
	bql bool
	fq  bool
	tos int
}

func makeLatency(ctx context.Context, r *Runner) (t Table, err error) {
	t = Table{Seed: "bufferbloat", Unit: "ms p99", A: "before", B: "after", Parameters: map[string]any{
		"line": fmt.Sprintf("%d Mbit/s", latencyRate), "ring": latencyRing, "txqueuelen": 1000, "probe": "32 bytes of UDP every 10 ms", "TCP": "reno",
	}}
	s, err := newScene(ctx, r, "queues: 1", fmt.Sprintf("queues: 1, line: {rate: %dmbit, ring: %d}", latencyRate, latencyRing))
	if err != nil {
		return t, err
	}
	defer func() {
		if cerr := s.close(); err == nil {
			err = cerr
		}
	}()
	// Reno's slow start ends with a loss; Cubic's Hystart ends it long before
	// the ring is full, and a run would have to wait minutes for what happens then.
	if err := s.sysctl(map[string]string{"tcp_congestion_control": "reno"}); err != nil {
		return t, err
	}
	ring, limits, fair := way{tos: lowDelay}, way{bql: true, tos: lowDelay}, way{bql: true, fq: true}
	for _, x := range []struct {
		name string
		a, b way
	}{{"ring alone -> +BQL", ring, limits}, {"+BQL -> +BQL+fq, probe not marked", limits, fair}} {
		row, err := r.Measure(ctx, Row{Name: x.name}, s.latency(x.a), s.latency(x.b))
		if err != nil {
			return t, err
		}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

func (s *scene) latency(x way) Slice {
	return func(ctx context.Context, d time.Duration) (Sample, error) {
		d *= 3 * sceneSlice
		if err := s.prepare(ctx, x); err != nil {
			return Sample{}, err
		}
		settle := d * 4 / 3 // the stream fills the queue, and the limit finds its size
		b, err := s.startBulk(ctx, d+settle)
		if err != nil {
			return Sample{}, err
		}
		sleep(ctx, settle)
		var p ends.Pings
		mbit, err := b.goodput(ctx, func() (err error) {
			p, err = s.a.SendPings(ctx, ends.Ping{To: s.echo.Addr, Interval: 10 * time.Millisecond, Duration: d, TOS: x.tos})
			return err
		})
		if err != nil {
			return Sample{}, err
		}
		if err := b.wait(ctx); err != nil {
			return Sample{}, err
		}
		ms := func(d time.Duration) float64 { return math.Round(d.Seconds()*1e5) / 100 }
		return Sample{Value: ms(p.P99), Extra: map[string]float64{
			"p50 ms": ms(p.P50), "goodput Mbit/s": mbit, "probes lost": float64(p.Sent - p.Received),
		}}, ctx.Err()
	}
}

// prepare sets port b up.
func (s *scene) prepare(ctx context.Context, x way) error {
	low := uint64(0)
	if !x.bql {
		low = bql.MaxLimit // the limit never falls below: it never stops the queue
	}
	// The limit follows with the next completion; without a high water mark for
	// a moment it would take a hold time to come down from where the ring alone
	// had put it.
	for _, c := range []api.Change{{Key: "limit_min", Value: low}, {Key: "limit_max", Value: max(low, 1514)}, {Key: "limit_max", Value: bql.MaxLimit}} {
		c.Dev = s.devB
		if err := s.set(ctx, "bql", c); err != nil {
			return err
		}
		if err := s.a.Reach(ctx, s.echo.Addr, 5*time.Second); err != nil {
			return err
		}
	}
	kind := "pfifo_fast"
	if x.fq {
		kind = "fq"
	}
	return s.set(ctx, "qdisc", api.Change{Dev: s.devB, Child: -1, Kind: kind})
}
