package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// A Runner takes measurements as its fields say.
type Runner struct {
	Router string // program whose `run` is the router, for tables that need namespaces
	Agent  string // its command that is a traffic end

	Rounds   int           // that count; one more is thrown away
	Duration time.Duration // of a slice
	Threads  []int         // nil: those of the table
	Bursts   []int         // packets

	// Of tables that measure router run as a whole.
	Layers   []string // of LayerNames
	Legs     []string // nil: all
	Settings Settings // of A
	Versus   Settings // in which B differs; nil: there is no B

	// Progress, if not nil, is told where the run is; done says that a row is
	// complete.
	Progress func(text string, done bool)
}

// Run makes tables. On an error, and when ctx ends, the report has the rows
// that were complete.
func (r *Runner) Run(ctx context.Context, bench string, tables []Entry) (Report, error) {
	rep := Report{Bench: bench, Version: Version, Machine: ThisMachine(), Date: time.Now().UTC().Truncate(time.Second), Tables: []Table{}}
	for _, e := range tables {
		t, err := e.Make(ctx, r)
		if t.Number, t.Title = e.Number, e.Title; len(t.Rows) > 0 {
			rep.Tables = append(rep.Tables, t)
		}
		if err != nil {
			return rep, fmt.Errorf("table %d: %w", e.Number, err)
		}
	}
	return rep, nil
}

// Measure fills row with a and b, measured in turn: A B, B A, A B and so on,
// so that what drifts hits both. Without b there is only A.
func (r *Runner) Measure(ctx context.Context, row Row, a, b Slice) (Row, error) {
	what := row.Name
	if row.Threads > 0 {
		what = fmt.Sprintf("%s, threads %d, burst %d", row.Name, row.Threads, row.Burst)
	}
	as, bs, err := r.interleave(ctx, what, a, b)
	if err != nil {
		return row, fmt.Errorf("%s: %w", what, err)
	}
	value := func(s Sample) float64 { return s.Value }
	row.A, row.B, row.Extra = statOf(as, value), statOf(bs, value), extras(as, bs, row.zeros)
	if row.Threads > runtime.NumCPU() {
		row.addNote("more threads than cores")
	}
	if b == nil {
		r.progress(fmt.Sprintf("%s: %s", what, digits(row.A.Median)), true)
		return row, nil
	}
	row.Ratio = ratiosOf(as, bs, value)
	r.progress(fmt.Sprintf("%s: %.2fx", what, row.Ratio.Median), true)
	return row, nil
}

func (r *Runner) interleave(ctx context.Context, what string, a, b Slice) (as, bs []Sample, err error) {
	for round := range r.Rounds + 1 {
		r.progress(fmt.Sprintf("%s: round %d of %d", what, round, r.Rounds), false)
		var s [2]Sample
		order := []int{0, 1}
		switch {
		case b == nil:
			order = []int{0}
		case round%2 == 1:
			order = []int{1, 0}
		}
		for _, i := range order {
			runtime.GC()
			if s[i], err = []Slice{a, b}[i](ctx, r.Duration); err != nil {
				return nil, nil, err
			}
			if s[i].Value <= 0 {
				return nil, nil, errors.New("nothing was measured: use a longer --duration")
			}
		}
		if round == 0 { // it is for the caches
			continue
		}
		as = append(as, s[0])
		if b != nil {
			bs = append(bs, s[1])
		}
	}
	return as, bs, nil
}

func (r *Runner) progress(text string, done bool) {
	if r.Progress != nil {
		r.Progress(text, done)
	}
}

// threads gives those asked for, or def.
func (r *Runner) threads(def ...int) []int {
	if len(r.Threads) > 0 {
		return r.Threads
	}
	return def
}

func (row *Row) addNote(s string) {
	if row.Note != "" {
		row.Note += "; "
	}
	row.Note += s
}

// extras are those values that were not zero throughout, or all.
func extras(as, bs []Sample, zeros bool) (list []Extra) {
	var names []string
	for _, s := range slices.Concat(as, bs) {
		for name, v := range s.Extra {
			if (zeros || v != 0) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	for _, name := range names {
		value := func(s Sample) float64 { return s.Extra[name] }
		list = append(list, Extra{name, statOf(as, value), statOf(bs, value), ratiosOf(as, bs, value)})
	}
	return list
}

// A Stat sums up the rounds.
type Stat struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// NewStat sums up values; of none it is zero.
func NewStat(values []float64) Stat {
	if len(values) == 0 {
		return Stat{}
	}
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return Stat{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1]}
}

func statOf(all []Sample, value func(Sample) float64) Stat {
	var v []float64
	for _, s := range all {
		v = append(v, value(s))
	}
	return NewStat(v)
}

// ratiosOf sums up B/A of each round. It is zero where an A is.
func ratiosOf(as, bs []Sample, value func(Sample) float64) Stat {
	var v []float64
	for i, b := range bs {
		if value(as[i]) == 0 {
			return Stat{}
		}
		v = append(v, value(b)/value(as[i]))
	}
	return NewStat(v)
}
