package dataplane

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"taprouter/bql"
	"taprouter/offload"
	"taprouter/packet"
	"taprouter/qdisc"
	"taprouter/tun"
	"taprouter/xpsflow"
)

// A TxQueue is where qdisc, BQL and device meet: the kernel's struct
// netdev_queue with the driver behind it. Stopped, Avail and Send belong to
// the holder of its qdisc's run bit; Stopped may be read by anybody.
//
//	qdisc ─▶ Send ─▶ [ batch: DQL queued ─▶ write ─▶ DQL completed ] ─▶ pool
//	           ▲ refused (EAGAIN): the rest stays, driver stop, EPOLLOUT wakes
//
//	qdisc ─▶ Send ─▶ DQL queued ─▶ [ ring ] ─▶ line ─▶ DQL completed, write ─▶ pool
//	           ▲ ring full: the rest stays, driver stop, the line wakes
type TxQueue struct {
	// Read mostly, by all workers.
	port  *Port
	index int
	q     *tun.Queue
	home  *Worker // waits for EPOLLOUT
	token uint32  // of that wait
	qdisc atomic.Pointer[qdisc.Qdisc]
	line  *line // nil: packets are written at once

	_    [64]byte
	xoff qdisc.Xoff // written by who stops the queue, and by who wakes it
	dql  bql.DQL    // its own groups
	ring txRing     // its own groups

	// The home worker's.
	load     *load                        // nil: none ever
	watchdog timer                        // runs the qdisc when what it holds is due
	through  struct{ bytes, pkts uint32 } // that left the line since the last reap

	_ [64]byte

	// Written by the run bit holder, or by the line; read in a pause.
	packets, bytes     uint64 // wire packets, frame bytes
	driverStops        uint64
	segmented, csummed uint64                 // frames cut out of superpackets, checksums completed, in software
	gsoRefused         uint64                 // superpackets that the device refused
	inRow              [len(shapeNames)]uint8 // of these, since one of the same shape was taken
}

// DQL starts at one superpacket and may let 512 KiB be taken at a time.
const (
	bqlStart = 64 << 10
	bqlMax   = 512 << 10
)

func newTxQueue(p *Port, i int, q *tun.Queue) *TxQueue {
	home := p.dp.home(i)
	t := &TxQueue{port: p, index: i, q: q, home: home, token: txToken + uint32(len(home.home))}
	home.home = append(home.home, t)
	t.watchdog.init(home, func() { t.qdisc.Load().Schedule(&home.cpu) })
	t.dql.Init(bqlStart, bqlMax)
	return t
}

// Arm asks for the qdisc to be run at that time. qdisc_watchdog_schedule.
func (t *TxQueue) Arm(c *qdisc.CPU, at int64) { t.watchdog.request(t.port.dp.worker(c.ID), at) }

// Stopped reports whether the stack or the driver stopped the queue.
func (t *TxQueue) Stopped() bool { return t.xoff.Stopped() }

// Avail is how many bytes DQL lets go now; negative if too many are out.
func (t *TxQueue) Avail() int { return t.dql.Avail() }

// Send writes packets from the front of l, in order, and ends them. When the
// device has no room the queue stops and l keeps what was refused.
func (t *TxQueue) Send(c *qdisc.CPU, l *packet.List) {
	w := t.port.dp.worker(c.ID)
	if t.line != nil {
		t.sendLine(w, l)
		return
	}
	for l.Len() > 0 && !t.xoff.DriverStopped() {
		if t.mustSegment(l.Front()) {
			t.sendSegments(w, l)
		} else {
			t.sendBatch(w, l)
		}
	}
}

// sendLine puts packets in the ring until it is full. Then the queue stops,
// and the line, which frees descriptors before it looks, wakes it.
func (t *TxQueue) sendLine(w *Worker, l *packet.List) {
	for l.Len() > 0 {
		n := min(t.ring.room(), l.Len())
		if n == 0 {
			t.driverStops++
			t.xoff.StopDriver()
			if t.ring.room() < t.wakeRoom() {
				break
			}
			t.xoff.WakeDriver() // D5: descriptors came free meanwhile
			continue
		}
		var bytes uint32
		for p, i := l.Front(), 0; i < n; p, i = p.Next, i+1 {
			bytes += p.WireLen
		}
		t.queued(bytes, n, w.now) // before the line can complete it
		t.ring.push(l, n, w.now)
	}
	t.line.start(w)
}

// wakeRoom is how much of a ring that was full must be free again.
func (t *TxQueue) wakeRoom() int { return max(int(t.ring.size)/4, 1) }

// reap completes what has left the line and wakes the queue. In the kernel a
// driver's NAPI poll does this.
func (t *TxQueue) reap(w *Worker) {
	if t.through.pkts == 0 {
		return
	}
	t.completed(t.through.bytes, int(t.through.pkts), w)
	t.through.bytes, t.through.pkts = 0, 0
	if t.xoff.DriverStopped() && t.ring.room() >= t.wakeRoom() && t.xoff.WakeDriver() {
		t.qdisc.Load().Schedule(&w.cpu)
	}
}

// mustSegment reports whether p is a superpacket of a shape that the port's
// reader does not take, or one that was begun to be segmented.
func (t *TxQueue) mustSegment(p *packet.Packet) bool {
	s := shapeOf(p)
	return s != 0 && (p.SegNext != 0 || !t.takes(s))
}

// takes reports whether reader and device take superpackets of this shape.
func (t *TxQueue) takes(s Shape) bool { return t.port.shapes.takes.Load()&uint32(s) != 0 }

// sendBatch writes up to a batch of whole frames from l.
func (t *TxQueue) sendBatch(w *Worker, l *packet.List) {
	b := &w.tx.batch
	b.N = 0
	var bytes uint32
	for l.Len() > 0 && b.N < packet.MaxBatch && !t.mustSegment(l.Front()) {
		p := l.Pop()
		if !t.checksum(w, p) {
			continue
		}
		bytes += p.WireLen
		b.Add(p)
	}
	t.queued(bytes, b.N, w.now)
	sent := b.Slice()
	for rest := sent; len(rest) > 0; {
		n, errno := t.write(w, rest)
		if t.gsoRefused != 0 {
			t.taken(rest[:n])
		}
		t.end(w, rest[:n])
		rest = rest[n:]
		if errno == 0 {
			break
		}
		if errno == unix.EINVAL && shapeOf(rest[0]) != 0 {
			if errno = t.sendRefused(w, rest[0]); errno == 0 {
				t.end(w, rest[:1])
				rest = rest[1:]
				continue
			}
		}
		if errno == unix.EAGAIN || errno == unix.ENOBUFS {
			t.refuse(l, rest)
			break
		}
		t.fail(w, rest[0], errno)
		rest = rest[1:]
	}
	t.completed(bytes, len(sent), w)
}

// checksum completes the checksum of p if the port's reader does not; false
// if that failed and p was dropped.
func (t *TxQueue) checksum(w *Worker, p *packet.Packet) bool {
	if p.Vnet.Flags&packet.NeedsCsum == 0 || t.port.accept&AcceptCsum != 0 {
		return true
	}
	if p.Drop = offload.Checksum(p); p.Drop != 0 {
		w.cpu.Drops.Push(p)
		return false
	}
	t.csummed++
	return true
}

// sendSegments cuts the superpacket at the front of l and writes its
// segments. How far it came is kept in the packet, so that after a refusal
// it goes on where it was; its flow table bucket is held until the last.
func (t *TxQueue) sendSegments(w *Worker, l *packet.List) {
	p := l.Pop()
	if p.Drop = w.tx.seg.Init(p); p.Drop != 0 {
		w.cpu.Drops.Push(p)
		return
	}
	wire := p.WireLen // end frees p
	t.queued(wire, 1, w.now)
	errno := t.writeSegments(w, p, p.Segs, &w.tx.seg, w.tx.hdr[:])
	one := w.tx.batch.Pkts[:1]
	one[0] = p
	switch errno {
	case 0:
		t.end(w, one)
	case unix.EAGAIN, unix.ENOBUFS:
		t.refuse(l, one)
	default:
		t.fail(w, p, errno)
	}
	t.completed(wire, 1, w)
}

// sendRefused writes p, which the device refused as a superpacket, in
// segments; EINVAL if it is none that can be segmented.
func (t *TxQueue) sendRefused(w *Worker, p *packet.Packet) unix.Errno {
	if w.tx.seg.Init(p) != 0 {
		return unix.EINVAL
	}
	errno := t.writeSegments(w, p, p.Segs, &w.tx.seg, w.tx.hdr[:])
	if errno != unix.EINVAL { // the segments are right, so it was the shape
		t.refusedShape(p)
	}
	return errno
}

// writeSegments writes the segments of p, which seg was set up for, from
// p.SegNext to end, and counts them.
func (t *TxQueue) writeSegments(w *Worker, p *packet.Packet, end uint16, seg *offload.Segmenter, hdr []byte) (errno unix.Errno) {
	for p.SegNext < end && errno == 0 {
		n, payload := seg.Next(hdr)
		errno = t.writePart(w, p, 1, seg, packet.Vnet{}, hdr[:n], payload)
	}
	return errno
}

// writePiece writes the next k segments of p as one frame, and in segments
// what is refused as that.
func (t *TxQueue) writePiece(w *Worker, p *packet.Packet, k uint16, seg *offload.Segmenter, hdr []byte) (errno unix.Errno) {
	refused := false
	if t.takes(shapeOf(p)) {
		v, n, payload := seg.Piece(int(k), hdr)
		errno = t.writePart(w, p, k, seg, v, hdr[:n], payload)
		if refused = errno == unix.EINVAL && k > 1; !refused {
			return errno
		}
		seg.Init(p) // back to where it was
	}
	errno = t.writeSegments(w, p, p.SegNext+k, seg, hdr)
	if refused && errno != unix.EINVAL {
		t.refusedShape(p)
	}
	return errno
}

// writePart writes k segments of p, that seg gave, as one frame and counts them.
func (t *TxQueue) writePart(w *Worker, p *packet.Packet, k uint16, seg *offload.Segmenter, v packet.Vnet, hdr []byte, payload [][]byte) unix.Errno {
	if v.GSOType != packet.GSONone && t.port.shapes.fault&shapeOf(p) != 0 {
		return unix.EINVAL
	}
	if errno := w.writer.WriteSegment(t.q, v, hdr, payload); errno != 0 {
		return errno
	}
	if v.GSOType != packet.GSONone {
		t.inRow[shapeIndex(shapeOf(p))] = 0
	}
	t.bytes += uint64(seg.Wire(int(p.SegNext), int(k)) - int(k-1)*len(hdr))
	t.packets += uint64(k)
	t.segmented++
	p.SegNext += k
	return 0
}

// queued tells DQL what the device is about to get; over the limit the queue
// stops, until completed. netdev_tx_sent_queue.
func (t *TxQueue) queued(bytes uint32, pkts int, now int64) {
	t.dql.Queued(bytes, uint32(pkts), now)
	if t.dql.Avail() < 0 {
		t.xoff.StopStack(t.dql.Avail)
	}
}

// completed tells DQL that the device is done with them: written, refused or
// failed. netdev_tx_completed_queue.
func (t *TxQueue) completed(bytes uint32, pkts int, w *Worker) {
	t.dql.Completed(bytes, uint32(pkts), w.now)
	if t.dql.Avail() >= 0 && t.xoff.WakeStack() {
		t.qdisc.Load().Schedule(&w.cpu)
	}
}

// end ends packets that were written: counted, their order watched, released,
// freed.
func (t *TxQueue) end(w *Worker, pkts []*packet.Packet) {
	if len(pkts) == 0 {
		return
	}
	for _, p := range pkts {
		if p.SegNext != 0 {
			continue // counted segment by segment
		}
		t.packets += uint64(p.Segs)
		t.bytes += uint64(p.Len())
	}
	t.port.order.see(pkts)
	xpsflow.CompleteBatch(pkts)
	for _, p := range pkts {
		w.cache.Put(p)
	}
}

// refuse puts pkts back to the front of l, stops the queue like a full NIC
// ring and asks for a wake-up. The wait is asked for after the stop: if the
// device has room by then, the wake comes at once.
func (t *TxQueue) refuse(l *packet.List, pkts []*packet.Packet) {
	var rest packet.List
	for _, p := range pkts {
		rest.Push(p)
	}
	rest.Append(l)
	*l = rest
	t.driverStops++
	t.xoff.StopDriver()
	if t.home.poller.WatchWritable(t.q, t.token) != nil {
		t.xoff.WakeDriver() // the device is gone: the next write says so
	}
}

// fail drops a packet that the device would not take and never will.
func (t *TxQueue) fail(w *Worker, p *packet.Packet, errno unix.Errno) {
	p.Drop = txReason(errno)
	if p.Drop == packet.DropDeviceGone && t.q.IsSocket() { // a reader need not hear of it
		t.port.dp.lost(t.port.Index, t.q, errno)
	}
	w.cpu.Drops.Push(p)
}

func txReason(errno unix.Errno) packet.Reason {
	switch errno {
	case unix.EINVAL, unix.EMSGSIZE:
		return packet.DropTxInval
	case unix.EBADFD, unix.EBADF, unix.ENODEV, unix.EPIPE, unix.ECONNRESET, unix.ECONNREFUSED, unix.ENOTCONN, unix.ETIMEDOUT:
		return packet.DropDeviceGone
	}
	return packet.DropTxError // EIO: the interface is down
}
