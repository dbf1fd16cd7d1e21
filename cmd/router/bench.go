package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"taprouter/bench"
	"taprouter/demo"
	"taprouter/packet"
)

// maxThreads bounds --threads: the published tables end at 16.
const maxThreads = 256

func benchCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use: "bench", Short: "Measure the router, and parts of it against other ways to do the same", Args: cobra.ArbitraryArgs,
		Long: `bench compares two ways, A and B, to do the same thing in one run, by
slices of time in turn: A B, B A, A B and so on. Each row of a table is the median
of the rounds and [min-max]; B/A is the ratio within a round, so that what else
the machine does hits both sides. Trust ratios, not packets/s, and a ratio only
as far as its [min-max]. "published" are the medians that the kernel's patches
came with, on their machines. Tables that measure router run between namespaces
need root, and take some minutes. bench forward measures the router as a whole;
it compares if you say what with.

` + tablesHelp("xmit") + "\n\n" + tablesHelp("steer") + "\n\n" + tablesHelp("forward"),
		Example: `  router bench xmit
  router bench xmit --table 1,3 --threads 1,2 --burst 1,32
  router bench steer --json > out.json
  router bench forward --leg tcp1,pps1 --versus port.host.txqueuelen=8000`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknown(cmd, args[0])
			}
			return cmd.Help()
		},
	}
	c.AddCommand(benchForward(o), benchTables(o, "xmit", "Qdiscs, their locks, byte queue limits, fq, stopped queues",
		`In tables 1 to 4, and the first rows of 6, xmit lets threads send 64-byte packets as fast as they can, in bursts, through a
qdisc, with byte queue limits and statistics, to a device that takes everything at
once: pktgen's queue_xmit mode. What the device got in a second is counted. The run
fails if a packet is lost or a flow reordered. What a full qdisc refuses is sent
again and counted as "refused %"; "ns/packet" is wall time, all threads together.
More threads than cores take turns, and such rows are marked. The published
numbers are of bursts of one packet (--burst 1). Tables 6 and 8 need root; slices in namespaces are 4 and 12 times as
long as --duration says, those of table 5 twice.`),
		benchTables(o, "steer", "TCP whose preferred tx queue changes all the time",
			`steer starts router run between two namespaces and sends real TCP through it (root).
A slice is four times as long as --duration says; --threads and --burst do not apply.`))
	return c
}

// tablesHelp explains the tables of a command.
func tablesHelp(name string) string {
	var b strings.Builder
	for _, e := range bench.Entries(name) {
		root := ""
		if e.Root {
			root = " (root)"
		}
		fmt.Fprintf(&b, "Table %d of %s%s: %s.\n%s\n\n", e.Number, name, root, e.Title, e.About)
	}
	return strings.TrimRight(b.String(), "\n")
}

// benchFlags are what a user may ask for.
type benchFlags struct {
	tables, threads, bursts []int
	rounds                  int
	duration                time.Duration
}

// benchTables is the command for the tables of one bench.
func benchTables(o *options, name, short, long string) *cobra.Command {
	var f benchFlags
	c := &cobra.Command{
		Use: name, Short: short, Args: exactly(0, "router bench "+name+" takes flags only"),
		Long: long + "\n\n" + tablesHelp(name) + `

Exit status: 0 done, 1 bad usage, 3 packets were lost or reordered, 130 interrupted;
what was complete is printed.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			entries, err := f.check(name)
			if err != nil {
				return err
			}
			return f.run(cmd.Context(), o, name, entries, bench.Runner{Threads: f.threads, Bursts: f.bursts})
		},
	}
	f.register(c, 250*time.Millisecond)
	c.Flags().IntSliceVar(&f.threads, "threads", nil, "numbers of threads (default those published)")
	c.Flags().IntSliceVar(&f.bursts, "burst", []int{32}, fmt.Sprintf("packets of a burst, up to %d", packet.MaxBatch))
	return c
}

// register has the flags that every bench has.
func (f *benchFlags) register(c *cobra.Command, duration time.Duration) {
	fs := c.Flags()
	fs.IntSliceVar(&f.tables, "table", nil, "numbers of tables (default all)")
	fs.IntVar(&f.rounds, "rounds", 5, "rounds that count; one more comes before")
	fs.DurationVar(&f.duration, "duration", duration, "of a slice; a round has one of A and one of B")
}

// check judges the flags and gives the tables to make.
func (f *benchFlags) check(name string) (list []bench.Entry, err error) {
	if f.rounds < 1 {
		return nil, fmt.Errorf("--rounds %d: want 1 or more", f.rounds)
	}
	if f.duration < time.Millisecond {
		return nil, fmt.Errorf("--duration %v: want 1ms or more", f.duration)
	}
	if err := errors.Join(inRange("threads", f.threads, maxThreads), inRange("burst", f.bursts, packet.MaxBatch)); err != nil {
		return nil, err
	}
	all := bench.Entries(name)
	if len(f.tables) == 0 {
		return all, nil
	}
	for _, n := range f.tables {
		i := slices.IndexFunc(all, func(e bench.Entry) bool { return e.Number == n })
		if i < 0 {
			return nil, fmt.Errorf("--table %d: %s has tables %d to %d", n, name, all[0].Number, all[len(all)-1].Number)
		}
		list = append(list, all[i])
	}
	return list, nil
}

func inRange(flag string, values []int, most int) error {
	for _, n := range values {
		if n < 1 || n > most {
			return fmt.Errorf("--%s %d: want 1 to %d", flag, n, most)
		}
	}
	return nil
}

// run makes tables with a runner that knows what is special to them.
func (f *benchFlags) run(ctx context.Context, o *options, name string, entries []bench.Entry, r bench.Runner) error {
	p := newBenchProgress(o.err)
	self, err := os.Executable()
	if err != nil {
		return systemError{err}
	}
	r.Rounds, r.Duration, r.Progress, r.Router, r.Agent = f.rounds, f.duration, p.show, self, demo.AgentCommand
	rep, err := r.Run(ctx, name, entries)
	p.clear()
	if len(rep.Tables) > 0 || err == nil {
		if err := printReport(o, rep); err != nil {
			return systemError{err}
		}
	}
	if err == nil && name == "forward" {
		err = bench.Reordered(rep)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return exitError{code: demo.ExitStopped, err: errors.New("interrupted; the tables are incomplete")}
	}
	return exitError{code: demo.ExitFailed, err: err}
}

func printReport(o *options, rep bench.Report) error {
	if !o.json {
		bench.Print(o.out, rep)
		return nil
	}
	enc := json.NewEncoder(o.out)
	if o.pretty {
		enc.SetIndent("", "    ")
	}
	return enc.Encode(rep)
}

// A benchProgress shows where a run is: on a terminal one line that changes,
// elsewhere a line for each row that is complete.
type benchProgress struct {
	w   io.Writer
	tty bool
}

func newBenchProgress(w io.Writer) *benchProgress {
	return &benchProgress{w: w, tty: isTerminal(w)}
}

// isTerminal reports whether f is a terminal, where somebody looks and types.
func isTerminal(f any) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

// clearLine is the return to the line's start and ECMA-48 EL, erase to its end.
const clearLine = "\r\x1b[K"

func (p *benchProgress) show(text string, done bool) {
	switch {
	case p.tty:
		fmt.Fprint(p.w, clearLine+text)
	case done:
		fmt.Fprintln(p.w, text)
	}
}

func (p *benchProgress) clear() {
	if p.tty {
		fmt.Fprint(p.w, clearLine)
	}
}
