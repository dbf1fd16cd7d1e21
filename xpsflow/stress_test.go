package xpsflow

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"taprouter/packet"
)

const (
	stressWorkers = 4
	stressFlows   = 24
	stressPackets = 1500 // of each flow
)

// A stress has workers that select at the same time; the packets of each
// flow come one after the other, from a random worker each. Queue 0 is slow:
// it moves only now and then. Each queue is a FIFO with a goroutine behind it.
type stress struct {
	*Steer
	queues     [2]stressQueue
	tick       chan struct{} // lets queue 0 move
	sends      atomic.Uint32
	last       [stressFlows]atomic.Int64 // newest packet of the flow that was sent
	inversions atomic.Uint32
}

type stressQueue struct {
	fifo      chan *packet.Packet // roomy enough for all packets
	enq, done atomic.Uint64       // high halves
}

func newStress(t *testing.T, mode Mode) *stress {
	s := &stress{Steer: New(stressWorkers, 2), tick: make(chan struct{}, 1)}
	for i := range s.queues {
		q := &s.queues[i]
		q.fifo = make(chan *packet.Packet, stressFlows*stressPackets)
		s.SetCounters(i, &q.enq, &q.done)
	}
	if err := s.SetTable(64, mode); err != nil {
		t.Fatal(err)
	}
	return s
}

// send sends the burst of flow's packets that ends with seq.
func (s *stress) send(worker int, flow, seq, n int) {
	pkts := make([]*packet.Packet, n)
	for i := range pkts {
		pkts[i] = &packet.Packet{Hash: uint32(flow+1) * 0x9e3779b1, In: uint16(flow), Stamp: int64(seq - n + 1 + i)}
	}
	s.SelectBatch(worker, pkts)
	for _, p := range pkts {
		s.queues[p.TxQ].fifo <- p
	}
	if s.sends.Add(1)%64 == 0 {
		select {
		case s.tick <- struct{}{}:
		default:
		}
	}
}

// drain sends what is in a queue: the counters move as BQL's do, when the
// device takes a packet.
func (s *stress) drain(q *stressQueue, p *packet.Packet) {
	q.enq.Add(1 << 32)
	if s.last[p.In].Swap(p.Stamp) > p.Stamp {
		s.inversions.Add(1)
	}
	q.done.Add(1 << 32)
	Complete(p)
}

func (s *stress) drainSlow() {
	q := &s.queues[0]
	for range s.tick {
		for range len(q.fifo) {
			s.drain(q, <-q.fifo)
		}
	}
	for p := range q.fifo {
		s.drain(q, p)
	}
}

func (s *stress) drainFast() {
	for p := range s.queues[1].fifo {
		s.drain(&s.queues[1], p)
	}
}

type token struct{ flow, seq int }

// run sends all packets, with change called again and again meanwhile.
func (s *stress) run(change func(rng *rand.Rand)) {
	var hand [stressWorkers]chan token
	for i := range hand {
		hand[i] = make(chan token, stressFlows)
	}
	var workers, drainers, flows, control sync.WaitGroup
	flows.Add(stressFlows)
	for w := range hand {
		workers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 3))
			for tok := range hand[w] {
				n := min(1+rng.IntN(3), stressPackets-tok.seq)
				tok.seq += n
				s.send(w, tok.flow, tok.seq, n)
				if tok.seq == stressPackets {
					flows.Done()
					continue
				}
				hand[rng.IntN(stressWorkers)] <- tok
			}
		})
	}
	drainers.Go(s.drainSlow)
	drainers.Go(s.drainFast)
	stop := make(chan struct{})
	control.Go(func() {
		rng := rand.New(rand.NewPCG(9, 9))
		for {
			select {
			case <-stop:
				return
			default:
				change(rng)
			}
		}
	})
	for f := range stressFlows {
		hand[f%stressWorkers] <- token{flow: f}
	}
	flows.Wait()
	close(stop)
	control.Wait()
	for i := range hand {
		close(hand[i])
	}
	workers.Wait()
	close(s.tick)
	for i := range s.queues {
		close(s.queues[i].fifo)
	}
	drainers.Wait()
}

// Nothing is reordered in mode inflight, whatever is reconfigured meanwhile;
// and flows do move.
func TestStressInflight(t *testing.T) {
	s := newStress(t, Inflight)
	s.run(func(rng *rand.Rand) {
		switch rng.IntN(4) {
		case 0:
			_ = s.SetTable(1<<rng.IntN(8), Inflight)
		case 1:
			m, _ := s.Map().With(rng.IntN(2), []int{rng.IntN(stressWorkers), rng.IntN(stressWorkers)})
			s.SetMap(m)
		case 2:
			s.Settle()
		case 3:
			s.InFlight()
		}
	})
	if n := s.inversions.Load(); n != 0 {
		t.Errorf("%d packets were overtaken by one of their flow", n)
	}
	for f := range s.last {
		if got := s.last[f].Load(); got != stressPackets {
			t.Errorf("flow %d ended with packet %d", f, got)
		}
	}
	if n := s.InFlight(); n != 0 || !s.Settle() {
		t.Errorf("%d in flight at the end, or an old table is left", n)
	}
	t.Logf("%+v", s.Stats())
}

// With a table that stays flows move, and wait before they do.
func TestStressMoves(t *testing.T) {
	s := newStress(t, Inflight)
	s.run(func(*rand.Rand) { s.Stats() })
	if got := s.Stats(); got.Moves == 0 || got.Refused == 0 || s.inversions.Load() != 0 {
		t.Errorf("%+v, %d inversions", got, s.inversions.Load())
	}
}

// The same traffic is reordered in mode dql.
func TestStressDQL(t *testing.T) {
	s := newStress(t, DQL)
	s.run(func(*rand.Rand) { s.Stats() })
	if s.inversions.Load() == 0 {
		t.Error("mode dql did not reorder: the test tests nothing")
	}
	t.Logf("%d of %d packets overtaken, %+v", s.inversions.Load(), stressFlows*stressPackets, s.Stats())
}
