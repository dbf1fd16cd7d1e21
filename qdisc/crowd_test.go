//go:build !explore

package qdisc

import (
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taprouter/packet"
)

const maxBurst = 300

// bursts is how many a stress test sends: ROUTER_BURSTS, or what fits the
// kind of run.
func bursts(t *testing.T) int {
	if s := os.Getenv("ROUTER_BURSTS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	switch {
	case testing.Short():
		return 20_000
	case raceEnabled:
		return 100_000
	}
	return 1_000_000
}

// A crowd is a number of senders on one qdisc, real goroutines, and the
// devices that check what comes out. Packets are numbered by sender, device
// and band; a device wants each number exactly once and in order.
type crowd struct {
	t       testing.TB
	q       atomic.Pointer[Qdisc]
	devs    []*sink
	senders []*sender
	control *CPU // one CPU more, for whoever holds no other

	// What must be added up at the end.
	made, sent, dropped atomic.Int64
	// runs is how often a tx action was called.
	runs atomic.Int64
}

type sender struct {
	crowd *crowd
	cpu   *CPU
	rng   *rand.Rand
	pkts  []packet.Packet
	used  int        // packets of pkts that are on their way
	next  [][3]int64 // next number by device and band
	mixed bool       // priorities are mixed within a batch
}

// A sink is a device that counts. Its plain fields are the run bit holder's.
type sink struct {
	crowd *crowd
	xoff  Xoff
	avail int

	bounded bool // takes what room says
	room    atomic.Int64
	stops   int

	lossy bool // numbers may be missing
	want  [][3]int64
	sent  atomic.Int64 // written by the run bit holder
	bad   string       // the first thing that was wrong
}

// priorities of the bands.
var priorities = [Bands]uint8{6, 0, 2}

func newCrowd(t testing.TB, senders, devs int, d Discipline) *crowd {
	c := &crowd{t: t, control: &CPU{ID: senders}}
	for range devs {
		c.devs = append(c.devs, &sink{crowd: c, avail: 3000, want: make([][3]int64, senders)})
	}
	for i := range senders {
		c.senders = append(c.senders, &sender{
			crowd: c, cpu: &CPU{ID: i}, rng: rand.New(rand.NewPCG(uint64(i), uint64(devs))),
			pkts: make([]packet.Packet, maxBurst), next: make([][3]int64, devs),
		})
	}
	c.q.Store(c.qdisc(d))
	return c
}

func (c *crowd) qdisc(d Discipline) *Qdisc {
	var txqs []Txq
	for _, s := range c.devs {
		txqs = append(txqs, s)
	}
	return New(d, txqs, len(c.senders)+1)
}

// pkt makes the sender's next packet for a device and band.
func (s *sender) pkt(dev, band int) *packet.Packet {
	p := &s.pkts[s.used]
	s.used++
	*p = packet.Packet{
		In: uint16(s.cpu.ID), TxQ: uint16(dev), Priority: priorities[band], Segs: 1, WireLen: 100,
		Stamp: s.next[dev][band],
	}
	s.next[dev][band]++
	return p
}

// burst sends n packets, in batches as a worker does.
func (s *sender) burst(n int) {
	var l packet.List
	for n > 0 {
		dev, band := s.rng.IntN(len(s.next)), s.rng.IntN(Bands)
		for k := min(n, 1+s.rng.IntN(packet.MaxBatch)); k > 0; k-- {
			if s.mixed {
				band = s.rng.IntN(Bands)
			}
			l.Push(s.pkt(dev, band))
			n--
		}
		s.crowd.made.Add(int64(l.Len()))
		s.crowd.q.Load().Xmit(s.cpu, &l)
	}
}

// size draws how many packets a burst has: few mostly, up to maxBurst.
func (s *sender) size() int {
	return 1 + s.rng.IntN([]int{1, 2, 4, 10, 30, 100, maxBurst}[s.rng.IntN(7)])
}

// settle does what is scheduled on cpu and counts what was dropped.
func (c *crowd) settle(cpu *CPU) {
	for cpu.Pending() {
		c.runs.Add(1)
		cpu.TxAction()
	}
	if n := cpu.Drops.Len(); n > 0 {
		c.dropped.Add(int64(n))
		cpu.Drops = packet.List{}
	}
}

func (k *sink) Stopped() bool   { return k.xoff.Stopped() }
func (k *sink) Avail() int      { return k.avail }
func (k *sink) Arm(*CPU, int64) {}

// Send takes what there is room for.
func (k *sink) Send(_ *CPU, l *packet.List) {
	n := int64(0)
	for l.Len() > 0 && k.take() {
		k.check(l.Pop())
		n++
	}
	k.sent.Store(k.sent.Load() + n)
	k.crowd.sent.Add(n)
}

// take reports whether there is room for a packet, and stops the queue if not.
func (k *sink) take() bool {
	for k.bounded && k.room.Load() == 0 {
		k.stops++
		k.xoff.StopDriver()
		if k.room.Load() == 0 {
			return false
		}
		k.xoff.WakeDriver()
	}
	if k.bounded {
		k.room.Add(-1)
	}
	return true
}

func (k *sink) check(p *packet.Packet) {
	want := &k.want[p.In][Priomap[p.Priority]]
	if p.Stamp != *want && (!k.lossy || p.Stamp < *want) && k.bad == "" {
		k.bad = "sender " + strconv.Itoa(int(p.In)) + ": packet " + strconv.Itoa(int(p.Stamp)) +
			" where " + strconv.Itoa(int(*want)) + " was to come"
	}
	*want = p.Stamp + 1
}

// addRoom is the device's interrupt: it has room for n more.
func (k *sink) addRoom(cpu *CPU, n int64) {
	k.room.Add(n)
	if k.xoff.WakeDriver() {
		k.crowd.q.Load().Schedule(cpu)
	}
}

// waitEnded waits until everything made has been sent or dropped.
func (c *crowd) waitEnded(f func()) {
	deadline := time.Now().Add(20 * time.Second)
	for n := 1; c.sent.Load()+c.dropped.Load() < c.made.Load(); n++ {
		f()
		if n%1000 == 0 && time.Now().After(deadline) {
			break
		}
		runtime.Gosched()
	}
}

// checkQuiet judges a moment in which nobody sends: nothing may be left.
func (c *crowd) checkQuiet() bool {
	q := c.q.Load()
	made, sent, dropped := c.made.Load(), c.sent.Load(), c.dropped.Load()
	if left := q.d.Len() + q.requeued.Len() + q.badTxq.Len(); left != 0 || made != sent+dropped {
		c.t.Errorf("%d packets left behind: %d made, %d sent, %d dropped, state %#b", left, made, sent, dropped, q.state.Load())
		return false
	}
	for i, k := range c.devs {
		if k.bad != "" {
			c.t.Errorf("device %d: %s", i, k.bad)
			return false
		}
	}
	return true
}

// checkStats judges the qdisc's counters at the end.
func (c *crowd) checkStats() {
	c.t.Helper()
	q := c.q.Load()
	if st := q.Stats(); st.Qlen != 0 || st.Backlog != 0 || st.QueuedSegs != 0 || q.mem.Load() != 0 {
		c.t.Errorf("an empty qdisc shows %+v and holds %d bytes", st, q.mem.Load())
	}
}

// A barrier lets n goroutines go on together; the last one to come runs f.
type barrier struct {
	n       int32
	arrived atomic.Int32
	_       [cacheLine]byte
	round   atomic.Uint32
}

func (b *barrier) wait(f func()) {
	round := b.round.Load()
	if b.arrived.Add(1) == b.n {
		f()
		b.arrived.Store(0)
		b.round.Add(1)
		return
	}
	for b.round.Load() == round {
		runtime.Gosched()
	}
}

// rounds lets every sender send a burst, a number of times. After each the
// crowd is quiet and nothing may be left behind: no further packet comes that
// could help. If a helper is given it runs until the end, on the control CPU.
func (c *crowd) rounds(n int, helper func()) {
	b := barrier{n: int32(len(c.senders))}
	var failed, over atomic.Bool
	var wg, help sync.WaitGroup
	if helper != nil {
		help.Go(func() {
			for !over.Load() {
				helper()
				c.settle(c.control)
				runtime.Gosched()
			}
		})
	}
	for _, s := range c.senders {
		wg.Go(func() {
			for range n {
				s.used = 0
				s.burst(s.size())
				c.settle(s.cpu)
				b.wait(func() {
					if helper != nil {
						c.waitEnded(func() {})
					}
					if !c.checkQuiet() {
						failed.Store(true)
					}
				})
				if failed.Load() {
					return
				}
			}
		})
	}
	wg.Wait()
	over.Store(true)
	help.Wait()
	c.checkStats()
}
