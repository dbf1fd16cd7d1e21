# SPDX-License-Identifier: Apache-2.0
"""tables.py - result files as tables."""
import json, statistics

from legs import NOISE, foreign
from rig import load


def med(v, f="%.2f"):
    # "-0.00" is only rounding; a real negative value stays visible
    v = [0.0 if x is not None and float(f % x) == 0 else x for x in v]
    v = [x for x in v if x is not None]
    if not v:
        return "-"
    if len(v) == 1:
        return f % v[0]
    return (f + " [" + f + "-" + f + "]") % (statistics.median(v), min(v), max(v))


class Results:
    """The records of result files: of each repetition the least disturbed try."""

    def __init__(self, paths):
        self.rows = []
        for p in paths:
            with open(p) as f:
                self.rows += [json.loads(l) for l in f if l.strip()]
        self.data, self.order = {}, []       # (forwarder, test) -> {repetition: record}; names as in the ini
        for r in self.rows:
            if r["fw"] not in self.order:
                self.order.append(r["fw"])
            if r.get("ok"):
                self.take(r)
        # drop disturbed repetitions where an undisturbed one exists
        self.stars = set()
        for key, d in self.data.items():
            good = {k: r for k, r in d.items() if (r["foreign"] or 0) <= NOISE}
            if good:
                self.data[key] = good
            else:
                self.stars.add(key)
        ini = list(load())
        self.order.sort(key=lambda n: ini.index(n) if n in ini else 999)

    def take(self, r):
        r["foreign"] = foreign(r)
        if r.get("gb"):
            r["retrans_per_gb"] = r["retrans"] / r["gb"]
        for pre in ("", "udp_", "tcp_"):  # too few round trips for percentiles
            if r["test"].startswith("rr") and r.get(pre + "n", 10**9) < 50:
                for q in ("p50", "p90", "p99", "p999"):
                    r.pop(pre + q, None)
        d, k = self.data.setdefault((r["fw"], r["test"]), {}), r["rep"]
        if r["test"] == "mem" and k in d:   # of the stretches of a repetition the worst
            for f in ("rss_mb", "reordered"):
                r[f] = max((x[f] for x in (r, d[k]) if x.get(f) is not None), default=None)
            d[k] = r
        if k not in d or (r["foreign"] or 0) < (d[k]["foreign"] or 0):
            d[k] = r

    def vals(self, f, t, k):
        return [r[k] for r in self.data.get((f, t), {}).values() if r.get(k) is not None]

    def ratios(self, f, ref, t, k):
        """f's value as a multiple of ref's, repetition by repetition."""
        x, y = self.data.get((f, t), {}), self.data.get((ref, t), {})
        q = [x[i][k] / y[i][k] for i in x if i in y and y[i].get(k) and x[i].get(k) is not None]
        if q:
            return q
        mx, my = self.vals(f, t, k), [v for v in self.vals(ref, t, k) if v]
        return [statistics.median(mx) / statistics.median(my)] if mx and my else []  # no common repetition left

    def bounds(self, f, t):
        # fw = one forwarder thread was busy all the time; fw~ = no single thread,
        # but the process used a core or more (Go moves its loops between threads)
        b = []
        for r in self.data.get((f, t), {}).values():
            x = r.get("bound") or "-"
            if "fw" not in x and r["fw_cpu"] / r["wall"] >= 0.8:
                x = "fw~" if x == "-" else "fw~+" + x
            b.append(x)
        return max(set(b), key=b.count) if b else "-"

    def failures(self):
        return [(r["fw"], r["rep"], r["test"], r.get("error", "")[:140]) for r in self.rows if not r.get("ok")]


def grid(head, body):
    """Rows as a table of Markdown."""
    w = [max(len(r[i]) for r in [head] + body) for i in range(len(head))]
    for r in [head, ["-" * x for x in w]] + body:
        print("| " + " | ".join(x.ljust(w[j]) for j, x in enumerate(r)) + " |")


def print_tables(res, ref):
    def table(title, cols):
        body = [[f] + [c[1](f) for c in cols] for f in res.order]
        body = [row for row in body if any(x != "-" for x in row[1:])]
        if body:
            print("\n### %s\n" % title)
            grid(["forwarder"] + [c[0] for c in cols], body)

    def col(t, k, f="%.2f", scale=1):
        def cell(n):
            x = med([v * scale for v in res.vals(n, t, k)], f)
            return x + "*" if (n, t) in res.stars and x != "-" else x
        return cell

    def rat(t, k):
        return lambda n: med(res.ratios(n, ref, t, k))

    def bounds(t):
        return lambda n: res.bounds(n, t)

    def cnt(t):
        return lambda n: str(len(res.data[(n, t)])) if (n, t) in res.data else "-"

    for sfx, title in (("", "TCP, offloads on (Gbit/s; median [min-max])"), ("_noff", "TCP, offloads off = MTU-sized frames (Gbit/s)")):
        one, four = "tcp1_ab" + sfx, "tcp4_ab" + sfx
        table(title, [(t, col(t + sfx, "gbps")) for t in ("tcp1_ab", "tcp1_ba", "tcp4_ab", "tcp4_ba")] +
              [("ratio 1ab", rat(one, "gbps")), ("ratio 4ab", rat(four, "gbps")), ("bound 1ab", bounds(one)), ("n", cnt(one))])
        table("TCP cost, A->B%s" % (", offloads off" if sfx else ""), [
            ("fw CPU s/GB", col(one, "fw_cpu_per_gb", "%.3f")), ("ratio", rat(one, "fw_cpu_per_gb")), ("machine CPU s/GB", col(one, "sys_cpu_per_gb", "%.3f")),
            ("fw ns/frame", col(one, "fw_ns_per_frame", "%.0f")), ("bytes/frame", col(one, "bytes_per_frame", "%.0f")),
            ("retrans/GB 1ab", col(one, "retrans_per_gb", "%.0f")), ("retrans/GB 4ab", col(four, "retrans_per_gb", "%.0f")),
            ("ring drops 4ab", col(four, "dev_drop", "%.0f")),
            ("OFO 4ab", col(four, "ofo", "%.0f")), ("SACKreorder 4ab", col(four, "sack_reorder", "%.0f"))])
    table("Small UDP frames, A->B (64-byte frames; kpps forwarded under overload)", [
        ("1 flow kpps", col("pps1", "pps", "%.0f", 1e-3)), ("64 flows kpps", col("pps64", "pps", "%.0f", 1e-3)),
        ("ratio 1", rat("pps1", "pps")), ("ratio 64", rat("pps64", "pps")), ("loss 1", col("pps1", "loss")), ("loss 64", col("pps64", "loss")),
        ("offered kpps", col("pps1", "offered_pps", "%.0f", 1e-3)), ("bound", bounds("pps1")), ("n", cnt("pps1"))])
    table("Forwarder CPU per packet", [
        ("ns/pkt overload 1", col("pps1", "fw_ns_per_pkt", "%.0f")), ("ns/pkt overload 64", col("pps64", "fw_ns_per_pkt", "%.0f")),
        ("ns/pkt at 50 kpps", col("paced", "fw_ns_per_pkt", "%.0f")), ("loss at 50 kpps", col("paced", "loss", "%.4f")), ("drained later", col("pps64", "drain_pkts", "%.0f")),
        ("machine ns/pkt overload 1", col("pps1", "sys_ns_per_pkt", "%.0f")), ("ratio ovl 1", rat("pps1", "fw_ns_per_pkt")), ("ratio 50 kpps", rat("paced", "fw_ns_per_pkt")),
        ("idle CPU %", col("idle", "fw_idle_pct")), ("peak RSS MB", col("mem", "rss_mb", "%.1f")), ("threads", col("mem", "threads", "%.0f")), ("reordered", col("mem", "reordered", "%.0f"))])
    table("Round trips on an idle path (us)", [(p + " " + k, col("rr_" + p, q)) for p in ("udp", "tcp") for k, q in (("p50", "p50"), ("p99", "p99"), ("p99.9", "p999"))] + [
        ("ratio udp p50", rat("rr_udp", "p50")), ("udp lost", col("rr_udp", "lost", "%.0f")), ("fw us/trans", col("rr_udp", "fw_us_per_trans")), ("n", cnt("rr_udp"))])
    table("Round trips while one bulk TCP stream runs A->B (us)", [(p + " " + k, col("rr_load", p + "_" + q, "%.0f")) for p in ("udp", "tcp") for k, q in (("p50", "p50"), ("p99", "p99"), ("p99.9", "p999"))] + [
        ("ratio udp p99", rat("rr_load", "udp_p99")), ("bulk Gbit/s", col("rr_load", "gbps")), ("udp lost", col("rr_load", "udp_lost", "%.0f")), ("n", cnt("rr_load"))])
    table("UDP order (iperf3, 4 x 100 Mbit/s, 1200 bytes)", [("packets", col("udp_ooo", "packets", "%.0f")), ("lost", col("udp_ooo", "lost", "%.0f")),
          ("out of order (receiver)", col("udp_ooo", "ooo_rx", "%.0f")), ("jitter us", col("udp_ooo", "jitter_us", "%.0f")), ("fw ns/pkt", col("udp_ooo", "fw_ns_per_pkt", "%.0f"))])
    print("\nratio: to %s, of the same repetition; n: repetitions behind the figure of the first test in the row (undisturbed ones where there are any)" % ref)
    if res.stars:
        print("* every repetition disturbed: others kept more than %.2f cores busy" % NOISE)
    if res.failures():
        print("\nfailures:")
        for f in res.failures():
            print("  ", *f)
