package netns

import (
	"time"

	"taprouter/control/api"
)

// balanced waits until the router is quiet and checks that it has kept count
// of every packet.
func (r *Router) balanced() {
	r.net.t.Helper()
	var last api.Status
	until(r.net.t, 15*time.Second, "the router is quiet", func() bool {
		var s api.Status
		r.ask(&s, "status")
		quiet := s.Totals.Sent == last.Totals.Sent && s.Totals.Received == last.Totals.Received && s.Totals.Queued == 0
		last = s
		return quiet
	})
	if !last.Balanced {
		r.net.t.Errorf("packets do not add up: %+v", last.Totals)
	}
	if last.InFlight != 0 {
		r.net.t.Errorf("%d packets in flight in the flow tables of a quiet router", last.InFlight)
	}
}

// totals are the router's counts of packets.
func (r *Router) totals() api.Totals {
	r.net.t.Helper()
	var s api.Status
	r.ask(&s, "status")
	return s.Totals
}

// link gives one port as `link show -j` has it.
func (r *Router) link(dev string) api.Link {
	r.net.t.Helper()
	var all []api.Link
	r.ask(&all, "link", "show", "dev", r.net.expand(dev))
	if len(all) != 1 {
		r.net.t.Fatalf("link show dev %s: %d ports", dev, len(all))
	}
	return all[0]
}

// drops gives the router's drops by reason, over all ports.
func (r *Router) drops() map[string]uint64 {
	r.net.t.Helper()
	var all []api.Drop
	r.ask(&all, "drops", "show")
	sum := map[string]uint64{}
	for _, d := range all {
		sum[d.Reason] += d.Packets
	}
	return sum
}
