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
	"taprouter/control/config"
	"taprouter/control/tc"
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
			return []string{"kernel", "random", "hash", "queue"}, cobra.ShellCompDirectiveNoFileComp
		case "gro":
			return []string{"on", "off"}, cobra.ShellCompDirectiveNoFileComp
		case "gso":
			return []string{"on"}, cobra.ShellCompDirectiveNoFileComp
		case "workers":
			return []string{"none"}, cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeQdisc is for dev NAME root|parent :N KIND [options].
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
	case args[2] == "parent":
		next = completeKind(cmd, args[4:], config.PfifoFast, config.FQ)
	default:
		next = completeKind(cmd, args[3:], config.MQ, config.PfifoFast, config.FQ)
	}
	return next, cobra.ShellCompDirectiveNoFileComp
}

// completeKind is for KIND [options], or mq [child KIND [options]].
func completeKind(cmd *cobra.Command, args []string, kinds ...string) []string {
	switch {
	case len(args) == 0 && cmd.Name() == "change":
		return []string{config.FQ}
	case len(args) == 0:
		return kinds
	case args[0] == config.FQ:
		return tc.Next(args[1:])
	case args[0] == config.MQ && len(args) == 1:
		return []string{"child"}
	case args[0] == config.MQ && args[1] == "child":
		return completeKind(cmd, args[2:], config.PfifoFast, config.FQ)
	}
	return nil
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
	for _, d := range api.Dirs() {
		entries, _ := os.ReadDir(d)
		for _, e := range entries {
			if name, ok := strings.CutSuffix(e.Name(), ".sock"); ok {
				names = append(names, name)
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
