// Package bench (control plane) measures parts of the data path against other
// ways to do the same, in one process, and reports ratios. Absolute numbers
// say something about the machine; ratios of slices that were measured in
// turn say something about the code.
//
// bench.go has what every table is made of, runner.go takes the
// measurements, print.go prints them. traffic.go and device.go are the ends
// of a transmit path, locked.go and trylock.go what ours is compared with,
// xmit.go has tables 1 to 4, saturate.go 5, fair.go 6, steer.go 7, latency.go 8;
// scene.go is router run between two namespaces, forward.go has tables 9 to 12.
package bench

import (
	"context"
	"time"
)

// Version is that of the JSON.
const Version = 1

// A Report is what a run of some tables found: the JSON.
type Report struct {
	Bench   string    `json:"bench"`
	Version int       `json:"version"`
	Machine Machine   `json:"machine"`
	Date    time.Time `json:"date"`
	Tables  []Table   `json:"tables"`
}

// A Table compares a way A with a way B under several circumstances. Where B
// is empty there is only A.
type Table struct {
	Number     int            `json:"table"`
	Title      string         `json:"title"`
	Seed       string         `json:"seed"` // of the published numbers
	Unit       string         `json:"unit"`
	A          string         `json:"a"`
	B          string         `json:"b"`
	Parameters map[string]any `json:"parameters"`
	Rows       []Row          `json:"rows"`
}

// A Row is one circumstance.
type Row struct {
	Name    string  `json:"name"`
	Threads int     `json:"threads"`        // 0 where there are none to choose
	Burst   int     `json:"burst"`          // packets, 0 likewise
	Unit    string  `json:"unit,omitempty"` // where it is not the table's
	A       Stat    `json:"a"`
	B       Stat    `json:"b,omitzero"`
	Ratio   Stat    `json:"ratio,omitzero"` // B/A of each round, not of the medians
	Theirs  *Theirs `json:"theirs"`         // nil: nothing was published
	Extra   []Extra `json:"extra,omitempty"`
	Note    string  `json:"note"`

	zeros bool // extra values are shown even if they were zero throughout
}

// Theirs are the published medians, in the row's unit.
type Theirs struct {
	A     float64 `json:"a"`
	B     float64 `json:"b"`
	Ratio float64 `json:"ratio"`
}

// An Extra is a further value of a row, its unit in the name.
type Extra struct {
	Name  string `json:"name"`
	A     Stat   `json:"a"`
	B     Stat   `json:"b,omitzero"`
	Ratio Stat   `json:"ratio,omitzero"` // B/A of each round, where no A is zero
}

// A Sample is what one slice of time gave.
type Sample struct {
	Value float64            // in the row's unit
	Extra map[string]float64 // by name
}

// A Slice measures something for about d. Each call starts from scratch.
type Slice func(ctx context.Context, d time.Duration) (Sample, error)

// An Entry is a table that can be made.
type Entry struct {
	Bench  string // the command it belongs to: xmit
	Number int
	Title  string
	Root   bool     // it needs namespaces
	About  string   // what it shows and how to read it, for the help
	Legs   []string // that can be chosen by name
	Make   func(ctx context.Context, r *Runner) (Table, error)
}

// entries are all tables, by command and number.
var entries = []Entry{lockEntry, mqEntry, bypassEntry, missedEntry, stoppedEntry, fairEntry, hopEntry, latencyEntry,
	throughputEntry, smallEntry, roundTripEntry, memoryEntry,
}

// Entries are the tables of a command, in order.
func Entries(bench string) (list []Entry) {
	for _, e := range entries {
		if e.Bench == bench {
			list = append(list, e)
		}
	}
	return list
}
