//go:build !explore

package qdisc

import (
	"sync"
	"testing"

	"taprouter/packet"
)

// Interleavings of the spec's list, forced with gates on real goroutines.
// The windows without a call out of the protocol are explore_test.go's.

// A gate stops whoever passes, once, until it is opened.
type gate struct {
	once    sync.Once
	reached chan struct{}
	open    chan struct{}
}

func newGate() *gate { return &gate{reached: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) pass() {
	g.once.Do(func() {
		close(g.reached)
		<-g.open
	})
}

// A gatedFifo stops the runner that has found nothing for the second time.
type gatedFifo struct {
	*PfifoFast
	empty *gate
}

func (d *gatedFifo) CanBypass() bool { return false }

func (d *gatedFifo) Len() int {
	n := d.PfifoFast.Len()
	d.empty.pass()
	return n
}

// A gatedTxq stops in the device; with busy it then refuses once.
type gatedTxq struct {
	sink
	inside *gate
	busy   bool
}

func (k *gatedTxq) Send(c *CPU, l *packet.List) {
	k.inside.pass()
	if k.busy {
		k.busy = false
		return
	}
	k.sink.Send(c, l)
}

// F1: A has dequeued nothing and not yet let go of the run bit when B's packet
// comes. It leaves without any further traffic.
func TestForcedF1(t *testing.T) {
	d := &gatedFifo{NewPfifoFast(10), newGate()}
	c := newCrowd(t, 2, 1, d)
	c.devs[0].avail = 0 // A's packet is sent before the next is looked for
	a, b := c.senders[0], c.senders[1]
	var wg sync.WaitGroup
	wg.Go(func() {
		a.burst(1)
		c.settle(a.cpu)
	})
	<-d.empty.reached
	b.burst(1)
	c.settle(b.cpu)
	if c.sent.Load() != 1 {
		t.Errorf("%d packets sent while A holds the run bit, want A's own", c.sent.Load())
	}
	close(d.empty.open)
	wg.Wait()
	c.checkQuiet()
	c.checkStats()
}

// F6: the device refuses A's packet while B's comes. A's leaves first.
func TestForcedF6(t *testing.T) {
	c := newCrowd(t, 2, 1, NewPfifoFast(10))
	k := &gatedTxq{sink: sink{crowd: c, avail: 3000, want: make([][3]int64, 2)}, inside: newGate(), busy: true}
	q := New(NewPfifoFast(10), []Txq{k}, 3)
	c.q.Store(q)
	a, b := c.senders[0], c.senders[1]
	var wg sync.WaitGroup
	wg.Go(func() {
		a.burst(1)
		if q.requeued.Len() != 1 || q.requeued.Front().In != 0 {
			t.Errorf("%d packets requeued, want A's", q.requeued.Len())
		}
		c.settle(a.cpu)
	})
	<-k.inside.reached
	b.burst(3)
	if c.sent.Load() != 0 {
		t.Errorf("%d packets sent past A's", c.sent.Load())
	}
	close(k.inside.open)
	wg.Wait()
	c.settle(b.cpu)
	c.checkQuiet()
	c.checkStats()
	if n := q.Stats().Requeues; n != 1 {
		t.Errorf("%d requeues, want 1", n)
	}
}

// F13: the owner of the run bit makes no progress for a while. Nobody waits
// for it, what fits is kept, and all of it leaves when it goes on.
func TestForcedF13(t *testing.T) {
	const senders, length = 8, 100
	c := newCrowd(t, senders, 1, NewPfifoFast(length))
	k := &gatedTxq{sink: sink{crowd: c, avail: 3000, want: make([][3]int64, senders)}, inside: newGate()}
	q := New(NewPfifoFast(length), []Txq{k}, senders+1)
	c.q.Store(q)
	owner := c.senders[0]
	var wg, others sync.WaitGroup
	wg.Go(func() {
		owner.burst(1)
		c.settle(owner.cpu)
	})
	<-k.inside.reached
	for _, s := range c.senders[1:] {
		others.Go(func() {
			s.burst(length / (senders - 1)) // even all in one band fit
			c.settle(s.cpu)
		})
	}
	others.Wait() // they have returned while the owner still stands
	if st := q.Stats(); st.Qlen != uint64(c.made.Load()-1) || st.Drops != 0 {
		t.Errorf("while the owner stands: %+v, want %d queued", st, c.made.Load()-1)
	}
	close(k.inside.open)
	wg.Wait()
	c.checkQuiet()
	c.checkStats()
	if k.bad != "" {
		t.Error(k.bad)
	}
}
