package main

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"taprouter/control/api"
	"taprouter/control/config"
	"taprouter/control/neigh"
	"taprouter/packet"
)

// goRoom is what the Go runtime may take besides the tables of the data path:
// its own threads and stacks, the control plane, and garbage.
const goRoom = 64 << 20

// limitMemory has the Go runtime collect earlier when it comes to what the
// configuration allows, unless GOMEMLIMIT says something else.
func (r *router) limitMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		v := r.dp.Memory()
		_, tables := v.Bound()
		debug.SetMemoryLimit(int64(tables + goRoom))
	}
}

// huge is the configured kind of pages.
func huge(word string) packet.Huge {
	switch word {
	case config.HugeOn:
		return packet.HugeOn
	case config.HugeOff:
		return packet.HugeOff
	}
	return packet.HugeAuto
}

// Memory is `router memory show`.
func (r *router) Memory() api.Memory {
	v := r.dp.Memory()
	m := api.Memory{Huge: r.conf.Huge, Hugetlb: v.Hugetlb, GoLimit: int(debug.SetMemoryLimit(-1))}
	for i, u := range v.Pool.Kinds() {
		last := len(u.Cached) - 1 // control has the first and the last
		m.Buffers = append(m.Buffers, api.BufferKind{
			Kind: [...]string{"head", "small tail", "tail"}[i], Size: u.Size, Most: u.Total, InUse: u.InUse, Free: u.Free,
			Workers: u.Cached[1:last], Control: u.Cached[0] + u.Cached[last], Untouched: u.Untouched,
		})
	}
	for _, k := range v.Kinds {
		m.Kinds = append(m.Kinds, api.MemoryKind(k))
	}
	m.Kinds = append(m.Kinds, api.MemoryKind{Kind: "neighbour", Size: neigh.EntrySize, Most: neigh.MaxEntries, Now: len(r.neigh.Entries())})
	status := fields("/proc/self/status")
	m.RSS, m.MaxRSS, m.Program = status["VmRSS"], status["VmHWM"], status["RssFile"]
	m.THP = fields("/proc/self/smaps_rollup")["AnonHugePages"]
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	m.GoHeap, m.GoTotal = int(s[0].Value.Uint64()), int(s[1].Value.Uint64()-s[2].Value.Uint64())
	buffers, _ := v.Bound()
	m.Bound = buffers + m.GoLimit
	return m
}

// fields reads the sizes, in bytes, from a file of proc that has them as
// "Name:  number kB".
func fields(file string) map[string]int {
	all := map[string]int{}
	b, _ := os.ReadFile(file) // absent: nothing is known
	for line := range strings.Lines(string(b)) {
		name, rest, _ := strings.Cut(line, ":")
		if w := strings.Fields(rest); len(w) == 2 && w[1] == "kB" {
			n, _ := strconv.Atoi(w[0])
			all[name] = n << 10
		}
	}
	return all
}

func memoryCommand(o *options) *cobra.Command {
	show := func(cmd *cobra.Command, _ []string) error {
		c := api.Dial(o.name)
		defer c.Close()
		var m api.Memory
		if err := c.Get(cmd.Context(), "memory", &m); err != nil {
			return systemError{err}
		}
		if o.json {
			return o.print(m)
		}
		api.PrintMemory(o.out, m)
		return nil
	}
	const long = `Memory is what packets and tables can take, as configured, and what they take.

A packet has a head, and a tail if it is larger; small tails are for what would
leave most of a tail empty. Free buffers lie in the pool and in the caches of
workers; untouched ones were never needed, so that no memory was taken. A
packet that waits counts against its tx queue's share of half of the pool.

Memory.pool in the configuration sizes all buffers together. Memory.huge: auto
takes huge pages that are reserved (vm.nr_hugepages) if they suffice; on has the
kernel make them otherwise, at the price of touching 2 MiB at a time; off.
The bound is that of resident memory without the program's own pages.` + exits
	parent := &cobra.Command{Use: "memory", Short: "Memory: what is taken, what can be", Long: long, Example: "  router memory show",
		Args: cobra.ArbitraryArgs, RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknown(cmd, args[0])
			}
			return show(cmd, args)
		}}
	parent.AddCommand(&cobra.Command{Use: "show", Aliases: []string{"list", "ls"}, Short: "Show it", Long: long, Args: cobra.NoArgs, RunE: show})
	return parent
}
