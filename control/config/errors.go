package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// An Error is one fault in a configuration.
type Error struct {
	File      string
	Line, Col int // from 1
	Msg       string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Col, e.Msg)
}

// sorted puts faults in the order of the file and leaves out repetitions,
// which an alias can cause.
func sorted(list []*Error) []error {
	slices.SortStableFunc(list, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	list = slices.CompactFunc(list, func(a, b *Error) bool { return *a == *b })
	errs := make([]error, len(list))
	for i, e := range list {
		errs[i] = e
	}
	return errs
}

// hint proposes one of known for the wrong word got, or else lists them.
func hint(got, label string, known []string) string {
	best, least := "", 3
	for _, k := range known {
		if n := distance(strings.ToLower(got), k); n < least && n < len(k) {
			best, least = k, n
		}
	}
	switch {
	case best != "":
		return fmt.Sprintf("; did you mean %q?", best)
	case len(known) == 0:
		return ""
	}
	return "; " + label + ": " + strings.Join(known, ", ")
}

// distance is the number of letters to change, insert or leave out (Levenshtein).
func distance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diag, row[j+1] = row[j+1], min(diag+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
