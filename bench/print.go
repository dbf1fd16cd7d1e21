package bench

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
)

// Print writes the report for people: a table each, ours beside theirs.
func Print(w io.Writer, rep Report) {
	m := rep.Machine
	fmt.Fprintf(w, "%s, %d cores, Linux %s, %s, %s\n", m.CPU, m.Cores, m.Kernel, m.Go, rep.Date.Format("2006-01-02"))
	for _, t := range rep.Tables {
		printTable(w, t)
	}
}

func printTable(w io.Writer, t Table) {
	fmt.Fprintf(w, "\nTable %d: %s\n", t.Number, t.Title)
	fmt.Fprintf(w, "A %s, B %s; published: %s\n", t.A, t.B, t.Seed)
	sep := ""
	for _, key := range slices.Sorted(maps.Keys(t.Parameters)) {
		fmt.Fprintf(w, "%s%s %v", sep, key, t.Parameters[key])
		sep = ", "
	}
	fmt.Fprintln(w)
	head := []string{"", "threads", "burst", "unit", "A", "", "B", "", "B/A", ""}
	extra := extraNames(t)
	for _, name := range extra {
		head = append(head, name+" A", "B")
	}
	cells := [][]string{append(head, "published A", "B", "B/A")}
	var notes []string
	for _, row := range t.Rows {
		cells = append(cells, rowCells(t, row, extra, &notes))
	}
	align(w, cells)
	for i, note := range notes {
		fmt.Fprintf(w, "  %d) %s\n", i+1, note)
	}
}

// extraNames are the further values that any row has.
func extraNames(t Table) (names []string) {
	for _, row := range t.Rows {
		for _, e := range row.Extra {
			if !slices.Contains(names, e.Name) {
				names = append(names, e.Name)
			}
		}
	}
	return names
}

// rowCells are a row's cells; what is said below the table goes to notes.
func rowCells(t Table, row Row, extra []string, notes *[]string) []string {
	unit := row.Unit
	if unit == "" {
		unit = t.Unit
	}
	shown, scale := readable(unit)
	cells := []string{row.Name, fmt.Sprint(row.Threads) + mark(row.Note, notes), fmt.Sprint(row.Burst), shown}
	for _, s := range []Stat{row.A, row.B} {
		cells = append(cells, digits(s.Median*scale), span(s, scale))
	}
	cells = append(cells, ratio(row.Ratio.Median), fmt.Sprintf("[%.2f-%.2f]", row.Ratio.Min, row.Ratio.Max))
	for _, name := range extra {
		a, b := "", ""
		if i := slices.IndexFunc(row.Extra, func(e Extra) bool { return e.Name == name }); i >= 0 {
			a, b = digits(row.Extra[i].A.Median), digits(row.Extra[i].B.Median)
		}
		cells = append(cells, a, b)
	}
	if p := row.Theirs; p != nil {
		cells = append(cells, digits(p.A*scale), digits(p.B*scale), ratio(p.Ratio))
	}
	return cells
}

// mark gives the number of a note that is printed once below the table.
func mark(note string, notes *[]string) string {
	if note == "" {
		return ""
	}
	i := slices.Index(*notes, note)
	if i < 0 {
		i = len(*notes)
		*notes = append(*notes, note)
	}
	return fmt.Sprintf(" %d)", i+1)
}

// readable is the unit that numbers are shown in, and their factor.
func readable(unit string) (string, float64) {
	if unit == "packets/s" {
		return "Mpps", 1e-6
	}
	return unit, 1
}

// digits shows three significant digits, and all in front of the point.
func digits(v float64) string {
	if v == 0 {
		return "0"
	}
	after := 2 - int(math.Floor(math.Log10(math.Abs(v))))
	return fmt.Sprintf("%.*f", min(max(after, 0), 9), v)
}

func ratio(v float64) string { return fmt.Sprintf("%.2fx", v) }

func span(s Stat, scale float64) string {
	return fmt.Sprintf("[%s-%s]", digits(s.Min*scale), digits(s.Max*scale))
}

// align prints cells in columns, the first to the left, the rest to the right.
func align(w io.Writer, cells [][]string) {
	var width []int
	for _, row := range cells {
		for i, c := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len(c))
		}
	}
	for _, row := range cells {
		var b strings.Builder
		for i, c := range row {
			if i == 0 {
				fmt.Fprintf(&b, "  %-*s", width[i], c)
			} else {
				fmt.Fprintf(&b, "  %*s", width[i], c)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}
