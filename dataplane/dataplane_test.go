package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"taprouter/fib"
	"taprouter/forward"
	"taprouter/packet"
	"taprouter/qdisc"
	"taprouter/tun"
	"taprouter/tun/tuntest"
	"taprouter/tun/uring"
	"taprouter/xpsflow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// withRing says whether newRig's workers have an io_uring.
var withRing bool

// eachIO runs a test with plain calls and with io_uring.
func eachIO(t *testing.T, test func(t *testing.T)) {
	for _, io := range []tun.IO{tun.IOReadv, tun.IOUring} {
		t.Run(io.String(), func(t *testing.T) {
			useIO(t, io)
			test(t)
		})
	}
}

// useIO sets what newRig makes for the rest of the test.
func useIO(t *testing.T, io tun.IO) {
	_, _, err := tun.ChooseIO(io)
	if errors.Is(err, uring.ErrNotSupported) && os.Getenv("ROUTER_REQUIRE_NETNS") == "" {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	withRing = io == tun.IOUring
	t.Cleanup(func() { withRing = false })
}

// A rig is a dataplane whose ports are bridged and end in socket pairs.
type rig struct {
	t     testing.TB
	dp    *Dataplane
	peers [][]*tuntest.Peer // by port and queue
	queue [][]*tun.Queue
}

const txqueuelen = 1000

func newRig(t testing.TB, workers, ports, queues int, change func(*PortConfig)) *rig {
	t.Helper()
	r := &rig{t: t}
	cfg := Config{Workers: workers, Uring: withRing, Coalesce: 150 * time.Microsecond, Memory: packet.Memory{Heads: 8192, Tails: 64}}
	for i := range ports {
		pc := PortConfig{Name: fmt.Sprintf("p%d", i), TxQueueLen: txqueuelen, Qdisc: qdisc.Spec{Kind: "mq"}, Child: qdisc.Spec{Kind: "pfifo_fast"}, FlowTable: 256, FlowMode: xpsflow.Inflight}
		var peers []*tuntest.Peer
		for range queues {
			q, peer := tuntest.Pair(t, 0)
			pc.Queues = append(pc.Queues, q)
			peers = append(peers, peer)
		}
		r.peers = append(r.peers, peers)
		r.queue = append(r.queue, pc.Queues)
		if change != nil {
			change(&pc)
		}
		cfg.Ports = append(cfg.Ports, pc)
	}
	dp, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.dp = dp
	dp.Publish(bridge(ports))
	if err := dp.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.stop)
	return r
}

// bridge is a snapshot in which all ports are in one bridge.
func bridge(ports int) *forward.Snapshot {
	s := &forward.Snapshot{Routes: must(fib.Build(nil)), Neigh: fib.BuildNeighbours(nil)}
	br := forward.Bridge{Name: "br0", FDB: fib.NewFDB(1024, 1), Iface: forward.NoIface}
	for i := range ports {
		s.Ports = append(s.Ports, forward.Port{Name: fmt.Sprintf("p%d", i), Up: true, MTU: 1500, Bridge: 0})
		br.Ports = append(br.Ports, uint16(i))
	}
	s.Bridges = []forward.Bridge{br}
	return s
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// stop ends the dataplane; nothing may be missing then.
func (r *rig) stop() {
	if r.dp == nil {
		return
	}
	r.dp.Stop()
	if tot := r.dp.Totals(); !tot.Balanced() || tot.Queued != 0 || tot.Parked != 0 {
		r.t.Errorf("packets do not add up at the end: %+v", tot)
	}
	if heads, tails := r.dp.InUse(); heads != 0 || tails != 0 {
		r.t.Errorf("%d packets and %d tails leaked", heads, tails)
	}
	for _, p := range r.dp.Ports() {
		if n := p.Steer().InFlight(); n != 0 {
			r.t.Errorf("%s: %d packets still in flight in the flow table", p.Name, n)
		}
	}
	r.dp.Close()
	for _, qs := range r.queue {
		for _, q := range qs {
			_ = q.Close()
		}
	}
	r.dp = nil
}

// frame is an Ethernet/IPv4/UDP frame of a flow with a sequence number.
func frame(dst, src byte, flow uint16, seq uint32) []byte {
	b := make([]byte, 60)
	b[0], b[5], b[6], b[11] = 2, dst, 2, src
	binary.BigEndian.PutUint16(b[12:], 0x0800)
	ip := b[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], 46)
	copy(ip[12:], []byte{10, 0, 0, src, 10, 0, 0, dst})
	binary.BigEndian.PutUint16(ip[20:], flow)
	binary.BigEndian.PutUint16(ip[22:], 7)
	binary.BigEndian.PutUint16(ip[24:], 26)
	binary.BigEndian.PutUint32(ip[28:], seq)
	return b
}

func flowSeq(b []byte) (uint16, uint32) {
	return binary.BigEndian.Uint16(b[34:]), binary.BigEndian.Uint32(b[42:])
}

// learn makes the bridge know where the MACs 1.. live.
func (r *rig) learn() {
	r.t.Helper()
	for i := range r.peers {
		r.peers[i][0].Send(frame(0xff, byte(i+1), 0, 0)) // to an unknown MAC: flooded
	}
	for i := range r.peers {
		for n := 0; n < len(r.peers)-1; {
			got := 0
			for _, p := range r.peers[i] {
				if p.Recv(10*time.Millisecond) != nil {
					got++
				}
			}
			n += got
		}
	}
}

func TestBridgeDelivers(t *testing.T) { eachIO(t, testBridgeDelivers) }

func testBridgeDelivers(t *testing.T) {
	r := newRig(t, 2, 3, 2, nil)
	r.learn()
	want := frame(2, 1, 5, 42)
	r.peers[0][1].Send(want)
	var got []byte
	for range 100 {
		for _, p := range r.peers[1] {
			if b := p.Recv(10 * time.Millisecond); b != nil {
				got = b
			}
		}
		if got != nil {
			break
		}
	}
	if string(got) != string(want) {
		t.Fatalf("port 1 got %x, want %x", got, want)
	}
	for _, p := range r.peers[2] {
		if b := p.Recv(20 * time.Millisecond); b != nil {
			t.Errorf("port 2 got a frame for port 1: %x", b)
		}
	}
}

// send writes frames of a flow to one queue of port 0, waiting while the
// queue is full; each frame is sent n flows round robin.
func (r *rig) send(queue, flows int, first uint16, count uint32) {
	for seq := range count {
		for f := range flows {
			b := frame(2, 1, first+uint16(f), seq)
			for r.peers[0][queue].TrySend(b) != nil {
				time.Sleep(50 * time.Microsecond)
			}
		}
	}
}

// collect reads port 1 until want frames have come or nothing comes any
// more. It fails on a frame that overtook another of its flow.
func (r *rig) collect(want int) int {
	var mu sync.Mutex
	next := map[uint16]uint32{}
	got := 0
	var wg sync.WaitGroup
	for _, p := range r.peers[1] {
		wg.Go(func() {
			for {
				b := p.Recv(300 * time.Millisecond)
				mu.Lock()
				if b == nil || got == want {
					mu.Unlock()
					return
				}
				flow, seq := flowSeq(b)
				if seq < next[flow] {
					r.t.Errorf("flow %d: %d after %d", flow, seq, next[flow]-1)
				}
				next[flow] = seq + 1
				got++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return got
}

// Two workers, two ingress queues, many flows, while everything that can be
// changed live is changed: nothing is lost that is not counted. (Order across
// two egress sockets cannot be seen by a reader of both, so only the number
// is checked here; TestMovesKeepOrder checks order.)
func TestChangesUnderTraffic(t *testing.T) { eachIO(t, testChangesUnderTraffic) }

func testChangesUnderTraffic(t *testing.T) {
	r := newRig(t, 2, 2, 2, nil)
	r.learn()
	count := uint32(3000)
	if testing.Short() {
		count = 500
	}
	stop := make(chan struct{})
	var changes sync.WaitGroup
	changes.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			steps := []error{
				r.dp.ReplaceQdisc("p1", -1, qdisc.Spec{Kind: "pfifo_fast"}, qdisc.Spec{}),
				r.dp.SetTxQueueLen("p1", 100+i%50),
				r.dp.SetWorkers("p1", i%2, []int{(i / 2) % 2}),
				r.dp.ReplaceQdisc("p1", -1, qdisc.Spec{Kind: "mq"}, qdisc.Spec{Kind: "pfifo_fast"}),
				r.dp.ReplaceQdisc("p1", i%2, qdisc.Spec{Kind: "pfifo_fast"}, qdisc.Spec{}),
				r.dp.SetTxQueueLen("p1", txqueuelen),
			}
			for k, err := range steps {
				if err != nil {
					t.Errorf("change %d: %v", k, err)
				}
			}
		}
	})
	var senders sync.WaitGroup
	for q := range 2 {
		senders.Go(func() { r.send(q, 4, uint16(10*(q+1)), count) })
	}
	done := make(chan int)
	go func() {
		n := 0
		for {
			got := 0
			for _, p := range r.peers[1] {
				for b := p.Recv(0); b != nil; b = p.Recv(0) {
					got++
				}
			}
			n += got
			if got == 0 {
				select {
				case <-stop:
					if p := r.peers[1]; p[0].Recv(200*time.Millisecond) == nil && p[1].Recv(0) == nil {
						done <- n
						return
					}
					n++
				default:
				}
			}
		}
	}()
	senders.Wait()
	close(stop)
	changes.Wait()
	got := <-done
	tot := r.dp.Totals()
	want := int(2 * 4 * count)
	if lost := want - got; lost != int(tot.Dropped) {
		t.Errorf("%d of %d frames missing, %d counted as dropped: %+v", lost, want, tot.Dropped, tot)
	}
	if !tot.Balanced() {
		t.Errorf("does not add up: %+v", tot)
	}
}

// A device without room stops its queue; the queue keeps what it has, loses
// only what its limit refuses, and goes on in order when there is room.
func TestFullDeviceStopsAndWakes(t *testing.T) { eachIO(t, testFullDeviceStopsAndWakes) }

func testFullDeviceStopsAndWakes(t *testing.T) {
	r := newRig(t, 2, 2, 1, nil)
	r.learn()
	if err := unix.SetsockoptInt(r.queue[1][0].FD(), unix.SOL_SOCKET, unix.SO_SNDBUF, 8<<10); err != nil {
		t.Fatal(err)
	}
	const n = 500 // fits the queue of 1000
	r.send(0, 1, 7, n)
	deadline := time.Now().Add(5 * time.Second)
	for r.dp.Ports()[1].QueueStats()[0].DriverStops == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	r.dp.Totals() // the worker has ended its batch
	st := r.dp.Ports()[1].QueueStats()[0]
	if st.DriverStops == 0 || !st.Stopped {
		t.Fatalf("the queue did not stop: %+v", st)
	}
	if got := r.collect(n); got != n {
		t.Errorf("%d of %d frames came", got, n)
	}
}

// A port whose device has gone is an event; the others run on.
func TestDeviceGone(t *testing.T) { eachIO(t, testDeviceGone) }

func testDeviceGone(t *testing.T) {
	r := newRig(t, 2, 3, 1, nil)
	r.learn()
	if err := unix.Shutdown(r.peers[2][0].FD, unix.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-r.dp.Events():
		if e.Port != 2 || e.Err == nil {
			t.Fatalf("event %+v, want port 2 gone", e)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("no event for a device that is gone")
	}
	r.dp.DetachPort(2, packet.DropDeviceGone)
	r.send(0, 2, 7, 100)
	if got := r.collect(200); got != 200 {
		t.Errorf("%d of 200 frames came through the other ports", got)
	}
}

// A flood that finds no buffer for a copy counts the copy as lost.
func TestUnmadeCopiesAreCounted(t *testing.T) { eachIO(t, testUnmadeCopiesAreCounted) }

func testUnmadeCopiesAreCounted(t *testing.T) {
	r := newRig(t, 1, 3, 1, nil)
	r.learn()
	w := r.dp.workers[0]
	var held []*packet.Packet
	_ = r.dp.quiesce(func() error { // the pool is empty but for one packet to read into
		for p := w.cache.Get(); p != nil; p = w.cache.Get() {
			held = append(held, p)
		}
		w.cache.Put(held[len(held)-1])
		held = held[:len(held)-1]
		return nil
	})
	const n = 20
	for i := range uint32(n) {
		r.peers[0][0].Send(frame(0xff, 1, 9, i)) // to an unknown MAC: for both others
	}
	got := 0
	for range 2 * n {
		for _, p := range []*tuntest.Peer{r.peers[1][0], r.peers[2][0]} {
			for b := p.Recv(5 * time.Millisecond); b != nil; b = p.Recv(0) {
				got++
			}
		}
	}
	tot := r.dp.Totals()
	if lost := 2*n - got; lost == 0 || uint64(lost) != tot.Dropped || !tot.Balanced() {
		t.Errorf("%d of %d copies missing, %d counted: %+v", lost, 2*n, tot.Dropped, tot)
	}
	_ = r.dp.quiesce(func() error {
		for _, p := range held {
			w.cache.Put(p)
		}
		return nil
	})
}

// A port whose device has gone forwards again once it has the queues of
// another, as many as are in use.
func TestDeviceComesBack(t *testing.T) {
	r := newRig(t, 2, 2, 2, nil)
	r.learn()
	keep := func(*tun.Queue) error { return nil }
	if err := r.dp.SetQueues("p1", 1, keep, keep); err != nil {
		t.Fatal(err)
	}
	r.dp.DetachPort(1, packet.DropDeviceGone)
	for _, q := range r.queue[1] {
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.dp.AttachPort(1, r.queue[0][:1]); err == nil {
		t.Error("AttachPort took one queue for two")
	}
	for i := range r.queue[1] {
		r.queue[1][i], r.peers[1][i] = tuntest.Pair(t, 0)
	}
	if err := r.dp.AttachPort(1, r.queue[1]); err != nil {
		t.Fatal(err)
	}
	r.learn() // both ways
	r.send(0, 4, 0, 100)
	if got := r.collect(400); got != 400 {
		t.Errorf("%d packets of 400 came through the new device", got)
	}
	if err := r.dp.SetQueues("p1", 2, keep, keep); err != nil {
		t.Fatal(err)
	}
}

// Queues that come and go while frames arrive lose none and keep their order.
func TestQueuesComeAndGo(t *testing.T) { eachIO(t, testQueuesComeAndGo) }

func testQueuesComeAndGo(t *testing.T) {
	r := newRig(t, 2, 2, 2, nil)
	r.learn()
	none := func(*tun.Queue) error { return nil } // what arrives meanwhile stays in the socket
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-stop:
				if err := r.dp.SetQueues("p0", 2, none, none); err != nil {
					t.Error(err)
				}
				return
			default:
				if err := r.dp.SetQueues("p0", 1+i%2, none, none); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	const n = 2000
	got := make(chan int)
	go func() { got <- r.collect(n) }()
	r.send(1, 1, 7, n)
	close(stop)
	<-ended
	if got := <-got; got != n {
		t.Errorf("%d of %d frames came", got, n)
	}
}

// Stop leaves in the devices what was not read, and forwards what was.
func TestStopLosesNothing(t *testing.T) { eachIO(t, testStopLosesNothing) }

func testStopLosesNothing(t *testing.T) {
	for range 20 {
		r := newRig(t, 1, 2, 1, nil)
		r.learn()
		before := r.dp.Totals().Received
		const n = 50
		r.send(0, 1, 7, n)
		r.dp.Stop()
		left := uint64(0)
		for buf := make([]byte, 2048); ; left++ {
			if _, err := unix.Read(r.queue[0][0].FD(), buf); err != nil {
				break
			}
		}
		if read := r.dp.Totals().Received - before; read+left != n {
			t.Errorf("%d of %d frames were read, %d are left", read, n, left)
		}
		r.stop()
	}
}
