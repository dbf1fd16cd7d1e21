package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"taprouter/control/api"
)

// drops gives the router's drops so far.
func (d *demo) drops(ctx context.Context) (dropCounts, error) {
	var list []api.Drop
	if err := d.router.API.Get(ctx, "drops", &list); err != nil {
		return nil, err
	}
	c := dropCounts{}
	for _, d := range list {
		c[dropKey{d.Port, d.Reason}] += d.Packets
	}
	return c, nil
}

// dropCounts are the router's drops by port and reason.
type dropCounts map[dropKey]uint64

type dropKey struct{ port, reason string }

// noise are the reasons that explain no loss of a leg: what hosts send of
// their own accord (router solicitations, multicast reports) ends so.
var noise = map[string]bool{
	"no_bridge_port": true, "reserved_mac": true, "not_for_us": true, "protocol": true, "martian": true,
	"same_port": true, "vlan": true,
}

// since counts what was dropped after before at the ports of a leg and could
// have been the leg's.
func (c dropCounts) since(before dropCounts, ports [2]string) (n uint64) {
	for k, v := range c {
		if !noise[k.reason] && (k.port == ports[0] || k.port == ports[1] || k.port == "") {
			n += v - before[k]
		}
	}
	return n
}

// A queue is what is shown of one queue of a port: what the router read from
// it, what it wrote to it, and the qdisc in front of it. Wire packets.
type queue struct {
	Dev string `json:"dev"`
	api.Queue
	Qdisc    string `json:"qdisc,omitempty"`
	Drops    uint64 `json:"drops"`
	Requeues uint64 `json:"requeues"`
	Backlog  uint64 `json:"backlog"` // bytes
	Qlen     uint64 `json:"qlen"`
}

// account takes the queues' statistics and the sum of all packets when
// everything is quiet.
func (d *demo) account(ctx context.Context, res *result) error {
	s, err := d.quiet(ctx)
	if err != nil {
		return err
	}
	if res.Conserved = s.Balanced; !s.Balanced {
		res.fail("the packet count does not add up: %+v", s.Totals)
	}
	if s.InFlight != 0 && s.Totals.Queued == 0 {
		res.fail("the flow tables count %d packets when there are none", s.InFlight)
	}
	var links []api.Link
	var qdiscs []api.Qdisc
	if err := d.router.API.Get(ctx, "links", &links); err != nil {
		return err
	}
	if err := d.router.API.Get(ctx, "qdiscs", &qdiscs); err != nil {
		return err
	}
	res.Queues = join(links, qdiscs)
	return d.router.API.Get(ctx, "xps", &res.xps)
}

// join puts each queue together with its qdisc, mq's children being in the
// order of the queues. A root qdisc without children is shown at queue 0.
func join(links []api.Link, qdiscs []api.Qdisc) []queue {
	leaves := map[string][]api.Qdisc{}
	for _, q := range qdiscs {
		if q.Kind != "mq" {
			leaves[q.Dev] = append(leaves[q.Dev], q)
		}
	}
	all := []queue{}
	for _, l := range links {
		for i, q := range l.Queues {
			row := queue{Dev: l.Name, Queue: q}
			if of := leaves[l.Name]; i < len(of) {
				row.Qdisc, row.Drops, row.Requeues = of[i].Kind, of[i].Drops, of[i].Requeues
				row.Backlog, row.Qlen = of[i].Backlog, of[i].Qlen
			}
			all = append(all, row)
		}
	}
	return all
}

// queueTable is the queues as text.
func queueTable(queues []queue, xps []api.XPS) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-14s %5s %11s %11s %-11s %7s %8s %7s %5s %5s\n",
		"port", "queue", "rx packets", "tx packets", "qdisc", "dropped", "requeues", "backlog", "qlen", "stops")
	for _, q := range queues {
		fmt.Fprintf(&b, "%-14s %5d %11d %11d %-11s %7d %8d %7d %5d %5d\n",
			q.Dev, q.Queue.Queue, q.RxPackets, q.TxPackets, q.Qdisc, q.Drops, q.Requeues, q.Backlog, q.Qlen, q.TxStops)
	}
	for _, x := range xps {
		if x.Buckets > 0 {
			fmt.Fprintf(&b, "%-14s flow table of %d, %s: %d moves, %d refused, %d packets in flight\n",
				x.Dev, x.Buckets, x.Mode, x.Moves, x.Refused, x.InFlight)
		}
	}
	return b.String()
}

// quietTime and quietTries bound the wait for a time without packets.
const (
	quietTime  = 100 * time.Millisecond
	quietTries = 20
)

// quiet waits until the router has nothing to do and gives its status. There
// may always be a packet of the kernel's own, so it does not insist.
func (d *demo) quiet(ctx context.Context) (s api.Status, err error) {
	for range quietTries {
		last := s.Totals
		s = api.Status{}
		if err = d.router.API.Get(ctx, "status", &s); err != nil || s.Totals == last && s.Totals.Queued == 0 && s.Balanced {
			return s, err
		}
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-time.After(quietTime):
		}
	}
	return s, nil
}
