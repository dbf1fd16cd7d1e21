package api

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// slow is a router that answers status when it may.
type slow struct {
	fake
	asked, answer chan struct{}
	answered      atomic.Bool
}

func (s *slow) Status() Status {
	close(s.asked)
	<-s.answer
	s.answered.Store(true)
	return Status{Version: "slow"}
}

// Serve returns when the last request is answered, not before: its caller
// takes the router apart then.
func TestServeWaitsForRequests(t *testing.T) {
	name := fmt.Sprintf("apitest%d-slow", os.Getpid())
	l, err := Listen(name)
	if err != nil {
		t.Fatal(err)
	}
	s := &slow{asked: make(chan struct{}), answer: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served, got := make(chan error, 1), make(chan error, 1)
	go func() { served <- Serve(ctx, l, s) }()
	var status Status
	go func() {
		c := Dial(name)
		defer c.Close()
		got <- c.Get(context.Background(), "status", &status)
	}()
	<-s.asked
	cancel()
	select {
	case <-served:
		t.Error("Serve returned while it asked the router")
		served <- nil
	case <-time.After(50 * time.Millisecond):
	}
	close(s.answer)
	if err := <-served; err != nil || !s.answered.Load() {
		t.Errorf("Serve: %v, answered %v", err, s.answered.Load())
	}
	if err := <-got; err != nil || status.Version != "slow" {
		t.Errorf("the request in flight got %v, %v", status, err)
	}
}

// A listener that fails ends Serve with its error.
func TestServeFails(t *testing.T) {
	l, err := net.Listen("unix", t.TempDir()+"/x.sock")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := Serve(t.Context(), l, &fake{}); err == nil {
		t.Error("Serve on a closed listener: no error")
	}
}

// Of several routers that find a stale socket at once, one gets the name.
func TestOneHolderOfMany(t *testing.T) {
	name := fmt.Sprintf("apitest%d-many", os.Getpid())
	for range 20 {
		old, err := Listen(name)
		if err != nil {
			t.Fatal(err)
		}
		old.(*net.UnixListener).SetUnlinkOnClose(false)
		old.Close()
		var wg sync.WaitGroup
		got := make([]net.Listener, 8)
		for i := range got {
			wg.Go(func() { got[i], _ = Listen(name) })
		}
		wg.Wait()
		n := 0
		for _, l := range got {
			if l != nil {
				n++
				l.Close()
			}
		}
		if n != 1 {
			t.Fatalf("%d routers hold one name", n)
		}
	}
}
