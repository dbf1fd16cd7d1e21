package hostnet

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A name is told of each time that a namespace appears under it, and only
// when it stands for one.
func TestWatchNames(t *testing.T) {
	first := newNS(t) // so that runDir is there
	ctx, cancel := context.WithCancel(t.Context())
	names, started, ended := make(chan string, 100), make(chan struct{}), make(chan error, 1)
	go func() { ended <- WatchNames(ctx, func() { close(started) }, func(name string) { names <- name }) }()
	<-started
	file := filepath.Join(runDir, unique())
	if err := os.WriteFile(file, nil, 0o600); err != nil { // as a creation begins
		t.Fatal(err)
	}
	defer os.Remove(file)
	await := func(want string) {
		t.Helper()
		deadline := time.After(10 * time.Second)
		for {
			select {
			case name := <-names: // other tests make namespaces too
				if name == want {
					return
				}
				if name == filepath.Base(file) {
					t.Fatal("told of a file that is no namespace")
				}
			case <-deadline:
				t.Fatalf("not told of %s", want)
			}
		}
	}
	second := newNS(t)
	await(second.name)
	if err := Delete(first.name); err != nil {
		t.Fatal(err)
	}
	again, _, err := Ensure(first.name, true)
	if err != nil {
		t.Fatal(err)
	}
	await(first.name)
	again.Close()
	if err := again.Delete(); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestCreatedNames(t *testing.T) {
	event := func(name string, size int) []byte {
		b := make([]byte, 16+size)
		b[12] = byte(size)
		copy(b[16:], name)
		return b
	}
	whole := append(event("blue", 16), append(event("", 0), event("green", 16)...)...)
	for cut, want := range map[int]int{len(whole): 2, len(whole) - 1: 1, 31: 0, 32: 1, 15: 0, 0: 0} {
		if got := createdNames(whole[:cut]); len(got) != want {
			t.Errorf("createdNames of %d bytes = %q, want %d names", cut, got, want)
		}
	}
}
