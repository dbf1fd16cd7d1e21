package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"taprouter/control/config"
	"taprouter/dataplane"
	"taprouter/demo"
)

func runCommand(o *options) *cobra.Command {
	var file, profile string
	var faults []string
	c := &cobra.Command{
		Use: "run -c FILE", Short: "Forward as a configuration says, until SIGTERM or SIGINT", Args: cobra.NoArgs,
		Long: `run opens the devices of a configuration, moves them to their namespaces,
configures both sides and forwards until SIGTERM or SIGINT. Then queues are
drained, and what run made it removes. It needs CAP_NET_ADMIN and /dev/net/tun,
for namespaces CAP_SYS_ADMIN, and for a steering that is not kernel CAP_BPF.

  version: 1
  workers: 2                      # default: the CPUs we may run on
  io: auto                        # uring, readv, or whichever is measured to be quicker
  coalesce: 150us                 # at high rates let frames gather for so long at most, if that slows no one down; 0s: never
  busy_poll: 50us                 # look for the next frame for so long before sleeping, if traffic is quicker by it; 0s: never
  balance: true                   # a worker without work reads a queue of one with several busy ones, if more comes so
  memory: {pool: 128MiB, huge: auto}   # of packets; huge pages: see router help memory
  ports:
    - name: tapa                  # the netdev's name
      type: tap                   # tap | tun | socket
      backend: native             # or water (no offloads), wireguard (tun only): libraries, for comparison
      queues: 2                   # default: workers
      netns: ns1                  # the netdev goes there; create: true makes it
      mtu: 1500
      txqueuelen: 1000            # packets of a band of a queue
      mac: "02:00:00:00:0a:fe"    # our own address; made up if absent
      addresses: [10.99.1.254/24, "fd99:1::fe/64"]     # ours: a routed port
      host:                       # the kernel's side
        addresses: [10.99.1.1/24, "fd99:1::1/64"]
        routes: [{to: default, via: 10.99.1.254}]
        txqueuelen: 3000          # frames it holds for a queue of ours; more are dropped (link show -s)
        # or bridge: br-vm0       # a bridge of the kernel that the netdev joins; create: true makes it
      qdisc: {kind: mq, child: {kind: pfifo_fast}}     # or {kind: pfifo_fast} for all queues
      xps: {flow_table_cnt: 4096, mode: inflight}      # 0 = no table; dql: as published
      backpressure: false         # the kernel stops senders when it holds that many, where it else drops (Linux 7.2)
      steering: kernel            # or hash: flows stay on their queue; queue: where a guest sent it; random: reorders
      accept: [csum, tso, uso]    # offloads the reader takes; [] does them in software
      gro: true                   # merge packets of a flow that are read together; default: vnet_hdr
    - name: tapb
      netns: ns2
      create: true
      qdisc:                      # fq, here or as mq's child, with options of tc-fq(8)
        kind: fq
        limit: 10000              # packets of a band
        flow_limit: 100           # packets of a flow
        quantum: 3028             # bytes; default 2 frames; initial_quantum: 10 frames
        maxrate: 100mbit          # of a flow; default unlimited
        pacing: true
        priomap: [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]
        weights: [589824, 196608, 65536]   # bytes a band in a round
        horizon: 10s
        horizon_drop: true        # also buckets, orphan_mask, refill_delay, timer_slack,
                                  # low_rate_threshold, ce_threshold
      line:                       # the wire that the port imitates; default none
        rate: 1gbit               # 8kbit to 400gbit
        ring: 256                 # descriptors of a tx queue, 1 to 32768
        delay: 0ms                # up to 10s
        overhead: ethernet        # or 0 to 256 bytes a packet; default 0
        shared: true              # one line for all tx queues; default one each
    - name: vm1                   # QEMU's -netdev stream or dgram instead of a netdev; needs no right
      type: socket
      stream: {listen: /run/vm1.sock}      # or connect: PATH, or connect: "127.0.0.1:5555"
      # or dgram: {local: PATH, remote: PATH}
      sndbuf: 64KiB               # the socket's send buffer; default the system's
  bridges:
    - {name: br0, ports: [tapb, vm1], ageing_time: 300s, fdb_max: 4096}
  routes:
    - {to: 10.1.0.0/16, via: 10.99.1.9}`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return errors.New("which configuration? router run -c FILE")
			}
			conf, err := config.Load(file)
			if err != nil {
				return firstFault(err, file)
			}
			inject, err := parseFaults(faults, conf)
			if err != nil {
				return err
			}
			stop, err := startProfile(profile)
			if err != nil {
				return systemError{err}
			}
			defer stop()
			if err := runRouter(cmd.Context(), conf, inject, o.name, o.err); err != nil {
				return systemError{err}
			}
			return nil
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "", "configuration file")
	c.Flags().StringVar(&profile, "cpuprofile", "", "write where CPU time goes to this file, for go tool pprof")
	for _, flag := range []string{"config", "cpuprofile"} {
		_ = c.RegisterFlagCompletionFunc(flag, completeFile) // the flag exists
	}
	c.Flags().StringSliceVar(&faults, "fault", nil, "for tests: einval:PORT:tcp4|tcp6|udp refuses such superpackets as some kernels do")
	_ = c.Flags().MarkHidden("fault")
	return c
}

// startProfile writes a CPU profile of the process to file, unless that is
// empty, until stop.
func startProfile(file string) (stop func(), err error) {
	if file == "" {
		return func() {}, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		f.Close()
		return nil, err
	}
	return func() {
		pprof.StopCPUProfile()
		if err := f.Close(); err != nil {
			slog.Warn("cpu profile", "error", err)
		}
	}, nil
}

// parseFaults reads what --fault injects, by port.
func parseFaults(args []string, conf *config.Config) (map[string]dataplane.Shape, error) {
	faults := map[string]dataplane.Shape{}
	for _, arg := range args {
		w := strings.Split(arg, ":")
		if len(w) != 3 || w[0] != "einval" {
			return nil, fmt.Errorf("fault %q: want einval:PORT:SHAPE", arg)
		}
		if !slices.ContainsFunc(conf.Ports, func(p config.Port) bool { return p.Name == w[1] }) {
			return nil, fmt.Errorf("fault %q: there is no port %q", arg, w[1])
		}
		shape, err := dataplane.ParseShape(w[2])
		if err != nil {
			return nil, fmt.Errorf("fault %q: %w", arg, err)
		}
		faults[w[1]] |= shape
	}
	return faults, nil
}

// faults are those of a configuration; nil if it could not be read at all.
func faults(err error) []error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return all.Unwrap()
	}
	return nil
}

// firstFault is the first of the faults in file, and how many there are.
func firstFault(err error, file string) error {
	all := faults(err)
	if len(all) < 2 {
		return err
	}
	return fmt.Errorf("%w (the first of %d, see `router check %s`)", all[0], len(all), file)
}

func checkCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "check FILE", Short: "Say what is wrong with a configuration", Args: exactly(1, "which FILE? router check FILE"),
		Long: `check reads a configuration as run does and changes nothing. It prints each
fault as FILE:LINE:COLUMN: what is wrong and what would be right. It also looks
at the kernel bridges that ports join, and warns of what keeps frames from them.

Exit status: 0 run would accept it, 1 it would not.`,
		Example: "  router check two.yaml", ValidArgsFunction: completeFile,
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := config.Load(args[0])
			if faults(err) != nil {
				fmt.Fprintln(o.err, err)
				return exitError{code: exitUsage}
			}
			if err != nil {
				return err
			}
			for _, w := range c.Warnings {
				fmt.Fprintln(o.err, "warning:", w)
			}
			checkBridges(o.err, c)
			_, err = fmt.Fprintf(o.out, "%s: ok: %d ports, %d bridges, %d routes, %d workers\n", args[0], len(c.Ports), len(c.Bridges), len(c.Routes), c.Workers)
			return err
		},
	}
}

func demoCommand(o *options) *cobra.Command {
	d := demo.Options{}
	c := &cobra.Command{
		Use: "demo", Short: "Make two namespaces or guests, a router between them, and drive traffic", Args: cobra.NoArgs,
		Long: `demo makes two network namespaces and a router between them, drives TCP and
UDP over a bridged and a routed path, IPv4 and IPv6, with one flow and eight,
and prints for each leg goodput, packets, loss, reordering, retransmits, round
trip and the router's CPU time for a GB, then the queues' statistics. Everything
it made is removed at the end, also on Ctrl-C.

With --vm the ends are two virtual machines in bridges of the kernel. They need
QEMU and boot Debian's kernel, which is downloaded once, after a question. One of
them then sends from a vCPU that changes all the time, to a slow line: without a
flow table, and with each of its modes.

Exit status 0: every leg passed traffic, nothing was reordered and the packet
count adds up. 3: a check failed. It needs root.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d.JSON, d.Stdout, d.Stderr = o.json, o.out, o.err
			if isTerminal(os.Stdin) {
				d.Stdin = os.Stdin
			}
			code, err := demo.Run(cmd.Context(), d)
			if code != 0 || err != nil {
				return exitError{code: code, err: err}
			}
			return nil
		},
	}
	c.Flags().DurationVar(&d.Duration, "duration", 2*time.Second, "of each leg")
	c.Flags().BoolVar(&d.VM, "vm", false, "between two virtual machines")
	c.Flags().BoolVar(&d.Yes, "yes", false, "with --vm: download the kernel without a question")
	c.Flags().BoolVar(&d.Keep, "keep", false, "leave the namespaces and the router at the end")
	return c
}

// exactly asks for n arguments, in words that say what is missing.
func exactly(n int, msg string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return errors.New(msg)
		}
		return nil
	}
}
