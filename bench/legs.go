package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"taprouter/control/api"
	"taprouter/control/hostnet"
	ends "taprouter/internal/traffic"
)

// throughput is the Slice of so many TCP streams, in Gbit/s.
func (s *scene) throughput(flows int, offloads bool) Slice {
	return func(ctx context.Context, d time.Duration) (sample Sample, err error) {
		if !offloads {
			if err := s.setOffloads(false); err != nil {
				return Sample{}, err
			}
			defer func() { err = errors.Join(err, s.setOffloads(true)) }()
		}
		settle := d / 5 // the streams find their speed
		b, err := s.startBulks(ctx, ends.KindDiscard, flows, d+settle)
		if err != nil {
			return Sample{}, err
		}
		sleep(ctx, settle)
		var mbit float64
		l, err := s.during(ctx, func() (err error) {
			mbit, err = b.goodput(ctx, func() error { sleep(ctx, d*9/10); return ctx.Err() })
			return err
		})
		if err = errors.Join(err, b.wait(ctx)); err != nil {
			return Sample{}, err
		}
		gb := mbit * l.wall.Seconds() / 8e3
		frames := float64(max(l.a["dev."+s.devA+".tx_packets"], 1))
		return Sample{Value: mbit / 1e3, Extra: s.extra(l, map[string]float64{
			"router CPU s/GB": l.cpu.Seconds() / gb, "retransmits/GB": float64(l.a["Tcp.RetransSegs"]) / gb, "TCPOFOQueue": float64(l.b["TcpExt.TCPOFOQueue"]),
			"bytes/frame": float64(l.a["dev."+s.devA+".tx_bytes"]) / frames,
		})}, nil
	}
}

// setOffloads switches those of both hosts.
func (s *scene) setOffloads(on bool) error {
	return errors.Join(
		inNetNS(s.nsA, func(ns *hostnet.NS) error { return ns.SetOffloads(s.devA, on) }),
		inNetNS(s.nsB, func(ns *hostnet.NS) error { return ns.SetOffloads(s.devB, on) }),
	)
}

// small is the Slice of a flood, in kpps delivered; pps 0 is as many as go.
func (s *scene) small(flows, pps int) Slice {
	return func(ctx context.Context, d time.Duration) (Sample, error) {
		f, err := s.flood(ctx, flows, pps, d)
		if err != nil {
			return Sample{}, err
		}
		if err := s.a.Reach(ctx, s.echo.Addr, 5*time.Second); err != nil { // tables of the bridge and of neighbours are warm
			return Sample{}, err
		}
		var sent ends.Flooded
		l, err := s.during(ctx, func() (err error) {
			if sent, err = s.a.SendFlood(ctx, f); err != nil {
				return err
			}
			return s.drain(ctx)
		})
		if err != nil {
			return Sample{}, err
		}
		n := s.delivered(l)
		return Sample{Value: n / sent.Elapsed.Seconds() / 1e3, Extra: s.extra(l, map[string]float64{
			"offered kpps": float64(sent.Offered) / sent.Elapsed.Seconds() / 1e3, "lost %": 100 * max(0, 1-n/float64(max(sent.Offered, 1))),
			"router CPU s/Mpkt": l.cpu.Seconds() / n * 1e6,
		})}, nil
	}
}

// flood describes one to host b, or to the router on the way.
func (s *scene) flood(ctx context.Context, flows, pps int, d time.Duration) (f ends.Flood, err error) {
	var links []api.Link
	if err := s.router.API.Get(ctx, "links", &links); err != nil {
		return f, err
	}
	f = ends.Flood{Dev: s.devA, From: netip.MustParseAddr(s.from), To: netip.MustParseAddr(s.to), Port: floodPort, Flows: flows, PPS: pps, Duration: d}
	var src, dst string
	for _, l := range links {
		switch {
		case l.Name == s.devA:
			src = l.HostMAC
			if l.Master == "" {
				dst = l.MAC
			}
		case l.Master != "":
			dst = l.HostMAC
		}
	}
	var aerr, berr error
	f.Src, aerr = net.ParseMAC(src)
	f.Dst, berr = net.ParseMAC(dst)
	return f, errors.Join(aerr, berr)
}

// drain waits until no more of a flood arrives.
func (s *scene) drain(ctx context.Context) error {
	last := uint64(0)
	for range 100 {
		b, err := s.b.Counters(ctx)
		if err != nil {
			return err
		}
		n := b["dev."+s.devB+".rx_packets"]
		if n == last {
			return nil
		}
		last = n
		sleep(ctx, 50*time.Millisecond)
	}
	return errors.Join(ctx.Err(), fmt.Errorf("packets arrive long after the last was sent"))
}

const rrSize = 64 // bytes of a request and of its response

// rr measures round trips for d.
func (s *scene) rr(ctx context.Context, udp bool, d time.Duration) (got ends.RRs, err error) {
	srv, err := s.b.Listen(ctx, ends.KindRR, s.at("0"))
	if err != nil {
		return got, err
	}
	got, err = s.a.SendRR(ctx, ends.RR{To: srv.Addr, UDP: udp, Size: rrSize, Conns: 1, Duration: d})
	_, ferr := srv.Finish(ctx, nil, 0)
	return got, errors.Join(err, ferr)
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// roundTrips is the Slice of round trips on an idle path: p50 in us.
func (s *scene) roundTrips(udp bool) Slice {
	return func(ctx context.Context, d time.Duration) (Sample, error) {
		var got ends.RRs
		l, err := s.during(ctx, func() (err error) { got, err = s.rr(ctx, udp, d); return err })
		if err != nil {
			return Sample{}, err
		}
		return Sample{Value: us(got.P50), Extra: s.extra(l, map[string]float64{
			"p99 us": us(got.P99), "p99.9 us": us(got.P999), "lost": float64(got.Lost),
			"router CPU us/transaction": us(l.cpu) / float64(max(got.Transactions, 1)),
		})}, nil
	}
}

// loadedRoundTrips is the same beside a TCP stream: p99 in us.
func (s *scene) loadedRoundTrips(udp bool) Slice {
	return func(ctx context.Context, d time.Duration) (Sample, error) {
		settle := d / 5
		b, err := s.startBulks(ctx, ends.KindDiscard, 1, d+2*settle)
		if err != nil {
			return Sample{}, err
		}
		sleep(ctx, settle)
		var got ends.RRs
		var mbit float64
		l, err := s.during(ctx, func() (err error) {
			mbit, err = b.goodput(ctx, func() (err error) { got, err = s.rr(ctx, udp, d); return err })
			return err
		})
		if err = errors.Join(err, b.wait(ctx)); err != nil {
			return Sample{}, err
		}
		return Sample{Value: us(got.P99), Extra: s.extra(l, map[string]float64{
			"p50 us": us(got.P50), "p99.9 us": us(got.P999), "lost": float64(got.Lost), "stream Gbit/s": mbit / 1e3,
			"router CPU s/GB": l.cpu.Seconds() / (mbit * l.wall.Seconds() / 8e3),
		})}, nil
	}
}

// rest is the Slice without traffic: resident memory in MB.
func (s *scene) rest(ctx context.Context, d time.Duration) (Sample, error) {
	sleep(ctx, d/2) // what the kernel sends by itself after the start, and workers that wait for more
	l, err := s.during(ctx, func() error { sleep(ctx, d); return ctx.Err() })
	if err != nil {
		return Sample{}, err
	}
	now, _, err := s.router.Memory()
	return Sample{Value: float64(now) / 1e6, Extra: s.extra(l, map[string]float64{"CPU %": 100 * l.cpu.Seconds() / l.wall.Seconds()})}, err
}

// load is the Slice of the peak of memory in MB.
func (s *scene) load(ctx context.Context, d time.Duration) (Sample, error) {
	if err := s.router.ResetPeak(); err != nil {
		return Sample{}, err
	}
	f, err := s.flood(ctx, 64, 0, d/2)
	if err != nil {
		return Sample{}, err
	}
	l, err := s.during(ctx, func() error {
		b, err := s.startBulks(ctx, ends.KindDiscard, 4, d/2)
		if err == nil {
			err = b.wait(ctx)
		}
		if err == nil {
			_, err = s.a.SendFlood(ctx, f)
		}
		return err
	})
	if err != nil {
		return Sample{}, err
	}
	_, peak, err := s.router.Memory()
	return Sample{Value: float64(peak) / 1e6, Extra: s.extra(l, map[string]float64{"CPU %": 100 * l.cpu.Seconds() / l.wall.Seconds()})}, err
}
