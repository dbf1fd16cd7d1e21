package main

import (
	"io"

	"taprouter/control/api"
)

// objects are what can be shown, in the order of the help.
var objects = []object{
	{"link", "Ports: state, offloads, counters of each queue",
		`A port is one TAP or TUN device, read and written by us (backend native) or by
a library (water, wireguard); only a library is shown. Shown are its state (UP,
DOWN or GONE, with the reason; one that went with its namespace comes back with
it), MTU, our MAC address and the netdev's (host), the offloads that
the kernel granted, what its reader takes from us, and what is done in software
instead. -s adds wire packets and bytes of each queue, and what was dropped;
"stops" counts how often the device had no room. host-bridge is the kernel's
bridge that the netdev joins, "problem" what keeps frames from passing there.

With gro, packets of one flow that are read together go through the router as
one superpacket and leave as they came, in segments where the reader takes no
other; it is on where the port has a vnet header. -s says how many superpackets
were made, of how many packets, and how many had to stay apart because their
checksum was wrong.

A kernel that refuses a shape of superpackets (tcp4, tcp6 or udp, with EINVAL)
gets them in segments; after a few in a row the port segments all of that shape,
which is shown, until "gso on".

Steering is how the kernel chooses the queue on which a packet reaches us.
kernel: a flow comes on the queue on which we last wrote its other direction.
hash: both directions of a flow always come on one queue, whatever we write
where. queue: a packet comes on the queue on which it came into the kernel, by
way of a bridge: a virtual machine's tx queues, one for each vCPU, are then ours.
What came on none, as the host's own packets, goes by hash. random: every packet
on another queue, which reorders; for tests. It is shown if it is not kernel. A
change can reorder once the packets on the way. All but kernel are eBPF programs
and need CAP_BPF.`,
		`  router link show -s dev tapa
  router link set dev tapa txqueuelen 500   # packets of a band of a queue
  router link set dev tapa queues 1         # of those it was opened with
  router link set dev tapa steering hash    # or kernel, queue, random
  router link set dev tapa gro off          # merge nothing that it reads
  router link set dev tapa gso on           # send refused superpackets again`,
		showing("links", func(l api.Link) []string { return []string{l.Name, l.Master} },
			func(w io.Writer, all []api.Link, o *options, _ string) { api.PrintLinks(w, all, o.stats) })},
	{"qdisc", "Queueing disciplines, as tc shows them",
		`A queueing discipline holds what a tx queue has not taken yet: mq with a child
for each tx queue, or one for all. With -s the words, lines and units are those
of "tc -s qdisc show": sent, dropped, requeued after the device refused, and
what waits now in bytes and packets. fq takes the options of tc-fq(8) and prints
them and its statistics as tc does: flows, what took the fast path, what waits
for its time. In JSON rates are bytes/s, times us (timer_slack, latency and
next_packet_delay: ns), and throttled_flows is what tc prints first as throttled.

Options of fq: limit, flow_limit PACKETS; quantum, initial_quantum SIZE; maxrate
RATE (0 = unlimited); [no]pacing; buckets, orphan_mask NUMBER; priomap B0 ... B15;
weights W0 W1 W2 (bytes); low_rate_threshold RATE; refill_delay, ce_threshold,
timer_slack, horizon TIME; horizon_drop or horizon_cap; and, not tc's,
[no]fastpath. Units are tc's: 100mbit, 1mbps (bytes), 15k, 40ms; bare numbers
are bit/s, bytes, us (ns for timer_slack).`,
		`  router qdisc show -s -d dev tapa
  router qdisc replace dev tapa root pfifo_fast
  router qdisc replace dev tapa root mq child fq
  router qdisc replace dev tapa parent :2 fq flow_limit 500 maxrate 100mbit
  router qdisc change dev tapa parent :2 fq maxrate unlimited`,
		showing("qdiscs", func(q api.Qdisc) []string { return []string{q.Dev} },
			func(w io.Writer, all []api.Qdisc, o *options, dev string) {
				api.PrintQdiscs(w, all, o.stats, dev == "")
			})},
	{"line", "The wire that a port imitates",
		`A port with a line in its configuration delivers at the line's rate (bit/s),
each packet with overhead bytes more than its frame, and after its delay. In
front of the line each tx queue has a ring of descriptors; the line serves the
rings of all queues in turn if it is shared. ring_used is how many descriptors
are taken now, stops how often the ring was full. -s adds the memory that delayed
packets hold, and overflow, the packets dropped when that was not enough. In
JSON the rate is bit/s and the delay ns. load is a test: it keeps TIME's worth of
frames that nobody reads waiting in a queue.`,
		`  router line show -s dev tapb
  router line load dev tapb queue 0 backlog 10ms   # or off`,
		showing("lines", func(l api.Line) []string { return []string{l.Dev} },
			func(w io.Writer, all []api.Line, o *options, _ string) { api.PrintLines(w, all, o.stats) })},
	{"xps", "Which worker prefers which tx queue, and the flow table",
		`XPS chooses the tx queue of a packet: among those that the worker prefers, by
flow hash, or among all if it prefers none. The flow table keeps a flow on its
queue until none of its packets is on the way (mode inflight) or until the
queue has completed what it held (mode dql, as published; it can reorder).
-s adds the moves made, the packets that stayed for order's sake (refused), the
packets that met another flow's in their bucket (collisions: is the table too
small?), those that the table counts now, and those that were handed to the device
after a later one of their flow (reordered). hop is a test: the queue that a flow
prefers moves on by one each time.`,
		`  router xps show -s
  router xps set dev tapb queue 1 workers 0,2-3    # or none
  router xps set dev tapb flow_table_cnt 8192 mode inflight
  router xps set dev tapb flow_table_cnt 0         # no table
  router xps set dev tapb hop 1ms                  # or off`,
		showing("xps", func(x api.XPS) []string { return []string{x.Dev} },
			func(w io.Writer, all []api.XPS, o *options, _ string) { api.PrintXPS(w, all, o.stats) })},
	{"bql", "Byte queue limits of tx queues",
		`A byte queue limit bounds what a tx queue takes out of its qdisc at a time, and
adapts itself between limit_min and limit_max. The names are those of
/sys/class/net/DEV/queues/tx-N/byte_queue_limits; hold_time is in ms.`,
		`  router bql show -s dev tapa
  router bql set dev tapa queue 0 limit_max 131072   # bytes, or max`,
		showing("bql", func(b api.BQL) []string { return []string{b.Dev} },
			func(w io.Writer, all []api.BQL, o *options, _ string) { api.PrintBQL(w, all, o.stats) })},
	{"fdb", "MAC tables of bridges",
		`The MAC table of a bridge says behind which port an address was seen last. -s
adds how many seconds ago. dev may be a port or a bridge.`,
		`  router fdb show -s dev br0`,
		showing("fdb", func(f api.FDB) []string { return []string{f.Dev, f.Master} },
			func(w io.Writer, all []api.FDB, o *options, _ string) { api.PrintFDB(w, all, o.stats) })},
	{"route", "Routes",
		`Routes are the router's own: "proto kernel" follows from the addresses of our
side of a port or bridge, "proto static" from the configuration.`,
		`  router route show`,
		showing("routes", func(r api.Route) []string { return []string{r.Dev} },
			func(w io.Writer, all []api.Route, _ *options, _ string) { api.PrintRoutes(w, all) })},
	{"neigh", "Neighbours of routed ports",
		`Neighbours are hosts on the link of a routed port or bridge, resolved by ARP or
neighbour discovery, with the states of "ip neigh".`,
		`  router neigh show dev tapa`,
		showing("neighs", func(n api.Neigh) []string { return []string{n.Dev} },
			func(w io.Writer, all []api.Neigh, _ *options, _ string) { api.PrintNeighs(w, all) })},
	{"drops", "Dropped packets and why",
		`Every packet that is not sent has a reason. Shown are the reasons that happened,
in wire packets, by the port where the packet came in or should have gone out.
-a adds those that did not happen, so it lists all there are.`,
		`  router drops show dev tapa
  router drops show -a`,
		showDrops},
}
