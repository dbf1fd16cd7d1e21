package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"taprouter/control/api"
)

// A completion proposes what may come next on the command line.
type completion = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective)

// complete proposes the words that are not used yet, and their values.
func (o *options) complete(words ...string) completion {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args)%2 == 0 {
			return slices.DeleteFunc(slices.Clone(words), func(w string) bool { return hasWord(args, w) }), cobra.ShellCompDirectiveNoFileComp
		}
		switch args[len(args)-1] {
		case "dev":
			return o.devices(cmd.Context()), cobra.ShellCompDirectiveNoFileComp
		case "mode":
			return []string{"inflight", "dql"}, cobra.ShellCompDirectiveNoFileComp
		case "steering":
			return []string{"kernel", "random", "hash"}, cobra.ShellCompDirectiveNoFileComp
		case "workers":
			return []string{"none"}, cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeQdisc is for dev NAME root|parent :N KIND.
func (o *options) completeQdisc(cmd *cobra.Command, args []string, _ string) (next []string, _ cobra.ShellCompDirective) {
	switch n := len(args); {
	case n == 0:
		next = []string{"dev"}
	case n == 1:
		next = o.devices(cmd.Context())
	case n == 2:
		next = []string{"root", "parent"}
	case n == 3 && args[2] == "parent":
		next = o.classes(cmd.Context(), args[1])
	case n == 3:
		next = []string{"mq", "pfifo_fast"}
	case n == 4 && args[2] == "parent":
		next = []string{"pfifo_fast"}
	}
	return next, cobra.ShellCompDirectiveNoFileComp
}

// links asks the router, but not for long: somebody has pressed Tab.
func (o *options) links(ctx context.Context) (all []api.Link) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c := api.Dial(o.name)
	defer c.Close()
	if c.Get(ctx, "links", &all) != nil {
		return nil
	}
	return all
}

func (o *options) devices(ctx context.Context) (names []string) {
	for _, l := range o.links(ctx) {
		names = append(names, l.Name)
	}
	return names
}

// classes are mq's, one for each tx queue of dev.
func (o *options) classes(ctx context.Context, dev string) (ids []string) {
	for _, l := range o.links(ctx) {
		for q := range l.Queues {
			if l.Name == dev {
				ids = append(ids, fmt.Sprintf(":%x", q+1))
			}
		}
	}
	return ids
}

// completeFile proposes configurations.
func completeFile(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}

// completeName proposes the routers that have a socket.
func completeName(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
	entries, _ := os.ReadDir(api.Dir)
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".sock"); ok {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
