package dataplane

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math/big"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"taprouter/bql"
	"taprouter/packet"
	"taprouter/qdisc"
	"taprouter/tun/tuntest"
	"taprouter/xpsflow"
)

// A wire is a dataplane that was not started: the test is the only worker,
// and time is what the test says.
type wire struct {
	t    *testing.T
	dp   *Dataplane
	w    *Worker
	port *Port
	peer []*tuntest.Peer
}

func newWire(t *testing.T, queues int, vnet int, change func(*PortConfig)) *wire {
	t.Helper()
	pc := PortConfig{Name: "p0", TxQueueLen: txqueuelen, Accept: AcceptAll, Qdisc: qdisc.Spec{Kind: "mq"}, Child: qdisc.Spec{Kind: "pfifo_fast"}, FlowTable: 64}
	x := &wire{t: t}
	for range queues {
		q, peer := tuntest.Pair(t, vnet)
		for _, fd := range []int{q.FD(), peer.FD} {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 64<<20)
		}
		pc.Queues = append(pc.Queues, q)
		x.peer = append(x.peer, peer)
		t.Cleanup(func() { _ = q.Close() })
	}
	change(&pc)
	x.dp = must(New(Config{Workers: 1, Memory: packet.Memory{Heads: 16384, Tails: 256}, Ports: []PortConfig{pc}}))
	x.w, x.port = x.dp.workers[0], x.dp.ports[0]
	x.w.enter() // awake: no kick has to wake it
	t.Cleanup(func() {
		x.w.leave()
		x.dp.Stop()
		if n := x.port.Steer().InFlight(); n != 0 {
			t.Errorf("%d packets still in flight in the flow table", n)
		}
		if heads, tails := x.dp.InUse(); heads != 0 || tails != 0 {
			t.Errorf("%d packets and %d tails leaked", heads, tails)
		}
		x.dp.Close()
	})
	return x
}

func (x *wire) at(now int64) { x.w.now, x.w.cpu.Now = now, now }

// send gives n frames of size bytes to tx queue q now.
func (x *wire) send(q, n, size int) {
	for i := range n {
		f := make([]byte, size)
		copy(f, frame(2, 1, uint16(q), uint32(i)))
		x.give(q, x.dp.copyIn(f))
	}
}

func (x *wire) give(q int, p *packet.Packet) {
	p.Out = 0
	hash := cmp.Or(p.Hash, uint32(q+1)) // the classifier's is another in each run
	x.w.batch.Pkts[0] = p
	x.w.cls.Batch(x.w.batch.Pkts[:1])
	p.Hash = hash
	x.port.steer.SelectBatch(0, x.w.batch.Pkts[:1])
	p.TxQ = uint16(q) // whatever was selected: the bucket is released all the same
	var l packet.List
	l.Push(p)
	x.port.tx[q].qdisc.Load().Xmit(&x.w.cpu, &l)
}

// step goes to the next time at which something is due and does it; false if
// nothing is.
func (x *wire) step() bool {
	for x.w.cpu.Pending() {
		x.w.cpu.TxAction()
	}
	x.w.serveKicks()
	at, ok := x.w.timers.Min()
	if !ok {
		return false
	}
	x.at(max(at, x.w.now))
	x.w.expire()
	for x.w.cpu.Pending() {
		x.w.cpu.TxAction()
	}
	x.w.finish()
	return true
}

func (x *wire) sent(q int) uint64 { return x.port.tx[q].packets }

func lineOf(c LineConfig) func(*PortConfig) {
	if c.Ring == 0 {
		c.Ring = 256
	}
	return func(p *PortConfig) { p.Line = c }
}

// noBQL lets the ring alone bound what is taken out of the qdisc.
func (x *wire) noBQL() {
	for _, t := range x.port.tx {
		t.dql.Init(bql.MaxLimit, bql.MaxLimit)
	}
}

// Departures are exact at every rate, and do not drift: packet n never leaves
// before n packets' time on the line, and late only by what wake-ups are
// coalesced for.
func TestLineRate(t *testing.T) {
	const packets, size = 5000, 1000
	for _, rate := range []int64{1e6, 7_777_777, 100e6, 1e9, 10e9} {
		for _, overhead := range []int{0, EthernetOverhead} {
			t.Run(fmt.Sprintf("%d+%d", rate, overhead), func(t *testing.T) {
				x := newWire(t, 1, 0, lineOf(LineConfig{Rate: rate, Overhead: overhead}))
				x.noBQL()
				const start = 1000
				x.at(start)
				due := func(n uint64) int64 { // the exact end of packet n, rounded down
					b := big.NewInt(int64(n) * int64(size+overhead) * 8)
					b.Mul(b, big.NewInt(1e9))
					return start + b.Div(b, big.NewInt(rate)).Int64()
				}
				fed, seen := 0, uint64(0)
				for seen < packets {
					for ; fed < packets && fed-int(seen) < 600; fed++ {
						x.send(0, 1, size)
					}
					if !x.step() {
						t.Fatalf("nothing is due after %d of %d packets", seen, packets)
					}
					for n := x.sent(0); seen < n; {
						seen++
						if early := due(seen) - x.w.now; early > 1 {
							t.Fatalf("packet %d left %d ns early", seen, early)
						}
					}
					if late := x.w.now - due(seen+1); seen < packets && late > lineSlack {
						t.Fatalf("packet %d has not left, %d ns late", seen+1, late)
					}
					for x.peer[0].Recv(0) != nil {
					}
				}
				if late := x.w.now - due(packets); late > lineSlack {
					t.Errorf("the last packet left %d ns late", late)
				}
			})
		}
	}
}

// DQL and the ring learn of a packet when it is through, the flow table when
// it is delivered after the delay.
func TestLineDelay(t *testing.T) {
	const rate, size, delay = 8_000_000, 1000, 5 * time.Millisecond // 1 ms a packet
	x := newWire(t, 2, 0, lineOf(LineConfig{Rate: rate, Delay: delay}))
	x.at(0)
	x.send(0, 3, size)
	tq := x.port.tx[0]
	type state struct {
		now                     int64
		ring, inflight, tracked int
		sent                    uint64
	}
	var got []state
	for x.step() {
		st := tq.dql.Stats()
		got = append(got, state{x.w.now / 1e6, tq.ring.used(), int(st.Inflight), x.port.steer.InFlight(), x.sent(0)})
	}
	const ms = 1
	want := []state{
		{0, 1, 1000, 3, 0}, // DQL lets one packet go at first; the rest waits in the qdisc
		{1 * ms, 1, 1000, 3, 0},
	}
	if len(got) < 2 || got[0] != want[0] || got[1].ring != 2 && got[1].ring != 1 {
		t.Fatalf("%+v", got)
	}
	for _, s := range got {
		through := int(min(s.now, 3))
		delivered := uint64(max(min(s.now-5, 3), 0))
		if s.sent != delivered || s.tracked != 3-int(delivered) {
			t.Errorf("after %d ms: %+v, want %d delivered", s.now, s, delivered)
		}
		if through == 3 && (s.ring != 0 || s.inflight != 0) {
			t.Errorf("after %d ms: %+v, want an empty ring", s.now, s)
		}
	}
	if x.w.now != 8e6 {
		t.Errorf("the last was delivered at %d ns, want 8 ms", x.w.now)
	}
}

// A full ring stops the queue; it wakes when a quarter is free, and nothing
// is lost or stuck. Without BQL (limit_min at its maximum) only the ring stops it.
func TestLineStopsAndWakes(t *testing.T) {
	for _, bqlOn := range []bool{false, true} {
		t.Run(fmt.Sprintf("bql=%t", bqlOn), func(t *testing.T) {
			x := newWire(t, 1, 0, lineOf(LineConfig{Rate: 1e9, Ring: 8}))
			tq := x.port.tx[0]
			if !bqlOn {
				x.noBQL()
			}
			x.at(0)
			x.send(0, 100, 500)
			if !bqlOn && (!tq.xoff.DriverStopped() || tq.ring.used() != 8) {
				t.Errorf("driver stopped %t with %d in a ring of 8", tq.xoff.DriverStopped(), tq.ring.used())
			}
			v := x.port.LineView()
			if want := (LineQueue{Used: tq.ring.used(), Stops: tq.driverStops}); len(v.Queues) != 1 || v.Queues[0] != want || !bqlOn && want.Stops == 0 || v.Held != 0 || v.MaxHeld <= 0 {
				t.Errorf("LineView() = %+v, want %+v and nothing held", v, want)
			}
			if c := x.port.Line(); c.Rate != 1e9 || c.Ring != 8 {
				t.Errorf("Line() = %+v", c)
			}
			runs := 0
			for x.step() {
				if runs++; runs > 1000 {
					t.Fatal("it spins")
				}
				if tq.ring.used() > 8 {
					t.Fatalf("%d packets in a ring of 8", tq.ring.used())
				}
			}
			if x.sent(0) != 100 || tq.Stopped() {
				t.Errorf("%d of 100 sent, stopped %t", x.sent(0), tq.Stopped())
			}
			for n := range uint32(100) {
				if _, seq := flowSeq(x.peer[0].Recv(0)); seq != n {
					t.Fatalf("packet %d came as %d", seq, n)
				}
			}
		})
	}
}

// A superpacket leaves in pieces of at most 50 us on the line, or segment by
// segment where one takes longer or the reader takes nothing else, each when
// the last of it is through; as a whole only if all of it is that short.
func TestLineSuperpacket(t *testing.T) {
	const payload, mss = 30000, 1400 // 22 segments
	for _, tt := range []struct {
		rate   int64
		accept Accept
		piece  int // segments
	}{
		{100e6, AcceptAll, 1}, {400e6, AcceptAll, 1}, {1e9, AcceptAll, 4}, {3e9, AcceptAll, 12}, {5e9, AcceptAll, 21},
		{10e9, AcceptAll, 22}, {3e9, AcceptCsum, 1}, {10e9, 0, 1},
	} {
		t.Run(fmt.Sprintf("rate=%d,accept=%d", tt.rate, tt.accept), func(t *testing.T) {
			x := newWire(t, 1, tuntest.VnetLen, func(p *PortConfig) {
				p.Accept, p.Line = tt.accept, LineConfig{Rate: tt.rate, Ring: 256, Overhead: EthernetOverhead}
			})
			x.at(0)
			p := x.dp.copyIn(superpacket(payload, mss)[tuntest.VnetLen:])
			p.Vnet = packet.Vnet{Flags: packet.NeedsCsum, GSOType: packet.GSOTCPv4, HdrLen: 54, GSOSize: mss, CsumStart: 34, CsumOffset: 16}
			x.give(0, p)
			through := func(segs uint64) int64 { // when so many are, rounded down
				bytes := min(int(segs)*mss, payload) + int(segs)*(54+EthernetOverhead)
				return int64(bytes) * 8e9 / tt.rate
			}
			next, left := 0, uint64(0)
			for x.step() {
				if n := x.sent(0); n > left { // nothing follows, so nothing waits for company
					if x.w.now != through(n) {
						t.Errorf("%d segments are out at %d, want %d", n, x.w.now, through(n))
					}
					if more := n - left; int(more) != min(tt.piece, 22-int(left)) {
						t.Errorf("%d segments left together, want %d", more, tt.piece)
					}
					left = n
				}
				for b := x.peer[0].Recv(0); b != nil; b = x.peer[0].Recv(0) {
					next += checkPiece(t, b, next, payload, mss, tt.accept != AcceptAll)
				}
			}
			if left != 22 || next != payload {
				t.Errorf("%d segments and %d bytes sent, want 22 and %d", left, next, payload)
			}
		})
	}
}

// checkPiece checks what the reader got of a superpacket from payload byte
// from on, and gives the number of bytes.
func checkPiece(t *testing.T, b []byte, from, payload, mss int, complete bool) int {
	t.Helper()
	f, data := b[tuntest.VnetLen:], b[tuntest.VnetLen+54:]
	for i, c := range data {
		if k := from + i; c != byte(k)^byte(k>>8) {
			t.Fatalf("byte %d is %x", k, c)
		}
	}
	if seq := binary.BigEndian.Uint32(f[38:]); int(seq) != 7+from {
		t.Errorf("sequence number %d at byte %d", seq, from)
	}
	if id := binary.BigEndian.Uint16(f[18:]); int(id) != from/mss {
		t.Errorf("IPv4 id %d at byte %d", id, from)
	}
	if psh := f[47]&8 != 0; psh != (from+len(data) == payload) {
		t.Errorf("PSH is %t at byte %d", psh, from)
	}
	want := []byte{packet.NeedsCsum, packet.GSONone, 0, 0, 0, 0, 34, 0, 16, 0}
	if complete {
		want = make([]byte, 10)
	} else {
		if len(data) > mss {
			want[1], want[2], want[4], want[5] = packet.GSOTCPv4, 54, byte(mss&255), byte(mss>>8)
		}
		binary.BigEndian.PutUint16(f[50:], ^checksum.Checksum(f[34:], 0)) // as its reader completes it
	}
	if !bytes.Equal(b[:10], want) {
		t.Errorf("vnet header %x at byte %d, want %x", b[:10], from, want)
	}
	if !valid(f) {
		t.Errorf("wrong checksum at byte %d", from)
	}
	return len(data)
}

// A shared line serves its queues in turn, packet by packet.
func TestSharedLine(t *testing.T) {
	x := newWire(t, 4, 0, lineOf(LineConfig{Rate: 100e6, Shared: true}))
	x.noBQL()
	x.at(0)
	for q := range 4 {
		x.send(q, 50*(q+1), 1000)
	}
	left := []uint64{50, 100, 150, 200}
	for x.step() {
		lo, hi := uint64(1<<62), uint64(0)
		for q := range 4 {
			if n := x.sent(q); n < left[q] {
				lo, hi = min(lo, n), max(hi, n)
			}
		}
		if hi > lo+1 {
			t.Fatalf("queues that have more were served %d to %d times", lo, hi)
		}
	}
	for q := range 4 {
		if x.sent(q) != left[q] {
			t.Errorf("queue %d: %d sent, want %d", q, x.sent(q), left[q])
		}
	}
	if want := int64(500 * 80_000); x.w.now < want || x.w.now > want+lineSlack {
		t.Errorf("ended at %d, want %d: the line was idle or too fast", x.w.now, want)
	}
}

// What the delay has no room for is dropped and counted; the line itself
// took its time for it.
func TestLineDelayOverflow(t *testing.T) {
	x := newWire(t, 1, 0, lineOf(LineConfig{Rate: 1e9, Delay: 10 * time.Second, Ring: 8}))
	x.at(0)
	const all = 6000
	for i := 0; i < all; i += 500 {
		x.send(0, 500, 100)
		for i := 0; i < 20000 && x.port.tx[0].qdisc.Load().Stats().Qlen > 0; i++ {
			x.step()
		}
	}
	for x.step() {
		for x.peer[0].Recv(0) != nil {
		}
	}
	drops := x.dp.Drops(0)
	room := x.port.lines[0].share / packet.HeadLen
	if int(x.sent(0)) != room || int(drops[packet.DropDelay]) != all-room {
		t.Errorf("%d sent and %d dropped, want %d and %d", x.sent(0), drops[packet.DropDelay], room, all-room)
	}
	if x.port.lines[0].held != 0 {
		t.Errorf("%d bytes held at the end", x.port.lines[0].held)
	}
}

// A port that goes down loses what is in its ring, on its line and in its
// delay, for that reason; the line works again afterwards.
func TestLinePurge(t *testing.T) {
	for _, shared := range []bool{false, true} {
		x := newWire(t, 2, 0, lineOf(LineConfig{Rate: 1e6, Delay: 20 * time.Millisecond, Ring: 16, Shared: shared}))
		x.at(0)
		for q := range 2 {
			x.send(q, 50, 1000)
		}
		for range 5 {
			x.step()
		}
		sent := x.sent(0) + x.sent(1)
		x.w.leave()
		x.dp.PortDown(0, packet.DropLinkDown)
		x.dp.control.finish()
		x.w.enter()
		if d := x.dp.Drops(0)[packet.DropLinkDown]; d != 100-sent {
			t.Errorf("shared=%t: %d dropped after %d sent, want the rest of 100", shared, d, sent)
		}
		for x.step() {
		}
		if n := x.port.lines[0].segments(); n != 0 {
			t.Errorf("shared=%t: %d segments left on the line", shared, n)
		}
		x.at(x.w.now + 1)
		for q := range 2 {
			x.send(q, 3, 1000)
		}
		for x.step() {
		}
		if n := x.sent(0) + x.sent(1); n != sent+6 {
			t.Errorf("shared=%t: %d sent after the port came back, want 6", shared, n-sent)
		}
	}
}

// fq's packets wait for their time, and the watchdog runs the qdisc then.
func TestPacedByFQ(t *testing.T) {
	cfg := qdisc.DefaultFQ(1500)
	cfg.MaxRate, cfg.InitialQuantum = 1_000_000, 3028 // bytes/s
	x := newWire(t, 1, 0, func(p *PortConfig) { p.Child = qdisc.Spec{Kind: "fq", FQ: cfg} })
	x.at(1e9)
	const packets, size = 90, 1000
	x.send(0, packets, size)
	for x.step() {
	}
	took := float64(x.w.now - 1e9)
	if want := float64((packets*size - 3028) * 1000); x.sent(0) != packets || took < want*0.97 || took > want*1.03 {
		t.Errorf("%d packets in %.1f ms, want %.1f", x.sent(0), took/1e6, want/1e6)
	}
	if len(x.port.tx[0].qdisc.Load().Discipline().Kind()) == 0 || x.port.tx[0].qdisc.Load().Stats().Qlen != 0 {
		t.Error("not empty at the end")
	}
}

// Flows of fq that are due while the tx queue is stopped wait for its wake;
// the watchdog does not run the qdisc in vain until then.
func TestPacedBehindAStoppedLine(t *testing.T) {
	cfg := qdisc.DefaultFQ(1500)
	cfg.MaxRate, cfg.InitialQuantum = 1_000_000, 1514 // bytes/s: eight times the line
	x := newWire(t, 1, 0, func(p *PortConfig) {
		p.Child = qdisc.Spec{Kind: "fq", FQ: cfg}
		p.Line = LineConfig{Rate: 1_000_000, Ring: 2}
	})
	x.noBQL()
	x.at(1e9)
	flow := func(hash uint32, n int) {
		for range n {
			p := x.dp.copyIn(make([]byte, 1000))
			p.Hash = hash
			x.give(0, p)
		}
	}
	flow(1, 6) // its rate lets three go at once; the ring takes them until it is full
	const packets, most = 6 + 20, 20
	steps := 0
	for range most { // while the line is busy the first flow comes to wait for its rate
		flow(2, 1)
		x.step()
		steps++
	}
	for x.step() {
		if steps++; steps > most*packets {
			t.Fatalf("%d steps, and %d of %d packets sent: it spins", steps, x.sent(0), packets)
		}
	}
	if st := x.port.tx[0]; x.sent(0) != packets || st.driverStops == 0 {
		t.Errorf("%d of %d packets sent, %d stops", x.sent(0), packets, st.driverStops)
	}
	if root, children := x.port.Qdiscs(); children[0].FQ.Stats.Throttled == 0 {
		t.Errorf("nothing was throttled: %+v", root)
	}
}

// Lines of several workers under traffic in real time: order, nothing lost
// that was not counted, every queue running at the end.
func TestLinesUnderTraffic(t *testing.T) {
	r := newRig(t, 2, 2, 4, func(p *PortConfig) {
		p.Line = LineConfig{Rate: 400e6, Ring: 32, Delay: time.Millisecond, Shared: p.Name == "p1"}
		p.FlowMode = xpsflow.Inflight
	})
	r.learn()
	const flows, each = 8, 500
	go func() {
		for seq := range uint32(each) {
			for f := range uint16(flows) {
				for r.peers[0][f%4].TrySend(frame(2, 1, f+1, seq)) == unix.EAGAIN {
					time.Sleep(100 * time.Microsecond)
				}
			}
			if seq%20 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
	}()
	moving := make(chan struct{})
	done := make(chan struct{})
	go func() { // every flow's preferred queue changes all the time
		defer close(done)
		for k := 0; ; k++ {
			for q := range 4 {
				if err := r.dp.SetWorkers("p1", q, [][]int{{0}, {1}, {}, {}}[(q+k)%4]); err != nil {
					t.Error(err)
				}
			}
			select {
			case <-moving:
				return
			case <-time.After(300 * time.Microsecond):
			}
		}
	}()
	defer func() { close(moving); <-done }()
	seen := map[uint16]map[uint32]bool{}
	for got, idle := 0, 0; got < flows*each-r.dropped(1); {
		came := false
		for _, p := range r.peers[1] {
			for b := p.Recv(0); b != nil; b = p.Recv(0) {
				came = true
				f, seq := flowSeq(b)
				if f == 0 {
					continue
				}
				if seen[f] == nil {
					seen[f] = map[uint32]bool{}
				}
				if seen[f][seq] {
					t.Fatalf("flow %d: %d came twice", f, seq)
				}
				seen[f][seq] = true
				got++
			}
		}
		if came {
			idle = 0
		} else if idle++; idle > 3000 {
			t.Fatalf("%d of %d came: %+v, drops %v", got, flows*each, r.dp.Totals(), r.dp.Drops(1))
		} else {
			time.Sleep(time.Millisecond)
		}
	}
	// A flow that moves leaves by several socket pairs, which no reader sees
	// in order: the counter at hand-off does.
	if n := r.dp.Ports()[1].Reordered(); n != 0 {
		t.Errorf("%d packets reordered", n)
	}
	if st := r.dp.Ports()[1].Steer().Stats(); st.Moves == 0 || st.Refused == 0 {
		t.Errorf("%+v: no flow moved, or none had to wait", st)
	}
}

// dropped is how many packets port i has dropped.
func (r *rig) dropped(i int) (n int) {
	for _, d := range r.dp.Drops(i) {
		n += int(d)
	}
	return n
}

// With BQL at its defaults the line is kept busy, once the limit has grown,
// and what waits in the ring is a small part of it.
func TestLineWithBQL(t *testing.T) {
	for _, rate := range []int64{1e6, 100e6, 1e9} {
		x := newWire(t, 1, 0, lineOf(LineConfig{Rate: rate}))
		x.at(0)
		const packets, size, learning = 4000, 1000, 1000
		fed, most := 0, 0
		var from int64
		for x.sent(0) < packets {
			for ; fed < packets && fed-int(x.sent(0)) < 600; fed++ {
				x.send(0, 1, size)
			}
			if !x.step() {
				t.Fatal("nothing is due")
			}
			for x.peer[0].Recv(0) != nil {
			}
			if n := x.sent(0); n < learning {
				from = x.w.now
			} else if fed < packets {
				most = max(most, x.port.tx[0].ring.used())
			}
		}
		took, want := float64(x.w.now-from), float64(packets-learning)*size*8e9/float64(rate)
		if took > want*1.01 {
			t.Errorf("%d bit/s: %.2f ms, the line could have done it in %.2f", rate, took/1e6, want/1e6)
		}
		if most > 64 {
			t.Errorf("%d bit/s: up to %d packets in the ring", rate, most)
		}
	}
}

// A load keeps its queue's backlog near what was asked, and ends.
func TestLoad(t *testing.T) {
	x := newWire(t, 2, 0, lineOf(LineConfig{Rate: 100e6, Shared: true}))
	x.at(1)
	x.w.leave()
	if err := x.dp.SetLoad("p0", 1, 5*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	x.w.enter()
	const want = 100e6 / 8 * 5 / 1000 / 2
	for x.w.now < 100e6 {
		if !x.step() {
			t.Fatal("the load has ended")
		}
		have := int(x.port.tx[1].qdisc.Load().Stats().Backlog) + int(x.port.tx[1].dql.Stats().Inflight)
		if x.w.now > 1e6 && (have < want-8*loadFrame || have > want+loadFrame) {
			t.Fatalf("backlog %d bytes, want about %d", have, int(want))
		}
		for x.peer[1].Recv(0) != nil {
		}
	}
	x.w.leave()
	if err := x.dp.SetLoad("p0", 1, 0); err != nil {
		t.Fatal(err)
	}
	x.w.enter()
	for x.step() {
	}
	if x.sent(0) != 0 || x.port.tx[1].ring.used() != 0 {
		t.Errorf("%d sent on another queue, %d left in the ring", x.sent(0), x.port.tx[1].ring.used())
	}
	tot := x.dp.totals()
	if !tot.Balanced() || tot.Injected == 0 {
		t.Errorf("%+v does not add up", tot)
	}
}

// What a flow prefers moves on every period, and it follows.
func TestHop(t *testing.T) {
	r := newRig(t, 1, 2, 4, nil)
	r.learn()
	if err := r.dp.SetHop("p1", minHop); err != nil {
		t.Fatal(err)
	}
	for seq := range uint32(200) {
		r.peers[0][0].Send(frame(2, 1, 1, seq))
		time.Sleep(500 * time.Microsecond)
	}
	used := 0
	for _, st := range r.dp.Ports()[1].QueueStats() {
		if st.TxPackets > 10 {
			used++
		}
	}
	if used < 4 || r.dp.Ports()[1].Reordered() != 0 {
		t.Errorf("%d queues used, %d packets reordered", used, r.dp.Ports()[1].Reordered())
	}
	if err := r.dp.SetHop("p1", time.Hour); err == nil {
		t.Error("a period of an hour was accepted")
	}
}

// The CPU time of a worker is that of its thread.
func TestWorkerStats(t *testing.T) {
	r := newRig(t, 2, 2, 2, nil)
	r.learn()
	for i := range 2 {
		st := r.dp.WorkerStats()[i]
		for n := 0; st.CPU == 0 && n < 5000; n++ { // its thread has only begun
			time.Sleep(time.Millisecond)
			st = r.dp.WorkerStats()[i]
		}
		if st.CPU <= 0 || st.CPU > time.Minute {
			t.Errorf("worker %d: %v", i, st.CPU)
		}
	}
}
