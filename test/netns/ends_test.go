package netns

import (
	"context"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"taprouter/internal/traffic"
)

// Ends are traffic ends in namespaces a and b: agents of the router's binary.
type Ends struct {
	net *Net
	r   *Router
	at  map[string]*traffic.Agent
}

func (n *Net) ends(r *Router) *Ends {
	n.t.Helper()
	e := &Ends{net: n, r: r, at: map[string]*traffic.Agent{}}
	for _, k := range []string{"a", "b"} {
		a, err := traffic.StartIn(n.ns(k), os.Stderr, routerBinary, "demo-agent")
		if err != nil {
			n.t.Fatal(err)
		}
		n.t.Cleanup(func() { a.Stop(5 * time.Second) })
		e.at[k] = a
	}
	return e
}

// A udpRun is what became of UDP flows.
type udpRun struct {
	traffic.UDPReceived
	sent    uint64
	counted traffic.Counters // what was lost, by us, a TAP or the receiver's socket
}

// udp sends flows to an address of the receiving host and tells what came.
func (e *Ends) udp(ctx context.Context, from, to, addr string, send traffic.UDPSend) (run udpRun) {
	t := e.net.t
	t.Helper()
	before := e.losses(ctx)
	rx, err := e.at[to].Listen(ctx, traffic.KindUDP, net.JoinHostPort(addr, "0"))
	if err != nil {
		t.Fatal(err)
	}
	send.To = rx.Addr
	sent, err := e.at[from].SendUDP(ctx, send)
	if err != nil {
		t.Fatal(err)
	}
	got, err := rx.Finish(ctx, sent.Flows, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return udpRun{UDPReceived: got.UDP, sent: sent.Packets, counted: e.lost(ctx, before)}
}

// losses gives every counter that a lost packet may be in.
func (e *Ends) losses(ctx context.Context) traffic.Counters {
	e.net.t.Helper()
	all := traffic.Counters{}
	for reason, c := range e.r.drops() {
		if reason != "not_for_us" { // what hosts say to all routers and groups; never a packet of a flow
			all["router "+reason] = c
		}
	}
	for k, a := range e.at {
		c, err := a.Counters(ctx)
		if err != nil {
			e.net.t.Fatal(err)
		}
		dev := "dev." + e.net.dev(k)
		for _, name := range []string{dev + ".tx_dropped", dev + ".rx_dropped", "Udp.RcvbufErrors", "Udp6RcvbufErrors", "Udp.MemErrors", "Udp6MemErrors"} {
			all[k+" "+name] = c[name]
		}
	}
	return all
}

// lost gives the counters that grew since before.
func (e *Ends) lost(ctx context.Context, before traffic.Counters) traffic.Counters {
	e.net.t.Helper()
	d := e.losses(ctx).Since(before)
	maps.DeleteFunc(d, func(_ string, n uint64) bool { return n == 0 })
	return d
}

// byRouter is how many packets the router itself dropped meanwhile.
func (u udpRun) byRouter() (n uint64) {
	for name, c := range u.counted {
		if strings.HasPrefix(name, "router ") {
			n += c
		}
	}
	return n
}

func total(c traffic.Counters) uint64 { return c.Sum(slices.Collect(maps.Keys(c))...) }

// check fails on what must never happen to a UDP run.
func (u udpRun) check(t *testing.T, what string) {
	t.Helper()
	t.Logf("%s: %d sent, %d lost, %d reordered; losses counted: %v", what, u.sent, u.Lost, u.Reordered, u.counted)
	if u.Packets == 0 || u.Reordered != 0 || u.Duplicates != 0 || u.Corrupt != 0 {
		t.Errorf("%s: %d came, %d reordered, %d twice, %d corrupt", what, u.Packets, u.Reordered, u.Duplicates, u.Corrupt)
	}
	if u.Lost > total(u.counted) {
		t.Errorf("%s: %d lost, but only %v counted", what, u.Lost, u.counted)
	}
}

// ofo is how many TCP segments were queued out of order at a host so far.
func (e *Ends) ofo(ctx context.Context, k string) uint64 {
	e.net.t.Helper()
	c, err := e.at[k].Counters(ctx)
	if err != nil {
		e.net.t.Fatal(err)
	}
	return c.Sum("TcpExt.TCPOFOQueue")
}
