//go:build !explore

package qdisc

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"taprouter/packet"
)

// The test: bursts of 1 to 300 packets by 1 to 8 senders that start
// together; after each round nothing is left behind and every sender's
// packets of a band have come in order.
func TestStressBursts(t *testing.T) {
	total := bursts(t)
	for n := 1; n <= 8; n++ {
		t.Run(fmt.Sprintf("senders=%d", n), func(t *testing.T) {
			c := newCrowd(t, n, 1, NewPfifoFast(n*maxBurst))
			for _, s := range c.senders {
				s.mixed = n%2 == 0
			}
			c.rounds(total/8/n, nil)
			if c.dropped.Load() != 0 {
				t.Errorf("%d packets dropped", c.dropped.Load())
			}
			if st := c.q.Load().Stats(); st.Packets != uint64(c.made.Load()) || st.Bytes != 100*st.Packets {
				t.Errorf("%d packets were sent, the qdisc counts %+v", c.made.Load(), st)
			}
		})
	}
}

// A device without BQL lets one packet go at a time, and a qdisc without
// bypass queues everything: other paths through the same protocol.
func TestStressVariants(t *testing.T) {
	for _, bypass := range []bool{true, false} {
		for _, avail := range []int{0, 1 << 20} {
			t.Run(fmt.Sprintf("bypass=%t/avail=%d", bypass, avail), func(t *testing.T) {
				c := newCrowd(t, 3, 1, NewPfifoFast(3*maxBurst))
				c.devs[0].avail = avail
				c.q.Load().SetBypass(bypass)
				c.rounds(bursts(t)/60, nil)
			})
		}
	}
}

// A device stops again and again and is woken by somebody else: nothing is
// lost, nothing passes what was refused, and stops cost few runs.
func TestStressStopWake(t *testing.T) {
	c := newCrowd(t, 3, 1, NewPfifoFast(3*maxBurst))
	k := c.devs[0]
	k.bounded = true
	c.rounds(bursts(t)/60, func() {
		if k.xoff.Stopped() {
			k.addRoom(c.control, 70)
		}
	})
	if k.stops == 0 || c.q.Load().Stats().Requeues == 0 {
		t.Error("the device never stopped: the test proves nothing")
	}
	t.Logf("%d packets, %d stops, %d tx actions", c.sent.Load(), k.stops, c.runs.Load())
}

// One qdisc for several queues, some of which stop: the packet taken out for
// another queue and those refused come before all others.
func TestStressManyQueues(t *testing.T) {
	c := newCrowd(t, 3, 4, NewPfifoFast(3*maxBurst))
	c.devs[1].bounded, c.devs[3].bounded = true, true
	c.rounds(bursts(t)/100, func() {
		for _, k := range c.devs {
			if k.bounded && k.xoff.Stopped() {
				k.addRoom(c.control, 50)
			}
		}
	})
	if c.devs[1].stops == 0 {
		t.Error("no device ever stopped: the test proves nothing")
	}
}

// Too short rings and too little memory: what does not fit is dropped with
// its reason and counted, the rest comes in order.
func TestStressOverflow(t *testing.T) {
	c := newCrowd(t, 4, 1, NewPfifoFast(20))
	c.devs[0].lossy = true
	c.q.Load().SetMemoryLimit(40 * packet.HeadLen)
	c.rounds(bursts(t)/60, nil)
	st := c.q.Load().Stats()
	if st.Drops != uint64(c.dropped.Load()) || st.Packets != uint64(c.sent.Load()) {
		t.Errorf("sent %d, dropped %d, the qdisc counts %+v", c.sent.Load(), c.dropped.Load(), st)
	}
	if c.dropped.Load() == 0 {
		t.Error("nothing was dropped: the test proves nothing")
	}
}

// Resets and deactivations in the middle of traffic: every packet is sent or
// purged, once, and nothing is left behind when the qdisc is active again.
func TestStressReset(t *testing.T) {
	c := newCrowd(t, 3, 1, NewPfifoFast(3*maxBurst))
	c.devs[0].lossy = true
	c.devs[0].bounded = true
	n := 0
	c.rounds(bursts(t)/200, func() {
		q := c.q.Load()
		switch n++; n % 4 {
		case 0:
			q.Reset(c.control, packet.DropPurge)
		case 1:
			q.Deactivate()
		case 2:
			c.devs[0].addRoom(c.control, 40)
		case 3:
			q.Activate(c.control)
		}
	})
	if c.dropped.Load() == 0 {
		t.Error("nothing was purged: the test proves nothing")
	}
}

// Grafts in the middle of traffic, with senders kept out as the dataplane
// does: the backlog moves and nothing is lost or passes anything else.
func TestStressGraft(t *testing.T) {
	const senders = 3
	c := newCrowd(t, senders, 2, NewPfifoFast(senders*maxBurst))
	for _, k := range c.devs {
		k.bounded = true
	}
	var quiet sync.RWMutex // read-held by those who use the qdisc
	var over atomic.Bool
	var wg, help sync.WaitGroup
	help.Go(func() { // control: grafts, and the devices' interrupts
		for i := 0; !over.Load() || c.sent.Load() < c.made.Load(); i++ {
			if i%8 == 0 {
				quiet.Lock()
				old, fresh := c.q.Load(), c.qdisc(NewPfifoFast(senders*maxBurst))
				old.Deactivate()
				old.MoveTo(c.control, func(*packet.Packet) *Qdisc { return fresh })
				c.q.Store(fresh)
				if st := old.Stats(); st.Qlen != 0 || st.Backlog != 0 || old.mem.Load() != 0 {
					t.Errorf("the old qdisc still shows %+v", st)
				}
				quiet.Unlock()
			}
			quiet.RLock()
			c.devs[i%2].addRoom(c.control, 30)
			c.settle(c.control)
			quiet.RUnlock()
		}
	})
	n := bursts(t) / 100 / senders
	for _, s := range c.senders {
		wg.Go(func() {
			s.pkts = make([]packet.Packet, n*maxBurst/8)
			for range n {
				size := s.size()
				if s.used+size > len(s.pkts) {
					return
				}
				quiet.RLock()
				s.burst(size)
				c.settle(s.cpu)
				quiet.RUnlock()
				// Wait for the own packets, so that the rings do not overflow.
				c.waitEnded(func() { quiet.RLock(); c.settle(s.cpu); quiet.RUnlock() })
			}
		})
	}
	wg.Wait()
	over.Store(true)
	help.Wait()
	if c.dropped.Load() != 0 {
		t.Errorf("%d packets dropped", c.dropped.Load())
	}
	if c.checkQuiet() {
		c.checkStats()
	}
}
