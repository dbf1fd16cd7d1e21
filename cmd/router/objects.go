package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"taprouter/control/api"
)

// An object is something to show: OBJECT [show] [dev X].
type object struct {
	name, short string
	show        func(ctx context.Context, c *api.Client, o *options, dev string) error
}

// showing makes the show function of an object: fetch, keep what belongs to
// dev, print.
func showing[T any](what string, dev func(T) []string, text func(w io.Writer, all []T, o *options, dev string)) func(context.Context, *api.Client, *options, string) error {
	return func(ctx context.Context, c *api.Client, o *options, want string) error {
		all := []T{}
		if err := c.Get(ctx, what, &all); err != nil {
			return systemError{err}
		}
		if want != "" {
			if err := known(ctx, c, want); err != nil {
				return err
			}
			all = slices.DeleteFunc(all, func(v T) bool { return !slices.Contains(dev(v), want) })
		}
		if o.json {
			return o.print(all)
		}
		text(o.out, all, o, want)
		return nil
	}
}

// known says which devices there are when dev is none of them.
func known(ctx context.Context, c *api.Client, dev string) error {
	var links []api.Link
	if err := c.Get(ctx, "links", &links); err != nil {
		return systemError{err}
	}
	names := []string{}
	for _, l := range links {
		if l.Name == dev || l.Master == dev {
			return nil
		}
		names = append(names, l.Name)
	}
	return fmt.Errorf("there is no port %q; there are %s", dev, strings.Join(names, ", "))
}

// print writes v as JSON.
func (o *options) print(v any) error {
	e := json.NewEncoder(o.out)
	if o.pretty {
		e.SetIndent("", "    ")
	}
	return e.Encode(v)
}

var objects = []object{
	{"link", "Ports: state, offloads, counters of each queue", showing("links", func(l api.Link) []string { return []string{l.Name, l.Master} },
		func(w io.Writer, all []api.Link, o *options, _ string) { api.PrintLinks(w, all, o.stats) })},
	{"qdisc", "Queueing disciplines, as tc shows them", showing("qdiscs", func(q api.Qdisc) []string { return []string{q.Dev} },
		func(w io.Writer, all []api.Qdisc, o *options, dev string) {
			api.PrintQdiscs(w, all, o.stats, dev == "")
		})},
	{"xps", "Which worker prefers which tx queue, and the flow table", showing("xps", func(x api.XPS) []string { return []string{x.Dev} },
		func(w io.Writer, all []api.XPS, o *options, _ string) { api.PrintXPS(w, all, o.stats) })},
	{"bql", "Byte queue limits of tx queues", showing("bql", func(b api.BQL) []string { return []string{b.Dev} },
		func(w io.Writer, all []api.BQL, o *options, _ string) { api.PrintBQL(w, all, o.stats) })},
	{"fdb", "MAC tables of bridges", showing("fdb", func(f api.FDB) []string { return []string{f.Dev, f.Master} },
		func(w io.Writer, all []api.FDB, o *options, _ string) { api.PrintFDB(w, all, o.stats) })},
	{"route", "Routes", showing("routes", func(r api.Route) []string { return []string{r.Dev} },
		func(w io.Writer, all []api.Route, _ *options, _ string) { api.PrintRoutes(w, all) })},
	{"neigh", "Neighbours of routed ports", showing("neighs", func(n api.Neigh) []string { return []string{n.Dev} },
		func(w io.Writer, all []api.Neigh, _ *options, _ string) { api.PrintNeighs(w, all) })},
	{"drops", "Dropped packets and why", showing("drops", func(d api.Drop) []string { return []string{d.Port} },
		func(w io.Writer, all []api.Drop, _ *options, _ string) { api.PrintDrops(w, all) })},
}

// addObjects adds OBJECT, OBJECT show and what can be set.
func addObjects(root *cobra.Command, o *options) {
	for _, ob := range objects {
		show := func(cmd *cobra.Command, args []string) error {
			words, err := keywords(args, "dev")
			if err != nil {
				return err
			}
			c := api.Dial(o.name)
			defer c.Close()
			return ob.show(cmd.Context(), c, o, words["dev"])
		}
		parent := &cobra.Command{Use: ob.name, Short: ob.short, Args: cobra.ArbitraryArgs, RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && args[0] != "dev" {
				return unknown(cmd, args[0])
			}
			return show(cmd, args)
		}}
		parent.AddCommand(&cobra.Command{Use: "show [dev NAME]", Aliases: []string{"list", "ls"}, Short: "Show them", RunE: show})
		parent.AddCommand(changes(ob.name, o)...)
		root.AddCommand(parent)
	}
	root.AddCommand(&cobra.Command{Use: "status", Short: "The router as a whole; adds its packets up", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := api.Dial(o.name)
			defer c.Close()
			var s api.Status
			if err := c.Get(cmd.Context(), "status", &s); err != nil {
				return systemError{err}
			}
			if o.json {
				return o.print(s)
			}
			api.PrintStatus(o.out, s)
			return nil
		}})
}

// changes are the commands of an object that change something.
func changes(object string, o *options) []*cobra.Command {
	set := func(use, short string, parse func(args []string) (what string, c api.Change, err error)) *cobra.Command {
		return &cobra.Command{Use: use, Short: short, RunE: func(cmd *cobra.Command, args []string) error {
			what, change, err := parse(args)
			if err != nil {
				return fmt.Errorf("%w; usage: router %s %s", err, object, use)
			}
			c := api.Dial(o.name)
			defer c.Close()
			if err := c.Set(cmd.Context(), what, change); err != nil {
				return systemError{err}
			}
			return nil
		}}
	}
	switch object {
	case "xps":
		return []*cobra.Command{set("set dev NAME queue N workers LIST | set dev NAME flow_table_cnt N [mode inflight|dql]",
			"Change which workers prefer a queue, or the flow table; live, in order", parseXPS)}
	case "link":
		return []*cobra.Command{set("set dev NAME txqueuelen N | set dev NAME queues N", "Change the length or the number of a port's queues", parseLink)}
	case "bql":
		return []*cobra.Command{set("set dev NAME queue N limit_min|limit_max|hold_time|stall_thrs|stall_max VALUE", "Change a byte queue limit", parseBQL)}
	case "qdisc":
		return []*cobra.Command{set("replace dev NAME root|parent :N KIND", "Graft another qdisc; packets move over in order", parseQdisc)}
	}
	return nil
}

func parseLink(args []string) (what string, c api.Change, err error) {
	w, err := keywords(args, "dev", "txqueuelen", "queues")
	if err != nil {
		return "", c, err
	}
	c.Dev = w["dev"]
	if _, ok := w["queues"]; ok {
		c.Queues, err = number(w, "queues")
		return "queues", c, err
	}
	c.Len, err = number(w, "txqueuelen")
	return "txqlen", c, err
}

func parseXPS(args []string) (what string, c api.Change, err error) {
	w, err := keywords(args, "dev", "queue", "workers", "flow_table_cnt", "mode")
	if err != nil {
		return "", c, err
	}
	c.Dev = w["dev"]
	if _, ok := w["flow_table_cnt"]; ok {
		c.Mode = w["mode"]
		c.Buckets, err = number(w, "flow_table_cnt")
		return "flow_table", c, err
	}
	if c.Queue, err = number(w, "queue"); err != nil {
		return "", c, err
	}
	list, ok := w["workers"]
	if !ok {
		return "", c, errors.New("workers is missing")
	}
	c.Workers, err = parseList(list)
	return "xps", c, err
}

func parseBQL(args []string) (what string, c api.Change, err error) {
	w, err := keywords(args, "dev", "queue", "limit_min", "limit_max", "hold_time", "stall_thrs", "stall_max")
	if err != nil {
		return "bql", c, err
	}
	c.Dev = w["dev"]
	if c.Queue, err = number(w, "queue"); err != nil {
		return "bql", c, err
	}
	for key, value := range w {
		if key == "dev" || key == "queue" {
			continue
		}
		if c.Key != "" {
			return "bql", c, errors.New("one setting at a time")
		}
		if c.Key = key; value == "max" {
			value = "1879048192" // DQL_MAX_LIMIT
		}
		if c.Value, err = strconv.ParseUint(value, 10, 32); err != nil {
			return "bql", c, fmt.Errorf("%s %q: want a number", key, value)
		}
	}
	if c.Key == "" {
		return "bql", c, errors.New("which setting?")
	}
	return "bql", c, nil
}

func parseQdisc(args []string) (what string, c api.Change, err error) {
	if len(args) < 4 || args[0] != "dev" {
		return "qdisc", c, errors.New("dev, place and kind are needed")
	}
	c.Dev, c.Child = args[1], -1
	rest := args[3:]
	switch args[2] {
	case "root":
	case "parent":
		_, minor, ok := strings.Cut(rest[0], ":")
		n, err := strconv.ParseUint(minor, 16, 16)
		if !ok || err != nil || n == 0 {
			return "qdisc", c, fmt.Errorf("parent %q: want :N in hex, from :1", rest[0])
		}
		c.Child, rest = int(n)-1, rest[1:]
	default:
		return "qdisc", c, fmt.Errorf("%q: want root or parent", args[2])
	}
	if len(rest) != 1 {
		return "qdisc", c, errors.New("one kind is needed, mq or pfifo_fast")
	}
	c.Kind = rest[0]
	return "qdisc", c, nil
}

// keywords reads `word value word value`, each word one of allowed.
func keywords(args []string, allowed ...string) (map[string]string, error) {
	w := map[string]string{}
	for i := 0; i < len(args); i += 2 {
		switch {
		case !slices.Contains(allowed, args[i]):
			return nil, fmt.Errorf("%q: want %s", args[i], strings.Join(allowed, ", "))
		case i+1 == len(args):
			return nil, fmt.Errorf("%s needs a value", args[i])
		}
		w[args[i]] = args[i+1]
	}
	if slices.Contains(allowed, "dev") && len(allowed) > 1 && w["dev"] == "" {
		return nil, errors.New("dev is missing")
	}
	return w, nil
}

func number(w map[string]string, key string) (int, error) {
	s, ok := w[key]
	if !ok {
		return 0, fmt.Errorf("%s is missing", key)
	}
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%s %q: want a number", key, s)
	}
	return int(n), nil
}

// parseList reads numbers and ranges, 0,2-3, or none.
func parseList(s string) ([]int, error) {
	list := []int{}
	if s == "none" {
		return list, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		a, err1 := strconv.ParseUint(from, 10, 16)
		b, err2 := strconv.ParseUint(to, 10, 16)
		if err1 != nil || err2 != nil || a > b {
			return nil, fmt.Errorf("workers %q: want a list such as 0,2-3, or none", s)
		}
		for n := a; n <= b; n++ {
			list = append(list, int(n))
		}
	}
	return list, nil
}
