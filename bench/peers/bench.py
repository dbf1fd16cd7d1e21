#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench.py - taprouter beside other forwarders between two TAPs.

  bench.py list                          the forwarders in forwarders.ini, and what is not installed
  bench.py check [NAME...]               start each one, ping v4/v6, stop it
  bench.py run   [NAME...] [options]     measure, interleaved, append JSON lines
  bench.py table RESULT.jsonl [...]      tables and goals of result files

Options of run: --reps N  --profile full|quick|tiny  --tests a,b,..  --out FILE
  --ref NAME  --ip 4|6  --lock FILE|none  --cap SECONDS (longest locked stretch)
  --patience N (times that a quiet machine is waited for before a stretch)

Order of work: for each repetition, for each test group, for each forwarder
(the forwarder order rotates from one repetition to the next): take the lock,
build the namespaces, start the forwarder, check it with ping, measure, stop
it, remove the namespaces, release the lock.  So two forwarders are always
compared within minutes, and a ratio is formed per repetition.

The exit status is 1 if something could not be started or measured.  Python
standard library only.  Needs root, iproute2, ethtool, iperf3, ping and the
three C helpers of `make -C src`.
"""
import argparse, fcntl, glob, json, os, signal, sys, tempfile, time

from counters import machine
from goals import print_goals
from legs import NOISE, PROFILES, TESTS, foreign
from rig import BIN, Rig, end, load
from tables import Results, print_tables


class Lock:
    def __init__(self, path):
        self.path = path

    def __enter__(self):
        self.t0 = time.monotonic()
        self.f = None
        if self.path and self.path != "none":
            self.f = open(self.path, "a")
            fcntl.flock(self.f, fcntl.LOCK_EX)
        self.waited = time.monotonic() - self.t0
        return self

    def __exit__(self, *e):
        if self.f:
            self.f.close()
            time.sleep(0.3)  # give the other waiters a fair chance


def pack(tests, P, cap):
    """Cut the test list into locked stretches of at most `cap` seconds."""
    slots, cur, t = [], [], 0.0
    for name in tests:
        s = TESTS[name][2](P) + P["settle"]
        if cur and t + s + 8 > cap:
            slots.append(cur)
            cur, t = [], 0.0
        cur.append(name)
        t += s
    return slots + [cur]


def quiet(secs=0.6):
    a = machine()["busy"]
    time.sleep(secs)
    return (machine()["busy"] - a) / secs < 0.3


def measure(fw, names, P, rep, a, out):
    """One locked stretch.  Work of others that do not take the lock (builds)
    is waited out a little before the start, and a disturbed test is repeated."""
    for k in range(a.patience + 1):
        with Lock(a.lock) as L:
            if k == a.patience or quiet():
                t0 = time.monotonic()
                ok = Stretch(fw, P, rep, a, out).run(names)
                print("%s rep %d %-12s waited %5.1fs held %5.1fs" % (time.strftime("%H:%M:%S"), rep, fw.name, L.waited, time.monotonic() - t0), flush=True)
                return ok
        time.sleep(3)


class Stretch:
    """Some tests of one forwarder, started once."""

    def __init__(self, fw, P, rep, a, out):
        self.fw, self.P, self.cap, self.out = fw, P, a.cap, out
        self.base = dict(fw=fw.name, rep=rep, ip=a.ip)
        self.ip = a.ip
        self.t0 = time.monotonic()
        self.disturbed = False   # the test before was, twice
        self.ok = True

    def emit(self, test, **kw):
        self.out.write(json.dumps(dict(self.base, test=test, ts=round(time.time(), 1), **kw)) + "\n")
        self.out.flush()

    def fail(self, test, e):
        self.ok = False
        self.emit(test, ok=False, error=str(e)[:800])
        print("  %s %s: %s" % (self.fw.name, test, str(e)[:300]), flush=True)

    def run(self, names):
        try:
            with Rig(self.fw, self.ip) as rig:
                off = self.fw.offl
                for n in names:
                    want = "off" if self.fw.offl == "off" else TESTS[n][1]
                    if want != off:
                        rig.lib("offloads", want)
                        off = want
                    try:
                        self.test(rig, n)
                    except Exception as e:
                        self.fail(n, e)
                        rig.stop_servers()   # a stuck server must not spoil the next test
                self.emit("mem", ok=True, rss_mb=round(rig.rss_kb() / 1024, 1), reordered=rig.reordered(),
                          threads=sum(len(glob.glob("/proc/%d/task/*" % p)) for p in rig.pids))
        except Exception as e:
            self.fail("start", e)
        return self.ok

    def test(self, rig, n):
        """One test, repeated once if somebody else kept the machine busy."""
        for tries in range(2):
            time.sleep(self.P["settle"])
            r = dict(TESTS[n][3](rig, self.P), test=n)
            r["foreign"] = foreign(r)
            r["try"] = tries
            self.emit(**{k: (round(v, 6) if isinstance(v, float) else v) for k, v in r.items()}, ok=True)
            noisy = bool(r["foreign"] and r["foreign"] > NOISE)
            # a lasting disturbance (two in a row) is not worth more time
            if not noisy or self.disturbed or time.monotonic() - self.t0 > self.cap - 90:
                break
        self.disturbed = noisy


def installed(a, fws):
    """The forwarders to measure: those named, or all whose programs are there."""
    if a.names:
        return a.names
    names = []
    for n, f in fws.items():
        how = f.missing()
        for cmd, way in how.items():
            print("%-14s left out: there is no %s (%s)" % (n, cmd, way), flush=True)
        if not how and not f.skip:
            names.append(n)
    return names


def cmd_run(a, fws):
    P = PROFILES[a.profile]
    tests = a.tests.split(",") if a.tests else list(TESTS)
    bad = [t for t in tests if t not in TESTS]
    if bad:
        sys.exit("unknown tests: %s; there are %s" % (" ".join(bad), " ".join(TESTS)))
    names, ok = installed(a, fws), True
    os.makedirs(os.path.dirname(os.path.abspath(a.out)), exist_ok=True)
    with open(a.out, "a") as out:
        for rep in range(a.first, a.first + a.reps):
            k = rep % len(names)
            # idle CPU does not move: once is enough
            ts = [t for t in tests if t != "idle" or rep == a.first]
            for slot in pack(ts, P, a.cap):
                for n in names[k:] + names[:k]:
                    ok = measure(fws[n], slot, P, rep, a, out) and ok
    print("\nrecords: " + a.out)
    cmd_table([a.out], a.ref)
    return ok


def cmd_table(paths, ref):
    res = Results(paths)
    print_tables(res, ref)
    print_goals(res)
    return True


def cmd_check(a, fws):
    ok = True
    for n in installed(a, fws):
        with Lock(a.lock):
            try:
                with Rig(fws[n], a.ip) as rig:
                    print("%-14s ok   pids %s" % (n, rig.pids), flush=True)
            except Exception as e:
                ok = False
                print("%-14s FAIL %s" % (n, str(e)[:1200]), flush=True)
    return ok


def cmd_list(fws):
    for f in fws.values():
        note = "   [only if named: %s]" % f.skip if f.skip else ""
        note += "".join("   [no %s: %s]" % x for x in f.missing().items())
        print("%-16s %s %-5s %s%s" % (f.name, f.layer, f.ports, f.about, note))
    return True


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("cmd", choices=["list", "check", "run", "table"])
    p.add_argument("names", nargs="*")
    p.add_argument("--reps", type=int, default=3)
    p.add_argument("--first", type=int, default=1, help="number of the first repetition (to continue a file)")
    p.add_argument("--profile", choices=list(PROFILES), default="full")
    p.add_argument("--tests", default="")
    p.add_argument("--out", default=os.path.join(BIN, "results", time.strftime("run-%m%d-%H%M%S.jsonl")))
    p.add_argument("--ref", default="fwd-vnet")
    p.add_argument("--ip", type=int, choices=(4, 6), default=4)
    p.add_argument("--lock", default=os.path.join(tempfile.gettempdir(), "taprouter-bench.lock"))
    p.add_argument("--cap", type=float, default=150)
    p.add_argument("--patience", type=int, default=12)
    p.add_argument("--ini", default=None)
    a = p.parse_intermixed_args()
    # TERM and INT unwind the `with` blocks: forwarder stopped, namespaces gone
    for g in (signal.SIGTERM, signal.SIGINT):
        signal.signal(g, lambda *x: sys.exit(130))
    if a.cmd == "table":
        return cmd_table(a.names, a.ref)
    fws = load(a.ini)
    unknown = [n for n in a.names if n not in fws]
    if unknown:
        sys.exit("not in forwarders.ini: %s" % " ".join(unknown))
    if a.cmd == "list":
        return cmd_list(fws)
    return cmd_check(a, fws) if a.cmd == "check" else cmd_run(a, fws)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
