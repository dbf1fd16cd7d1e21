# SPDX-License-Identifier: Apache-2.0
"""goals.py - what the router is to reach beside its peers, and what it did."""
import statistics

from tables import grid, med

KERNEL = ("kbridge", "kroute")  # and what begins with fwd-: these are yardsticks, all others peers

# what, test, value, of whom, beside whom (None: the value itself), at least or at most, goal
GOALS = []


def goal(*a):
    GOALS.append(a)


for us, ref, layer in (("taprouter", "fwd-vnet", "L2"), ("taprouter-l3", "fwd-vnet-l3", "L3")):
    for t in ("tcp1_ab", "tcp1_ba", "tcp4_ab", "tcp4_ba"):
        goal("%s %s, offloads on: Gbit/s" % (layer, t), t, "gbps", us, ref, ">=", 0.95)
        goal("%s %s, offloads on: CPU per GB" % (layer, t), t, "fw_cpu_per_gb", us, ref, "<=", 1.05)
for t, least in (("tcp1_ab", 2.8), ("tcp1_ba", 2.8), ("tcp4_ab", 2.5), ("tcp4_ba", 2.5)):
    goal(t + ", offloads off: Gbit/s", t + "_noff", "gbps", "taprouter", "fwd-vnet", ">=", least)
    goal(t + ", offloads off: Gbit/s", t + "_noff", "gbps", "taprouter", "kbridge", ">=", 1.3)
    # Where the yardstick has none a ratio says nothing, so these are the values themselves.
    goal(t + ", offloads off: retransmits per GB", t + "_noff", "retrans_per_gb", "taprouter", None, "<=", "fwd-vnet")
goal("1 flow of 64-byte frames, overload: loss", "pps1", "loss", "taprouter", None, "<=", 0.02)
goal("1 flow of 64-byte frames, overload: packets", "pps1", "pps", "taprouter", "fwd-vnet", ">=", 2.0)
goal("1 flow of 64-byte frames, overload: CPU per packet", "pps1", "fw_ns_per_pkt", "taprouter", "fwd-vnet", "<=", 0.45)
goal("64 flows of 64-byte frames, overload: packets", "pps64", "pps", "taprouter", "fwd-vnet", ">=", 1.5)
goal("64 flows of 64-byte frames, overload: CPU per packet", "pps64", "fw_ns_per_pkt", "taprouter", "fwd-vnet", "<=", 0.7)
goal("50 kpps offered: CPU per packet", "paced", "fw_ns_per_pkt", "taprouter", "fwd-vnet", "<=", 0.8)
goal("idle path: round trip p50", "rr_udp", "p50", "taprouter", "fwd-vnet", "<=", 1.05)
goal("idle path: round trip p99", "rr_udp", "p99", "taprouter", "fwd-vnet", "<=", 1.05)
goal("beside a bulk stream, fq: round trip p99", "rr_load", "udp_p99", "taprouter-fq", "fwd-vnet", "<=", 0.5)
goal("beside a bulk stream, fq: Gbit/s of the stream", "rr_load", "gbps", "taprouter-fq", "fwd-vnet", ">=", 0.95)
goal("idle: CPU %", "idle", "fw_idle_pct", "taprouter", None, "<=", 0.05)
goal("peak resident memory, MB", "mem", "rss_mb", "taprouter", None, "<=", 64)
for us in ("taprouter", "taprouter-l3", "taprouter-fq"):
    goal("packets handed to a device out of order", "mem", "reordered", us, None, "<=", 0)

# Of the columns of the tables, those in which one forwarder is ahead of another.
AHEAD = [("tcp1_ab", "gbps", ">="), ("tcp4_ab", "gbps", ">="), ("tcp1_ab_noff", "gbps", ">="), ("tcp4_ab_noff", "gbps", ">="),
         ("pps1", "pps", ">="), ("pps64", "pps", ">="), ("paced", "fw_ns_per_pkt", "<="), ("rr_udp", "p50", "<="), ("rr_udp", "p99", "<=")]


def meets(x, op, least):
    return x >= least if op == ">=" else x <= least


def judge(res, g):
    """One goal as cells of the table, or None where nothing was measured."""
    what, t, k, us, ref, op, least = g
    v = res.ratios(us, ref, t, k) if ref else res.vals(us, t, k)
    if isinstance(least, str):           # as good as another one's median
        other = res.vals(least, t, k)
        if not other:
            return None
        what, least = "%s (%s: %.0f)" % (what, least, statistics.median(other)), statistics.median(other)
    if not v:
        return None
    m = statistics.median(v)
    return [us, what, "x " + ref if ref else "", med(v), "%s %g" % (op, round(least, 2)), "yes" if meets(m, op, least) else "NO"]


def peers(res):
    """The other userspace forwarders of the same layer, column by column."""
    out = []
    for f in res.order:
        if f.startswith(("taprouter", "fwd-")) or f in KERNEL:
            continue
        us = "taprouter-l3" if ("taprouter-l3", "tcp1_ab") in res.data and f in ("go-wgtun", "go-gvisor") else "taprouter"
        cells, behind = [], 0
        for t, k, op in AHEAD:
            q = res.ratios(us, f, t, k)
            cells.append("%.2f" % statistics.median(q) if q else "-")
            behind += bool(q) and not meets(statistics.median(q), op, 1)
        if any(c != "-" for c in cells):
            out.append([f, us] + cells + ["NO" if behind else "yes"])
    return out


def print_goals(res):
    body = [c for c in (judge(res, g) for g in GOALS) if c]
    if body:
        print("\n### Goals (median [min-max]; x NAME: as a multiple of NAME's)\n")
        grid(["forwarder", "what", "beside", "measured", "goal", "reached"], body)
    body = peers(res)
    if body:
        print("\n### Beside each userspace peer (the router's value as a multiple; more is better, but for ns and round trips)\n")
        grid(["peer", "router"] + ["%s %s" % (t, k) for t, k, _ in AHEAD] + ["ahead"], body)
