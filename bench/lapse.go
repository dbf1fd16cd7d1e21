package bench

import (
	"context"
	"time"

	"taprouter/control/api"
	ends "taprouter/internal/traffic"
)

// A lapse is what the kernel and the router have counted in a while.
type lapse struct {
	wall, cpu time.Duration // cpu is the router's
	a, b      ends.Counters // of the hosts
	reordered float64
}

// during calls f and gives what was counted meanwhile. The CPU time that the
// router takes to answer our questions is not in it.
func (s *scene) during(ctx context.Context, f func() error) (l lapse, err error) {
	before, err := s.counted(ctx)
	if err != nil {
		return l, err
	}
	cpu, err := s.router.CPU()
	if err != nil {
		return l, err
	}
	start := time.Now()
	if err := f(); err != nil {
		return l, err
	}
	l.wall = time.Since(start)
	if l.cpu, err = s.router.CPU(); err != nil {
		return l, err
	}
	l.cpu -= cpu
	after, err := s.counted(ctx)
	l.a, l.b, l.reordered = after.a.Since(before.a), after.b.Since(before.b), after.reordered-before.reordered
	return l, err
}

// counted is what has been counted since the scene began, CPU time left out.
func (s *scene) counted(ctx context.Context) (l lapse, err error) {
	if l.a, err = s.a.Counters(ctx); err != nil {
		return l, err
	}
	if l.b, err = s.b.Counters(ctx); err != nil {
		return l, err
	}
	var xps []api.XPS
	if err = s.router.API.Get(ctx, "xps", &xps); err != nil {
		return l, err
	}
	for _, x := range xps {
		l.reordered += float64(x.Reordered)
	}
	return l, nil
}

const extraReordered = "reordered"

// extra are the values that every leg reports, and those in more.
func (s *scene) extra(l lapse, more map[string]float64) map[string]float64 {
	more[extraReordered] = l.reordered
	more["ring drops"] = float64(l.a["dev."+s.devA+".tx_dropped"] + l.b["dev."+s.devB+".tx_dropped"])
	return more
}

// delivered is the number of a flood's packets that host b's device has counted.
// A frame that holds many packets has their payload behind one set of headers.
func (s *scene) delivered(l lapse) float64 {
	const headers = ends.FloodFrame - ends.FloodPayload
	frames, bytes := l.b["dev."+s.devB+".rx_packets"], l.b["dev."+s.devB+".rx_bytes"]
	return float64(bytes-headers*frames) / ends.FloodPayload
}
