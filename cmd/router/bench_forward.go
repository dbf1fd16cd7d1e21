package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"taprouter/bench"
	"taprouter/control/config"
)

// forwardFlags are what a user may ask for besides.
type forwardFlags struct {
	benchFlags
	legs, layers []string
	set, versus  []string
	queues       int
	qdisc        string
}

// benchForward is the command that measures the router as a whole.
func benchForward(o *options) *cobra.Command {
	var f forwardFlags
	c := &cobra.Command{
		Use: "forward", Short: "The router between two namespaces: TCP, small packets, round trips, CPU, memory",
		Args: exactly(0, "router bench forward takes flags only"),
		Long: `forward starts router run between two namespaces (root) and measures each leg
bridged (l2) and routed (l3). The traffic ends are this program too; nothing else
has to be installed. Below each row stand the router's CPU time, what TAPs dropped
before the router could read it (ring drops), and reordered: packets that were
handed to a device out of order, which must be none.

With --versus there are two routers, A and B, measured in turn. KEY is a key of
the configuration: workers of the whole file, port.qdisc of both ports,
port.host.txqueuelen of the kernel's side of both.

` + tablesHelp("forward") + `

Exit status: 0 done, 1 bad usage, 3 packets were reordered or nothing was measured,
130 interrupted; what was complete is printed.`,
		Example: `  router bench forward
  router bench forward --leg tcp4_noff,pps64 --queues 2 --versus port.queues=1
  router bench forward --table 11 --versus 'port.qdisc={kind: mq, child: {kind: fq}}'
  router bench forward --json > out.json && go run ./bench/plot -o docs out.json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			entries, err := f.check("forward")
			if err != nil {
				return err
			}
			r, err := f.runner(entries)
			if err != nil {
				return err
			}
			return f.run(cmd.Context(), o, "forward", entries, r)
		},
	}
	f.register(c, time.Second)
	fs := c.Flags()
	fs.StringSliceVar(&f.legs, "leg", nil, "names of legs (default all)")
	fs.StringSliceVar(&f.layers, "layer", bench.LayerNames, "l2, l3 or both")
	fs.IntVar(&f.queues, "queues", 0, "of each port (default the router's)")
	fs.StringVar(&f.qdisc, "qdisc", "", "of each queue: pfifo_fast or fq (default the router's)")
	fs.StringArrayVar(&f.set, "set", nil, "KEY=VALUE of the configuration; may be repeated")
	fs.StringArrayVar(&f.versus, "versus", nil, "KEY=VALUE in which B differs from A; may be repeated")
	return c
}

// runner judges the flags that are special to this bench.
func (f *forwardFlags) runner(entries []bench.Entry) (r bench.Runner, err error) {
	r.Legs, r.Layers = f.legs, f.layers
	var legs []string
	for _, e := range entries {
		legs = append(legs, e.Legs...)
	}
	for flag, v := range map[string]struct{ got, known []string }{"leg": {f.legs, legs}, "layer": {f.layers, bench.LayerNames}} {
		for _, name := range v.got {
			if !slices.Contains(v.known, name) {
				return r, fmt.Errorf("--%s %q: want one of %s", flag, name, strings.Join(v.known, ", "))
			}
		}
	}
	if r.Settings, err = f.settings(); err != nil {
		return r, err
	}
	if len(f.versus) == 0 {
		return r, nil
	}
	if r.Versus, err = bench.ParseSettings(f.versus); err == nil {
		err = r.Settings.With(r.Versus).Check()
	}
	if err != nil {
		return r, fmt.Errorf("--versus: %w", err)
	}
	return r, nil
}

// settings are those of A.
func (f *forwardFlags) settings() (bench.Settings, error) {
	short := bench.Settings{}
	if f.queues != 0 {
		short["port.queues"] = strconv.Itoa(f.queues)
		if err := short.Check(); err != nil {
			return nil, fmt.Errorf("--queues %d: %w", f.queues, err)
		}
	}
	switch f.qdisc {
	case "":
	case config.PfifoFast, config.FQ:
		short["port.qdisc"] = "{kind: mq, child: {kind: " + f.qdisc + "}}"
	default:
		return nil, fmt.Errorf("--qdisc %q: want %s or %s", f.qdisc, config.PfifoFast, config.FQ)
	}
	set, err := bench.ParseSettings(f.set)
	if err == nil {
		set = short.With(set)
		err = set.Check()
	}
	if err != nil {
		return nil, fmt.Errorf("--set: %w", err)
	}
	return set, nil
}
