# SPDX-License-Identifier: Apache-2.0
"""legs.py - the tests."""
import json, os, subprocess, time

from counters import Window, bound, common, netcount, tcp_counters
from rig import BIN, NET, end, ns

PPS_FRAME = 64     # bytes on the wire without FCS, headers included

# seconds per test; settle = pause before each test
PROFILES = {
    "quick": dict(tcp=3, noff=3, pps=2, paced=2, ooo=2, rr=1.5, idle=5, settle=0.2),
    "full": dict(tcp=10, noff=10, pps=5, paced=5, ooo=5, rr=5, idle=10, settle=0.5),
    "tiny": dict(tcp=1, noff=1, pps=1, paced=1, ooo=1, rr=1, idle=1, settle=0.1)}
PACED_PPS = 50000


def client(rig, cmd, timeout):
    """Run a client in A; returns (stdout, its cpu seconds)."""
    p = subprocess.Popen(ns("A", *cmd), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    r0 = os.times()
    try:
        o, e = p.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        end([p.pid])
        p.communicate()
        raise RuntimeError("%s: no end after %ds" % (cmd[0], timeout))
    r1 = os.times()
    if p.returncode and not o.strip().startswith("{"):
        raise RuntimeError("%s: rc %d: %s" % (" ".join(cmd), p.returncode, e[-300:]))
    return o, (r1.children_user + r1.children_system) - (r0.children_user + r0.children_system)


# ------------------------------------------------------------------ the tests
def t_tcp(rig, P, streams, rev, secs):
    rig.serve()
    cmd = ["iperf3", "-J", "-c", rig.b, "-p", "5201", "-t", str(secs), "-P", str(streams)] + (["-R"] if rev else [])
    with Window(rig) as w:
        o, cc = client(rig, cmd, secs + 15)
    j = json.loads(o)
    if "error" in j:
        raise RuntimeError("iperf3: " + j["error"])
    e = j["end"]
    gbps = e["sum_received"]["bits_per_second"] / 1e9
    gb = e["sum_received"]["bytes"] / 1e9
    d = w.d
    r = common(d)
    src, dst = ("B", "A") if rev else ("A", "B")
    frames = d[dst].get("rx_packets", 0)
    tx_cpu, rx_cpu = (d["srv_cpu"], cc) if rev else (cc, d["srv_cpu"])
    r.update(gbps=gbps, gb=gb, frames=frames, bytes_per_frame=d[dst].get("rx_bytes", 0) / max(frames, 1),
             fw_cpu_per_gb=d["fw_cpu"] / gb if gb else None, sys_cpu_per_gb=d["m_busy"] / gb if gb else None,
             fw_ns_per_frame=d["fw_cpu"] * 1e9 / max(frames + d[src].get("rx_packets", 0), 1),
             tx_cpu=tx_cpu, rx_cpu=rx_cpu, cli_cpu=cc, dev_drop=d[src].get("tx_drop", 0), **tcp_counters(d))
    r["bound"] = bound(dict(r, srv_cpu=rx_cpu), secs, tx_cpu)
    return r


def pps_cmd(rig, flows, secs, rate=0):
    tun = rig.fw.ports == "tun"
    dmac = NET["MAC_B"] if rig.fw.layer == "l2" else NET["GWMAC_A"]
    return [BIN + "/pps", "-i", NET["TAPA"], "-s", NET["MAC_A"], "-d", dmac, "-S", rig.a, "-D", rig.b, "-f", str(flows),
            "-t", str(secs), "-r", str(rate), "-l", str(PPS_FRAME)] + (["-6"] if rig.ip == 6 else []) + (["-T"] if tun else [])


def wire_packets(c, rig):
    """Small UDP packets behind a receive counter.  A forwarder that merges packets into UDP
    GSO frames moves the frame counter once for many of them, so count by payload bytes:
    every frame has one set of headers (Ethernet is not counted on a TUN)."""
    l3l4 = 48 if rig.ip == 6 else 28
    headers = l3l4 if rig.fw.ports == "tun" else 14 + l3l4
    payload = PPS_FRAME - 14 - l3l4
    frames, size = c.get("rx_packets", 0), c.get("rx_bytes", 0)
    return max(frames, round((size - headers * frames) / payload))


def t_pps(rig, P, flows, secs, rate=0):
    # a first touch so that learning switches and neighbour caches are warm
    subprocess.run(ns("A", "ping", "-%d" % rig.ip, "-c1", "-W1", "-q", rig.b), stdout=subprocess.DEVNULL)
    with Window(rig) as w:
        o, cc = client(rig, pps_cmd(rig, flows, secs, rate), secs + 15)
        time.sleep(0.15)  # let the queue drain
    # A forwarder with a long inner queue goes on delivering after the end.  That
    # must not leak into the next test, and it is worth knowing: wait it out.
    t0, first = time.monotonic(), netcount("B").get("rx_packets", 0)
    last, quiet_since = first, t0
    while time.monotonic() - quiet_since < 0.3 and time.monotonic() - t0 < 15:
        time.sleep(0.05)
        now = netcount("B").get("rx_packets", 0)
        if now - last > 5:
            quiet_since = time.monotonic()
        last = now
    j = json.loads(o)
    d = w.d
    rx = wire_packets(d["B"], rig)
    r = common(d)
    r.update(frames=d["B"].get("rx_packets", 0))
    r.update(drain_pkts=last - first, drain_s=round(quiet_since - t0, 2))
    r.update(offered_pps=j["offered"] / j["secs"], pps=rx / j["secs"], received=rx, loss=1 - rx / max(j["offered"], 1), tx_cpu=cc, cli_cpu=cc,
             fw_ns_per_pkt=d["fw_cpu"] * 1e9 / max(rx, 1), fw_cpu_per_mpkt=d["fw_cpu"] * 1e6 / max(rx, 1),
             sys_ns_per_pkt=d["m_busy"] * 1e9 / max(rx, 1))
    r["bound"] = bound(r, secs, cc)
    return r


def t_rr(rig, P, proto, secs):
    rig.serve()
    with Window(rig) as w:
        o, cc = client(rig, [BIN + "/rr", "-c", rig.b, "-p", "7007", "-t", str(secs)] + (["-u"] if proto == "udp" else []), secs + 15)
    r = common(w.d)
    r.update(json.loads(o))
    r["cli_cpu"] = cc
    r["fw_us_per_trans"] = w.d["fw_cpu"] * 1e6 / max(r["n"], 1)
    return r


def t_rrload(rig, P, secs):
    """TCP and UDP round trips A->B->A while one bulk TCP stream runs A->B."""
    rig.serve()
    n = 2 * secs + 1.5
    c0 = os.times()
    with Window(rig) as w:
        bulk = subprocess.Popen(ns("A", "iperf3", "-J", "-c", rig.b, "-p", "5201", "-t", "%d" % (n + 0.99)),
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            time.sleep(0.7)
            u = json.loads(client(rig, [BIN + "/rr", "-c", rig.b, "-p", "7007", "-t", str(secs), "-u"], secs + 15)[0])
            t = json.loads(client(rig, [BIN + "/rr", "-c", rig.b, "-p", "7007", "-t", str(secs)], secs + 20)[0])
            o, _ = bulk.communicate(timeout=n + 20)
        finally:
            if bulk.poll() is None:
                end([bulk.pid])
                bulk.communicate()
    r = common(w.d)
    r.update({"udp_" + k: v for k, v in u.items()})
    r.update({"tcp_" + k: v for k, v in t.items()})
    r["gbps"] = json.loads(o)["end"]["sum_received"]["bits_per_second"] / 1e9
    c1 = os.times()
    r["cli_cpu"] = c1.children_user + c1.children_system - c0.children_user - c0.children_system
    r.update(tcp_counters(w.d))
    return r


def t_ooo(rig, P, secs):
    """iperf3 UDP, 4 flows x 100 Mbit/s of 1200-byte datagrams: loss and order.
    The order must come from the receiver: the out_of_order field in the sender's
    own report is always 0."""
    rig.serve()
    with Window(rig) as w:
        o, cc = client(rig, ["iperf3", "-J", "--get-server-output", "-u", "-b", "100M", "-l", "1200", "-P", "4", "-t", str(secs), "-c", rig.b, "-p", "5201"], secs + 15)
    j = json.loads(o)
    if "error" in j:
        raise RuntimeError("iperf3: " + j["error"])
    e = j["end"]
    rx = j["server_output_json"]["end"]["streams"]  # KeyError rather than a false 0
    r = common(w.d)
    r.update(cli_cpu=cc, packets=e["sum"]["packets"], lost=e["sum"]["lost_packets"], jitter_us=e["sum"]["jitter_ms"] * 1000,
             ooo_rx=sum(s["udp"]["out_of_order"] for s in rx), mbps=e["sum"]["bits_per_second"] / 1e6,
             fw_ns_per_pkt=w.d["fw_cpu"] * 1e9 / max(w.d["B"].get("rx_packets", 0), 1))
    return r


def t_idle(rig, P, secs):
    with Window(rig) as w:
        time.sleep(secs)
    r = common(w.d)
    r["cli_cpu"] = 0
    r["fw_idle_pct"] = 100 * w.d["fw_cpu"] / w.d["wall"]
    return r


# name -> (group, offloads, seconds(P), function(rig, P))
TESTS = {
    "tcp1_ab": ("tcp", "on", lambda P: P["tcp"] + .6, lambda g, P: t_tcp(g, P, 1, False, P["tcp"])),
    "tcp1_ba": ("tcp", "on", lambda P: P["tcp"] + .6, lambda g, P: t_tcp(g, P, 1, True, P["tcp"])),
    "tcp4_ab": ("tcp", "on", lambda P: P["tcp"] + .6, lambda g, P: t_tcp(g, P, 4, False, P["tcp"])),
    "tcp4_ba": ("tcp", "on", lambda P: P["tcp"] + .6, lambda g, P: t_tcp(g, P, 4, True, P["tcp"])),
    "tcp1_ab_noff": ("noff", "off", lambda P: P["noff"] + .6, lambda g, P: t_tcp(g, P, 1, False, P["noff"])),
    "tcp1_ba_noff": ("noff", "off", lambda P: P["noff"] + .6, lambda g, P: t_tcp(g, P, 1, True, P["noff"])),
    "tcp4_ab_noff": ("noff", "off", lambda P: P["noff"] + .6, lambda g, P: t_tcp(g, P, 4, False, P["noff"])),
    "tcp4_ba_noff": ("noff", "off", lambda P: P["noff"] + .6, lambda g, P: t_tcp(g, P, 4, True, P["noff"])),
    "pps1": ("pps", "on", lambda P: P["pps"] + .5, lambda g, P: t_pps(g, P, 1, P["pps"])),
    "pps64": ("pps", "on", lambda P: P["pps"] + .5, lambda g, P: t_pps(g, P, 64, P["pps"])),
    "paced": ("pps", "on", lambda P: P["paced"] + .5, lambda g, P: t_pps(g, P, 1, P["paced"], PACED_PPS)),
    "udp_ooo": ("pps", "on", lambda P: P["ooo"] + .5, lambda g, P: t_ooo(g, P, P["ooo"])),
    "rr_udp": ("lat", "on", lambda P: P["rr"] + .5, lambda g, P: t_rr(g, P, "udp", P["rr"])),
    "rr_tcp": ("lat", "on", lambda P: P["rr"] + .5, lambda g, P: t_rr(g, P, "tcp", P["rr"])),
    "rr_load": ("lat", "on", lambda P: 2 * P["rr"] + 3, lambda g, P: t_rrload(g, P, P["rr"])),
    "idle": ("idle", "on", lambda P: P["idle"], lambda g, P: t_idle(g, P, P["idle"])),
}


def foreign(r):
    """Cores that somebody else kept busy during a record (None: not known)."""
    if "m_busy" not in r:
        return None
    cli = r.get("cli_cpu")
    if cli is None:  # older records
        if r["test"].startswith("tcp"):
            return (r["m_busy"] - r["fw_cpu"] - r["tx_cpu"] - r["rx_cpu"] - r["ksoft_cpu"]) / r["wall"]
        cli = r.get("tx_cpu")
        if cli is None:
            cli = 0 if r["test"] == "idle" else r["srv_cpu"]  # client about as busy as its server
    return (r["m_busy"] - r["fw_cpu"] - r["srv_cpu"] - cli - r["ksoft_cpu"]) / r["wall"]


NOISE = 0.35  # cores of foreign work from which on a record counts as disturbed

