package dataplane

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/offload"
	"taprouter/packet"
)

// A LineConfig describes the wire that a port imitates.
type LineConfig struct {
	Rate     int64         // bit/s, 0 = no line: packets are written at once
	Ring     int           // descriptors of a tx queue's ring
	Delay    time.Duration // from the end of a packet on the line to its delivery
	Overhead int           // bytes that each packet takes on the line besides its frame
	Shared   bool          // one line for all tx queues of the port, served in turn
}

// EthernetOverhead is what Ethernet adds to a frame on the wire: preamble and
// start delimiter 8, FCS 4, inter-packet gap 12 bytes (IEEE 802.3).
const EthernetOverhead = 24

// Ranges of a LineConfig.
const (
	MinLineRate  = 8_000           // bit/s
	MaxLineRate  = 400_000_000_000 // bit/s
	MaxLineRing  = 1 << 15
	MaxLineDelay = 10 * time.Second
	MaxOverhead  = 256
	DefaultRing  = 256
)

// Check says what is out of range.
func (c LineConfig) Check() error {
	switch {
	case c.Rate == 0:
		return nil
	case c.Rate < MinLineRate || c.Rate > MaxLineRate:
		return fmt.Errorf("line rate %d bit/s: want %d to %d", c.Rate, int64(MinLineRate), int64(MaxLineRate))
	case c.Ring < 1 || c.Ring > MaxLineRing:
		return fmt.Errorf("line ring %d: want 1 to %d packets", c.Ring, MaxLineRing)
	case c.Delay < 0 || c.Delay > MaxLineDelay:
		return fmt.Errorf("line delay %v: want 0 to %v", c.Delay, MaxLineDelay)
	case c.Overhead < 0 || c.Overhead > MaxOverhead:
		return fmt.Errorf("line overhead %d: want 0 to %d bytes", c.Overhead, MaxOverhead)
	}
	return nil
}

const (
	// pieceTime is how much of a superpacket may leave in one piece, in ns of
	// line time (decision: a lump never exceeds the line by more).
	pieceTime = 50_000
	// lineSlack is by how many ns a departure may be late so that several
	// leave at one wake-up, while more packets follow.
	lineSlack = 80_000
)

// A line is the NIC behind one tx queue, or behind all of a port: it takes
// packets from the rings in turn and serialises them at its rate. When a
// piece is through, it is written, after delay; when its packet is, the
// descriptor is free and DQL learns of it. A line belongs to its home worker;
// only idle and the rings are shared with those who send.
//
//	Send ─▶ [ ring ] ─▶ cur, until end ─▶ [ delayed ] ─▶ write
//	           └─ descriptor, DQL ◀─┘          └─ bucket, counters, pool ◀─┘
type line struct {
	cfg    LineConfig
	queues []*TxQueue

	_    [64]byte
	idle atomic.Bool // looked at with every send
	_    [64]byte

	timer timer
	turn  int            // of queues, who is served next
	cur   *packet.Packet // on the line now; still in its ring
	from  *TxQueue       // of cur
	seg   offload.Segmenter
	cut   uint16 // segments of cur that leave together, 0 if all do
	begun bool   // a piece of cur has departed
	lost  bool   // cur does not fit in delay
	next  uint16 // segment of cur with which the piece begins that is on the line
	end   int64  // when this piece is through
	free  int64  // when the line has been, or will be, free
	rest  int64  // what the rounding of free left: parts of a ns, in 1/Rate

	delayed fifo[departure]
	held    int // bytes of pool memory in delayed, begun packets included
	share   int // what it may hold

	writing *packet.Packet // that wseg is set up for
	wseg    offload.Segmenter
	hdr     [offload.MaxHeaders]byte
	batch   packet.Batch
	to      *TxQueue // of the packets in batch
}

// A departure is a piece of a packet that has left the line and is to be
// written: a whole packet, or some segments of it.
type departure struct {
	at   int64
	p    *packet.Packet
	t    *TxQueue
	segs uint16 // 0 for a whole packet
	last bool   // what ends p
}

func newLine(home *Worker, cfg LineConfig, share int) *line {
	l := &line{cfg: cfg, share: share}
	l.timer.init(home, func() { l.service(home) })
	l.idle.Store(true)
	return l
}

// start tells the line, which may be idle, that a ring has something. The
// ring was written before: home sets idle and looks at the rings again.
func (l *line) start(w *Worker) {
	if l.idle.Load() && l.idle.CompareAndSwap(true, false) {
		l.timer.request(w, w.now)
	}
}

// service does all that is due on the line.
func (l *line) service(w *Worker) {
	for l.cur != nil || l.load() {
		if l.end > w.now {
			break
		}
		l.depart(w)
	}
	for _, t := range l.queues {
		t.reap(w)
	}
	l.deliver(w)
	l.rearm(w)
}

// load puts the next packet on the line; false if every ring is empty.
func (l *line) load() bool {
	for range l.queues {
		t := l.queues[l.turn]
		if l.turn++; l.turn == len(l.queues) {
			l.turn = 0
		}
		p, at := t.ring.peek()
		if p == nil {
			continue
		}
		if at > l.free { // the line was idle
			l.free, l.rest = at, 0
		}
		l.cur, l.from, l.begun, l.lost, l.next, l.cut = p, t, false, false, p.SegNext, 0
		if must := t.mustSegment(p); must || p.Segs > 1 && l.wireTime(l.wireLen(p)) > pieceTime {
			switch reason := l.seg.Init(p); {
			case reason == packet.NotDropped:
				l.cut = l.pieceSegs(must)
			case must:
				p.Drop = reason
			}
		}
		l.advance()
		return true
	}
	return false
}

// pieceSegs is how many segments of seg's superpacket leave together: as many
// as the line sends in pieceTime, or one if its reader takes only segments.
func (l *line) pieceSegs(must bool) uint16 {
	if must {
		return 1
	}
	one := int64(l.seg.Len(0)+l.cfg.Overhead) * 8 * int64(time.Second)
	return uint16(min(max(pieceTime*l.cfg.Rate/one, 1), math.MaxUint16))
}

// piece is how many segments of cur, which is cut, are on the line now.
func (l *line) piece() uint16 { return min(l.cut, l.cur.Segs-l.next) }

// advance sets the end of the piece that is on the line now.
func (l *line) advance() {
	n := l.wireLen(l.cur)
	if l.cut > 0 {
		k := int(l.piece())
		n = l.seg.Wire(int(l.next), k) + k*l.cfg.Overhead
	}
	t := int64(n)*8*int64(time.Second) + l.rest
	l.end, l.rest = l.free+t/l.cfg.Rate, t%l.cfg.Rate
	l.free = l.end
}

// wireLen is what p takes on the line, in bytes.
func (l *line) wireLen(p *packet.Packet) int { return int(p.WireLen) + int(p.Segs)*l.cfg.Overhead }

// wireTime is how long n bytes take, in ns.
func (l *line) wireTime(n int) int64 { return int64(n) * 8 * int64(time.Second) / l.cfg.Rate }

// depart takes the piece that is through off the line.
func (l *line) depart(w *Worker) {
	p, t := l.cur, l.from
	d := departure{at: l.end + int64(l.cfg.Delay), p: p, t: t, last: true}
	if l.cut > 0 {
		d.segs = l.piece()
		d.last = l.next+d.segs == p.Segs
	}
	if !l.begun {
		if l.lost = l.held+p.Memory() > l.share; !l.lost {
			l.held += p.Memory()
		}
	}
	l.begun = true
	if !l.lost {
		l.delayed.push(d)
	}
	if !d.last {
		l.next += d.segs
		l.advance()
		return
	}
	t.ring.pop()
	t.through.bytes += p.WireLen // lost or not, it was on the line
	t.through.pkts++
	if l.lost {
		p.Drop = packet.DropDelay
		w.cpu.Drops.Push(p)
	}
	l.cur = nil
}

// rearm asks for the next thing that is due.
func (l *line) rearm(w *Worker) {
	at := int64(never)
	if d := l.delayed.front(); d != nil {
		at = d.at
	}
	if l.cur != nil {
		end := l.end
		if l.waiting() {
			end += lineSlack
		}
		w.arm(&l.timer, min(at, end))
		return
	}
	l.idle.Store(true)
	if l.waiting() && l.idle.CompareAndSwap(true, false) { // pairs with start
		at = w.now
	}
	w.arm(&l.timer, at)
}

// waiting reports whether a ring has more than what is on the line.
func (l *line) waiting() bool {
	for _, t := range l.queues {
		n := t.ring.used()
		if t == l.from && l.cur != nil {
			n--
		}
		if n > 0 {
			return true
		}
	}
	return false
}

// deliver writes what is due, together as far as it can.
func (l *line) deliver(w *Worker) {
	for d := l.delayed.front(); d != nil && d.at <= w.now; d = l.delayed.front() {
		l.write(w, l.delayed.pop())
	}
	l.flush(w)
}

func (l *line) write(w *Worker, d departure) {
	if d.segs == 0 {
		if l.batch.N == packet.MaxBatch || l.to != d.t {
			l.flush(w)
		}
		l.held -= d.p.Memory()
		if d.p.Drop != packet.NotDropped {
			w.cpu.Drops.Push(d.p)
		} else if d.t.checksum(w, d.p) {
			l.to = d.t
			l.batch.Add(d.p)
		}
		return
	}
	l.flush(w)
	if l.writing != d.p {
		l.writing, d.p.Drop = d.p, l.wseg.Init(d.p)
	}
	if d.p.Drop == packet.NotDropped {
		if errno := d.t.writePiece(w, d.p, d.segs, &l.wseg, l.hdr[:]); errno != 0 {
			d.p.Drop = txReason(errno) // the rest of it goes too
		}
	}
	if !d.last {
		return
	}
	l.held -= d.p.Memory()
	l.writing = nil
	if d.p.Drop != packet.NotDropped {
		w.cpu.Drops.Push(d.p)
		return
	}
	l.batch.Pkts[0] = d.p
	d.t.end(w, l.batch.Pkts[:1])
}

// flush writes the batch.
func (l *line) flush(w *Worker) {
	for rest := l.batch.Slice(); len(rest) > 0; {
		n, errno := l.to.write(w, rest)
		if l.to.gsoRefused != 0 {
			l.to.taken(rest[:n])
		}
		l.to.end(w, rest[:n])
		if rest = rest[n:]; errno == 0 {
			break
		}
		if errno == unix.EINVAL && shapeOf(rest[0]) != 0 {
			errno = l.to.sendRefused(w, rest[0])
		}
		if errno == 0 {
			l.to.end(w, rest[:1])
		} else {
			l.to.fail(w, rest[0], errno)
		}
		rest = rest[1:]
	}
	l.batch.N = 0
}

// purge drops everything on the line that came from t. In a pause only.
func (l *line) purge(w *Worker, t *TxQueue, reason packet.Reason) {
	drop := func(p *packet.Packet) {
		if p.Drop == packet.NotDropped {
			p.Drop = reason
		}
		w.cpu.Drops.Push(p)
	}
	var keep fifo[departure]
	for l.delayed.front() != nil {
		switch d := l.delayed.pop(); {
		case d.t != t:
			keep.push(d)
		case d.last: // earlier pieces of it need nothing, and those of cur are still in the ring
			l.held -= d.p.Memory()
			drop(d.p)
		}
	}
	l.delayed = keep
	if l.cur != nil && l.from == t {
		if l.begun && !l.lost {
			l.held -= l.cur.Memory()
		}
		l.cur = nil
	}
	l.writing = nil
	for p, _ := t.ring.peek(); p != nil; p, _ = t.ring.peek() {
		t.ring.pop()
		drop(p)
	}
}

// segments counts the wire packets on the line, in a pause.
func (l *line) segments() (n uint64) {
	l.delayed.each(func(d *departure) {
		if d.last {
			n += uint64(d.p.Segs - d.p.SegNext)
		}
	})
	for _, t := range l.queues {
		t.ring.each(func(p *packet.Packet) { n += uint64(p.Segs - p.SegNext) })
	}
	return n
}

// A txRing holds the descriptors of a tx queue: one producer, the holder of
// the qdisc's run bit, and one consumer, the line's home worker.
type txRing struct {
	slots []txSlot // a power of two
	size  uint32   // descriptors
	limit int64    // bytes of pool memory that may be in it

	_    [64]byte
	head atomic.Uint32 // written by the producer
	_    [64]byte
	tail atomic.Uint32 // written by the consumer
	mem  atomic.Int64
	_    [64]byte
}

type txSlot struct {
	p  *packet.Packet
	at int64 // when it was put there
}

func (r *txRing) init(size int, limit int) {
	n := 1
	for n < size {
		n *= 2
	}
	r.slots, r.size, r.limit = make([]txSlot, n), uint32(size), int64(limit)
}

// used is the number of descriptors in use.
func (r *txRing) used() int { return int(r.head.Load() - r.tail.Load()) }

// room is how many packets the ring takes.
func (r *txRing) room() int {
	if r.mem.Load() >= r.limit {
		return 0
	}
	return int(r.size) - r.used()
}

// push puts n packets from the front of l, for which there is room, in the ring.
func (r *txRing) push(l *packet.List, n int, now int64) {
	h, mem := r.head.Load(), 0
	for i := range uint32(n) {
		p := l.Pop()
		mem += p.Memory()
		r.slots[(h+i)&uint32(len(r.slots)-1)] = txSlot{p, now}
	}
	r.mem.Add(int64(mem))
	r.head.Store(h + uint32(n)) // publishes the slots
}

// peek gives the oldest packet and when it came; nil if there is none.
func (r *txRing) peek() (*packet.Packet, int64) {
	t := r.tail.Load()
	if t == r.head.Load() {
		return nil, 0
	}
	s := &r.slots[t&uint32(len(r.slots)-1)]
	return s.p, s.at
}

// pop frees the descriptor of what peek gave.
func (r *txRing) pop() {
	t := r.tail.Load()
	s := &r.slots[t&uint32(len(r.slots)-1)]
	r.mem.Add(int64(-s.p.Memory()))
	s.p = nil
	r.tail.Store(t + 1)
}

// each calls f for every packet, in a pause.
func (r *txRing) each(f func(*packet.Packet)) {
	for i := r.tail.Load(); i != r.head.Load(); i++ {
		f(r.slots[i&uint32(len(r.slots)-1)].p)
	}
}

// A fifo is a ring that grows.
type fifo[T any] struct {
	items      []T // a power of two
	head, tail uint32
}

func (f *fifo[T]) push(v T) {
	if int(f.head-f.tail) == len(f.items) {
		grown := make([]T, max(2*len(f.items), 64))
		n := uint32(0)
		for ; f.tail != f.head; f.tail++ {
			grown[n] = f.items[f.tail&uint32(len(f.items)-1)]
			n++
		}
		f.items, f.head, f.tail = grown, n, 0
	}
	f.items[f.head&uint32(len(f.items)-1)] = v
	f.head++
}

// front gives the oldest; nil if there is none.
func (f *fifo[T]) front() *T {
	if f.head == f.tail {
		return nil
	}
	return &f.items[f.tail&uint32(len(f.items)-1)]
}

func (f *fifo[T]) pop() (v T) {
	i := f.tail & uint32(len(f.items)-1)
	v, f.items[i] = f.items[i], v
	f.tail++
	return v
}

func (f *fifo[T]) each(do func(*T)) {
	for i := f.tail; i != f.head; i++ {
		do(&f.items[i&uint32(len(f.items)-1)])
	}
}
