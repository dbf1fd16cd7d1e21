package spawn

import (
	"bytes"
	"testing"
)

func TestJournal(t *testing.T) {
	j, err := newJournal()
	if err != nil {
		t.Fatal(err)
	}
	defer j.f.Close()
	if err := j.err(); err != nil {
		t.Errorf("empty: %v", err)
	}
	for range 10 {
		_, _ = j.f.Write(bytes.Repeat([]byte("x\n"), 1000))
	}
	_, _ = j.f.WriteString("Error: the last\n")
	if err := j.err(); err == nil || err.Error() != "the last" {
		t.Errorf("last line: %v", err)
	}
}
