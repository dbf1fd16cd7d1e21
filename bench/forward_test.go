package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	ends "taprouter/internal/traffic"
)

func settings(t *testing.T, list ...string) Settings {
	t.Helper()
	s, err := ParseSettings(list)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Settings end up at their level of the configuration, later ones win, and the
// router's own judgement is theirs.
func TestSettings(t *testing.T) {
	a := settings(t, "workers=1", "port.queues=2", "port.qdisc={kind: mq, child: {kind: fq}}", "port.host.txqueuelen=8000")
	b := a.With(settings(t, "port.queues=1"))
	if a["port.queues"] != "2" || b["port.queues"] != "1" || b["workers"] != "1" {
		t.Errorf("%v with queues 1 is %v", a, b)
	}
	n := names{name: "x", nsA: "xa", nsB: "xb", devA: "xa", devB: "xb"}
	for _, layer := range LayerNames {
		c := a.plan(layer).config(n)
		for word, want := range map[string]int{"workers: 1\n": 1, ", queues: 2": 2, "child: {kind: fq}}, queues: 2}\n": 2, ", txqueuelen: 8000}": 2, "bridges:": map[string]int{layerL2: 1}[layer]} {
			if got := strings.Count(c, word); got != want {
				t.Errorf("%s: %d times %q, want %d, in\n%s", layer, got, word, want, c)
			}
		}
	}
	for _, tt := range []struct{ set, says string }{
		{"", ""}, {"port.queues=1", ""}, {"port.mtu=9000", ""}, {"port.host.up=true", ""},
		{"port.queus=1", `did you mean "queues"`}, {"worker=1", `did you mean "workers"`}, {"port.host.mac=1", "mac"}, {"port.name=x", "name"}, {"port.queues={", "must be specified"},
	} {
		var list []string
		if tt.set != "" {
			list = append(list, tt.set)
		}
		err := settings(t, list...).Check()
		if (err == nil) != (tt.says == "") || err != nil && (!strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q: %v, want %q", tt.set, err, tt.says)
		}
	}
	for _, bad := range []string{"queues", "=1", "a=b\nc", "a=b #"} {
		if s, err := ParseSettings([]string{bad}); err == nil {
			t.Errorf("%q is %v, want an error", bad, s)
		}
	}
	if got := a.String(); !strings.HasPrefix(got, "port.host.txqueuelen=8000 port.qdisc=") || (Settings{}).String() != "defaults" {
		t.Errorf("the settings are shown as %q", got)
	}
}

// A way alone is measured in every round, and shown without a second.
func TestMeasureAlone(t *testing.T) {
	n := 0.0
	slice := func(context.Context, time.Duration) (Sample, error) {
		n++
		return Sample{Value: n, Extra: map[string]float64{extraReordered: 0, "cost": 2 * n}}, nil
	}
	r := &Runner{Rounds: 3}
	row, err := r.Measure(t.Context(), Row{Name: "l2 x", zeros: true}, slice, nil)
	if want := (Stat{3, 2, 4}); err != nil || row.A != want || row.B != (Stat{}) || row.Ratio != (Stat{}) || len(row.Extra) != 2 {
		t.Fatalf("%+v, %v, want A %+v alone", row, err, want)
	}
	rep := Report{Tables: []Table{{Number: 9, Title: "t", Unit: "kpps", A: "defaults", Rows: []Row{row}}}}
	var text bytes.Buffer
	Print(&text, rep)
	for _, line := range []string{"Table 9: t\n", "defaults\n", "  l2 x  kpps  3.00  [2.00-4.00]\n", "      cost 6.00, reordered 0\n"} {
		if !strings.Contains(text.String(), line) {
			t.Errorf("no line %q in\n%s", line, text.String())
		}
	}
	if b, err := json.Marshal(row); err != nil || strings.Contains(string(b), `"b"`) || strings.Contains(string(b), `"ratio"`) {
		t.Errorf("JSON of a way alone: %s, %v", b, err)
	}
}

// With a second way extra values have ratios too, unless the first is zero.
func TestExtraRatio(t *testing.T) {
	slice := func(v float64) Slice {
		return func(context.Context, time.Duration) (Sample, error) {
			return Sample{Value: v, Extra: map[string]float64{"cost": 2 * v, "lost": v - 1}}, nil
		}
	}
	row, err := (&Runner{Rounds: 2}).Measure(t.Context(), Row{Name: "x", zeros: true}, slice(1), slice(3))
	if err != nil || row.Ratio.Median != 3 || row.Extra[0].Ratio.Median != 3 || row.Extra[1].Ratio != (Stat{}) {
		t.Errorf("%+v, %v, want 3 and 3 times as much, and no ratio to nothing", row, err)
	}
	var text bytes.Buffer
	Print(&text, Report{Tables: []Table{{A: "a", B: "b", Unit: "u", Rows: []Row{row}}}})
	if s := "cost 2.00 -> 6.00 (3.00x), lost 0 -> 2.00\n"; !strings.Contains(text.String(), s) || strings.Contains(text.String(), "threads") {
		t.Errorf("no %q, or empty columns, in\n%s", s, text.String())
	}
}

func TestReordered(t *testing.T) {
	row := func(name string, a, b float64) Row {
		return Row{Name: name, Extra: []Extra{{Name: "lost", A: Stat{Max: 5}}, {Name: extraReordered, A: Stat{Max: a}, B: Stat{Max: b}}}}
	}
	good := Report{Tables: []Table{{Rows: []Row{row("x", 0, 0)}}}}
	if err := Reordered(good); err != nil {
		t.Error(err)
	}
	bad := Report{Tables: []Table{{Rows: []Row{row("x", 0, 0), row("y", 0, 2)}}, {Rows: []Row{row("z", 1, 0)}}}}
	if err := Reordered(bad); err == nil || !strings.Contains(err.Error(), "y: 2 packets") || !strings.Contains(err.Error(), "z: 1 packets") || strings.Contains(err.Error(), "x:") {
		t.Errorf("%v, want y and z", err)
	}
}

// A frame of ten payloads counts as ten packets.
func TestDelivered(t *testing.T) {
	s := &scene{names: names{devB: "b"}}
	l := lapse{b: ends.Counters{"dev.b.rx_packets": 3, "dev.b.rx_bytes": 2*64 + 42 + 10*22}}
	if got := s.delivered(l); got != 12 {
		t.Errorf("%v packets, want 12", got)
	}
}

// Each table's legs are those that its help explains.
func TestForwardEntries(t *testing.T) {
	seen := map[string]bool{}
	for i, e := range Entries("forward") {
		if e.Number != 9+i || !e.Root || len(e.Legs) == 0 {
			t.Errorf("entry %d is %+v", i, e)
		}
		for _, l := range e.Legs {
			if seen[l] || !strings.Contains(e.About, "\n  "+l+" ") {
				t.Errorf("leg %s of table %d is there twice, or not explained", l, e.Number)
			}
			seen[l] = true
		}
	}
}
