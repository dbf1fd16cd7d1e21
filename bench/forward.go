package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"taprouter/control/hostnet"
)

// Layers of a scene.
const (
	layerL2 = "l2" // bridged
	layerL3 = "l3" // routed
)

// LayerNames are what Runner.Layers takes.
var LayerNames = []string{layerL2, layerL3}

// A leg is a row of the tables of `router bench forward`, for each layer.
type leg struct {
	name  string
	about string
	slice func(s *scene) Slice
}

// floodPort is where floods go: discard, RFC 863. The receiving host counts
// what comes, and drops it.
const floodPort = 9

var (
	throughputEntry = forwardEntry(9, "TCP from one namespace to another", "Gbit/s", `What host b reads per second. Without offloads each frame is one segment. With
them the hosts hand over superpackets of up to 64 KiB. "ring drops" found the ring full
that the TAP keeps until the router reads it (host.txqueuelen).`,
		leg{"tcp1", "1 stream", func(s *scene) Slice { return s.throughput(1, true) }},
		leg{"tcp4", "4 streams", func(s *scene) Slice { return s.throughput(4, true) }},
		leg{"tcp1_noff", "1 stream, offloads of both hosts off", func(s *scene) Slice { return s.throughput(1, false) }},
		leg{"tcp4_noff", "4 streams, offloads of both hosts off", func(s *scene) Slice { return s.throughput(4, false) }},
	)
	smallEntry = forwardEntry(10, "UDP in frames of 64 bytes", "kpps", `What host b's device counts per second, and drops, so that the router is measured
and not the host's network stack. Packets that were merged on the way count as many.`,
		leg{"pps1", "1 flow, as fast as the sender can", func(s *scene) Slice { return s.small(1, 0) }},
		leg{"pps64", "64 flows, as fast as the sender can", func(s *scene) Slice { return s.small(64, 0) }},
		leg{"paced", "1 flow, 50 kpps: what a packet costs when nothing is lost", func(s *scene) Slice { return s.small(1, 50_000) }},
	)
	roundTripEntry = forwardEntry(11, "round trips of 64 bytes", "us", `One request at a time, each answered by host b. Less is better.`,
		leg{"rr_udp", "p50 over UDP, idle path", func(s *scene) Slice { return s.roundTrips(true) }},
		leg{"rr_tcp", "p50 over TCP, idle path", func(s *scene) Slice { return s.roundTrips(false) }},
		leg{"rr_udp_load", "p99 over UDP while a TCP stream runs", func(s *scene) Slice { return s.loadedRoundTrips(true) }},
		leg{"rr_tcp_load", "p99 over TCP while a TCP stream runs", func(s *scene) Slice { return s.loadedRoundTrips(false) }},
	)
	memoryEntry = forwardEntry(12, "memory of the router, and its CPU at rest", "MB", `Resident memory: after the start, with the CPU that it takes without traffic; and
the peak under load.`,
		leg{"rest", "without traffic, in a router that has just started", func(s *scene) Slice { return s.rest }},
		leg{"load", "peak while 4 TCP streams run, then 64 flows of small packets", func(s *scene) Slice { return s.load }},
	)
)

// forwardEntry is a table whose rows are legs.
func forwardEntry(number int, title, unit, about string, legs ...leg) Entry {
	e := Entry{Bench: "forward", Number: number, Root: true, Title: title, About: about}
	for _, l := range legs {
		e.About += fmt.Sprintf("\n  %-12s %s", l.name, l.about)
		e.Legs = append(e.Legs, l.name)
	}
	e.Make = func(ctx context.Context, r *Runner) (Table, error) {
		t := Table{Unit: unit, A: r.Settings.String(), Parameters: map[string]any{
			"rounds": r.Rounds, "slice": r.Duration.String(), "addresses": "IPv4", "mtu": 1500,
		}}
		if r.Versus != nil {
			t.B = r.Versus.String()
		}
		for _, layer := range r.Layers {
			rows, err := forwardRows(ctx, r, layer, legs)
			if t.Rows = append(t.Rows, rows...); err != nil {
				return t, err
			}
		}
		return t, nil
	}
	return e
}

// forwardRows makes the rows of one layer, with a router that is started for
// them, or two: the one that is not measured sleeps.
func forwardRows(ctx context.Context, r *Runner, layer string, legs []leg) (rows []Row, err error) {
	legs = slices.DeleteFunc(slices.Clone(legs), func(l leg) bool { return r.Legs != nil && !slices.Contains(r.Legs, l.name) })
	if len(legs) == 0 {
		return nil, nil
	}
	settings := []Settings{r.Settings}
	if r.Versus != nil {
		settings = append(settings, r.Settings.With(r.Versus))
	}
	var all []*scene
	defer func() {
		for _, s := range all {
			err = errors.Join(err, s.close())
		}
	}()
	for _, set := range settings {
		s, err := forwardScene(ctx, r, set.plan(layer))
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	for _, l := range legs {
		var b Slice
		if r.Versus != nil {
			b = l.slice(all[1])
		}
		row, err := r.Measure(ctx, Row{Name: layer + " " + l.name, zeros: true}, l.slice(all[0]), b)
		if err != nil {
			return rows, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// forwardScene starts a router whose hosts are silent, and b takes floods.
func forwardScene(ctx context.Context, r *Runner, p plan) (*scene, error) {
	s, err := startScene(ctx, r, p)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{s.nsA, s.nsB} { // reports of multicast groups, router solicitations
		err = errors.Join(err, setSysctl(name, "ipv6/conf/all/disable_ipv6", "1"))
	}
	err = errors.Join(err, inNetNS(s.nsB, func(ns *hostnet.NS) error { return ns.DropUDP(s.devB, floodPort) }))
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// Reordered says in which rows the router handed packets to a device out of
// order. It must not.
func Reordered(rep Report) error {
	var bad []string
	for _, t := range rep.Tables {
		for _, row := range t.Rows {
			for _, e := range row.Extra {
				if n := max(e.A.Max, e.B.Max); e.Name == extraReordered && n > 0 {
					bad = append(bad, fmt.Sprintf("%s: %.0f packets reordered in a round", row.Name, n))
				}
			}
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return errors.New(strings.Join(bad, "; "))
}
