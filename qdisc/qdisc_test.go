//go:build !explore

package qdisc

import (
	"testing"

	"taprouter/packet"
)

// A bed is what the tests run qdiscs on: packets, CPUs and fake tx queues.
type bed struct {
	t    testing.TB
	pool *packet.Pool
	c    *packet.Cache
	cpus []*CPU
	out  []*fakeTxq
}

// A fakeTxq is a device that takes what it has room for and notes the order.
type fakeTxq struct {
	xoff  Xoff
	avail int // what Avail says
	room  int // packets until it refuses; -1 = no limit
	sent  []*packet.Packet
	sends int
}

func (f *fakeTxq) Stopped() bool   { return f.xoff.Stopped() }
func (f *fakeTxq) Avail() int      { return f.avail }
func (f *fakeTxq) Arm(*CPU, int64) {}
func (f *fakeTxq) Send(_ *CPU, l *packet.List) {
	f.sends++
	for l.Len() > 0 {
		if f.room == 0 {
			f.xoff.StopDriver()
			return
		}
		if f.room > 0 {
			f.room--
		}
		f.sent = append(f.sent, l.Pop())
	}
}

func newBed(t testing.TB, cpus, txqs int) *bed {
	pool, err := packet.NewPool(packet.Memory{Heads: 4096, Tails: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b := &bed{t: t, pool: pool, c: pool.NewCache()}
	for i := range cpus {
		b.cpus = append(b.cpus, &CPU{ID: i})
	}
	for range txqs {
		b.out = append(b.out, &fakeTxq{avail: 1 << 20, room: -1})
	}
	return b
}

func (b *bed) qdisc(d Discipline) *Qdisc {
	txqs := make([]Txq, len(b.out))
	for i, f := range b.out {
		txqs[i] = f
	}
	return New(d, txqs, len(b.cpus))
}

// pkts makes packets numbered from first by their hash.
func (b *bed) pkts(first, n int, prio uint8, txq int) *packet.List {
	var l packet.List
	for i := range n {
		p := b.c.Get()
		p.Hash, p.Priority, p.TxQ, p.WireLen = uint32(first+i), prio, uint16(txq), 100
		l.Push(p)
	}
	return &l
}

// order gives the numbers of what tx queue i sent.
func (b *bed) order(i int) (nums []int) {
	for _, p := range b.out[i].sent {
		nums = append(nums, int(p.Hash))
	}
	return nums
}

func (b *bed) wantOrder(i int, want ...int) {
	b.t.Helper()
	got := b.order(i)
	if len(got) != len(want) {
		b.t.Fatalf("queue %d sent %v, want %v", i, got, want)
	}
	for k := range want {
		if got[k] != want[k] {
			b.t.Fatalf("queue %d sent %v, want %v", i, got, want)
		}
	}
}

func (b *bed) run() {
	for n := 0; ; n++ {
		idle := true
		for _, c := range b.cpus {
			if c.Pending() {
				idle = false
				c.TxAction()
			}
		}
		if idle {
			return
		}
		if n > 1000 {
			b.t.Fatal("tx actions never end")
		}
	}
}

func TestBypass(t *testing.T) {
	b := newBed(t, 1, 1)
	q := b.qdisc(NewPfifoFast(10))
	q.Xmit(b.cpus[0], b.pkts(0, 3, 0, 0))
	b.wantOrder(0, 0, 1, 2)
	if st := q.Stats(); st.Packets != 3 || st.Bytes != 300 || st.Qlen != 0 || b.out[0].sends != 1 {
		t.Errorf("after a bypass: %+v in %d sends", st, b.out[0].sends)
	}
}

// What DQL does not let go at once is queued and follows in order.
func TestBypassIsCutByDQL(t *testing.T) {
	b := newBed(t, 1, 1)
	b.out[0].avail = 250 // two packets, and the one that goes over
	q := b.qdisc(NewPfifoFast(100))
	q.Xmit(b.cpus[0], b.pkts(0, 10, 0, 0))
	b.wantOrder(0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	if b.out[0].sends != 4 {
		t.Errorf("%d sends of 10 packets with room for 3, want 4", b.out[0].sends)
	}
}

func TestBandsAndLimits(t *testing.T) {
	b := newBed(t, 1, 1)
	q := b.qdisc(NewPfifoFast(3))
	c := b.cpus[0]
	b.out[0].room = 0
	q.Xmit(c, b.pkts(100, 1, 0, 0)) // refused: requeued, and the queue is stopped
	for prio := range uint8(16) {
		q.Xmit(c, b.pkts(int(prio), 1, prio, 0))
	}
	b.run()
	st := q.Stats()
	// Bands 1 and 2 are full: priorities by band are 6,7 · 0,4,8.. · 1,2,3,5.
	if st.Qlen != 1+2+3+3 || st.Drops != 16-8 || c.Drops.Len() != 8 {
		t.Fatalf("qlen %d, drops %d, want 9 and 8: %+v", st.Qlen, st.Drops, st)
	}
	for p := c.Drops.Pop(); p != nil; p = c.Drops.Pop() {
		if p.Drop != packet.DropQdisc {
			t.Errorf("dropped as %v", p.Drop)
		}
	}
	b.out[0].room = -1
	if !b.out[0].xoff.WakeDriver() {
		t.Fatal("the wake did not find the queue stopped")
	}
	q.Schedule(c)
	b.run()
	b.wantOrder(0, 100, 6, 7, 0, 4, 8, 1, 2, 3)
	if st := q.Stats(); st.Qlen != 0 || st.Backlog != 0 || st.QueuedSegs != 0 || st.Requeues != 1 {
		t.Errorf("at the end: %+v", st)
	}
}

// A batch that is refused in its middle goes on where it was.
func TestRequeueKeepsOrder(t *testing.T) {
	b := newBed(t, 1, 1)
	q := b.qdisc(NewPfifoFast(100))
	b.out[0].room = 2
	q.Xmit(b.cpus[0], b.pkts(0, 5, 0, 0))
	q.Xmit(b.cpus[0], b.pkts(5, 3, 6, 0)) // a better band does not pass a requeued packet
	for room := 1; room < 4; room++ {
		b.out[0].room = room
		b.out[0].xoff.WakeDriver()
		q.Schedule(b.cpus[0])
		b.run()
	}
	b.wantOrder(0, 0, 1, 2, 3, 4, 5, 6, 7)
	if st := q.Stats(); st.Qlen != 0 || st.Packets != 8 {
		t.Errorf("at the end: %+v", st)
	}
}

// While a queue is stopped, senders cost no further runs (F7).
func TestStoppedQueueDoesNotSpin(t *testing.T) {
	b := newBed(t, 2, 1)
	q := b.qdisc(NewPfifoFast(1000))
	b.out[0].room = 0
	q.Xmit(b.cpus[0], b.pkts(0, 1, 0, 0))
	b.run()
	for i := range 500 {
		q.Xmit(b.cpus[i%2], b.pkts(1+i, 1, 0, 0))
		for _, c := range b.cpus {
			if c.Pending() {
				t.Fatalf("packet %d scheduled a run of a stopped queue", i)
			}
		}
	}
	b.out[0].room = -1
	b.out[0].xoff.WakeDriver()
	q.Schedule(b.cpus[1])
	b.run()
	if len(b.out[0].sent) != 501 {
		t.Errorf("%d of 501 packets left after the wake", len(b.out[0].sent))
	}
}

// A root qdisc for several queues: a packet of another queue waits its turn
// and blocks what is behind it while that queue is stopped (F12).
func TestBadTxq(t *testing.T) {
	b := newBed(t, 1, 2)
	q := b.qdisc(NewPfifoFast(100))
	c := b.cpus[0]
	b.out[0].room, b.out[1].room = 0, 0
	q.Xmit(c, b.pkts(0, 1, 0, 0))
	for i := 1; i < 7; i++ {
		q.Xmit(c, b.pkts(i, 1, 0, i%2))
	}
	b.run()
	b.out[0].room = -1
	b.out[0].xoff.WakeDriver()
	q.Schedule(c)
	b.run()
	b.wantOrder(0, 0) // the next is for the other queue, which is full
	if st := q.Stats(); st.Qlen != 6 {
		t.Errorf("qlen %d, want 6", st.Qlen)
	}
	b.out[1].room = -1
	b.out[1].xoff.WakeDriver()
	q.Schedule(c)
	b.run()
	b.wantOrder(0, 0, 2, 4, 6)
	b.wantOrder(1, 1, 3, 5)
	if st := q.Stats(); st.Qlen != 0 || st.Backlog != 0 {
		t.Errorf("at the end: %+v", st)
	}
}

func TestResetAndMove(t *testing.T) {
	b := newBed(t, 2, 1)
	c := b.cpus[0]
	q, small := b.qdisc(NewPfifoFast(100)), b.qdisc(NewPfifoFast(5))
	b.out[0].room = 0
	q.Xmit(c, b.pkts(0, 1, 0, 0))
	q.Xmit(c, b.pkts(1, 9, 0, 0))
	q.Deactivate()
	q.MoveTo(c, func(*packet.Packet) *Qdisc { return small })
	if st := q.Stats(); st.Qlen != 0 || st.Backlog != 0 {
		t.Errorf("the old one after a move: %+v", st)
	}
	if st := small.Stats(); st.Qlen != 5 || st.Drops != 5 || c.Drops.Len() != 5 || c.Drops.Front().Drop != packet.DropGraft {
		t.Errorf("the new one after a move: %+v", st)
	}
	b.out[0].room = -1
	b.out[0].xoff.WakeDriver()
	small.Xmit(b.cpus[1], b.pkts(10, 1, 0, 0)) // comes before the run that the move has scheduled
	b.run()
	b.wantOrder(0, 0, 1, 2, 3, 4, 10)
	if st := small.Stats(); st.Qlen != 0 || st.Drops != 5 {
		t.Errorf("the new one at the end: %+v", st)
	}

	b.out[0].room = 0
	small.Xmit(c, b.pkts(10, 4, 0, 0))
	small.Reset(c, packet.DropPurge)
	if st := small.Stats(); st.Qlen != 0 || st.QueuedSegs != 0 || c.Drops.Len() != 9 {
		t.Errorf("after a reset: %+v, %d dropped", st, c.Drops.Len())
	}
}

func TestMemoryLimit(t *testing.T) {
	b := newBed(t, 1, 1)
	q := b.qdisc(NewPfifoFast(100))
	q.SetMemoryLimit(10 * packet.HeadLen)
	b.out[0].room = 0
	c := b.cpus[0]
	q.Xmit(c, b.pkts(0, 1, 0, 0))
	q.Xmit(c, b.pkts(1, 20, 0, 0))
	if st := q.Stats(); st.Qlen != 10 || st.Drops != 11 {
		t.Errorf("qlen %d, drops %d, want 10 and 11", st.Qlen, st.Drops)
	}
	if c.Drops.Front().Drop != packet.DropNoBuffer {
		t.Errorf("dropped as %v", c.Drops.Front().Drop)
	}
	b.out[0].room = -1
	b.out[0].xoff.WakeDriver()
	q.Schedule(c)
	b.run()
	if n := q.mem.Load(); n != 0 {
		t.Errorf("%d bytes held by an empty qdisc", n)
	}
}

func TestXmitAllocatesNothing(t *testing.T) {
	b := newBed(t, 1, 1)
	q := b.qdisc(NewPfifoFast(100))
	q.SetMemoryLimit(1 << 20)
	b.out[0].avail = 500
	var l packet.List
	allocs := testing.AllocsPerRun(100, func() {
		b.out[0].sent = b.out[0].sent[:0]
		for range 32 {
			p := b.c.Get()
			p.WireLen = 100
			l.Push(p)
		}
		q.Xmit(b.cpus[0], &l)
		for _, p := range b.out[0].sent {
			b.c.Put(p)
		}
	})
	if allocs != 0 {
		t.Errorf("a batch allocates %v times", allocs)
	}
}
