package main

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"taprouter/bench"
)

func TestBenchErrors(t *testing.T) {
	for _, tt := range []struct {
		args, says string
	}{
		{"bench xmitt", `did you mean "xmit"`},
		{"bench xmit all", "takes flags only"},
		{"bench xmit --table 0", "tables 1 to 8"},
		{"bench xmit --threads 0", "--threads 0: want 1 to"},
		{"bench xmit --burst 257", "--burst 257: want 1 to 256"},
		{"bench xmit --rounds 0", "--rounds 0: want 1 or more"},
		{"bench xmit --duration 1", "missing unit"},
		{"bench xmit --duration 1us", "want 1ms or more"},
		{"bench forward all", "takes flags only"},
		{"bench forward --table 8", "tables 9 to 12"},
		{"bench forward --rounds 0", "--rounds 0: want 1 or more"},
		{"bench forward --threads 1", "--threads"},
		{"bench forward --leg tcp2", `--leg "tcp2": want one of tcp1, `},
		{"bench forward --table 9 --leg pps1", `--leg "pps1": want one of tcp1, tcp4, tcp1_noff, tcp4_noff`},
		{"bench forward --layer l4", `--layer "l4": want one of l2, l3`},
		{"bench forward --qdisc htb", `--qdisc "htb": want pfifo_fast or fq`},
		{"bench forward --queues 1000", "--queues 1000: queues: want a number from 1 to 256"},
		{"bench forward --set port.queues", "--set: \"port.queues\": want KEY=VALUE"},
		{"bench forward --set port.qdisk=x", `did you mean "qdisc"`},
		{"bench forward --versus worker=1", `--versus: unknown key "worker"`},
	} {
		code, stdout, stderr := command(t, strings.Fields(tt.args)...)
		if code != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, tt.says) {
			t.Errorf("router %s: status %d, prints %q and %q, want status 1 and one line with %q", tt.args, code, stdout, stderr, tt.says)
		}
	}
}

func TestBench(t *testing.T) {
	args := strings.Fields("bench xmit --table 4,1 --threads 1 --rounds 1 --duration 2ms")
	code, stdout, stderr := command(t, append(args, "-j")...)
	var rep bench.Report
	if err := json.Unmarshal([]byte(stdout), &rep); code != 0 || err != nil {
		t.Fatalf("status %d, %v: %s", code, err, stderr)
	}
	if len(rep.Tables) != 2 || rep.Tables[0].Number != 4 || rep.Tables[1].Number != 1 {
		t.Errorf("tables %+v, want 4 and 1", rep.Tables)
	}
	if strings.Count(stderr, "\n") != 2 || strings.Contains(stderr, "\x1b") {
		t.Errorf("progress is %q, want a line a row", stderr)
	}
	if code, stdout, stderr := command(t, args...); code != 0 || !strings.Contains(stdout, "Table 1: ") {
		t.Errorf("status %d: %s%s", code, stdout, stderr)
	}
}

// An interrupt ends the run at once.
func TestBenchInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var errs strings.Builder
	if code := run(ctx, []string{"bench", "xmit", "--duration", "1h"}, io.Discard, &errs); code != 130 || !strings.Contains(errs.String(), "Error: interrupted") {
		t.Errorf("status %d: %s", code, errs.String())
	}
}

// The help explains every table.
func TestBenchHelp(t *testing.T) {
	for _, name := range []string{"xmit", "steer", "forward"} {
		for _, args := range [][]string{{"bench", "--help"}, {"bench", name, "--help"}} {
			_, stdout, _ := command(t, args...)
			for _, e := range bench.Entries(name) {
				if e.About == "" || !strings.Contains(stdout, e.Title) || !strings.Contains(stdout, e.About) {
					t.Errorf("router %v does not explain table %d", args, e.Number)
				}
			}
		}
	}
}
