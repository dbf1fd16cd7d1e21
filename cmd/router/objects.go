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
	"taprouter/packet"
)

// An object is something to show: OBJECT [show] [dev X].
type object struct {
	name, short, long, example string
	show                       showFunc
}

// A showFunc prints what belongs to dev, or all if that is empty.
type showFunc func(ctx context.Context, c *api.Client, o *options, dev string) error

// fetch asks for a list and keeps what belongs to the port or bridge want.
func fetch[T any](ctx context.Context, c *api.Client, what, want string, dev func(T) []string) ([]T, error) {
	all := []T{}
	if err := c.Get(ctx, what, &all); err != nil {
		return nil, systemError{err}
	}
	if want == "" {
		return all, nil
	}
	if err := known(ctx, c, want); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(v T) bool { return !slices.Contains(dev(v), want) }), nil
}

// showing makes the showFunc of an object.
func showing[T any](what string, dev func(T) []string, text func(w io.Writer, all []T, o *options, dev string)) showFunc {
	return func(ctx context.Context, c *api.Client, o *options, want string) error {
		all, err := fetch(ctx, c, what, want, dev)
		if err != nil {
			return err
		}
		if o.json {
			return o.print(all)
		}
		text(o.out, all, o, want)
		return nil
	}
}

// showDrops shows drops; with -a also the reasons that did not happen.
func showDrops(ctx context.Context, c *api.Client, o *options, want string) error {
	all, err := fetch(ctx, c, "drops", want, func(d api.Drop) []string { return []string{d.Port} })
	if err != nil {
		return err
	}
	for r := packet.NotDropped + 1; o.all && r < packet.NumReasons; r++ {
		if !slices.ContainsFunc(all, func(d api.Drop) bool { return d.Reason == r.String() }) {
			all = append(all, api.Drop{Port: want, Reason: r.String(), Text: r.Text()})
		}
	}
	if o.json {
		return o.print(all)
	}
	api.PrintDrops(o.out, all)
	return nil
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

// exits ends the help of every command that asks a running router.
const exits = "\n\nExit status: 0 done, 1 bad usage, 2 refused, or there is no such router."

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
		parent := &cobra.Command{Use: ob.name, Short: ob.short, Long: ob.long + exits, Example: ob.example,
			Args: cobra.ArbitraryArgs, ValidArgsFunction: o.complete("dev"), RunE: func(cmd *cobra.Command, args []string) error {
				if len(args) > 0 && args[0] != "dev" {
					return unknown(cmd, args[0])
				}
				return show(cmd, args)
			}}
		if ob.name == "qdisc" {
			parent.PersistentFlags().BoolP("details", "d", false, "accepted as tc's; the options of fq are always printed")
		}
		if ob.name == "drops" {
			parent.PersistentFlags().BoolVarP(&o.all, "all", "a", false, "print the reasons that did not happen too")
		}
		parent.AddCommand(&cobra.Command{Use: "show [dev NAME]", Aliases: []string{"list", "ls"}, Short: "Show them",
			Long: ob.long + exits, Example: ob.example, ValidArgsFunction: o.complete("dev"), RunE: show})
		parent.AddCommand(changes(ob.name, o)...)
		root.AddCommand(parent)
	}
	root.AddCommand(statusCommand(o), memoryCommand(o))
}

func statusCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "The router as a whole; adds its packets up", Args: cobra.NoArgs,
		Long: `status prints since when the router runs and its packet count: what came in or
was made by the router itself equals what was sent, waits, was taken by the
control plane or was dropped, in wire packets.` + exits,
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
		},
	}
}
