//go:build explore

package step

import (
	"errors"
	"fmt"
	"iter"
	"path"
	"runtime"
	"strings"
)

// A Thread is a logical thread of a Program.
type Thread struct {
	Name string
	Run  func()
}

// A Program is one execution's fresh world.
type Program struct {
	Threads []Thread
	Alike   int          // the first so many threads do the same: who starts first does not matter
	Check   func() error // judges the end
}

// Options bound an exploration.
type Options struct {
	Preemptions int // times that a thread is interrupted or a store delayed in one execution
	MaxSteps    int // steps of an execution; more is a livelock
}

// A Report says what was explored. Err is nil if every execution was right.
type Report struct {
	Executions, Steps int
	Err               error
}

// Explore runs every execution of the program that setup makes, up to the
// bound, depth first. The first wrong one ends it; its schedule is in Err.
// Only one exploration may run at a time.
func Explore(o Options, setup func() Program) (r Report) {
	e := &explorer{Options: o}
	for {
		err := e.execute(setup())
		r.Executions++
		r.Steps += e.steps
		if err != nil {
			e.tracing = true
			again := e.execute(setup())
			r.Err = fmt.Errorf("counterexample: %w\n%s(seen again: %v)", err, strings.Join(e.trace, ""), again)
			return r
		}
		if !e.nextPath() {
			return r
		}
	}
}

// A decision is a point where the execution could go on in n ways.
type decision struct{ n, pick int }

type explorer struct {
	Options
	path    []decision
	depth   int // decisions made in this execution
	budget  int // preemptions left in it
	steps   int
	writes  int // writes so far, for those who wait for one
	tracing bool
	trace   []string
	alts    []alt
}

type thread struct {
	Thread
	e             *explorer
	next          func() (struct{}, bool)
	stop          func()
	yield         func(struct{}) bool
	done, started bool
	waiting       bool // in pause
	seen          int  // explorer.writes at that time
	buf           *store
}

// A store is one that its thread has made and nobody else sees yet.
type store struct {
	where, value any
	do           func()
}

// An alt is a way to go on: to run t, or to let its buffered store be seen.
type alt struct {
	t     *thread
	flush bool
	cost  int
}

// cur is the logical thread that is running; nil outside of one.
var cur *thread

var errStop = errors.New("the execution is given up")

// choose takes the way the path prescribes, or the first and notes the rest.
func (e *explorer) choose(n int) int {
	if n == 1 {
		return 0
	}
	if e.depth == len(e.path) {
		e.path = append(e.path, decision{n: n})
	}
	d := e.path[e.depth]
	if d.n != n {
		panic(fmt.Sprintf("step: the program is not deterministic: %d ways at decision %d, then %d", d.n, e.depth, n))
	}
	e.depth++
	return d.pick
}

// nextPath moves to the next path that has not been taken.
func (e *explorer) nextPath() bool {
	for len(e.path) > 0 {
		last := &e.path[len(e.path)-1]
		if last.pick++; last.pick < last.n {
			return true
		}
		e.path = e.path[:len(e.path)-1]
	}
	return false
}

// execute runs one execution along the path.
func (e *explorer) execute(p Program) (err error) {
	e.depth, e.steps, e.writes, e.budget, e.trace = 0, 0, 0, e.Preemptions, nil
	threads := make([]*thread, len(p.Threads))
	for i := range threads {
		threads[i] = newThread(e, p.Threads[i])
	}
	defer func() {
		cur = nil
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
		for _, t := range threads {
			t.giveUp()
		}
	}()
	for _, t := range threads {
		t.step() // up to its first operation
	}
	if err := e.interleave(threads, p.Alike); err != nil {
		return err
	}
	return p.Check()
}

func (e *explorer) interleave(threads []*thread, alike int) error {
	var last *thread
	for {
		alts := e.ways(threads, last, alike)
		if len(alts) == 0 {
			return stuck(threads)
		}
		a := alts[e.choose(len(alts))]
		e.budget -= a.cost
		if a.flush {
			a.t.flush("seen")
			continue
		}
		if last = a.t; e.steps == e.MaxSteps {
			return fmt.Errorf("livelock: no end after %d steps", e.steps)
		}
		e.steps++
		a.t.started = true
		a.t.step()
	}
}

// ways lists how the execution can go on; the first is without preemption.
func (e *explorer) ways(threads []*thread, last *thread, alike int) []alt {
	alts := e.alts[:0]
	cost := 0
	if last != nil && last.runnable() {
		alts = append(alts, alt{t: last})
		cost = 1
	}
	fresh := false // an unstarted thread of those alike is listed
	for i, t := range threads {
		if t == last || !t.runnable() || cost > e.budget {
			continue
		}
		if i < alike && !t.started {
			if fresh {
				continue
			}
			fresh = true
		}
		alts = append(alts, alt{t: t, cost: cost})
	}
	for _, t := range threads {
		if t.buf != nil {
			alts = append(alts, alt{t: t, flush: true})
		}
	}
	e.alts = alts
	return alts
}

func stuck(threads []*thread) error {
	for _, t := range threads {
		if !t.done {
			return fmt.Errorf("deadlock: %s waits for ever", t.Name)
		}
	}
	return nil
}

func newThread(e *explorer, run Thread) *thread {
	t := &thread{Thread: run, e: e}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		t.Run()
	})
	return t
}

func (t *thread) runnable() bool {
	return !t.done && (!t.waiting || t.seen != t.e.writes)
}

// step runs t up to its next operation.
func (t *thread) step() {
	cur = t
	_, ok := t.next()
	cur = nil
	t.done = !ok
}

// giveUp ends a thread that has not come to its end.
func (t *thread) giveUp() {
	if t.done {
		return
	}
	defer func() { _ = recover() }() // errStop
	t.stop()
}

func (t *thread) flush(how string) {
	if t.buf == nil {
		return
	}
	b := t.buf
	t.buf = nil
	b.do()
	t.e.writes++
	if t.e.tracing {
		t.e.trace = append(t.e.trace, fmt.Sprintf("  %-10s (delayed store is %s)\n", t.Name, how))
	}
}

// at is called in front of every operation.
func at() {
	if cur == nil {
		return
	}
	if !cur.yield(struct{}{}) {
		panic(errStop)
	}
}

// wrote is called by every operation that writes: it drains the buffer.
func wrote() {
	if cur != nil {
		cur.flush("drained")
		cur.e.writes++
	}
}

func buffered() *store {
	if cur == nil {
		return nil
	}
	return cur.buf
}

func buffer(s *store) { cur.buf = s }

// delay decides whether a publishing store is delayed.
func delay() bool {
	if cur == nil || cur.e.budget == 0 {
		return false
	}
	if cur.e.choose(2) == 0 {
		return false
	}
	cur.e.budget--
	return true
}

func pause() {
	if cur == nil {
		panic("step: Pause outside of a thread would wait for ever")
	}
	t := cur
	t.seen, t.waiting = t.e.writes, true
	at()
	t.waiting = false
	note("Pause()")
}

// note writes an operation to the trace, with the lines that it comes from.
func note(format string, args ...any) {
	if cur == nil || !cur.e.tracing {
		return
	}
	var pcs [8]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	var where []string
	for len(where) < 3 {
		f, more := frames.Next()
		name := f.Function[strings.LastIndex(f.Function, "/")+1:]
		if strings.HasPrefix(name, "iter.") || !more {
			break
		}
		where = append(where, fmt.Sprintf("%s %s:%d", name[strings.Index(name, ".")+1:], path.Base(f.File), f.Line))
	}
	cur.e.trace = append(cur.e.trace, fmt.Sprintf("  %-10s %-34s %s\n", cur.Name, fmt.Sprintf(format, args...), strings.Join(where, " < ")))
}
