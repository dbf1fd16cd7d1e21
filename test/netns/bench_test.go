package netns

import (
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
