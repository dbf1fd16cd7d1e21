package traffic

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
)

// A Process is a child process that dies with us, kill -9 included.
type Process struct {
	Cmd *exec.Cmd
	err error         // of Wait; valid when done is closed
	end chan struct{} // closed when the process has been waited for
}

// Start starts cmd in the named network namespace ("" is ours). death is the
// signal that it gets when we die.
//
// The kernel sends that signal when the *thread* that started the child ends,
// and the namespace belongs to the thread as well. So a thread of its own
// starts the child, waits for it, and is thrown away then.
func Start(cmd *exec.Cmd, ns string, death syscall.Signal) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = death
	p := &Process{Cmd: cmd, end: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.end)
		runtime.LockOSThread() // and never unlock: the thread ends with this goroutine
		if err := startIn(cmd, ns); err != nil {
			started <- err
			return
		}
		started <- nil
		p.err = cmd.Wait()
	}()
	if err := <-started; err != nil {
		<-p.end
		return nil, err
	}
	return p, nil
}

func startIn(cmd *exec.Cmd, ns string) error {
	if ns != "" {
		h, err := netns.GetFromName(ns)
		if err != nil {
			return fmt.Errorf("traffic: network namespace %s: %w", ns, err)
		}
		defer h.Close()
		home, err := netns.Get()
		if err != nil {
			return fmt.Errorf("traffic: own network namespace: %w", err)
		}
		defer home.Close()
		if err := netns.Set(h); err != nil {
			return fmt.Errorf("traffic: enter network namespace %s: %w", ns, err)
		}
		defer netns.Set(home) // if this is the process's first thread, it stays for ever
	}
	return cmd.Start()
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.end }

// Wait waits for the end of the process and gives what exec.Cmd.Wait gave.
func (p *Process) Wait() error {
	<-p.end
	return p.err
}

// Stop asks the process to end and, if it has not done so in time, kills it.
// It returns when the process has gone.
func (p *Process) Stop(sig syscall.Signal, timeout time.Duration) error {
	_ = p.Cmd.Process.Signal(sig)
	select {
	case <-p.end:
	case <-time.After(timeout):
		_ = p.Cmd.Process.Kill()
		<-p.end
	}
	return p.err
}

// An Agent is a child process that runs Serve in a namespace.
type Agent struct {
	*Remote
	p   *Process
	out *os.File // what Remote reads
}

// StartIn starts path with args, which has to call Serve with its stdin and
// stdout, in a namespace. Its stderr goes to stderr.
func StartIn(ns string, stderr io.Writer, path string, args ...string) (*Agent, error) {
	cmd := exec.Command(path, args...)
	cmd.Stderr = stderr
	// Not part of our process group: Ctrl-C is ours, we end the agent.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// Not StdoutPipe, which Wait closes under the reader.
	out, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = w
	p, err := Start(cmd, ns, syscall.SIGKILL)
	_ = w.Close()
	if err != nil {
		_ = out.Close()
		return nil, err
	}
	return &Agent{Remote: NewRemote(in, out), p: p, out: out}, nil
}

// Stop ends the agent, killing it if it does not end in time.
func (a *Agent) Stop(timeout time.Duration) {
	t := time.AfterFunc(timeout, func() { _ = a.p.Cmd.Process.Kill() })
	defer t.Stop()
	a.Close()
	_ = a.p.Wait()
	_ = a.out.Close()
}
