package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
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
