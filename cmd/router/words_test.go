package main

import (
	"slices"
	"strings"
	"testing"
)

func TestParseList(t *testing.T) {
	for _, tt := range []struct {
		s    string
		want []int // nil: refused
	}{
		{"none", []int{}}, {"0", []int{0}}, {"0,2-4", []int{0, 2, 3, 4}}, {"3-3", []int{3}},
		{"", nil}, {",", nil}, {"1,", nil}, {"2-1", nil}, {"-1", nil}, {"1-", nil}, {"1-2-3", nil}, {"65536", nil}, {"0x1", nil}, {"none,1", nil},
	} {
		got, err := parseList(tt.s)
		if (err != nil) != (tt.want == nil) || !slices.Equal(got, tt.want) {
			t.Errorf("parseList(%q) = %v, %v, want %v", tt.s, got, err, tt.want)
		}
	}
}

// Whatever is typed, a change that is understood has a port and sane numbers.
func FuzzChanges(f *testing.F) {
	for _, s := range []string{
		"dev a queue 1 workers 0,2-3", "dev a flow_table_cnt 5 mode dql", "dev a txqueuelen 9", "dev a queues 2", "dev a steering hash", "dev a gro off", "dev a queue 0 limit_max max",
		"dev a root mq", "dev a parent :1 pfifo_fast", "dev a parent : mq", "dev a root mq child fq limit 5", "dev a parent :2 fq weights 16384 16384 16384", "dev", "parent", "dev mode mode dev", "queues queues",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.Count(s, "-") > 2 {
			return // long lists take long and show nothing new
		}
		args := strings.Fields(s)
		if what, c, err := parseQdisc(args); err == nil && (what != "qdisc" || c.Dev == "" || c.Kind == "" || c.Child < -1) {
			t.Errorf("qdisc %q: %+v", s, c)
		}
		if what, c, err := parseQdiscChange(args); err == nil && (what != "qdisc_change" || c.Dev == "" || c.Kind != "fq" || len(c.Options) == 0) {
			t.Errorf("qdisc change %q: %+v", s, c)
		}
		if what, c, err := parseXPS(args); err == nil && (what == "" || c.Dev == "" || c.Queue < 0 || c.Buckets < 0) {
			t.Errorf("xps %q: %s, %+v", s, what, c)
		}
		if what, c, err := parseLink(args); err == nil && (what == "" || c.Dev == "" || c.Len < 0 || c.Queues < 0) {
			t.Errorf("link %q: %s, %+v", s, what, c)
		}
		if _, c, err := parseBQL(args); err == nil && (c.Dev == "" || c.Key == "" || c.Value > 1<<32-1) {
			t.Errorf("bql %q: %+v", s, c)
		}
	})
}
