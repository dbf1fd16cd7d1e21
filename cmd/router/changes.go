package main

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"taprouter/control/api"
	"taprouter/control/config"
	"taprouter/control/tc"
	"taprouter/qdisc"
	"taprouter/tun"
)

// changes are the commands of an object that change something.
func changes(object string, o *options) []*cobra.Command {
	set := func(use, short string, words completion, parse func(args []string) (what string, c api.Change, err error)) []*cobra.Command {
		return []*cobra.Command{{Use: use, Short: short, Long: short + "." + exits, ValidArgsFunction: words, RunE: func(cmd *cobra.Command, args []string) error {
			what, change, err := parse(args)
			warnings := []string(nil)
			if err == nil {
				warnings, err = checkOptions(change.Options)
			}
			if err != nil {
				return fmt.Errorf("%w; usage: router %s %s", err, object, use)
			}
			c := api.Dial(o.name)
			defer c.Close()
			for _, w := range warnings {
				fmt.Fprintln(o.err, "warning:", w)
			}
			if err := known(cmd.Context(), c, change.Dev); err != nil {
				return err
			}
			if err := c.Set(cmd.Context(), what, change); err != nil {
				return systemError{err}
			}
			return nil
		}}}
	}
	switch object {
	case "xps":
		return set("set dev NAME queue N workers LIST | set dev NAME flow_table_cnt N [mode inflight|dql] | set dev NAME hop TIME|off",
			"Change which workers prefer a queue, or the flow table; live, in order",
			o.complete("dev", "queue", "workers", "flow_table_cnt", "mode", "hop"), parseXPS)
	case "link":
		return set("set dev NAME txqueuelen N | set dev NAME queues N | set dev NAME steering kernel|random|hash|queue | set dev NAME gro on|off | set dev NAME gso on",
			"Change the length or the number of a port's queues, how the kernel chooses among them, merging, or send refused superpackets again",
			o.complete("dev", "txqueuelen", "queues", "steering", "gro", "gso"), parseLink)
	case "bql":
		return set("set dev NAME queue N limit_min|limit_max|hold_time|stall_thrs|stall_max VALUE", "Change a byte queue limit",
			o.complete("dev", "queue", "limit_min", "limit_max", "hold_time", "stall_thrs", "stall_max"), parseBQL)
	case "qdisc":
		return append(set("replace dev NAME root|parent :N KIND [OPTIONS] | replace dev NAME root mq [child KIND [OPTIONS]]",
			"Graft another qdisc; packets move over in order", o.completeQdisc, parseQdisc),
			set("change dev NAME root|parent :N fq OPTIONS", "Change options of an fq; the others stay, and so do packets", o.completeQdisc, parseQdiscChange)...)
	case "line":
		return set("load dev NAME queue N backlog TIME|off", "Keep a tx queue of a line busy with frames that nobody reads, for tests",
			o.complete("dev", "queue", "backlog"), parseLoad)
	}
	return nil
}

// checkOptions finds bad usage before the router is asked.
func checkOptions(words []string) (warnings []string, err error) {
	if len(words) == 0 {
		return nil, nil
	}
	cfg := qdisc.DefaultFQ(config.DefaultMTU)
	return tc.FQOptions(&cfg, words)
}

func parseLoad(args []string) (what string, c api.Change, err error) {
	w, err := keywords(args, "dev", "queue", "backlog")
	if err != nil {
		return "", c, err
	}
	c.Dev = w["dev"]
	if c.Queue, err = number(w, "queue"); err != nil {
		return "", c, err
	}
	c.Period, err = period(w, "backlog")
	return "load", c, err
}

func parseLink(args []string) (what string, c api.Change, err error) {
	if hasWord(args, "steering") && !hasWord(args, "queues") {
		w, err := keywords(args, "dev", "steering")
		if err != nil {
			return "", c, err
		}
		c.Dev = w["dev"]
		s, err := tun.ParseSteering(w["steering"])
		c.How = s.String()
		return "steering", c, err
	}
	if hasWord(args, "gro") {
		w, err := keywords(args, "dev", "gro")
		if err == nil && w["gro"] != "on" && w["gro"] != "off" {
			err = fmt.Errorf("gro %q: want on or off", w["gro"])
		}
		c.Dev, c.GRO = w["dev"], w["gro"] == "on"
		return "gro", c, err
	}
	if hasWord(args, "gso") {
		w, err := keywords(args, "dev", "gso")
		if err == nil && w["gso"] != "on" {
			err = fmt.Errorf("gso %q: want on; to have all superpackets segmented configure accept: [csum]", w["gso"])
		}
		c.Dev = w["dev"]
		return "gso", c, err
	}
	if hasWord(args, "queues") {
		w, err := keywords(args, "dev", "queues")
		if err != nil {
			return "", c, err
		}
		c.Dev = w["dev"]
		c.Queues, err = number(w, "queues")
		return "queues", c, err
	}
	w, err := keywords(args, "dev", "txqueuelen")
	if err != nil {
		return "", c, err
	}
	c.Dev = w["dev"]
	c.Len, err = number(w, "txqueuelen")
	return "txqlen", c, err
}

func parseXPS(args []string) (what string, c api.Change, err error) {
	if hasWord(args, "flow_table_cnt") || hasWord(args, "mode") {
		w, err := keywords(args, "dev", "flow_table_cnt", "mode")
		if err != nil {
			return "", c, err
		}
		c.Dev, c.Mode = w["dev"], w["mode"]
		c.Buckets, err = number(w, "flow_table_cnt")
		return "flow_table", c, err
	}
	if hasWord(args, "hop") {
		w, err := keywords(args, "dev", "hop")
		if err != nil {
			return "", c, err
		}
		c.Dev = w["dev"]
		c.Period, err = period(w, "hop")
		return "hop", c, err
	}
	w, err := keywords(args, "dev", "queue", "workers")
	if err != nil {
		return "", c, err
	}
	c.Dev = w["dev"]
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
	if len(rest) == 0 {
		return "qdisc", c, errors.New("a kind is needed, mq, pfifo_fast or fq")
	}
	c.Kind, rest = rest[0], rest[1:]
	if c.Kind == config.MQ && len(rest) > 0 {
		if rest[0] != "child" || len(rest) == 1 {
			return "qdisc", c, fmt.Errorf("mq: %q: want child and its kind", strings.Join(rest, " "))
		}
		c.Children, rest = rest[1], rest[2:]
	}
	if kind := cmp.Or(c.Children, c.Kind); len(rest) > 0 && kind != config.FQ {
		return "qdisc", c, fmt.Errorf("%q: %s has no options; fq has", strings.Join(rest, " "), kind)
	}
	c.Options = rest
	return "qdisc", c, nil
}

func parseQdiscChange(args []string) (what string, c api.Change, err error) {
	if _, c, err = parseQdisc(args); err != nil {
		return "", c, err
	}
	if c.Kind != config.FQ || len(c.Options) == 0 {
		return "", c, errors.New("fq and at least one option are needed")
	}
	return "qdisc_change", c, nil
}
