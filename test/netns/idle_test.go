package netns

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// usage is what a process has used of the CPU, and how often it was woken.
type usage struct {
	cpu   time.Duration
	wakes int
}

func (r *Router) usage() (u usage) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", r.cmd.Process.Pid))
	for _, task := range tasks {
		if b, err := os.ReadFile(task + "/schedstat"); err == nil {
			ns, _ := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
			u.cpu += time.Duration(ns)
		}
		b, _ := os.ReadFile(task + "/status")
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "voluntary_ctxt_switches:"); ok {
				n, _ := strconv.Atoi(strings.TrimSpace(v))
				u.wakes += n
			}
		}
	}
	return u
}

// B22: without traffic the router sleeps, with one port or with many, and
// then answers at once.
func TestIdle(t *testing.T) {
	type idle struct {
		ports int
		with  string
	}
	const lines = "qdisc: {kind: mq, child: {kind: fq, maxrate: 100mbit}}, line: {rate: 1gbit, delay: 1ms}, "
	sizes, watch := []idle{{1, ""}, {16, ""}, {16, lines}}, 10*time.Second
	if full {
		sizes, watch = append(sizes, idle{64, ""}, idle{64, lines}), 60*time.Second
	}
	for _, x := range sizes {
		ports := x.ports
		t.Run(fmt.Sprint(ports, x.with), func(t *testing.T) {
			n := newNet(t)
			conf := "version: 1\nworkers: 2\nports:\n"
			for i := range ports {
				// All in one namespace, each on a subnet of its own.
				conf += fmt.Sprintf("  - {name: @dev:%d, type: tap, queues: 4, netns: @ns:a, create: true, host: {addresses: [10.98.%d.1/24]}, %saddresses: [10.98.%d.254/24]}\n", i, i, x.with, i)
			}
			r := n.router(conf)
			n.ping("a", "10.98.0.254")
			n.must("a", "sysctl -qw net.ipv6.conf.all.disable_ipv6=1") // hosts' own chatter is not idleness
			until(t, 30*time.Second, "the hosts are quiet", func() bool {
				before, woken := r.received(), r.usage().wakes
				time.Sleep(time.Second) // the time that is looked at
				return r.usage().wakes-woken < 100 && r.received() == before
			})
			before, begin := r.usage(), time.Now()
			time.Sleep(watch) // the time that is measured
			after, took := r.usage(), time.Since(begin).Seconds()
			cpu, wakes := (after.cpu-before.cpu).Seconds()/took, float64(after.wakes-before.wakes)/took
			t.Logf("%d ports of 4 queues: %.3f %% of a core, %.1f wake-ups/s", ports, 100*cpu, wakes)
			if cpu > 0.01 || wakes > 100 {
				t.Errorf("idle with %d ports: %.2f %% of a core and %.0f wake-ups a second, want at most 1 and 100", ports, 100*cpu, wakes)
			}
			out := n.must("a", "ping -c 1 -W 2 10.98.0.254")
			ms, err := strconv.ParseFloat(between(out, "time=", " ms"), 64)
			t.Logf("the first ping took %.2f ms", ms)
			limit := 5.0
			if raceEnabled {
				limit = 50
			}
			if err != nil || ms > limit {
				t.Errorf("the first ping took %.2f ms, want at most %.0f (%v)", ms, limit, err)
			}
		})
	}
}

func (r *Router) received() uint64 {
	var s struct {
		Totals struct{ Received uint64 }
	}
	r.ask(&s, "status")
	return s.Totals.Received
}

// between gives what stands between two marks, empty if they are not there.
func between(s, from, to string) string {
	_, rest, _ := strings.Cut(s, from)
	text, _, _ := strings.Cut(rest, to)
	return text
}
