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
	head := []string{"", "threads", "burst", "unit", "A", "", "B", "", "B/A", "", "published A", "B", "B/A"}
	switch {
	case t.Seed != "":
		fmt.Fprintf(w, "A %s, B %s; published: %s\n", t.A, t.B, t.Seed)
	case t.B != "":
		fmt.Fprintf(w, "A: %s. B: %s.\n", t.A, t.B)
	default:
		fmt.Fprintf(w, "%s\n", t.A)
		head = []string{""}
	}
	sep := ""
	for _, key := range slices.Sorted(maps.Keys(t.Parameters)) {
		fmt.Fprintf(w, "%s%s %v", sep, key, t.Parameters[key])
		sep = ", "
	}
	fmt.Fprintln(w)
	cells := [][]string{head}
	var notes []string
	for _, row := range t.Rows {
		cells = append(cells, rowCells(t, row, &notes))
	}
	for i, line := range align(withoutEmpty(cells)) {
		if line != "" {
			fmt.Fprintln(w, line)
		}
		if i > 0 {
			printExtra(w, t, t.Rows[i-1].Extra)
		}
	}
	for i, note := range notes {
		fmt.Fprintf(w, "  %d) %s\n", i+1, note)
	}
}

// withoutEmpty leaves out the columns that no row fills, threads and burst of
// tables that have none, say.
func withoutEmpty(cells [][]string) (kept [][]string) {
	filled := map[int]bool{}
	for _, row := range cells[1:] {
		for i, c := range row {
			filled[i] = filled[i] || c != ""
		}
	}
	for _, row := range cells {
		var k []string
		for i, c := range row {
			if filled[i] {
				k = append(k, c)
			}
		}
		kept = append(kept, k)
	}
	return kept
}

// printExtra writes a row's further values below it.
func printExtra(w io.Writer, t Table, extra []Extra) {
	if len(extra) == 0 {
		return
	}
	var parts []string
	for _, e := range extra {
		p := e.Name + " " + digits(e.A.Median)
		if t.B != "" {
			p += " -> " + digits(e.B.Median)
		}
		if e.Ratio.Median != 0 {
			p += fmt.Sprintf(" (%.2fx)", e.Ratio.Median)
		}
		parts = append(parts, p)
	}
	fmt.Fprintf(w, "      %s\n", strings.Join(parts, ", "))
}

// rowCells are a row's cells; what is said below the table goes to notes.
func rowCells(t Table, row Row, notes *[]string) []string {
	unit := row.Unit
	if unit == "" {
		unit = t.Unit
	}
	shown, scale := readable(unit)
	cells := []string{row.Name + mark(row.Note, notes), count(row.Threads), count(row.Burst), shown}
	cells = append(cells, digits(row.A.Median*scale), span(row.A, scale))
	if t.B == "" {
		return cells
	}
	cells = append(cells, digits(row.B.Median*scale), span(row.B, scale))
	cells = append(cells, ratio(row.Ratio.Median), fmt.Sprintf("[%.2f-%.2f]", row.Ratio.Min, row.Ratio.Max))
	if p := row.Theirs; p != nil && p.A == 0 {
		cells = append(cells, "", "", ratio(p.Ratio))
	} else if p != nil {
		cells = append(cells, digits(p.A*scale), digits(p.B*scale), ratio(p.Ratio))
	}
	return cells
}

// count shows a number that a row may not have.
func count(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
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
func align(cells [][]string) (lines []string) {
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
		lines = append(lines, strings.TrimRight(b.String(), " "))
	}
	return lines
}
