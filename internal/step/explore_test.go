//go:build explore

package step

import (
	"errors"
	"strings"
	"testing"
)

// TestExploreStep checks the explorer itself with programs whose answer is known.
func TestExploreStep(t *testing.T) {
	tests := []struct {
		name        string
		preemptions int
		setup       func() Program
		want        string // part of the counterexample; empty: there is none
	}{
		{"lost update", 1, func() Program { return counter(false) }, "lost"},
		{"lost update, never preempted", 0, func() Program { return counter(false) }, ""},
		{"update by CAS", 3, func() Program { return counter(true) }, ""},
		{"store buffering", 2, func() Program { return dekker(false) }, "both"},
		{"store buffering with a RMW", 3, func() Program { return dekker(true) }, ""},
		{"wait for ever", 1, func() Program {
			var x Uint32
			return Program{Threads: []Thread{{"a", func() { waitFor(&x) }}, {"b", func() { x.Load() }}}, Check: func() error { return nil }}
		}, "deadlock"},
		{"wait for a while", 2, func() Program {
			var x Uint32
			return Program{Threads: []Thread{{"a", func() { waitFor(&x) }}, {"b", func() { x.Store(1) }}}, Check: func() error { return nil }}
		}, ""},
		{"livelock", 0, func() Program {
			var x Uint32
			return Program{Threads: []Thread{{"a", func() {
				for x.Load() == 0 {
				}
			}}}, Check: func() error { return nil }}
		}, "livelock"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := Explore(Options{Preemptions: tt.preemptions, MaxSteps: 100}, tt.setup)
			switch {
			case tt.want == "" && r.Err != nil:
				t.Errorf("unexpected %v", r.Err)
			case tt.want != "" && (r.Err == nil || !strings.Contains(r.Err.Error(), tt.want)):
				t.Errorf("after %d executions: %v, want %q", r.Executions, r.Err, tt.want)
			}
		})
	}
}

func waitFor(x *Uint32) {
	for x.Load() == 0 {
		Pause()
	}
}

// counter is three threads that each add one.
func counter(cas bool) Program {
	var x Uint32
	add := func() {
		for {
			v := x.Load()
			if !cas {
				x.Store(v + 1)
				return
			}
			if x.CompareAndSwap(v, v+1) {
				return
			}
		}
	}
	return Program{Threads: []Thread{{"a", add}, {"b", add}, {"c", add}}, Alike: 3, Check: func() error {
		if x.Load() != 3 {
			return errors.New("an update was lost")
		}
		return nil
	}}
}

// dekker is two threads that publish and then look: without a read-modify-
// write between, neither need see the other.
func dekker(rmw bool) Program {
	var slots [2]Pointer[int]
	var x Uint32
	var missed [2]bool
	thread := func(i int) func() {
		return func() {
			slots[i].Store(new(int))
			if rmw {
				x.Or(1)
			}
			missed[i] = slots[1-i].Load() == nil
		}
	}
	return Program{Threads: []Thread{{"a", thread(0)}, {"b", thread(1)}}, Check: func() error {
		if missed[0] && missed[1] {
			return errors.New("both saw nothing")
		}
		return nil
	}}
}
