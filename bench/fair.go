package bench

import (
	"context"
	"errors"
	"time"

	"taprouter/control/api"
	ends "taprouter/internal/traffic"
	"taprouter/qdisc"
)

var fairEntry = Entry{
	Bench: "xmit", Number: 6, Root: true, Title: "fq without and with the fast path",
	About: `Fair Queue without the fast path looks up, and lists, a flow for each packet;
with it a packet that meets no other goes straight through. First the generator
of tables 1 to 4, with packets of 122 flows; then UDP datagrams of 64 bytes, and
TCP request/response on 64 connections, through router run between namespaces
(root), where fq is a small part of what a packet costs.`,
	Make: makeFair,
}

// fqRoot is fq as router run makes it.
func fqRoot(fast bool) func(t qdisc.Txq, cpus int) root {
	return func(t qdisc.Txq, cpus int) root {
		cfg := qdisc.DefaultFQ(1500)
		cfg.NoFastPath = !fast
		return ours{qdisc.New(qdisc.NewFQ(cfg), []qdisc.Txq{t}, cpus)}
	}
}

const fairFlows = 122 // of the sample in series 4

func makeFair(ctx context.Context, r *Runner) (Table, error) {
	t := newTable(r, "series 4", "fast path off", "fast path on", "none")
	for _, burst := range r.Bursts {
		for _, n := range r.threads(1, 2) {
			tr := traffic{threads: n, burst: burst, queues: 1, flows: fairFlows}
			a, b := tr, tr
			a.root, b.root = fqRoot(false), fqRoot(true)
			row := Row{Name: "generator", Threads: n, Burst: burst}
			if n == 1 {
				row.Theirs = &Theirs{Ratio: 1.30}
			}
			row, err := r.Measure(ctx, row, a.slice, b.slice)
			if err != nil {
				return t, err
			}
			t.Rows = append(t.Rows, row)
		}
	}
	rows, err := fairRows(ctx, r)
	t.Rows = append(t.Rows, rows...)
	return t, err
}

func fairRows(ctx context.Context, r *Runner) (rows []Row, err error) {
	s, err := newScene(ctx, r, "queues: 2", "queues: 2, qdisc: {kind: mq, child: {kind: fq}}")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, x := range []struct {
		row   Row
		slice func(fast bool) Slice
	}{
		{Row{Name: "UDP through namespaces", Unit: "packets/s", Theirs: &Theirs{Ratio: 1.13}}, s.blast},
		{Row{Name: "TCP request/response", Unit: "transactions/s", Theirs: &Theirs{Ratio: 1.05}}, s.requests},
	} {
		row, err := r.Measure(ctx, x.row, x.slice(false), x.slice(true))
		if err != nil {
			return rows, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// fastPath turns the fast path of port b's qdiscs off or on.
func (s *scene) fastPath(ctx context.Context, on bool) error {
	word := "nofastpath"
	if on {
		word = "fastpath"
	}
	for q := range 2 {
		if err := s.set(ctx, "qdisc_change", api.Change{Dev: s.devB, Child: q, Kind: "fq", Options: []string{word}}); err != nil {
			return err
		}
	}
	return nil
}

// blast sends as many datagrams as the host can.
func (s *scene) blast(fast bool) Slice {
	return func(ctx context.Context, d time.Duration) (Sample, error) {
		d *= sceneSlice
		if err := s.fastPath(ctx, fast); err != nil {
			return Sample{}, err
		}
		rcv, err := s.b.Listen(ctx, ends.KindUDP, s.at("0"))
		if err != nil {
			return Sample{}, err
		}
		sent, err := s.a.SendUDP(ctx, ends.UDPSend{To: rcv.Addr, Flows: 16, PPS: 10_000_000, Size: 64, Duration: d})
		if err != nil {
			return Sample{}, err
		}
		got, err := rcv.Finish(ctx, sent.Flows, time.Second)
		return Sample{Value: float64(got.UDP.Packets) / d.Seconds(), Extra: map[string]float64{"reordered": float64(got.UDP.Reordered)}}, err
	}
}

func (s *scene) requests(fast bool) Slice {
	return func(ctx context.Context, d time.Duration) (Sample, error) {
		d *= sceneSlice
		if err := s.fastPath(ctx, fast); err != nil {
			return Sample{}, err
		}
		srv, err := s.b.Listen(ctx, ends.KindRR, s.at("0"))
		if err != nil {
			return Sample{}, err
		}
		rr, err := s.a.SendRR(ctx, ends.RR{To: srv.Addr, Conns: 64, Duration: d})
		if err != nil {
			return Sample{}, err
		}
		_, err = srv.Finish(ctx, nil, 0)
		return Sample{Value: float64(rr.Transactions) / rr.Elapsed.Seconds()}, err
	}
}
