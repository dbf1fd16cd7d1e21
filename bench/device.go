package bench

import (
	"sync/atomic"

	"taprouter/bql"
	"taprouter/packet"
	"taprouter/qdisc"
	"taprouter/xpsflow"
)

// cacheLine is the distance between words that different threads write.
const cacheLine = 128

// BQL as a port of router run begins with it, in bytes.
const (
	bqlStart = 64 << 10
	bqlMax   = 512 << 10
)

// A device is a tx queue with nothing behind it: it completes at once, so
// nobody ever sees it stopped. Packets that it has counted are their sender's
// again. All but done belongs to the run bit holder.
type device struct {
	dql   bql.DQL
	batch []scratch // by CPU
	flows []flows   // by thread, shared by all devices
	wrong disorder

	done []counter // by thread: packets delivered
}

// flows has the next number of each flow of a thread. Of a flow's packets in
// flight all are in one queue, so one device at a time writes it.
type flows struct {
	want []int64
	_    [cacheLine]byte
}

// A scratch is a CPU's own: what moves from CPU to CPU with the queue is as
// little as can be.
type scratch struct {
	packet.Batch
	_ [cacheLine]byte
}

// A counter has one writer at a time.
type counter struct {
	atomic.Uint64
	_ [cacheLine - 8]byte
}

func (c *counter) add(n uint64) { c.Store(c.Load() + n) }

// A disorder is how often a packet was not the one that was to come, and the
// first time.
type disorder struct {
	n                  int
	thread, flow       int
	sequence, expected int64
}

func newDevice(order []flows) *device {
	d := &device{flows: order, done: make([]counter, len(order)), batch: make([]scratch, len(order)+1)}
	d.dql.Init(bqlStart, bqlMax)
	return d
}

func (d *device) Stopped() bool         { return false }
func (d *device) Avail() int            { return d.dql.Avail() }
func (d *device) Arm(*qdisc.CPU, int64) {} // nothing here is ever late

// Send delivers everything in l.
func (d *device) Send(c *qdisc.CPU, l *packet.List) {
	for l.Len() > 0 {
		b := &d.batch[c.ID].Batch
		b.N = 0
		var bytes uint32
		for p := l.Pop(); ; p = l.Pop() {
			bytes += p.WireLen
			b.Add(p)
			if l.Len() == 0 || b.N == packet.MaxBatch {
				break
			}
		}
		n := uint32(b.N)
		d.dql.Queued(bytes, n, c.Now)
		d.end(b.Slice())
		d.dql.Completed(bytes, n, c.Now)
	}
}

// end checks the packets' order and gives them back, one store for each run
// of packets of one thread.
func (d *device) end(pkts []*packet.Packet) {
	xpsflow.CompleteBatch(pkts)
	for len(pkts) > 0 {
		thread, n := pkts[0].In, 0
		for n < len(pkts) && pkts[n].In == thread {
			d.check(pkts[n])
			n++
		}
		d.done[thread].add(uint64(n)) // from here on they are the sender's
		pkts = pkts[n:]
	}
}

func (d *device) check(p *packet.Packet) {
	want := &d.flows[p.In].want[p.Out]
	if p.Stamp != *want {
		if d.wrong.n++; d.wrong.n == 1 {
			d.wrong = disorder{1, int(p.In), int(p.Out), p.Stamp, *want}
		}
	}
	*want = p.Stamp + 1
}
