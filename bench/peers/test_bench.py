# SPDX-License-Identifier: Apache-2.0
"""What the bench computes, without a namespace: python3 -m unittest discover -s bench/peers"""
import configparser, json, os, tempfile, types, unittest

import goals, legs, rig, tables


def results(*records):
    """Result files with these records, undisturbed unless they say otherwise."""
    base = dict(rep=1, ok=True, m_busy=0, fw_cpu=0, srv_cpu=0, ksoft_cpu=0, cli_cpu=0, wall=1)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False) as f:
        f.writelines(json.dumps(dict(base, **r)) + "\n" for r in records)
    try:
        return tables.Results([f.name])
    finally:
        os.unlink(f.name)


def verdicts(res):
    return {(c[0], c[1]): c[5] for c in (goals.judge(res, g) for g in goals.GOALS) if c}


class Bench(unittest.TestCase):
    def test_wire_packets(self):
        """A merged frame counts for what it holds: 10 payloads of 22 bytes behind one set of headers."""
        for ip, ports, headers in ((4, "tap", 42), (6, "tap", 62), (4, "tun", 28)):
            g = types.SimpleNamespace(ip=ip, fw=types.SimpleNamespace(ports=ports))
            payload = 64 - (62 if ip == 6 else 42)
            c = dict(rx_packets=2, rx_bytes=2 * headers + (10 + 1) * payload)
            self.assertEqual(legs.wire_packets(c, g), 11, (ip, ports))

    def test_least_disturbed(self):
        """Of two tries the quieter one counts; of two repetitions only the undisturbed one."""
        r = dict(fw="x", test="tcp1_ab", gbps=1)
        res = results(dict(r, m_busy=2), dict(r, gbps=2), dict(r, rep=2, gbps=3, m_busy=2))
        self.assertEqual(res.vals("x", "tcp1_ab", "gbps"), [2])
        self.assertFalse(res.stars)
        self.assertEqual(results(dict(r, m_busy=2)).stars, {("x", "tcp1_ab")})

    def test_worst_memory(self):
        m = dict(fw="x", test="mem")
        res = results(dict(m, rss_mb=9, reordered=0), dict(m, rss_mb=5, reordered=2), dict(m, rss_mb=7, reordered=1))
        self.assertEqual((res.vals("x", "mem", "rss_mb"), res.vals("x", "mem", "reordered")), ([9], [2]))

    def test_goals(self):
        """The same figures reach a goal or do not, by which of the two has them."""
        def of(a, b):
            return results(dict(fw=a, test="tcp1_ab_noff", gbps=3, retrans=0, gb=1), dict(fw=b, test="tcp1_ab_noff", gbps=1, retrans=4, gb=2))
        good, bad = verdicts(of("taprouter", "fwd-vnet")), verdicts(of("fwd-vnet", "taprouter"))
        what = "tcp1_ab, offloads off: "
        self.assertEqual((good["taprouter", what + "Gbit/s"], bad["taprouter", what + "Gbit/s"]), ("yes", "NO"))
        self.assertEqual(good["taprouter", what + "retransmits per GB (fwd-vnet: 2)"], "yes")
        self.assertEqual(bad["taprouter", what + "retransmits per GB (fwd-vnet: 0)"], "NO")

    def test_goals_exist(self):
        """Every goal is of a test and of forwarders that there are."""
        names = rig.load()
        for what, t, _, us, ref, _, least in goals.GOALS:
            self.assertIn(t, list(legs.TESTS) + ["mem"], what)
            for n in (us, ref, least if isinstance(least, str) else None):
                self.assertTrue(n is None or n in names, what)

    def test_peers(self):
        res = results(dict(fw="taprouter", test="tcp1_ab", gbps=2), dict(fw="socat", test="tcp1_ab", gbps=1), dict(fw="vde", test="tcp1_ab", gbps=4))
        self.assertEqual([(c[0], c[2], c[-1]) for c in goals.peers(res)], [("vde", "0.50", "NO"), ("socat", "2.00", "yes")])

    def test_missing(self):
        f = rig.Forwarder("x", configparser.ConfigParser()["DEFAULT"])
        f.needs = ["sh:dash", "no-such-program:its-package"]
        self.assertEqual(f.missing(), {"no-such-program": "apt-get install its-package"})


if __name__ == "__main__":
    unittest.main()
