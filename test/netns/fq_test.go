package netns

import (
	"fmt"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"taprouter/control/api"
	"taprouter/internal/traffic"
)

// frameHeaders is what a frame of UDP over IPv4 has besides the payload, in
// bytes.
const frameHeaders = 14 + 20 + 8

// udpAt sends flows from a to addr on b and measures at what rate frames
// arrive, in bit/s, as often as it takes until that is within off of want, and
// at most three times.
func (e *Ends) udpAt(want, off float64, addr string, send traffic.UDPSend) (bits float64, run udpRun) {
	t, ctx := e.net.t, e.net.t.Context()
	t.Helper()
	before := e.losses(ctx)
	rx, err := e.at["b"].Listen(ctx, traffic.KindUDP, net.JoinHostPort(addr, "0"))
	if err != nil {
		t.Fatal(err)
	}
	send.To, send.Duration = rx.Addr, 5*time.Second
	sent := make(chan traffic.UDPSent, 1)
	go func() {
		s, err := e.at["a"].SendUDP(ctx, send)
		if err != nil {
			t.Error(err)
		}
		sent <- s
	}()
	count := func() (uint64, time.Time) {
		n, _, err := rx.Progress(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return n, time.Now()
	}
	// What a new flow may send at once is through.
	until(t, 5*time.Second, "packets arrive", func() bool { n, _ := count(); return n >= 200 })
	for range 3 {
		n, start := count()
		time.Sleep(1200 * time.Millisecond) // the time that is measured
		m, end := count()
		bits = float64(m-n) * 8 * float64(send.Size+frameHeaders) / end.Sub(start).Seconds()
		t.Logf("%.3f Mbit/s, %.1f %% of %.0f", bits/1e6, 100*bits/want, want/1e6)
		if math.Abs(bits/want-1) <= off {
			break
		}
	}
	s := <-sent
	got, err := rx.Finish(ctx, s.Flows, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return bits, udpRun{UDPReceived: got.UDP, sent: s.Packets, counted: e.lost(ctx, before)}
}

// fqs gives what `qdisc show -s` says of the fqs of port b, added up.
func (r *Router) fqs() (sum api.Qdisc) {
	r.net.t.Helper()
	var all []api.Qdisc
	r.ask(&all, "qdisc", "show", "-s", "dev", r.net.dev("b"))
	for _, q := range all {
		if q.Kind != "fq" {
			continue
		}
		if sum.FQStats == nil {
			sum = q
			continue
		}
		sum.Packets += q.Packets
		sum.Flows += q.Flows
		sum.Inactive += q.Inactive
		sum.ThrottledFlows += q.ThrottledFlows
		sum.Throttled += q.Throttled
		sum.Fastpath += q.Fastpath
	}
	if sum.FQStats == nil {
		r.net.t.Fatalf("no fq at port b: %+v", all)
	}
	return sum
}

// fq under mq: what is forwarded takes the fast path, a flow keeps to maxrate
// when that is set under traffic, and nothing is reordered.
func TestFairQueue(t *testing.T) {
	n := newNet(t)
	r := n.router(strings.Replace(bridged, "{name: @dev:b,", "{name: @dev:b, qdisc: {kind: mq, child: {kind: fq, flow_limit: 200, horizon_drop: false}},", 1))
	n.ping("a", "10.99.0.2")
	e := n.ends(r)
	u := e.udp(t.Context(), "a", "b", "10.99.0.2", traffic.UDPSend{Flows: 16, PPS: 10000, Size: 300, Duration: time.Second})
	u.check(t, "fq")
	if q := r.fqs(); q.Fastpath == 0 || q.Flows != q.Inactive || q.ThrottledFlows != 0 {
		t.Errorf("after 16 flows: %+v", q.FQStats)
	}

	const rate = 8e6
	change := func(words ...string) {
		for q := range 2 {
			r.mustDo(append([]string{"qdisc", "change", "dev", n.dev("b"), "parent", fmt.Sprintf(":%x", q+1), "fq"}, words...)...)
		}
	}
	one := traffic.UDPSend{Flows: 1, PPS: 2500, Size: 1000} // 20.8 Mbit/s
	change("maxrate", "8mbit")
	bits, u := e.udpAt(rate, 0.1, "10.99.0.2", one)
	u.check(t, "maxrate 8mbit")
	if math.Abs(bits/rate-1) > 0.1 {
		t.Errorf("a flow with maxrate 8mbit runs at %.3f Mbit/s", bits/1e6)
	}
	if q := r.fqs(); q.Throttled == 0 || q.Flows == 0 || q.Flows != q.Inactive || q.ThrottledFlows != 0 {
		t.Errorf("after a flow with maxrate: %+v", q.FQStats)
	}

	change("maxrate", "unlimited")
	offered := float64(one.PPS*(one.Size+frameHeaders)) * 8
	bits, u = e.udpAt(offered, 0.1, "10.99.0.2", one)
	u.check(t, "maxrate unlimited")
	if bits < 1.5*rate || u.byRouter() > 0 {
		t.Errorf("a flow of %.1f Mbit/s without maxrate runs at %.3f, dropped: %v", offered/1e6, bits/1e6, u.counted)
	}
	out, err := r.command("qdisc", "show", "-d", "dev", n.dev("b"))
	if err != nil || strings.Count(out, "flow_limit 200p ") != 2 || strings.Count(out, "horizon_cap ") != 2 || strings.Contains(out, "maxrate") {
		t.Errorf("the changes changed something else: %v\n%s", err, out)
	}
}

// A port with a line delivers at the line's rate, all queues together if they
// share it.
func TestLine(t *testing.T) {
	n := newNet(t)
	r := n.router(strings.Replace(bridged, "{name: @dev:b,", "{name: @dev:b, line: {rate: 20mbit, shared: true},", 1))
	n.ping("a", "10.99.0.2")
	const rate = 20e6
	bits, u := n.ends(r).udpAt(rate, 0.03, "10.99.0.2", traffic.UDPSend{Flows: 8, PPS: 5000, Size: 1000})
	u.check(t, "a line of 20mbit")
	if math.Abs(bits/rate-1) > 0.03 {
		t.Errorf("a line of 20mbit delivers %.3f Mbit/s", bits/1e6)
	}
	var lines []api.Line
	r.ask(&lines, "line", "show", "-s")
	if len(lines) != 1 || lines[0].Dev != n.dev("b") || lines[0].Rate != rate || !lines[0].Shared || lines[0].Ring != 256 || len(lines[0].Queues) != 2 {
		t.Errorf("line show: %+v", lines)
	}
}

// A TCP stream over a line so fast that superpackets leave in pieces of several
// segments: the kernel finds nothing wrong with them, and the line is not
// faster than it says. `go test -v` shows how near it comes.
func TestLineOfSuperpackets(t *testing.T) {
	lineTime := time.Second
	if full {
		lineTime = 4 * time.Second
	}
	const segment, payload = 14 + 20 + 32 + 1448, 1448 // bytes on the line of a full segment with timestamps
	for _, gbit := range []int{1, 3} {
		t.Run(fmt.Sprintf("%dgbit", gbit), func(t *testing.T) {
			n := newNet(t)
			r := n.router(strings.Replace(bridged, "{name: @dev:b,", fmt.Sprintf("{name: @dev:b, line: {rate: %dgbit, shared: true},", gbit), 1))
			n.ping("a", "10.99.0.2")
			e := n.ends(r)
			rx, err := e.at["b"].Listen(t.Context(), traffic.KindTCP, "10.99.0.2:0")
			if err != nil {
				t.Fatal(err)
			}
			sent := make(chan error, 1)
			go func() {
				_, err := e.at["a"].SendTCP(t.Context(), traffic.TCPSend{To: rx.Addr, Flows: 1, Duration: lineTime + time.Second})
				sent <- err
			}()
			count := func() (uint64, time.Time) {
				_, bytes, err := rx.Progress(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return bytes, time.Now()
			}
			until(t, 5*time.Second, "bytes arrive", func() bool { n, _ := count(); return n > 10e6 })
			before, start := count()
			time.Sleep(lineTime) // what is measured
			after, end := count()
			part := float64(after-before) * segment / payload * 8 / end.Sub(start).Seconds() / (float64(gbit) * 1e9)
			t.Logf("%.3f of %d Gbit/s", part, gbit)
			if part > 1.05 { // the receiver may have been behind at first
				t.Errorf("the line is faster than it is: %.3f of its rate", part)
			}
			if err := <-sent; err != nil {
				t.Error(err)
			}
			if _, err := rx.Finish(t.Context(), nil, time.Second); err != nil {
				t.Error(err)
			}
			var links []api.Link
			r.ask(&links, "link", "show", "-s", "dev", n.dev("b"))
			packets := uint64(0)
			for _, q := range links[0].Queues {
				packets += q.TxPackets
			}
			if cut := links[0].Segments; cut == 0 || packets < 2*cut {
				t.Errorf("%d packets sent, %d frames cut out of superpackets: want several segments a piece", packets, cut)
			}
			for _, line := range strings.Split(n.must("b", "cat /proc/net/snmp"), "\n") {
				if f := strings.Fields(line); len(f) > 15 && f[0] == "Tcp:" && f[1] != "RtoAlgorithm" && f[15] != "0" {
					t.Errorf("TCP segments with a wrong checksum: %s", f[15])
				}
			}
		})
	}
}
