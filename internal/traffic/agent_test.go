package traffic

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// agents starts an agent in this process and one of its own.
func agents(t *testing.T) map[string]*Remote {
	toAgent, in := io.Pipe()
	out, fromAgent := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- Serve(toAgent, fromAgent, map[string]Handler{"double": Handle(func(_ context.Context, n int) (int, error) { return 2 * n, nil })})
		_ = fromAgent.Close()
	}()
	near := NewRemote(in, out)
	t.Setenv("TRAFFIC_TEST_AGENT", "1")
	far, err := StartIn("", os.Stderr, "/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		near.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		far.Stop(10 * time.Second)
	})
	return map[string]*Remote{"near": near, "far": far.Remote}
}

func TestAgent(t *testing.T) {
	ctx := deadline(t)
	for name, r := range agents(t) {
		t.Run(name, func(t *testing.T) {
			udp := listen(t, r, KindUDP)
			usent, err := r.SendUDP(ctx, UDPSend{To: udp.Addr, Flows: 2, PPS: 10000, Size: 500, Duration: 5 * time.Second, Count: 100})
			if err != nil {
				t.Fatal(err)
			}
			if got, err := udp.Finish(ctx, usent.Flows, time.Second); err != nil || got.UDP.Packets != 100 || got.UDP.Lost != 0 {
				t.Errorf("udp: received %+v, %v", got, err)
			}
			tcp := listen(t, r, KindTCP)
			tsent, err := r.SendTCP(ctx, TCPSend{To: tcp.Addr, Flows: 2, Duration: 5 * time.Second, Bytes: 1 << 16})
			if err != nil {
				t.Fatal(err)
			}
			if _, n, err := tcp.Progress(ctx); err != nil || n != tsent.Bytes {
				t.Errorf("tcp progress: %d, %v, want %d", n, err, tsent.Bytes)
			}
			if got, err := tcp.Finish(ctx, nil, 0); err != nil || got.TCP.Bytes != tsent.Bytes {
				t.Errorf("tcp: received %+v, %v, want %d bytes", got, err, tsent.Bytes)
			}
			echo := listen(t, r, KindEcho)
			if err := r.Reach(ctx, echo.Addr, 5*time.Second); err != nil {
				t.Error(err)
			}
			p, err := r.SendPings(ctx, Ping{To: echo.Addr, Interval: time.Millisecond, Duration: 10 * time.Millisecond})
			if err != nil || p.Received == 0 {
				t.Errorf("pings: %+v, %v", p, err)
			}
			if c, err := r.Counters(ctx); err != nil || len(c) == 0 {
				t.Errorf("counters: %d of them, %v", len(c), err)
			}
		}) // the echo is left to the agent's end
	}
}

func listen(t *testing.T, r *Remote, kind string) *Receiver {
	t.Helper()
	v, err := r.Listen(context.Background(), kind, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestAgentErrors(t *testing.T) {
	ctx := deadline(t)
	r := agents(t)["near"]
	_, err := r.Listen(ctx, "sctp", "127.0.0.1:0")
	if err == nil || !strings.Contains(err.Error(), "sctp") {
		t.Errorf("Listen of an unknown kind: %v", err)
	}
	if err := r.Call(ctx, "dance", nil, nil); err == nil || !strings.Contains(err.Error(), "dance") {
		t.Errorf("unknown operation: %v", err)
	}
	if _, err := (&Receiver{r: r, handle: 99}).Finish(ctx, nil, 0); err == nil {
		t.Error("Finish of nothing: no error")
	}
	if _, err := r.SendUDP(ctx, UDPSend{To: "127.0.0.1:1"}); err == nil {
		t.Error("SendUDP without flows: no error")
	}
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := r.SendPings(ctx, Ping{To: "127.0.0.1:1", Interval: time.Second, Duration: time.Minute}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// An agent that is killed ends the calls that wait for it, and the next ones.
func TestAgentKilled(t *testing.T) {
	t.Setenv("TRAFFIC_TEST_AGENT", "1")
	a, err := StartIn("", os.Stderr, "/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Stop(time.Second)
	ctx := deadline(t)
	started := listen(t, a.Remote, KindTCP)
	result := make(chan error, 1)
	go func() {
		_, err := a.SendTCP(ctx, TCPSend{To: started.Addr, Flows: 1, Duration: time.Minute})
		result <- err
	}()
	for n := uint64(0); n == 0; {
		if _, n, err = started.Progress(ctx); err != nil {
			t.Fatal(err)
		}
	}
	_ = a.p.Cmd.Process.Kill()
	if err := <-result; !errors.Is(err, ErrAgentGone) {
		t.Errorf("during the call: %v, want %v", err, ErrAgentGone)
	}
	if _, err := a.Counters(ctx); !errors.Is(err, ErrAgentGone) {
		t.Errorf("after it: %v, want %v", err, ErrAgentGone)
	}
}

func TestProcessStop(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		timeout      time.Duration
	}{
		{"obeys", "exec sleep 60", 10 * time.Second},
		{"does not", "trap '' TERM; echo; while :; do sleep 60; done", 10 * time.Millisecond},
	} {
		cmd := exec.Command("sh", "-c", tt.script)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		p, err := Start(cmd, "", syscall.SIGKILL)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Stop(syscall.SIGTERM, tt.timeout); err == nil {
			t.Errorf("%s: Stop: no error of a process that was killed", tt.name)
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if _, err := Start(exec.Command("/nonexistent"), "", syscall.SIGKILL); err == nil {
		t.Error("Start of nothing: no error")
	}
}
