package bench

import (
	"runtime"
	"time"

	"taprouter/packet"
	"taprouter/qdisc"
	"taprouter/xpsflow"
)

// A sender is one thread. Its packets are in free, or in sent with the queue
// that they were given to until that gives them back.
type sender struct {
	_       [cacheLine]byte
	r       *rig
	cpu     qdisc.CPU
	free    []*packet.Packet // a stack: what was used last is in the cache
	sent    []fifo           // by queue
	pkts    [packet.MaxBatch]*packet.Packet
	list    packet.List
	next    []int64  // packet number, by flow
	hashes  []uint32 // by flow
	flow    int      // of the burst
	queue   int      // of the burst
	clocked int      // packets until the clock is read again

	accepted, refused uint64
	_                 [cacheLine]byte
}

// A fifo has the packets that a queue was given, oldest first.
type fifo struct {
	pkts       []*packet.Packet // a power of two
	head, tail uint64           // free-running
}

func newSender(r *rig, id int) *sender {
	s := &sender{r: r, cpu: qdisc.CPU{ID: id}, queue: id % r.queues, next: make([]int64, r.flows), sent: make([]fifo, r.queues)}
	for f := range r.flows {
		s.hashes = append(s.hashes, uint32(id*r.flows+f+1)*0x9e3779b1|1) // spread, and never 0: no hash
	}
	// As many as can be on their way in one queue, and one burst to send.
	pkts := make([]packet.Packet, ringLen+2*packet.MaxBatch+r.burst)
	size := 1
	for size < len(pkts) {
		size *= 2
	}
	for i := range s.sent {
		s.sent[i].pkts = make([]*packet.Packet, size)
	}
	for i := range pkts {
		pkts[i] = packet.Packet{In: uint16(id), Segs: 1, WireLen: wireLen}
		s.free = append(s.free, &pkts[i])
	}
	return s
}

func (s *sender) run() {
	for !s.r.stop.Load() {
		s.reclaim()
		refused := 0
		if len(s.free) >= s.r.burst {
			refused = s.xmit()
		}
		s.r.roots[s.queue].Action(&s.cpu)
		if refused > 0 || len(s.free) < s.r.burst {
			runtime.Gosched()
		}
	}
}

// reclaim takes back what the queues have delivered.
func (s *sender) reclaim() {
	for i := range s.sent {
		f := &s.sent[i]
		for done := s.r.devs[i].done[s.cpu.ID].Load(); f.tail < done; f.tail++ {
			s.free = append(s.free, f.pkts[f.tail&uint64(len(f.pkts)-1)])
		}
	}
}

// xmit sends one burst of one flow and gives the number of packets that were
// refused.
func (s *sender) xmit() int {
	pkts := s.take()
	if s.r.steer != nil {
		s.r.steer.SelectBatch(s.cpu.ID, pkts)
		s.queue = int(pkts[0].TxQ) // one flow, one queue
	}
	for _, p := range pkts {
		s.list.Push(p)
	}
	s.r.roots[s.queue].Xmit(&s.cpu, &s.list)
	refused := s.cpu.Drops.Len() // the last of the burst
	f := &s.sent[s.queue]
	for _, p := range pkts[:len(pkts)-refused] {
		f.pkts[f.head&uint64(len(f.pkts)-1)] = p
		f.head++
	}
	s.accepted += uint64(len(pkts) - refused)
	if refused > 0 {
		s.putBack(refused)
	}
	return refused
}

// take prepares the packets of a burst.
func (s *sender) take() []*packet.Packet {
	if s.flow++; s.flow == len(s.next) {
		s.flow = 0
	}
	if s.clocked -= s.r.burst; s.clocked <= 0 {
		s.clocked = packet.MaxBatch
		s.cpu.Now = int64(time.Since(s.r.begin))
	}
	pkts := s.pkts[:s.r.burst]
	rest := len(s.free) - len(pkts)
	copy(pkts, s.free[rest:])
	s.free = s.free[:rest]
	seq := s.next[s.flow]
	for i, p := range pkts {
		p.Out = uint16(s.flow)
		p.Hash = s.hashes[s.flow]
		p.Stamp = seq + int64(i)
	}
	s.next[s.flow] = seq + int64(len(pkts))
	return pkts
}

// putBack takes refused packets back; their numbers are used again.
func (s *sender) putBack(refused int) {
	s.refused += uint64(refused)
	s.next[s.flow] -= int64(refused)
	xpsflow.CompleteList(&s.cpu.Drops)
	for p := s.cpu.Drops.Pop(); p != nil; p = s.cpu.Drops.Pop() {
		p.Drop = packet.NotDropped
		s.free = append(s.free, p)
	}
}
