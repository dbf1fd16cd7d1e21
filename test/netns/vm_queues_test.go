package netns

import (
	"testing"
	"time"

	"taprouter/internal/traffic"
	"taprouter/internal/vm"
)

// A guest of two vCPUs with two tx queues. QEMU writes what the guest sends on
// a queue to the queue of its TAP with the same number; with steering queue
// it comes to us on that one.
const manyQueues = `
version: 1
workers: 2
ports:
  - {name: @dev:a, type: tap, queues: 2, steering: queue, netns: @ns:h, host: {txqueuelen: 20000, bridge: br-a, create: true}}
  - {name: @dev:c, type: tap, queues: 2, netns: @ns:c, create: true, host: {mac: "02:00:00:00:99:03", addresses: [10.99.0.3/24, "fd99::3/64"]}}
bridges:
  - {name: br0, ports: [@dev:a, @dev:c]}
`

func TestVMQueues(t *testing.T) {
	needMachines(t)
	n := newNet(t)
	n.hostNS(2, "a")
	r := n.router(manyQueues)
	a := n.boot(2, map[string][]string{"a": {"10.99.0.1/24", "fd99::1/64"}})["a"]
	c := n.agent("c")
	a.reach("10.99.0.3")
	if l, err := a.Link(a.ctx(), "eth0"); err != nil || l.Queues != 2 {
		t.Fatalf("eth0 has %d tx queues: %v", l.Queues, err)
	}
	flow := func() { bulkFor(t, a, c, "10.99.0.3", 500*time.Millisecond) }

	t.Run("spread", func(t *testing.T) {
		q0, q1 := r.came("a", func() {
			_, got := tcp(t, a, c, "10.99.0.3", traffic.TCPSend{Flows: 8, Duration: time.Second})
			if got.Conns != 8 {
				t.Errorf("%d of 8 flows passed traffic", got.Conns)
			}
		})
		t.Logf("%d packets came on queue 0, %d on queue 1", q0, q1)
		if min(q0, q1)*20 < max(q0, q1) {
			t.Errorf("8 flows came as %d packets on queue 0 and %d on queue 1", q0, q1)
		}
	})
	t.Run("order", func(t *testing.T) { numbered(t, a, c, "10.99.0.3", 5000, 200, 4000) })
	t.Run("pinned", func(t *testing.T) {
		for cpu := range 2 {
			_, err := a.Pin(a.ctx(), vm.Pin{CPUs: []int{cpu}})
			a.must(err)
			var came [2]uint64
			came[0], came[1] = r.came("a", flow)
			if came[cpu] < 100 || came[1-cpu]*20 > came[cpu] {
				t.Errorf("the sender on vCPU %d comes as %d packets on queue 0 and %d on queue 1", cpu, came[0], came[1])
			}
		}
	})
	t.Run("hop", func(t *testing.T) {
		before := r.steering()
		q0, q1 := r.came("a", func() { a.hopping(10*time.Millisecond, flow) })
		moves := r.steering().Moves - before.Moves
		t.Logf("%d packets came on queue 0, %d on queue 1: %d moves", q0, q1, moves)
		if min(q0, q1)*20 < max(q0, q1) || moves < 5 {
			t.Errorf("a sender that hops between vCPUs: %d packets on queue 0, %d on queue 1, %d moves", q0, q1, moves)
		}
	})
	t.Run("hash", func(t *testing.T) { // it stays put, whichever vCPU sends
		r.mustDo("link", "set", "dev", n.dev("a"), "steering", "hash")
		before := r.reordered("c")
		q0, q1 := r.came("a", func() { a.hopping(10*time.Millisecond, flow) })
		if n := r.reordered("c") - before; n > 0 {
			t.Errorf("%d packets of a flow that one worker reads were reordered", n)
		}
		if max(q0, q1) < 100 || min(q0, q1)*20 > max(q0, q1) {
			t.Errorf("by hash, a sender that hops between vCPUs comes as %d packets on queue 0 and %d on queue 1", q0, q1)
		}
	})
}

// came gives the packets that reach us on the two queues of port k while f runs.
func (r *Router) came(k string, f func()) (q0, q1 uint64) {
	r.net.t.Helper()
	before := r.link("@dev:" + k).Queues
	f()
	after := r.link("@dev:" + k).Queues
	return after[0].RxPackets - before[0].RxPackets, after[1].RxPackets - before[1].RxPackets
}

// hopping runs f while the guest's senders move from one vCPU to the other.
func (m *Machine) hopping(every time.Duration, f func()) {
	m.t.Helper()
	ctx := m.ctx()
	hops := make(chan int, 1)
	go func() {
		n, err := m.Pin(ctx, vm.Pin{CPUs: []int{0, 1}, Hop: every, For: 700 * time.Millisecond})
		if err != nil {
			m.t.Error(err)
		}
		hops <- n
	}()
	f()
	if n := <-hops; n < 5 {
		m.t.Errorf("%s: the senders hopped %d times only", m.Name, n)
	}
}
