package bench

import (
	"taprouter/packet"
	"taprouter/qdisc"
)

// ours is a qdisc as router run uses it.
type ours struct{ *qdisc.Qdisc }

// lockless is ours with pfifo_fast.
func lockless(bypass bool) func(t qdisc.Txq, cpus int) root {
	return func(t qdisc.Txq, cpus int) root {
		q := qdisc.New(qdisc.NewPfifoFast(ringLen), []qdisc.Txq{t}, cpus)
		q.SetBypass(bypass)
		return ours{q}
	}
}

func (q ours) Action(c *qdisc.CPU) bool {
	if !c.Pending() {
		return false
	}
	c.TxAction()
	return true
}

// Flush does nothing: what is left now was forgotten, and whoever counts
// will miss it.
func (q ours) Flush(*qdisc.CPU) int { return 0 }

// dequeue takes the next packet of a discipline without the run protocol.
// Like qdisc's own, it calls it through the interface.
func dequeue(d qdisc.Discipline, now int64) *packet.Packet { return d.Dequeue(now) }

// A sum is what some packets add to counters.
type sum struct{ n, bytes, segs, mem int }

func (s *sum) add(p *packet.Packet) {
	s.n++
	s.bytes += int(p.WireLen)
	s.segs += int(p.Segs - p.SegNext)
	s.mem += p.Memory()
}

func (s *sum) plus(o sum) {
	s.n += o.n
	s.bytes += o.bytes
	s.segs += o.segs
	s.mem += o.mem
}

func (s *sum) sub(o sum) {
	s.n -= o.n
	s.bytes -= o.bytes
	s.segs -= o.segs
	s.mem -= o.mem
}

func sumOf(l *packet.List) (s sum) {
	for p := l.Front(); p != nil; p = p.Next {
		s.add(p)
	}
	return s
}

// drop refuses what is in l.
func drop(c *qdisc.CPU, l *packet.List) {
	for p := l.Pop(); p != nil; p = l.Pop() {
		p.Drop = packet.DropQdisc
		c.Drops.Push(p)
	}
}
