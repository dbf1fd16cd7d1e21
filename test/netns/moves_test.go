package netns

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"taprouter/control/api"
	"taprouter/internal/traffic"
)

// fourQueues is a topology with four queues a port.
func fourQueues(conf string) string { return strings.ReplaceAll(conf, "queues: 2", "queues: 4") }

// byHash is fourQueues with flows that keep their ingress queue.
func byHash(conf string) string {
	return strings.NewReplacer("queues: 4,", "queues: 4, steering: hash,", "queues: 4\n", "queues: 4\n    steering: hash\n").Replace(fourQueues(conf))
}

// B01: a flow whose preferred egress queue changes every 100 ms, beside flows
// that come and go, is never reordered, bridged or routed, UDP or TCP.
//
// TCP has traffic both ways, and the kernel gives us a flow on the queue on
// which we last sent its other direction: with many queues at the ingress a
// moved flow is read by two workers at once, and no order is defined that we
// could keep. So the TCP legs that are judged come in by one queue, or by four
// with steering by hash, which keeps a flow on its queue.
func TestMovesKeepOrder(t *testing.T) {
	leg := 8 * time.Second
	switch {
	case full:
		leg = 60 * time.Second
	case raceEnabled:
		leg = 3 * time.Second
	}
	for _, top := range topologies {
		t.Run(top.name, func(t *testing.T) {
			n := newNet(t)
			r := n.router(fourQueues(top.conf))
			n.ping("a", top.b4)
			e := n.ends(r)
			stop := rotate(t, r, 4)
			background := comeAndGo(t, e, top.b4)
			u := e.udp(t.Context(), "a", "b", top.b4, traffic.UDPSend{Flows: 1, PPS: 50000, Burst: 8, Size: 100, Duration: leg})
			u.check(t, "a connected UDP flow")
			background()
			stop()
			st := r.steering()
			t.Logf("%d moves, %d packets refused a move", st.Moves, st.Refused)
			if !raceEnabled && st.Moves <= 100 { // under the race detector there is no time for so many
				t.Errorf("%d moves, want more than 100", st.Moves)
			}
		})
		for _, in := range []struct{ name, conf string }{
			{"tcp", strings.Replace(fourQueues(top.conf), "queues: 4", "queues: 1", 1)}, {"hash", byHash(top.conf)},
		} {
			t.Run(top.name+"/"+in.name, func(t *testing.T) {
				n := newNet(t)
				r := n.router(in.conf)
				n.ping("a", top.b4)
				e := n.ends(r)
				stop := rotate(t, r, 4)
				ofo, lost := e.tcp(top.b4, leg/2)
				stop()
				st := r.steering()
				t.Logf("%d moves; TCP: %d segments out of order, %d losses", st.Moves, ofo, lost)
				if st.Moves < 10 || lost == 0 && ofo > 0 {
					t.Errorf("%d moves; %d TCP segments were queued out of order, %d lost", st.Moves, ofo, lost)
				}
				if n := r.reordered("b"); n != 0 {
					t.Errorf("the router's own counter says that %d packets to b were reordered", n)
				}
			})
		}
	}
}

// B01 where packets wait: fq behind each tx queue, and lines that are slower
// than what is sent at times, their own or shared.
func TestMovesKeepOrderOnLines(t *testing.T) {
	leg := 5 * time.Second
	switch {
	case full:
		leg = 60 * time.Second
	case raceEnabled:
		leg = 2 * time.Second
	}
	for _, line := range []string{"{rate: 60mbit, ring: 64}", "{rate: 100mbit, delay: 5ms, shared: true}"} {
		t.Run(line, func(t *testing.T) {
			n := newNet(t)
			r := n.router(strings.ReplaceAll(byHash(bridged), "steering: hash,", "steering: hash, qdisc: {kind: mq, child: {kind: fq, flow_limit: 1000}}, line: "+line+","))
			n.ping("a", "10.99.0.2")
			e := n.ends(r)
			stop := rotate(t, r, 4)
			u := e.udp(t.Context(), "a", "b", "10.99.0.2", traffic.UDPSend{Flows: 8, PPS: 30000, Burst: 64, Size: 100, Duration: leg})
			u.check(t, "UDP flows through fq and lines")
			ofo, lost := e.tcp("10.99.0.2", leg/2)
			stop()
			st := r.steering()
			t.Logf("%d moves, %d packets refused a move, %d collisions; TCP: %d segments out of order, %d losses", st.Moves, st.Refused, st.Collisions, ofo, lost)
			if st.Moves < 10 || st.Refused == 0 || st.Reordered != 0 || lost == 0 && ofo > 0 {
				t.Errorf("%+v; %d TCP segments were queued out of order, %d lost", st, ofo, lost)
			}
			r.balanced()
		})
	}
}

// tcp runs one bulk connection from a to b. It gives the segments that were
// queued out of order, and the losses that were counted.
func (e *Ends) tcp(addr string, leg time.Duration) (ofo, lost uint64) {
	t := e.net.t
	t.Helper()
	rx, err := e.at["b"].Listen(t.Context(), traffic.KindTCP, addr+":0")
	if err != nil {
		t.Fatal(err)
	}
	ofo, before := e.ofo(t.Context(), "b"), e.losses(t.Context())
	if _, err := e.at["a"].SendTCP(t.Context(), traffic.TCPSend{To: rx.Addr, Flows: 1, Duration: leg}); err != nil {
		t.Error(err)
	}
	if _, err := rx.Finish(t.Context(), nil, time.Second); err != nil {
		t.Error(err)
	}
	return e.ofo(t.Context(), "b") - ofo, total(e.lost(t.Context(), before))
}

// reordered is the reorder counter of port k.
func (r *Router) reordered(k string) uint64 {
	r.net.t.Helper()
	var all []api.XPS
	r.ask(&all, "xps", "show", "dev", r.net.dev(k))
	return all[0].Reordered
}

// steering adds up the moves of all ports.
func (r *Router) steering() (sum api.XPS) {
	r.net.t.Helper()
	var all []api.XPS
	r.ask(&all, "xps", "show")
	for _, x := range all {
		sum.Moves += x.Moves
		sum.Collisions += x.Collisions
		sum.Reordered += x.Reordered
		sum.Refused += x.Refused
	}
	return sum
}

// rotate changes every 100 ms which queue of port b each worker prefers.
func rotate(t *testing.T, r *Router, queues int) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	socket := api.Dial(r.name)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer socket.Close()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for turn := 0; ; turn++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for q := range queues { // what `router xps set dev X queue N workers LIST` sends
				change := api.Change{Dev: r.net.dev("b"), Queue: q, Workers: []int{}}
				if w := (q + turn) % queues; w < 2 {
					change.Workers = append(change.Workers, w)
				}
				if err := socket.Set(context.WithoutCancel(ctx), "xps", change); err != nil {
					t.Errorf("xps set: %v", err)
				}
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// comeAndGo keeps 50 short flows going, one set after the other.
func comeAndGo(t *testing.T, e *Ends, addr string) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			rx, err := e.at["b"].Listen(ctx, traffic.KindUDP, addr+":0")
			if err != nil {
				if ctx.Err() == nil {
					t.Error(err)
				}
				return
			}
			sent, err := e.at["a"].SendUDP(ctx, traffic.UDPSend{To: rx.Addr, Flows: 50, PPS: 5000, Size: 100, Duration: 500 * time.Millisecond})
			if err != nil {
				return
			}
			got, err := rx.Finish(context.WithoutCancel(ctx), sent.Flows, time.Second)
			if err != nil || got.UDP.Reordered != 0 {
				t.Errorf("background flows: %d reordered, %v", got.UDP.Reordered, err)
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}
