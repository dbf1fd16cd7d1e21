package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"taprouter/bql"
	"taprouter/packet"
	"taprouter/qdisc"
	"taprouter/xpsflow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every table delivers under every number of threads, loses and reorders
// nothing, and says what its format promises.
func TestTables(t *testing.T) {
	r := &Runner{Rounds: 2, Duration: 4 * time.Millisecond, Threads: []int{1, 3}, Bursts: []int{1, 32}}
	rows := 0
	r.Progress = func(_ string, done bool) {
		if done {
			rows++
		}
	}
	rep, err := r.Run(t.Context(), "xmit", Entries("xmit")[:4])
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for i, tab := range rep.Tables {
		if tab.Number != i+1 || tab.Title == "" || tab.A == "" || tab.B == "" || tab.Unit == "" || tab.Parameters["rounds"] != 2 {
			t.Errorf("table %d is incomplete: %+v", i+1, tab)
		}
		perSetup := len(r.Threads) * len(r.Bursts)
		if n := len(tab.Rows); n == 0 || n%perSetup != 0 {
			t.Errorf("table %d has %d rows, want a multiple of %d", tab.Number, n, perSetup)
		}
		want += len(tab.Rows)
		for _, row := range tab.Rows {
			checkRow(t, tab.Number, row)
		}
	}
	if len(rep.Tables) != 4 || rows != want {
		t.Errorf("%d tables and %d rows of which %d were announced, want 4 tables", len(rep.Tables), want, rows)
	}
	checkJSON(t, rep)
	checkText(t, rep)
}

// The generator through fq, with the fast path and without.
func TestFairGenerator(t *testing.T) {
	for _, fast := range []bool{false, true} {
		for _, burst := range []int{1, 32} {
			tr := traffic{threads: 2, burst: burst, queues: 1, flows: fairFlows, root: fqRoot(fast)}
			if s, err := tr.slice(t.Context(), 4*time.Millisecond); err != nil || s.Value <= 0 {
				t.Errorf("fast path %t, burst %d: %+v, %v", fast, burst, s, err)
			}
		}
	}
}

// A saturated line delivers, and without stop handling the qdisc is run again
// and again.
func TestSaturated(t *testing.T) {
	without, with := busySlice(t, false), busySlice(t, true)
	const actions = "tx actions/packet"
	if without.Extra[actions] < 2*with.Extra[actions] {
		t.Errorf("tx actions a packet: %v without stop handling, %v with", without.Extra[actions], with.Extra[actions])
	}
}

// busySlice measures until there was always something to send: a sender that
// got no CPU lets the line run empty, and nobody finds its queue stopped.
func busySlice(t *testing.T, stopHandling bool) Sample {
	t.Helper()
	var s Sample
	var err error
	for range 20 {
		s, err = saturated(8, stopHandling)(t.Context(), 250*time.Millisecond)
		if err == nil && s.Value > 0 && s.Extra["line %"] >= 90 {
			return s
		}
	}
	t.Fatalf("stop handling %t: the line was not kept busy: %+v, %v", stopHandling, s, err)
	return s
}

func checkRow(t *testing.T, table int, row Row) {
	t.Helper()
	for name, s := range map[string]Stat{"a": row.A, "b": row.B, "ratio": row.Ratio} {
		if s.Min <= 0 || s.Min > s.Median || s.Median > s.Max {
			t.Errorf("table %d, %s, threads %d: %s is %+v, want 0 < min <= median <= max", table, row.Name, row.Threads, name, s)
		}
	}
	if published := row.Threads == 1; published != (row.Theirs != nil) {
		t.Errorf("table %d, threads %d: published %+v", table, row.Threads, row.Theirs)
	}
	for _, e := range row.Extra {
		if e.Name == "left behind" && (table != 4 || e.B.Max != 0) {
			t.Errorf("table %d, threads %d: packets were left behind: %+v", table, row.Threads, e)
		}
	}
}

func checkJSON(t *testing.T, rep Report) {
	t.Helper()
	text, err := json.Marshal(rep)
	if err != nil {
		t.Fatal(err)
	}
	var back, again any
	var typed Report
	if err := errors.Join(json.Unmarshal(text, &back), json.Unmarshal(text, &typed)); err != nil {
		t.Fatal(err)
	}
	text, _ = json.Marshal(typed)
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(back, again); diff != "" {
		t.Errorf("JSON changes on the way: %s", diff)
	}
	for _, key := range []string{`"bench":"xmit"`, `"version":1`, `"table":1`, `"cores":`, `"theirs":null`, `"median":`, `"note":""`} {
		if !bytes.Contains(text, []byte(key)) {
			t.Errorf("the JSON has no %s", key)
		}
	}
}

func checkText(t *testing.T, rep Report) {
	t.Helper()
	var b strings.Builder
	Print(&b, rep)
	for _, word := range []string{"Table 1:", "Table 4:", "txqueuelen 1000", "Mpps", "published", "1.46", "0.97x", "ns/packet"} {
		if !strings.Contains(b.String(), word) {
			t.Errorf("the text has no %q:\n%s", word, b.String())
		}
	}
}

// The way of router run as a whole: a flow table chooses among queues, and
// flows that wander stay in order.
func TestSteered(t *testing.T) {
	tr := traffic{threads: 3, burst: 4, queues: 3, flows: 5, steered: true, root: lockless(true)}
	s, err := tr.slice(t.Context(), 5*time.Millisecond)
	if err != nil || s.Value <= 0 {
		t.Errorf("sample %+v, %v", s, err)
	}
}

// A root that spoils the traffic is found out.
func TestSpoiled(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(q *spoiler, c *qdisc.CPU, l *packet.List)
		says  string
	}{
		{"loss", func(q *spoiler, c *qdisc.CPU, l *packet.List) {
			if q.n == 5 {
				l.Pop() // and nobody learns of it
			}
			q.t.Send(c, l)
		}, "reordered"},
		{"loss of the last", func(q *spoiler, c *qdisc.CPU, l *packet.List) {
			if q.n < 5 {
				q.t.Send(c, l)
			}
			*l = packet.List{}
		}, "lost packets"},
		{"order", func(q *spoiler, c *qdisc.CPU, l *packet.List) {
			var back packet.List
			first := l.Pop()
			back.Append(l)
			back.Push(first)
			q.t.Send(c, &back)
		}, "reordered"},
	} {
		tr := traffic{threads: 1, burst: 2, queues: 1, root: func(t qdisc.Txq, _ int) root { return &spoiler{t: t, spoil: tt.spoil} }}
		if _, err := tr.slice(t.Context(), 5*time.Millisecond); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want an error with %q", tt.name, err, tt.says)
		}
	}
}

type spoiler struct {
	t     qdisc.Txq
	n     int
	spoil func(q *spoiler, c *qdisc.CPU, l *packet.List)
}

func (q *spoiler) Xmit(c *qdisc.CPU, l *packet.List) { q.n++; q.spoil(q, c, l) }
func (q *spoiler) Action(*qdisc.CPU) bool            { return false }
func (q *spoiler) Flush(*qdisc.CPU) int              { return 0 }

// Who begins changes from round to round, the first round does not count, and
// a ratio is that of one round.
func TestInterleave(t *testing.T) {
	var order []string
	n := 0.0
	slice := func(name string, factor float64) Slice {
		return func(context.Context, time.Duration) (Sample, error) {
			order = append(order, name)
			if name == "A" {
				n++
			}
			return Sample{Value: n * factor, Extra: map[string]float64{"zero": 0, "n": n}}, nil
		}
	}
	r := &Runner{Rounds: 3}
	row, err := r.Measure(t.Context(), Row{Threads: 1}, slice("A", 1), slice("B", 2))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(order, ""); got != "ABBAABBA" {
		t.Errorf("the order is %s, want ABBAABBA", got)
	}
	if want := (Stat{3, 2, 4}); row.A != want {
		t.Errorf("A is %+v, want %+v", row.A, want)
	}
	if want := (Stat{1.5, 1, 2}); row.Ratio != want {
		t.Errorf("the ratio is %+v, want %+v", row.Ratio, want)
	}
	if len(row.Extra) != 1 || row.Extra[0].Name != "n" {
		t.Errorf("extra values are %+v, want n only", row.Extra)
	}
}

// What is complete when a run is interrupted, or fails, is reported.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := &Runner{Rounds: 1, Duration: time.Millisecond, Threads: []int{1}, Bursts: []int{32, 1}, Progress: func(_ string, done bool) {
		if done {
			cancel()
		}
	}}
	rep, err := r.Run(ctx, "xmit", Entries("xmit"))
	if !errors.Is(err, context.Canceled) || len(rep.Tables) != 1 || len(rep.Tables[0].Rows) != 1 {
		t.Errorf("%d tables, %v; want one with one row", len(rep.Tables), err)
	}
}

func TestStat(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   Stat
	}{
		{[]float64{3}, Stat{3, 3, 3}}, {[]float64{4, 1}, Stat{2.5, 1, 4}}, {[]float64{9, 1, 2}, Stat{2, 1, 9}},
	} {
		in := slices.Clone(tt.values)
		if got := NewStat(in); got != tt.want || !slices.Equal(in, tt.values) {
			t.Errorf("NewStat(%v) = %+v, want %+v; and the values as they were", tt.values, got, tt.want)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.8304: "0.830", 1.4588: "1.46", 13.72: "13.7", 1234567: "1234567", 0.00012345: "0.000123"} {
		if got := digits(v); got != want {
			t.Errorf("digits(%v) = %s, want %s", v, got, want)
		}
	}
}

// A null device completes at once, and does nothing else: the packets are
// their sender's again.
type null struct {
	dql bql.DQL
	n   int
}

func (d *null) Stopped() bool         { return false }
func (d *null) Avail() int            { return d.dql.Avail() }
func (d *null) Arm(*qdisc.CPU, int64) {}
func (d *null) Send(c *qdisc.CPU, l *packet.List) {
	n, bytes := l.Len(), uint32(0)
	for p := l.Front(); p != nil; p = p.Next {
		bytes += p.WireLen
	}
	d.dql.Queued(bytes, uint32(n), c.Now)
	xpsflow.CompleteList(l)
	d.dql.Completed(bytes, uint32(n), c.Now)
	d.n += n
	*l = packet.List{}
}

// What a packet costs from the choice of its queue to its end, on one thread:
// flow table, qdisc, BQL, statistics, and a null device.
func BenchmarkPacket(b *testing.B) {
	for _, kind := range []struct {
		name string
		root func(qdisc.Txq, int) root
	}{{"pfifo_fast", lockless(true)}, {"fq", fqRoot(true)}} {
		for _, burst := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/burst=%d", kind.name, burst), func(b *testing.B) {
				d := &null{}
				d.dql.Init(bqlStart, bqlMax)
				q := kind.root(d, 1)
				steer := xpsflow.New(1, 2)
				if err := steer.SetTable(flowTable, xpsflow.Inflight); err != nil {
					b.Fatal(err)
				}
				pkts := make([]packet.Packet, burst)
				ptrs := make([]*packet.Packet, burst)
				for i := range pkts {
					pkts[i] = packet.Packet{Segs: 1, WireLen: wireLen, Hash: 1, Flags: packet.IPv4}
					ptrs[i] = &pkts[i]
				}
				cpu := &qdisc.CPU{}
				var l packet.List
				sent := 0
				b.ReportAllocs()
				for b.Loop() {
					cpu.Now += 100
					steer.SelectBatch(0, ptrs)
					for _, p := range ptrs {
						l.Push(p)
					}
					q.Xmit(cpu, &l)
					sent += burst
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*burst), "ns/pkt")
				if d.n != sent || steer.InFlight() != 0 {
					b.Errorf("%d packets delivered of %d, %d in flight", d.n, sent, steer.InFlight())
				}
			})
		}
	}
}
