// Package spawn (control plane) runs `router run` as a child, for the demo and
// for benchmarks: what is measured is what users run.
package spawn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/control/api"
	"taprouter/internal/traffic"
)

// A Router is the child process that forwards.
type Router struct {
	API  *api.Client
	p    *traffic.Process
	log  journal
	over sync.WaitGroup // the goroutine that looks for its end
}

// startTimeout is how long the router may take until it answers, stopTimeout
// how long to end before it is killed.
const (
	startTimeout = 20 * time.Second
	stopTimeout  = 10 * time.Second
)

// Start runs the router that bin is, under a name, and waits until it answers.
// If it ends before Stop is called, cancel is called with the reason. A router
// that was started is returned even with an error.
func Start(ctx context.Context, bin, name, config string, cancel context.CancelCauseFunc) (*Router, error) {
	dir, err := os.MkdirTemp("", "router-spawn-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // the router has read it when it answers
	file := filepath.Join(dir, name+".yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	r := &Router{API: api.Dial(name)}
	if r.log, err = newJournal(); err != nil {
		return nil, err
	}
	cmd := exec.Command(bin, "run", "-c", file, "--name", name)
	cmd.Stdout, cmd.Stderr = r.log.f, r.log.f
	// Not part of our process group: Ctrl-C is ours, we end the router. And
	// if we are killed it is to end cleanly: SIGTERM.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if r.p, err = traffic.Start(cmd, "", syscall.SIGTERM); err != nil {
		_ = r.log.f.Close()
		return nil, fmt.Errorf("start the router: %w", err)
	}
	r.over.Go(func() {
		<-r.p.Done()
		cancel(fmt.Errorf("the router has ended: %w", r.ended()))
	})
	return r, r.await(ctx)
}

// await waits until the router answers.
func (r *Router) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		var s api.Status
		err := r.API.Get(ctx, "status", &s)
		if err == nil {
			return nil
		}
		select {
		case <-r.p.Done():
			return fmt.Errorf("the router has ended: %w", r.ended())
		case <-ctx.Done():
			return fmt.Errorf("the router does not answer: %w", errors.Join(err, r.log.err()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// ended says why the router has gone, in the last words it had.
func (r *Router) ended() error {
	if last := r.log.err(); last != nil {
		return last
	}
	if err := r.p.Wait(); err != nil {
		return err
	}
	return errors.New("exit status 0")
}

// Done is closed when the router has ended.
func (r *Router) Done() <-chan struct{} { return r.p.Done() }

// PID is the process id.
func (r *Router) PID() int { return r.p.Cmd.Process.Pid }

// CPU gives the CPU time of the router, threads that have ended included: the
// process's CPU clock, clock_getcpuclockid(3).
func (r *Router) CPU() (time.Duration, error) { return processCPU(r.PID()) }

func processCPU(pid int) (time.Duration, error) {
	const cpuclockSched = 2 // CPUCLOCK_SCHED, include/linux/posix-timers_types.h
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|cpuclockSched), &ts); err != nil {
		return 0, fmt.Errorf("read the router's CPU clock: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}

// Memory gives the router's resident memory in bytes, now and at its peak.
func (r *Router) Memory() (now, peak uint64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.PID()))
	if err != nil {
		return 0, 0, fmt.Errorf("read the router's memory: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &now)
		_, _ = fmt.Sscanf(line, "VmHWM: %d kB", &peak)
	}
	return now << 10, peak << 10, nil
}

// ResetPeak makes what is resident now the peak so far.
func (r *Router) ResetPeak() error {
	err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", r.PID()), []byte("5"), 0) // proc_pid_clear_refs(5)
	if err != nil {
		return fmt.Errorf("reset the router's peak of memory: %w", err)
	}
	return nil
}

// Stop ends the router as a user would, and says if it did not end well.
func (r *Router) Stop() error {
	r.API.Close()
	err := r.p.Stop(syscall.SIGTERM, stopTimeout)
	r.over.Wait()
	defer r.log.f.Close()
	if err != nil {
		return fmt.Errorf("the router did not end well: %w", errors.Join(err, r.log.err()))
	}
	return nil
}

// A journal is what the router says on its stdout and stderr: a file without a
// name, because a pipe would end with us, and the write after that (SIGPIPE)
// would end the router before it has removed what it made.
type journal struct{ f *os.File }

func newJournal() (journal, error) {
	fd, err := unix.MemfdCreate("router-log", unix.MFD_CLOEXEC)
	if err != nil {
		return journal{}, fmt.Errorf("make a file for the router's log: %w", err)
	}
	return journal{os.NewFile(uintptr(fd), "router-log")}, nil
}

// lastLine is as long as the last line may be, in bytes.
const lastLine = 4096

// err is the last line, or nil if there is none.
func (j journal) err() error {
	st, err := j.f.Stat()
	if err != nil {
		return err
	}
	b := make([]byte, min(st.Size(), lastLine))
	if _, err := j.f.ReadAt(b, st.Size()-int64(len(b))); err != nil {
		return err
	}
	b = bytes.TrimSpace(b)
	last := string(b[bytes.LastIndexByte(b, '\n')+1:])
	if last == "" {
		return nil
	}
	return errors.New(strings.TrimPrefix(last, "Error: "))
}
