package main

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Each table with rows becomes a drawing, which is XML and has the words.
func TestDraw(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "docs")
	var said strings.Builder
	if err := run([]string{"testdata/out.json", "-o", dir}, nil, &said); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	one, five, nine := filepath.Join(dir, "bench-xmit-1.svg"), filepath.Join(dir, "bench-xmit-5.svg"), filepath.Join(dir, "bench-xmit-9.svg")
	if want := []string{one, five, nine}; !slices.Equal(files, want) || said.String() != strings.Join(want, "\n")+"\n" {
		t.Fatalf("files %v, says %q, want %v", files, said.String(), want)
	}
	for file, words := range map[string][]string{
		one:  {"Table 1: first & last", "Test CPU <1>, 2 cores", "Mpps", "mutex", "lockless", "lockless / mutex", "ours", "published", "one queue", "3 x 32", "threads x burst"},
		five: {"Table 5: two units", "y / x", "rate", "time", "threads x burst"},
		nine: {"Table 9: alone", "Gbit/s", "defaults", "l2 tcp1", "l3 tcp1"},
	} {
		got := texts(t, file)
		for _, w := range words {
			if !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, w) }) {
				t.Errorf("%s has no text %q: %q", filepath.Base(file), w, got)
			}
		}
		if panels := count(got, "threads x burst"); file == five && panels != 1 || file == one && panels != 2 {
			t.Errorf("%s has %d panels, want 2, and 1 if the rows have two units", filepath.Base(file), panels)
		}
		if file != one && slices.Contains(got, "published") {
			t.Errorf("there is a legend for nothing: %q", got)
		}
		if file == nine && (slices.Contains(got, "ours") || count(got, "threads x burst") > 0) {
			t.Errorf("there is a panel for nothing: %q", got)
		}
	}
}

func count(all []string, s string) (n int) {
	for _, v := range all {
		if v == s {
			n++
		}
	}
	return n
}

// texts gives the text of an SVG, and fails if it is not XML.
func texts(t *testing.T, file string) (all []string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for d := xml.NewDecoder(f); ; {
		token, err := d.Token()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if s, ok := token.(xml.CharData); ok {
			all = append(all, strings.TrimSpace(string(s)))
		}
	}
}

func TestErrors(t *testing.T) {
	for _, tt := range []struct {
		args  []string
		stdin string
		says  string
	}{
		{nil, "Table 1", "router bench ... --json"},
		{nil, `{"version":2,"tables":[{}]}`, "version 2"},
		{nil, `{"version":1}`, "no table"},
		{[]string{"a", "b"}, "", "want one"},
		{[]string{"/no/such/file"}, "", "no such file"},
		{[]string{"-x"}, "", "not defined"},
	} {
		args := append([]string{"-o", t.TempDir()}, tt.args...)
		if err := run(args, strings.NewReader(tt.stdin), io.Discard); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("plot %v: %v, want an error with %q", tt.args, err, tt.says)
		}
	}
	if err := run([]string{"-h"}, nil, io.Discard); err != nil {
		t.Errorf("plot -h: %v", err)
	}
}
