# SPDX-License-Identifier: Apache-2.0
"""counters.py - what the kernel counts: CPU of processes, devices, TCP; and its change over a `with` block."""
import glob, os, subprocess, time

from rig import NET, ns, read

TICK = os.sysconf("SC_CLK_TCK")


def cpu_of(pids):
    """CPU of processes: (utime s, stime s, {tid: run ns})."""
    u = s = 0
    per = {}
    for p in pids:
        st = read("/proc/%d/stat" % p)
        if not st:
            continue
        f = st.rsplit(")", 1)[1].split()
        u += int(f[11]); s += int(f[12])
        for t in glob.glob("/proc/%d/task/*/schedstat" % p):
            x = read(t).split()
            if x:
                per[t.split("/")[4]] = int(x[0])
    return u / TICK, s / TICK, per


def ksoftirqd_pids():
    return [int(p.split("/")[2]) for p in glob.glob("/proc/[0-9]*/comm") if read(p).startswith("ksoftirqd/")]


KSOFT = None


def machine():
    f = [int(x) for x in read("/proc/stat").split("\n", 1)[0].split()[1:9]]
    return dict(busy=(f[0] + f[1] + f[2] + f[5] + f[6]) / TICK, softirq=f[6] / TICK, steal=f[7] / TICK)


def netcount(n):
    """TCP counters and device counters of one host namespace."""
    out = {}
    txt = subprocess.run(ns(n, "cat", "/proc/net/netstat", "/proc/net/snmp", "/proc/net/dev"), stdout=subprocess.PIPE, text=True).stdout
    lines = txt.splitlines()
    for h, v in zip(lines, lines[1:]):
        if h.split(":")[0] in ("TcpExt", "Tcp") and v.split(":")[0] == h.split(":")[0]:
            for k, x in zip(h.split()[1:], v.split()[1:]):
                if k in ("RetransSegs", "TCPOFOQueue", "TCPSACKReorder", "TCPTimeouts", "TCPLostRetransmit", "TCPSpuriousRTOs", "TCPDSACKRecv"):
                    out[k] = int(x)
    dev = NET["TAP" + n]
    if not any(l.strip().startswith(dev + ":") for l in lines):
        # without this check a vanished namespace reads as "no packets"
        raise RuntimeError("device %s of host %s is gone" % (dev, n))
    for l in lines:
        if l.strip().startswith(dev + ":"):
            f = [int(x) for x in l.split(":", 1)[1].split()]
            out.update(rx_bytes=f[0], rx_packets=f[1], rx_drop=f[3], tx_bytes=f[8], tx_packets=f[9], tx_drop=f[11])
    return out


class Window:
    """Difference of every counter over a `with` block."""

    def __init__(self, rig):
        self.rig = rig

    def snap(self):
        global KSOFT
        if KSOFT is None:
            KSOFT = ksoftirqd_pids()
        return dict(t=time.monotonic(), fw=cpu_of(self.rig.pids), srv=cpu_of([p.pid for p in self.rig.servers]),
                    soft=cpu_of(KSOFT), m=machine(), A=netcount("A"), B=netcount("B"))

    def __enter__(self):
        self.x = self.snap()
        return self

    def __exit__(self, *e):
        x, y = self.x, self.snap()
        d = {"wall": y["t"] - x["t"]}
        per = [v - x["fw"][2].get(k, 0) for k, v in y["fw"][2].items()]
        d["fw_cpu"] = sum(per) / 1e9                     # seconds, nanosecond resolution
        d["fw_user"] = y["fw"][0] - x["fw"][0]           # /proc/PID/stat ticks
        d["fw_sys"] = y["fw"][1] - x["fw"][1]
        d["fw_top_thread"] = max(per, default=0) / 1e9 / d["wall"]
        d["srv_cpu"] = sum(v - x["srv"][2].get(k, 0) for k, v in y["srv"][2].items()) / 1e9
        d["ksoft_cpu"] = sum(v - x["soft"][2].get(k, 0) for k, v in y["soft"][2].items()) / 1e9
        for k in y["m"]:
            d["m_" + k] = y["m"][k] - x["m"][k]
        for n in "AB":
            d[n] = {k: v - x[n].get(k, 0) for k, v in y[n].items()}
        self.d = d


def tcp_counters(d):
    A, B = d["A"], d["B"]
    return dict(retrans=A.get("RetransSegs", 0) + B.get("RetransSegs", 0),
                ofo=A.get("TCPOFOQueue", 0) + B.get("TCPOFOQueue", 0),
                sack_reorder=A.get("TCPSACKReorder", 0) + B.get("TCPSACKReorder", 0),
                rto=A.get("TCPTimeouts", 0) + B.get("TCPTimeouts", 0))


def common(d):
    r = {k: round(d[k], 4) for k in ("wall", "fw_cpu", "fw_user", "fw_sys", "fw_top_thread", "srv_cpu", "ksoft_cpu", "m_busy", "m_softirq", "m_steal")}
    r["machine_util"] = round(d["m_busy"] / d["wall"] / os.cpu_count(), 3)
    return r


def bound(r, secs, cli_cpu=0.0):
    """Who looks like the bottleneck: the busiest party at >= 90 % of a core."""
    who = []
    if r["fw_top_thread"] * r["wall"] / secs >= 0.85:
        who.append("fw")
    if cli_cpu / secs >= 0.9:
        who.append("tx")
    if r["srv_cpu"] / secs >= 0.9:
        who.append("rx")
    if r["m_busy"] / secs / os.cpu_count() >= 0.92:
        who.append("cpu")
    return "+".join(who) or "-"

