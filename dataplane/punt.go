package dataplane

import (
	"context"
	"net/netip"

	"taprouter/offload"
	"taprouter/packet"
)

// A Punt is a packet for the router itself.
type Punt struct {
	Iface uint16
	p     *packet.Packet
}

// A request is work for one worker, at the top of its loop.
type request struct {
	next *request
	do   func(w *Worker)
}

// post gives w work; anybody may call it.
func (w *Worker) post(do func(w *Worker)) {
	r := &request{do: do}
	for {
		r.next = w.inbox.Load()
		if w.inbox.CompareAndSwap(r.next, r) {
			w.poller.Wake()
			return
		}
	}
}

// serveInbox does what was posted, oldest first.
func (w *Worker) serveInbox() {
	if w.inbox.Load() == nil {
		return
	}
	var first *request
	for r := w.inbox.Swap(nil); r != nil; {
		next := r.next
		r.next = first
		first, r = r, next
	}
	for r := first; r != nil; r = r.next {
		r.do(w)
	}
}

// punt hands what the router itself has to deal with to the control plane,
// which copies it. A full channel drops: a worker never waits.
func (w *Worker) punt() {
	for p := w.out.Punts.Pop(); p != nil; p = w.out.Punts.Pop() {
		segs := uint64(p.Segs) // afterwards p is control's
		select {
		case w.dp.punts <- Punt{Iface: p.Out, p: p}:
			w.counters.punted += segs
		default:
			p.Out = packet.NoPort
			p.Drop = packet.DropPuntFull
			w.cpu.Drops.Push(p)
		}
	}
	for _, r := range w.out.Resolve[:w.out.Resolves] {
		select {
		case w.dp.resolves <- r:
		default: // asked for again with the next packet
		}
	}
	w.out.Resolves = 0
}

// A Handler is the control plane's side of punts.
type Handler interface {
	// HandleFrame takes a frame for L3 interface iface whose checksums are
	// complete. The frame is the handler's.
	HandleFrame(iface uint16, frame []byte)
	// Resolve asks for the MAC address of a neighbour.
	Resolve(iface uint16, addr netip.Addr)
}

// Serve gives punts and requests to h until ctx ends.
func (dp *Dataplane) Serve(ctx context.Context, h Handler) {
	for {
		select {
		case <-ctx.Done():
			return
		case u := <-dp.punts:
			h.HandleFrame(u.Iface, dp.take(u.p))
		case r := <-dp.resolves:
			h.Resolve(r.Iface, r.Addr)
		}
	}
}

// take copies a punted packet's frame and ends the packet.
func (dp *Dataplane) take(p *packet.Packet) []byte {
	if p.Vnet.Flags&packet.NeedsCsum != 0 {
		offload.Checksum(p) // if it cannot, the checksum is wrong and the receiver sees it
	}
	frame := make([]byte, p.Len())
	p.CopyOut(frame, 0)
	dp.ctl.Lock()
	dp.ctlCache.Put(p)
	dp.ctl.Unlock()
	return frame
}

// Inject sends a frame of the router's own out of L3 interface iface. It is
// copied. false says that no buffer was free or the frame is too long.
func (dp *Dataplane) Inject(iface uint16, frame []byte) bool {
	p := dp.copyIn(frame)
	if p == nil {
		return false
	}
	w := dp.workers[int(iface)%len(dp.workers)]
	w.post(func(w *Worker) { w.inject(iface, p) })
	return true
}

// copyIn makes a packet of a frame; nil without room for it.
func (dp *Dataplane) copyIn(frame []byte) *packet.Packet {
	dp.ctl.Lock()
	defer dp.ctl.Unlock()
	p := dp.ctlCache.Get()
	if p == nil {
		return nil
	}
	head := min(len(frame), packet.HeadLen-packet.Headroom)
	p.Set(frame[:head])
	if rest := frame[head:]; len(rest) > 0 {
		t := dp.ctlCache.GetTailFor(len(rest))
		if t == nil {
			dp.ctlCache.Put(p)
			return nil
		}
		rest = rest[:copy(t.B, rest)] // a frame that is longer is nobody's
		p.SetTail(t, 0, len(rest))
	}
	return p
}

// inject sends p like a packet that was read.
func (w *Worker) inject(iface uint16, p *packet.Packet) {
	p.Flags = packet.Local
	if w.snap.IsRaw(iface) {
		p.Flags |= packet.Raw
	}
	w.batch.Pkts[0] = p
	w.cls.Batch(w.batch.Pkts[:1])
	w.counters.injected += uint64(p.Segs)
	w.fwd.Inject(w.snap, iface, p, w.now, &w.out)
	w.transmit(w)
}
