package netns

import (
	"slices"
	"strings"
	"testing"

	"taprouter/bench"
)

// The tables that measure `router run` between namespaces are made, with
// slices that are too short to mean anything, and claim what they must.
func TestBenchTables(t *testing.T) {
	for _, args := range [][]string{
		{"bench", "xmit", "--table", "6,8", "--threads", "1", "--duration", "40ms"},
		{"bench", "steer", "--duration", "150ms"}, // without a table TCP may wait for its timer, 200 ms and more
	} {
		r := &Router{net: newNet(t), name: "unused"} // the bench starts routers of its own
		var rep bench.Report
		r.ask(&rep, append(args, "--rounds", "1")...)
		for _, tab := range rep.Tables {
			for _, row := range tab.Rows {
				t.Logf("table %d, %s: %.3g %.3g, %.2fx", tab.Number, row.Name, row.A.Median, row.B.Median, row.Ratio.Median)
				if row.A.Min <= 0 || row.B.Min <= 0 {
					t.Errorf("table %d, %s: nothing was measured: %+v", tab.Number, row.Name, row)
				}
				for _, e := range row.Extra {
					if e.Name == "reordered" && tab.Number == 7 && row.Note == "" && row.Name[0] == 'i' && e.B.Max != 0 {
						t.Errorf("%s: %v packets reordered", row.Name, e.B.Max)
					}
				}
			}
		}
	}
}

// Every leg of router bench forward works, bridged and routed, keeps order and
// says what its table is for; the slices are too short to mean anything.
func TestBenchForward(t *testing.T) {
	rep := benchForward(t, "--duration", "100ms")
	entries := bench.Entries("forward")
	if len(rep.Tables) != len(entries) {
		t.Fatalf("%d tables, want %d", len(rep.Tables), len(entries))
	}
	cost := map[int]string{9: "router CPU s/GB", 10: "router CPU s/Mpkt", 12: "CPU %"}
	for i, e := range entries {
		tab := rep.Tables[i]
		var want []string
		for _, layer := range bench.LayerNames {
			for _, leg := range e.Legs {
				want = append(want, layer+" "+leg)
			}
		}
		var got []string
		for _, row := range tab.Rows {
			got = append(got, row.Name)
			x := extras(row)
			t.Logf("%-16s %8.3g %s", row.Name, row.A.Median, tab.Unit)
			if n, ok := x["reordered"]; !ok || n.A.Max != 0 {
				t.Errorf("%s: reordered %+v", row.Name, n)
			}
			if _, ok := x["ring drops"]; !ok || row.A.Min <= 0 {
				t.Errorf("%s: incomplete: %+v", row.Name, row)
			}
			if c := cost[tab.Number]; c != "" && x[c].A.Min <= 0 && !strings.HasSuffix(row.Name, " rest") {
				t.Errorf("%s: nothing costs nothing, but %s is %+v", row.Name, c, x[c])
			}
			if strings.HasSuffix(row.Name, "paced") && (x["offered kpps"].A.Median > 60 || row.A.Max > 60) {
				t.Errorf("%s: %+v delivered of %+v, want 50 kpps at most", row.Name, row.A, x["offered kpps"].A)
			}
			if n := x["bytes/frame"].A; tab.Number == 9 && strings.HasSuffix(row.Name, "_noff") != (n.Max <= 1514) {
				t.Errorf("%s: %+v bytes a frame", row.Name, n)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("table %d has rows %v, want %v", tab.Number, got, want)
		}
	}
}

// A variant is measured beside the default: one queue, fq.
func TestBenchVersus(t *testing.T) {
	rep := benchForward(t, "--duration", "50ms", "--leg", "pps64,rr_udp", "--layer", "l3", "--queues", "1", "--qdisc", "fq", "--versus", "port.queues=2")
	if len(rep.Tables) != 2 {
		t.Fatalf("%d tables, want 2", len(rep.Tables))
	}
	for _, tab := range rep.Tables {
		if !strings.Contains(tab.A, "port.queues=1") || !strings.Contains(tab.A, "kind: fq") || tab.B != "port.queues=2" {
			t.Errorf("table %d compares %q with %q", tab.Number, tab.A, tab.B)
		}
		if len(tab.Rows) != 1 || tab.Rows[0].A.Min <= 0 || tab.Rows[0].B.Min <= 0 || tab.Rows[0].Ratio.Min <= 0 {
			t.Errorf("table %d is incomplete: %+v", tab.Number, tab.Rows)
		}
	}
}

func benchForward(t *testing.T, args ...string) (rep bench.Report) {
	t.Helper()
	r := &Router{net: newNet(t), name: "unused"} // the bench starts routers of its own
	r.ask(&rep, append([]string{"bench", "forward", "--rounds", "1"}, args...)...)
	return rep
}

func extras(row bench.Row) map[string]bench.Extra {
	m := map[string]bench.Extra{}
	for _, e := range row.Extra {
		m[e.Name] = e
	}
	return m
}
