package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"taprouter/control/api"
	"taprouter/internal/traffic"
	"taprouter/internal/vm"
)

// What the third patch series is about, in its own setting: one TCP sender in
// guest a, first on one vCPU, then hopping between two. Each vCPU has a tx
// queue, which steering queue makes one of ours, which one worker reads, which
// prefers one tx queue of the port to c. That port's queues share a line, and
// other traffic keeps hopBacklog waiting in the second. So without a flow table
// the stream overtakes itself with each hop from the second to the first.
const (
	hopRate    = 100 // Mbit/s
	hopBacklog = 10 * time.Millisecond
	hopPeriod  = 10 * time.Millisecond
	hopRounds  = 3
	slowAddr   = "10.71.1.3"
)

// A Hop is what came of one sender and one flow table, over all rounds.
type Hop struct {
	Sender      string  `json:"sender"`     // pinned or hopping
	FlowTable   string  `json:"flow_table"` // none, dql or inflight
	MbitS       float64 `json:"mbit_s"`     // goodput at the receiver, median
	Hops        int     `json:"hops"`
	OFO         uint64  `json:"tcp_ofo_queue"` // the receiver's TCPOFOQueue
	Reordered   uint64  `json:"reordered"`     // the router's count
	Moves       uint64  `json:"moves"`
	Refused     uint64  `json:"refused"`
	Retransmits uint64  `json:"retransmits"`

	rates []float64
}

// hops measures all senders and tables in turn.
func (d *demo) hops(ctx context.Context, res *result) error {
	g := d.guests
	g.Hops = []Hop{
		{Sender: "pinned", FlowTable: "none"}, {Sender: "hopping", FlowTable: "none"},
		{Sender: "hopping", FlowTable: "dql"}, {Sender: "hopping", FlowTable: "inflight"},
	}
	d.show.say("a sender that hops between vCPUs")
	load := api.Change{Dev: d.names.slow, Queue: 1, Period: hopBacklog}
	for _, s := range []struct {
		what string
		api.Change
	}{{"steering", api.Change{Dev: d.names.l2a, How: "queue"}}, {"load", load}} {
		if err := d.router.API.Set(ctx, s.what, s.Change); err != nil {
			return err
		}
	}
	for round := range hopRounds {
		for i := range g.Hops {
			h := &g.Hops[i]
			d.show.update("round %d of %d: %s, flow table %s", round+1, hopRounds, h.Sender, h.FlowTable)
			if err := d.hop(ctx, h); err != nil {
				return fmt.Errorf("%s, flow table %s: %w", h.Sender, h.FlowTable, err)
			}
		}
	}
	for i := range g.Hops {
		h := &g.Hops[i]
		slices.Sort(h.rates)
		h.MbitS = h.rates[len(h.rates)/2]
		if h.MbitS == 0 {
			res.fail("%s, flow table %s: no traffic passed", h.Sender, h.FlowTable)
		}
	}
	none, inflight := &g.Hops[1], &g.Hops[3]
	// Not quite none: while the stream moves, both of its queues are read.
	if none.Reordered > 100 && inflight.Reordered*10 > none.Reordered {
		res.fail("a hopping sender: %d packets reordered with flow table inflight, %d without", inflight.Reordered, none.Reordered)
	}
	load.Period = 0
	return d.router.API.Set(ctx, "load", load)
}

// hop is one slice of one row.
func (d *demo) hop(ctx context.Context, h *Hop) error {
	ctx, cancel := context.WithTimeout(ctx, d.opt.Duration+legGrace)
	defer cancel()
	table := api.Change{Dev: d.names.slow, Buckets: flowTable, Mode: h.FlowTable}
	if h.FlowTable == "none" {
		table.Buckets, table.Mode = 0, "inflight"
	}
	if err := d.router.API.Set(ctx, "flow_table", table); err != nil {
		return err
	}
	pin := vm.Pin{CPUs: []int{0}}
	if _, err := d.guests.all[0].Pin(ctx, pin); err != nil {
		return err
	}
	if h.Sender == "hopping" {
		pin = vm.Pin{CPUs: []int{0, 1}, Hop: hopPeriod, For: d.opt.Duration}
	}
	rcv, err := d.guests.c.Listen(ctx, traffic.KindTCP, slowAddr+":0")
	if err != nil {
		return err
	}
	before, err := d.disorder(ctx)
	if err != nil {
		return err
	}
	type pinned struct {
		hops int
		err  error
	}
	end := make(chan pinned, 1)
	go func() {
		n, err := d.guests.all[0].Pin(ctx, pin)
		end <- pinned{n, err}
	}()
	sent, err := d.a.SendTCP(ctx, traffic.TCPSend{To: rcv.Addr, Flows: 1, Duration: d.opt.Duration})
	p := <-end
	for _, e := range []error{err, p.err} {
		if e != nil {
			return e
		}
	}
	got, err := rcv.Finish(ctx, nil, patience)
	if err != nil {
		return err
	}
	after, err := d.disorder(ctx)
	if err != nil {
		return err
	}
	h.rates = append(h.rates, round(traffic.Mbit(got.TCP.Bytes, got.TCP.Elapsed), 1))
	h.Hops += p.hops
	h.Retransmits += sent.Retransmits
	h.OFO += after.ofo - before.ofo
	h.Reordered += after.Reordered - before.Reordered
	h.Moves += after.Moves - before.Moves
	h.Refused += after.Refused - before.Refused
	return nil
}

// flowTable is the number of buckets of a port's flow table by default.
const flowTable = 4096

type disordered struct {
	api.XPS
	ofo uint64
}

// disorder reads the counters of the slow port and of its receiver.
func (d *demo) disorder(ctx context.Context) (s disordered, err error) {
	var all []api.XPS
	if err := d.router.API.Get(ctx, "xps", &all); err != nil {
		return s, err
	}
	for _, x := range all {
		if x.Dev == d.names.slow {
			s.XPS = x
		}
	}
	c, err := d.guests.c.Counters(ctx)
	s.ofo = c["TcpExt.TCPOFOQueue"]
	return s, err
}

// hopTable is the rows as text.
func (g *Guests) hopTable() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\none TCP sender in guest a, hopping between its vCPUs every %v; to a namespace, over a line of %d Mbit/s whose second\n"+
		"tx queue has %v of other traffic waiting; %d rounds in turn, Mbit/s is the median, the rest the sum; TCPOFOQueue is the\n"+
		"receiver's count of segments out of order, reordered the router's of packets that it sent after a later one of the flow\n\n", hopPeriod, hopRate, hopBacklog, hopRounds)
	fmt.Fprintf(&b, "%-9s %-10s %8s %6s %12s %10s %7s %8s %12s\n", "sender", "flow table", "Mbit/s", "hops", "TCPOFOQueue", "reordered", "moves", "refused", "retransmits")
	for _, h := range g.Hops {
		moves, refused := fmt.Sprint(h.Moves), fmt.Sprint(h.Refused)
		if h.FlowTable == "none" { // which is what counts them
			moves, refused = "-", "-"
		}
		fmt.Fprintf(&b, "%-9s %-10s %8.1f %6d %12d %10d %7s %8s %12d\n", h.Sender, h.FlowTable, h.MbitS, h.Hops, h.OFO, h.Reordered, moves, refused, h.Retransmits)
	}
	return b.String()
}
