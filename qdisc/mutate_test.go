//go:build !explore

package qdisc

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A mutation breaks the run protocol in one place.
type mutation struct {
	name     string
	file     string
	old, new string
	program  string // of TestExplore, that finds it
}

var mutations = []mutation{
	{"m1: no second try for the run bit", "run.go",
		"	// The owner may have let go between the first try and the bit.\n	return q.try()",
		"	return false", "no-bypass"},
	{"m2: missed tested before it is set", "run.go",
		"if q.state.Or(missed)&missed != 0 {",
		"if q.state.Load()&missed != 0 || q.state.Or(missed)&missed != 0 {", "three-senders"},
	{"m3: missed read before the run bit is let go", "run.go",
		"	q.lock.Store(0) // O3: sequentially consistent, before the load\n	if q.state.Load()&missed != 0 {",
		"	m := q.state.Load() & missed\n	q.lock.Store(0)\n	if m != 0 {", "three-senders"},
	{"m4: no second look after the clear", "run.go",
		"		p = q.d.Dequeue(c.Now)\n	}\n	if p == nil {\n		q.noteUnfilled()",
		"	}\n	if p == nil {\n		q.noteUnfilled()", "three-senders"},
	{"m5: bypass without the second test", "run.go",
		"		if q.empty() && q.mayPass(c, l) {",
		"		if q.mayPass(c, l) {", "busy-once"},
	{"fq: m5", "run.go",
		"		if q.empty() && q.mayPass(c, l) {",
		"		if q.mayPass(c, l) {", "fq-stop-wake"},
	{"fq: own packets before those left earlier", "fq.go",
		"	f.fetchAll()\n	f.arrived.Append(l)",
		"	f.arrived.Append(l)", "fq"},
	{"m6: draining not set", "run.go",
		"	if t.Stopped() {\n		q.state.Or(draining)\n	} else {",
		"	if t.Stopped() {\n	} else {", "stop-wake"},
	{"m7: no second look after a stop by the stack", "xoff.go",
		"if avail() >= 0 {", "if false {", "dql"},
	{"m8: sched cleared after the run", "schedule.go",
		"		c.Actions++\n		if q.state.And(^uint32(sched))&deactivated == 0 && q.begin() {\n			q.run(c)\n			q.end(c)\n		}\n",
		"		c.Actions++\n		if q.state.Load()&deactivated == 0 && q.begin() {\n			q.run(c)\n			q.end(c)\n		}\n		q.state.And(^uint32(sched))\n", "tx-action"},
	{"m9: requeue without missed", "run.go",
		"	q.state.Or(missed) // no schedule: end sees to that\n", "", "busy-once"},
	{"m10: reset without the run bit", "schedule.go",
		"	for !q.lock.CompareAndSwap(0, 1) {\n		step.Pause()\n	}\n", "	step.Pause()\n", "reset"},

	{"no missed at all (F1)", "run.go",
		"	if q.state.Load()&missed != 0 {\n		q.Schedule(c)", "	if false {\n		q.Schedule(c)", "three-senders"},
	{"bypass of a stopped queue's packets: draining ignored", "run.go",
		"func (q *Qdisc) empty() bool { return q.state.Load()&nonEmpty == 0 }",
		"func (q *Qdisc) empty() bool { return q.state.Load()&missed == 0 }", "stop-wake"},
	{"missed kept while the queue is stopped (F7)", "run.go",
		"	q.state.And(^uint32(missed))\n	// O5", "	// O5", "stopped"},
	{"no second look at the stopped queue (F7b)", "run.go",
		"	if t.Stopped() {\n		q.state.Or(draining)\n	} else {\n		q.state.Or(missed)\n	}",
		"	q.state.Or(draining)", "stop-wake"},
	{"unfilled places forgotten", "run.go",
		"	if q.d.Len() > 0 {\n		q.state.Or(draining)\n	}", "", "overtake"},
	{"quota without missed", "run.go",
		"			q.state.Or(missed) // end schedules it\n", "", "quota"},
	{"requeue behind what was requeued before", "run.go",
		"	batch.Append(&q.requeued) // the batch was the front of it, or it is empty\n	q.requeued, *batch = *batch, packet.List{}",
		"	q.requeued.Append(batch)", "stop-wake-batch"},
	{"reset clears after it looked", "lifecycle.go",
		"	q.noteUnfilled()\n", "	q.state.And(^uint32(nonEmpty))\n", "reset-sender"},
	{"activate without schedule", "lifecycle.go",
		"	q.Schedule(c)\n}", "}", "deactivate"},
	{"sched not tested: linked twice", "schedule.go",
		"	if q.state.Or(sched)&sched != 0 {\n		return\n	}\n", "	q.state.Or(sched)\n", "tx-action"},
	{"place reserved without looking again", "ring.go",
		"		if r.head.CompareAndSwap(h, h+n) {\n			break\n		}",
		"		r.head.Store(h + n)\n		break", "three-senders"},
	{"place shown as free before it is", "ring.go",
		"		first.Store(nil) // O9: the place is empty before a producer can see that it is free\n		r.left = uint32(p.Burst)",
		"		r.left = uint32(p.Burst)\n		if r.left == 1 {\n			r.tail.Store(r.next + 1)\n		}\n		first.Store(nil)", "one-place"},
}

// explore runs programs of TestExplore on the sources with an overlay.
func explore(t *testing.T, program string, overlay map[string]string) (string, error) {
	t.Helper()
	if raceEnabled {
		t.Skip("one thread runs at a time: there is nothing for the race detector to see")
	}
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command")
	}
	args := []string{"test", "-tags=explore", "-vet=off", "-count=1", "-v", "-run=^TestExplore$/^" + program + "$"}
	if testing.Short() {
		args = append(args, "-short")
	}
	if overlay != nil {
		b, err := json.Marshal(map[string]any{"Replace": overlay})
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(t.TempDir(), "overlay.json")
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-overlay="+name)
	}
	out, err := exec.Command(goTool, append(args, ".")...).CombinedOutput()
	return string(out), err
}

// TestExplorer runs the explorer's own tests, which need its build tag.
func TestExplorer(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command")
	}
	if out, err := exec.Command(goTool, "test", "-tags=explore", "../internal/step").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestExploreAll runs the explorer on the sources as they are.
func TestExploreAll(t *testing.T) {
	out, err := explore(t, ".*", nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Log(out)
}

// TestMutations shows that the explorer finds each known mistake.
func TestMutations(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a test binary for each mutation")
	}
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			src, err := os.ReadFile(m.file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(src), m.old); n != 1 {
				t.Fatalf("%s has the text to replace %d times, want once: bring the table up to date", m.file, n)
			}
			abs, err := filepath.Abs(m.file)
			if err != nil {
				t.Fatal(err)
			}
			mutant := filepath.Join(t.TempDir(), m.file)
			if err := os.WriteFile(mutant, []byte(strings.Replace(string(src), m.old, m.new, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := explore(t, m.program, map[string]string{abs: mutant})
			if err == nil || !strings.Contains(out, "counterexample:") {
				t.Fatalf("not found: %v\n%s", err, out)
			}
			t.Log(out)
		})
	}
}
