# SPDX-License-Identifier: Apache-2.0
"""rig.py - two hosts in namespaces and a forwarder between them."""
import configparser, glob, json, os, shutil, signal, subprocess, sys, tempfile, time

BENCH = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(BENCH))
BIN = os.path.join(ROOT, "bin", "peers")            # where `make -C src` puts the helpers
ROUTER = os.environ.get("ROUTER", os.path.join(ROOT, "bin", "router"))
LIB = os.path.join(BENCH, "lib.sh")

# Namespace names carry the pid: two instances can neither collide nor tear down
# each other's namespaces.
PFX = os.environ.get("BENCH_PREFIX", "pb%d" % os.getpid())

NET = dict(NS_A=PFX + "A", NS_B=PFX + "B", NS_F=PFX + "F",
           TAPA="tapa", TAPB="tapb", PA="pa", PB="pb",
           MAC_A="02:00:00:00:0a:01", MAC_B="02:00:00:00:0b:01",
           GWMAC_A="02:00:00:00:0a:fe", GWMAC_B="02:00:00:00:0b:fe")
ADDR = {  # (layer, ip version) -> (A, B)
    ("l2", 4): ("10.99.0.1", "10.99.0.2"), ("l2", 6): ("fd99::1", "fd99::2"),
    ("l3", 4): ("10.99.1.1", "10.99.2.1"), ("l3", 6): ("fd99:0:0:1::1", "fd99:0:0:2::1")}


# ------------------------------------------------------------------ small tools
def sh(*a, check=True, timeout=60, **kw):
    r = subprocess.run(a, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout, **kw)
    if check and r.returncode:
        raise RuntimeError("%s: rc %d: %s" % (" ".join(a), r.returncode, (r.stderr or r.stdout).strip()[-400:]))
    return r.stdout


def ns(n, *a):
    return ["ip", "netns", "exec", NET["NS_" + n], *a]


def read(path):
    try:
        with open(path) as f:
            return f.read()
    except OSError:
        return ""


def children(pid):
    """pid and all its living descendants."""
    par = {}
    for p in glob.glob("/proc/[0-9]*/stat"):
        s = read(p)
        if s:
            par.setdefault(int(s.rsplit(")", 1)[1].split()[1]), []).append(int(p.split("/")[2]))
    out, todo = [], [pid]
    while todo:
        x = todo.pop()
        out.append(x)
        todo += par.get(x, [])
    return out


def end(pids, grace=3.0):
    """End exactly these processes: TERM, then KILL what is left."""
    def alive(p):
        s = read("/proc/%d/stat" % p)
        return bool(s) and s.rsplit(")", 1)[1].split()[0] != "Z"
    for sig, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 2.0)):
        left = [p for p in pids if alive(p)]
        for p in left:
            try:
                os.kill(p, sig)
            except ProcessLookupError:
                pass
        t = time.monotonic() + wait
        while any(alive(p) for p in left) and time.monotonic() < t:
            time.sleep(0.02)


# ------------------------------------------------------------------ forwarders
class Forwarder:
    def __init__(self, name, sec):
        self.name = name
        self.layer = sec.get("layer", "l2")          # l2 | l3
        self.ports = sec.get("ports", "tap")         # tap | tun | veth
        self.start = sec.get("start")
        self.stop = sec.get("stop", "")
        self.after = sec.get("after", "")            # lib.sh function called after the end
        self.neigh = sec.get("neigh", "dynamic")     # l3 only: static | dynamic
        self.env = dict(kv.split("=", 1) for kv in sec.get("env", "").split(";;") if kv.strip())
        self.pre = sec.get("pre", "")                # shell line run in F before start
        self.v6 = sec.getboolean("v6", True)         # false: no IPv6 check
        self.skip = sec.get("skip", "")
        self.needs = sec.get("needs", "").split()    # command:package
        self.wait = sec.getfloat("wait", 8.0)        # seconds until it must answer ping
        self.offl = sec.get("offloads", "on")        # off: never on in any test
        self.about = sec.get("about", "")

    def missing(self):
        """How to get what is not installed, by command that is not there."""
        out = {}
        for n in self.needs:
            cmd, package = n.format(bin=BIN, router=ROUTER).rsplit(":", 1)
            if not shutil.which(cmd):
                out[os.path.basename(cmd)] = HOW.get(package, "apt-get install " + package)
        return out


HOW = {"make": "make build", "make-c": "make -C bench/peers/src", "make-go": "make -C bench/peers/src go"}


def load(path=None):
    c = configparser.ConfigParser(interpolation=None)
    c.read(path or os.path.join(BENCH, "forwarders.ini"))
    return {n: Forwarder(n, c[n]) for n in c.sections()}


class Rig:
    """One started forwarder with its two hosts."""

    def __init__(self, fw, ip=4):
        self.fw, self.ip = fw, ip
        self.run = tempfile.mkdtemp(prefix="bench-%s-" % fw.name)
        self.env = dict(os.environ, BENCH=BENCH, BIN=BIN, ROUTER=ROUTER, RUN=self.run, **NET)
        self.pids, self.helpers, self.servers = [], [], []
        self.a, self.b = ADDR[(fw.layer, ip)]
        self.proc = None

    def lib(self, *a):
        return sh("bash", LIB, *a, env=self.env, timeout=60)

    def fill(self, s):
        d = {k.lower().replace("_", ""): v for k, v in NET.items()}   # {tapa} {pa} {nsa} {maca} {gwmaca} ...
        d.update(bench=BENCH, bin=BIN, run=self.run, name=self.fw.name, lib=LIB,
                 gw4a="10.99.1.254/24", gw4b="10.99.2.254/24", gw6a="fd99:0:0:1::fe/64", gw6b="fd99:0:0:2::fe/64",
                 net4a="10.99.1.0/24", net4b="10.99.2.0/24", net6a="fd99:0:0:1::/64", net6b="fd99:0:0:2::/64")
        return s.format_map(d)

    def __enter__(self):
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *e):
        self.down()

    def up(self):
        fw = self.fw
        self.env.update({k.strip(): self.fill(v) for k, v in fw.env.items()})
        self.lib("net_create")
        if fw.ports == "veth":
            self.lib("veth_create")
        if fw.pre:
            sh(*ns("F", "sh", "-c", self.fill(fw.pre)), env=self.env)
        cmd = self.fill(fw.start)
        self.log = open(os.path.join(self.run, "out.log"), "w")
        if cmd.startswith("fn:"):
            self.lib_logged(cmd[3:].split())
        else:
            # `exec` twice: the pid we hold is the forwarder itself
            self.proc = subprocess.Popen(ns("F", "sh", "-c", "exec " + cmd), env=self.env, cwd=self.run,
                                         stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True)
        if fw.ports in ("tap", "tun"):
            try:
                self.lib("taps_move")
            except RuntimeError as e:
                raise RuntimeError("%s; its log: %s" % (e, read(self.log.name)[-500:]))
        self.lib("host_addr", fw.layer, "tun" if fw.ports == "tun" else "ether", fw.neigh)
        if fw.offl == "off":
            self.lib("offloads", "off")
        self.find_pids()
        self.ping()
        self.find_pids()

    def lib_logged(self, a):
        p = subprocess.run(["bash", LIB, *a], env=self.env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, timeout=60)
        if p.returncode:
            raise RuntimeError("start function failed: " + read(self.log.name)[-500:])

    def find_pids(self):
        roots = [int(x) for x in read(os.path.join(self.run, "pids")).split()]
        if self.proc:
            if self.proc.poll() is not None:
                raise RuntimeError("forwarder left, rc %s: %s" % (self.proc.returncode, read(self.log.name)[-500:]))
            roots.append(self.proc.pid)
        self.pids = sorted({c for r in roots for c in children(r) if os.path.exists("/proc/%d" % c)})
        self.helpers = [int(x) for x in read(os.path.join(self.run, "helper.pids")).split()]

    def ping(self):
        t = time.monotonic() + self.fw.wait
        for v in (4, 6) if self.fw.v6 else (4,):
            dst = ADDR[(self.fw.layer, v)][1]
            while subprocess.run(ns("A", "ping", "-%d" % v, "-c1", "-W1", "-q", dst), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
                if time.monotonic() > t:
                    raise RuntimeError("no answer to ping -%d; log: %s" % (v, read(self.log.name)[-500:]))
                time.sleep(0.1)
                self.find_pids()

    def serve(self):
        """iperf3 and rr servers in B."""
        if not self.servers:
            for c in (["iperf3", "-s", "-J", "-p", "5201"], [BIN + "/rr", "-s", "-p", "7007"]):
                self.servers.append(subprocess.Popen(ns("B", *c), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            time.sleep(0.3)

    def stop_servers(self):
        for p in self.servers:
            end([p.pid])
            p.wait()
        self.servers = []

    def down(self):
        self.stop_servers()
        if self.fw.stop:
            try:
                sh("sh", "-c", self.fill(self.fw.stop), env=self.env, check=False, timeout=20)
            except Exception as e:
                print("stop: %s" % e, file=sys.stderr)
        try:
            self.find_pids()
        except RuntimeError:
            pass
        end(self.pids + self.helpers)
        if self.proc:
            self.proc.wait()
        self.lib("net_destroy")
        if self.fw.after:
            self.lib(*self.fw.after.split())
        if not os.environ.get("BENCH_KEEP"):
            shutil.rmtree(self.run, ignore_errors=True)

    def reordered(self):
        """Packets that our router says it handed to a device out of order; None of others."""
        if not os.path.exists(os.path.join(self.run, "taprouter.yaml")):
            return None
        ports = json.loads(sh(ROUTER, "xps", "show", "-j", "--name", "bench-" + NET["NS_F"]))
        return sum(p["reordered"] for p in ports)

    def rss_kb(self):
        n = 0
        for p in self.pids:
            for l in read("/proc/%d/status" % p).splitlines():
                if l.startswith("VmHWM:"):
                    n += int(l.split()[1])
        return n

