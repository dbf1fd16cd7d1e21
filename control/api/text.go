package api

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"taprouter/control/tc"
)

// PrintQdiscs prints qdiscs as `tc qdisc show` does, with stats as `tc -s`.
func PrintQdiscs(w io.Writer, all []Qdisc, stats, withDev bool) {
	for _, q := range all {
		fmt.Fprintf(w, "qdisc %s %s ", q.Kind, q.Handle)
		if withDev {
			fmt.Fprintf(w, "dev %s ", q.Dev)
		}
		if q.Root {
			fmt.Fprint(w, "root ")
		} else {
			fmt.Fprintf(w, "parent %s ", q.Parent)
		}
		if q.RefCnt > 1 {
			fmt.Fprintf(w, "refcnt %d ", q.RefCnt)
		}
		if q.Bands > 0 {
			fmt.Fprintf(w, "bands %d priomap", q.Bands)
			for _, b := range q.Priomap {
				fmt.Fprintf(w, " %d", b)
			}
		}
		if q.Options != nil {
			fmt.Fprint(w, q.Options)
		}
		fmt.Fprintln(w)
		if stats {
			fmt.Fprintf(w, " Sent %d bytes %d pkt (dropped %d, overlimits %d requeues %d) \n", q.Bytes, q.Packets, q.Drops, q.Overlimits, q.Requeues)
			fmt.Fprintf(w, " backlog %s %dp requeues %d\n", tc.Size(q.Backlog), q.Qlen, q.Requeues)
			if q.FQStats != nil {
				fmt.Fprint(w, tc.PrintFQStats(q.FQStats))
			}
		}
	}
}

// PrintLines prints the lines of ports.
func PrintLines(w io.Writer, all []Line, stats bool) {
	for _, l := range all {
		shared := "each queue its own"
		if l.Shared {
			shared = "shared"
		}
		fmt.Fprintf(w, "%s: rate %s ring %d delay %s overhead %s %s\n", l.Dev, tc.Rate(uint64(l.Rate)), l.Ring, tc.Time(time.Duration(l.Delay)), tc.Size(uint64(l.Overhead)), shared)
		for _, q := range l.Queues {
			fmt.Fprintf(w, "    queue %d ring_used %d stops %d\n", q.Queue, q.Used, q.Stops)
		}
		if stats {
			fmt.Fprintf(w, "    held %s of %s overflow %d\n", tc.Size(uint64(l.Held)), tc.Size(uint64(l.MaxHeld)), l.Overflow)
		}
	}
}

// PrintLinks prints ports in the manner of ip-link(8).
func PrintLinks(w io.Writer, all []Link, stats bool) {
	for _, l := range all {
		fmt.Fprintf(w, "%d: %s: <%s> mtu %d qlen %d queues %d state %s", l.Index, l.Name, strings.ToUpper(l.Type), l.MTU, l.TxQueueLen, l.QueuesUsed, l.OperState)
		for _, f := range []struct{ name, value, plain string }{{"backend", l.Backend, "native"}, {"steering", l.Steering, "kernel"}, {"master", l.Master, ""}, {"host-bridge", l.HostBridge, ""}, {"netns", l.NetNS, ""}} {
			if f.value != f.plain {
				fmt.Fprintf(w, " %s %s", f.name, f.value)
			}
		}
		fmt.Fprintln(w)
		if l.MAC != "" {
			fmt.Fprintf(w, "    link/ether %s host %s\n", l.MAC, dash(l.HostMAC))
		}
		for _, a := range l.Addresses {
			family := "inet"
			if strings.Contains(a, ":") {
				family = "inet6"
			}
			fmt.Fprintf(w, "    %s %s\n", family, a)
		}
		if l.Socket != "" {
			fmt.Fprintf(w, "    %s: %s\n", l.Socket, l.SocketState)
		}
		if l.Reason != "" {
			fmt.Fprintf(w, "    %s\n", l.Reason)
		}
		for _, p := range l.Problems {
			fmt.Fprintf(w, "    problem: %s\n", p)
		}
		fmt.Fprintf(w, "    offloads from the kernel: %s; to it: %s; in software: %s; gro %s\n", list(l.Offloads), list(l.Accept), list(l.Software), onOff(l.GRO))
		if len(l.GSOOff) > 0 {
			fmt.Fprintf(w, "    superpackets that the device refuses, sent in segments: %s\n", list(l.GSOOff))
		}
		if stats {
			printLinkStats(w, l)
		}
	}
}

func printLinkStats(w io.Writer, l Link) {
	fmt.Fprintf(w, "    dropped %d, by the kernel before we could read %d, software segments %d checksums %d, superpackets refused %d\n", l.Dropped, l.KernelDrop, l.Segments, l.Checksums, l.GSORefused)
	fmt.Fprintf(w, "    gro: superpackets %d of packets %d, kept apart for a wrong checksum %d\n", l.GROTrains, l.GROTrains+l.GROMerged, l.GROBadCsum)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "    queue\trx packets\trx bytes\tworker\ttx packets\ttx bytes\tstops\t")
	for _, q := range l.Queues {
		fmt.Fprintf(t, "    %d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", q.Queue, q.RxPackets, q.RxBytes, q.RxWorker, q.TxPackets, q.TxBytes, q.TxStops)
	}
	t.Flush()
}

func list(names []string) string { return dash(strings.Join(names, ",")) }

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func dash(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// PrintXPS prints the choice of tx queue of ports.
func PrintXPS(w io.Writer, all []XPS, stats bool) {
	for _, x := range all {
		fmt.Fprintf(w, "%s: flow_table_cnt %d mode %s\n", x.Dev, x.Buckets, x.Mode)
		for _, q := range x.Queues {
			fmt.Fprintf(w, "    queue %d workers %s\n", q.Queue, numbers(q.Workers))
		}
		if stats {
			fmt.Fprintf(w, "    moves %d refused %d collisions %d in_flight %d reordered %d\n", x.Moves, x.Refused, x.Collisions, x.InFlight, x.Reordered)
		}
	}
}

func numbers(ns []int) string {
	if len(ns) == 0 {
		return "none"
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(ns), " ", ","), "[]")
}

// PrintBQL prints byte queue limits under their names in sysfs.
func PrintBQL(w io.Writer, all []BQL, stats bool) {
	for _, b := range all {
		fmt.Fprintf(w, "%s queue %d: limit %d limit_min %d limit_max %d hold_time %d inflight %d\n", b.Dev, b.Queue, b.Limit, b.LimitMin, b.LimitMax, b.HoldTime, b.Inflight)
		if stats {
			fmt.Fprintf(w, "    num_enqueue_ops %d num_completed_ops %d stall_thrs %d stall_cnt %d stall_max %d\n", b.EnqueueOps, b.CompletedOps, b.StallThrs, b.StallCnt, b.StallMax)
		}
	}
}

// PrintFDB prints MAC tables in the manner of bridge-fdb(8).
func PrintFDB(w io.Writer, all []FDB, stats bool) {
	for _, f := range all {
		fmt.Fprintf(w, "%s dev %s master %s", f.MAC, f.Dev, f.Master)
		if f.Static {
			fmt.Fprint(w, " static")
		} else if stats {
			fmt.Fprintf(w, " used %.0f", f.Age)
		}
		fmt.Fprintln(w)
	}
}

// PrintRoutes prints the FIB in the manner of ip-route(8).
func PrintRoutes(w io.Writer, all []Route) {
	for _, r := range all {
		if r.Type != "" {
			fmt.Fprintf(w, "%s ", r.Type)
		}
		fmt.Fprint(w, r.Dst)
		if r.Gateway != "" {
			fmt.Fprintf(w, " via %s", r.Gateway)
		}
		if r.Dev != "" {
			fmt.Fprintf(w, " dev %s", r.Dev)
		}
		fmt.Fprintf(w, " proto %s\n", r.Protocol)
	}
}

// PrintNeighs prints neighbours in the manner of ip-neighbour(8).
func PrintNeighs(w io.Writer, all []Neigh) {
	for _, n := range all {
		fmt.Fprintf(w, "%s dev %s", n.Dst, n.Dev)
		if n.LLAddr != "" {
			fmt.Fprintf(w, " lladdr %s", n.LLAddr)
		}
		fmt.Fprintf(w, " %s\n", n.State)
	}
}

// PrintDrops prints why packets were dropped.
func PrintDrops(w io.Writer, all []Drop) {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "PORT\tREASON\tPACKETS\tMEANING")
	for _, d := range all {
		port := d.Port
		if port == "" {
			port = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\n", port, d.Reason, d.Packets, d.Text)
	}
	t.Flush()
}

// PrintStatus prints the router as a whole and adds its packets up.
func PrintStatus(w io.Writer, s Status) {
	t := s.Totals
	fmt.Fprintf(w, "router %s, pid %d, up %.0f s, %d workers\n", s.Version, s.Pid, s.Uptime, s.Workers)
	fmt.Fprintf(w, "io %s: %s\n", s.IO, s.IOReason)
	if s.Coalesce > 0 {
		fmt.Fprintf(w, "coalesce up to %dus: %d rests\n", s.Coalesce, s.Rests)
	}
	if s.BusyPoll > 0 {
		fmt.Fprintf(w, "busy poll up to %dus: %d polls, %d found frames\n", s.BusyPoll, s.Polls, s.PollsFound)
	}
	if s.Balance {
		fmt.Fprintf(w, "balance: %d moves of an rx queue to an idle worker\n", s.Moves)
	}
	fmt.Fprintf(w, "received %d + created %d + injected %d = sent %d + queued %d + parked %d + punted %d + dropped %d", t.Received, t.Created, t.Injected, t.Sent, t.Queued, t.Parked, t.Punted, t.Dropped)
	if s.Balanced {
		fmt.Fprintln(w, ": adds up")
	} else {
		fmt.Fprintln(w, ": DOES NOT ADD UP")
	}
}
