package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// root skips a test that needs namespaces, unless they have to be there.
func root(t *testing.T) {
	if err := require(); err != nil {
		if os.Getenv("ROUTER_REQUIRE_NETNS") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// fakeRun runs the demo with a fake router that misbehaves as mode says.
func fakeRun(t *testing.T, ctx context.Context, mode string, asJSON bool) (exit int, err error, stdout string) {
	t.Setenv(fakeMode, mode)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var legs []leg // all, or one of TCP and UDP for each layer
	if mode != "" {
		all := allLegs()
		legs = []leg{all[0], all[3], all[12], all[15]}
	}
	var out, progress bytes.Buffer
	exit, err = Run(ctx, Options{Duration: 150 * time.Millisecond, JSON: asJSON, Router: exe, Stdout: &out, Stderr: &progress, legs: legs})
	if t.Failed() || testing.Verbose() {
		t.Logf("%s%s%v", progress.String(), out.String(), err)
	}
	return exit, err, out.String()
}

// left gives what a run of process pid left behind.
func left(t *testing.T, pid int) (found []string) {
	n := newNames(pid)
	for _, f := range []string{"/run/netns/" + n.nsA, "/run/netns/" + n.nsB, n.socket(), filepath.Join(os.TempDir(), "router-demo-*")} {
		m, err := filepath.Glob(f)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, m...)
	}
	return found
}

func TestRun(t *testing.T) {
	root(t)
	tests := []struct {
		mode string
		exit int
		says string // part of the error
	}{
		{"", ExitOK, ""},
		{"swap", ExitFailed, "packets reordered"},
		{"lose", ExitFailed, "packets lost, but only"},
		{"count", ExitOK, ""},
		{"unbalanced", ExitFailed, "does not add up"},
		{"leave", ExitFailed, "left namespace"},
		{"refuse", ExitRefused, "not today"},
		{"die", ExitRefused, "the router has ended: exit status 7"},
	}
	for _, tt := range tests {
		t.Run("mode="+tt.mode, func(t *testing.T) {
			exit, err, out := fakeRun(t, context.Background(), tt.mode, tt.mode == "")
			if exit != tt.exit || (err == nil) != (tt.exit == ExitOK) || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("exit %d, error %v; want exit %d, error with %q", exit, err, tt.exit, tt.says)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("error of more than one line: %v", err)
			}
			if tt.mode == "" {
				checkJSON(t, out)
			}
			if l := left(t, os.Getpid()); len(l) > 0 {
				t.Errorf("left behind: %v", l)
			}
		})
	}
}

func checkJSON(t *testing.T, out string) {
	var got struct {
		Legs      []map[string]any
		Queues    []any
		Conserved *bool
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if got.Conserved == nil || !*got.Conserved || got.Queues == nil || len(got.Legs) != 16 {
		t.Errorf("got %s", out)
	}
	for _, l := range got.Legs {
		for _, k := range []string{"name", "mbit_s", "packets", "lost", "reordered", "retransmits", "rtt_p50_us", "rtt_p99_us", "router_cpu_s_per_gb"} {
			if l[k] == nil {
				t.Errorf("leg %v has no %s", l["name"], k)
			}
		}
	}
}

// An interrupt ends the demo in the middle of a leg, with nothing left.
func TestRunInterrupted(t *testing.T) {
	root(t)
	for _, after := range []time.Duration{0, 50 * time.Millisecond, 700 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(context.Background(), after)
		exit, err, out := fakeRun(t, ctx, "", false)
		cancel()
		if exit != ExitStopped || err == nil || out != "" {
			t.Errorf("after %v: exit %d, error %v, output %q; want exit %d", after, exit, err, out, ExitStopped)
		}
		if l := left(t, os.Getpid()); len(l) > 0 {
			t.Errorf("after %v: left behind: %v", after, l)
		}
	}
}

// A demo that is killed leaves no process and nothing else.
func TestRunKilled(t *testing.T) {
	root(t)
	cmd := exec.Command("/proc/self/exe", "demo")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stderr = w // of the demo and its agents
	cmd.Env = append(os.Environ(), fakeMode+"=")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	lines := bufio.NewScanner(r)
	for lines.Scan() && !strings.Contains(lines.Text(), "waiting") { // the router is up
	}
	if len(left(t, cmd.Process.Pid)) == 0 {
		t.Error("the demo has not begun")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	deadline := time.Now().Add(10 * time.Second)
	for len(left(t, cmd.Process.Pid)) > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %v", left(t, cmd.Process.Pid))
		}
		runtime.Gosched()
	}
}

func TestRunBadOptions(t *testing.T) {
	for _, d := range []time.Duration{-1, time.Millisecond, 2 * time.Hour} {
		if exit, err := Run(context.Background(), Options{Duration: d}); exit != ExitUsage || err == nil {
			t.Errorf("duration %v: exit %d, error %v", d, exit, err)
		}
	}
	if exit := AgentMain([]string{"x"}, nil, nil); exit != ExitUsage {
		t.Errorf("AgentMain with an argument: exit %d", exit)
	}
}
