package spawn

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"taprouter/internal/traffic"
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

// self is a Router that is this process.
func self(t *testing.T, pid int) *Router {
	p, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	return &Router{p: &traffic.Process{Cmd: &exec.Cmd{Process: p}}}
}

func TestCPU(t *testing.T) {
	r := self(t, os.Getpid())
	a, err := r.CPU()
	if err != nil {
		t.Fatal(err)
	}
	for n := range 1 << 20 {
		runtime.KeepAlive(n)
	}
	if b, err := r.CPU(); err != nil || b <= a {
		t.Errorf("CPU time %v, then %v, %v", a, b, err)
	}
	if _, err := self(t, 1<<22).CPU(); err == nil {
		t.Error("CPU time of no process: no error")
	}
}

func TestMemory(t *testing.T) {
	const size = 32 << 20
	r := self(t, os.Getpid())
	before, _, err := r.Memory()
	if err != nil || before == 0 {
		t.Fatal(before, err)
	}
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	if now, peak, err := r.Memory(); err != nil || now < before+size/2 || peak < now {
		t.Errorf("%d bytes more: %d resident, at most %d, %d before, %v", size, now, peak, before, err)
	}
	if err := unix.Munmap(b); err != nil {
		t.Fatal(err)
	}
	if _, peak, err := r.Memory(); err != nil || peak < before+size/2 {
		t.Errorf("the peak is forgotten: %d, %v", peak, err)
	}
	if err := r.ResetPeak(); err != nil {
		t.Fatal(err)
	}
	if _, peak, err := r.Memory(); err != nil || peak > before+size/2 {
		t.Errorf("the peak is not forgotten: %d, %v", peak, err)
	}
}
