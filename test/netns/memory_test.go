package netns

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"taprouter/control/api"
	"taprouter/internal/traffic"
)

// Resident memory stays small: after the start, under load, and with queues
// as full as they can be. What the router says of it adds up.
func TestMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's own memory is several times the router's")
	}
	for _, tt := range []struct{ name, port string }{
		{"direct", ""},
		{"full queues", ", txqueuelen: 100000, line: {rate: 10mbit, delay: 500ms}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNet(t)
			conf := "version: 1\nworkers: 2\nports:\n"
			var names []string
			for i, k := range []string{"a", "b", "c", "d"} {
				more := ""
				if k == "b" || k == "d" {
					more = tt.port
				}
				conf += fmt.Sprintf("  - {name: @dev:%s, queues: 4, netns: @ns:%s, create: true, mtu: 65000, host: {addresses: [10.99.0.%d/24]}%s}\n", k, k, i+1, more)
				names = append(names, "@dev:"+k)
			}
			r := n.router(conf + "bridges:\n  - {name: br0, ports: [" + strings.Join(names, ", ") + "]}\n")
			n.ping("a", "10.99.0.2")
			m := r.memory(t)
			if m.RSS >= 64<<20 {
				t.Errorf("%d bytes resident after the start, want less than 64 MiB", m.RSS)
			}
			load := func() {
				for _, to := range []string{"b", "d"} {
					n.iperf("a", to, map[string]string{"b": "10.99.0.2", "d": "10.99.0.4"}[to], amount()+" -P 8")
				}
			}
			if tt.port != "" {
				agent := n.ends(r).at["a"]
				load = func() { // frames of all sizes, which nobody waits for
					for i, size := range []int{60000, 60000, 8000, 8000, 1400, 100} {
						to := []string{"10.99.0.2:9", "10.99.0.4:9"}[i%2]
						if _, err := agent.SendUDP(t.Context(), traffic.UDPSend{To: to, Flows: 64, PPS: 5000, Burst: 8, Size: size, Duration: time.Second}); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			load()
			m = r.memory(t)
			t.Logf("%d bytes resident, %d at most, bound %d and the program's %d; %+v", m.RSS, m.MaxRSS, m.Bound, m.Program, m.Buffers)
			if m.MaxRSS >= 256<<20 || m.MaxRSS > m.Bound+m.Program {
				t.Errorf("%d bytes resident at most, want less than 256 MiB and than the bound of %d", m.MaxRSS, m.Bound+m.Program)
			}
		})
	}
}

// memory asks for it and adds it up.
func (r *Router) memory(t *testing.T) (m api.Memory) {
	t.Helper()
	r.ask(&m, "memory", "show")
	for _, b := range m.Buffers {
		sum := b.InUse + b.Free + b.Control + b.Untouched
		for _, n := range b.Workers {
			sum += n
		}
		if sum != b.Most || b.InUse < 0 || len(b.Workers) != 2 {
			t.Errorf("%+v: %d are somewhere", b, sum)
		}
	}
	if m.RSS == 0 || m.RSS > m.MaxRSS || m.GoHeap == 0 || m.GoTotal < m.GoHeap {
		t.Errorf("%+v", m)
	}
	return m
}
