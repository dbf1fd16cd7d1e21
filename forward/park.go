package forward

import (
	"net/netip"

	"taprouter/fib"
	"taprouter/packet"
)

// Bounds of waiting: neighbours waited for, packets for one of them and for
// all, how many of these hold more than a head, and how often and how long.
const (
	parkSlots   = 64
	parkPackets = 64
	parkAll     = 1024
	parkLarge   = 16
	askAgain    = 1e9 // ns between two requests for one neighbour
	parkTime    = 5e9 // ns until a packet that nobody cares for is dropped
)

// A park holds packets whose neighbour is not known yet.
type park struct {
	segs   int // wire packets waiting
	n      int // packets waiting
	large  int // those of them that hold more than a head
	used   int // slots in use, the first ones
	looked int64
	slots  [parkSlots]parked
}

// A parked is a neighbour with the packets that wait for it, perhaps none.
type parked struct {
	iface uint16
	addr  netip.Addr
	since int64
	asked int64
	list  packet.List
}

// wait parks p and asks for the neighbour.
func (f *Forwarder) wait(iface uint16, addr netip.Addr, p *packet.Packet, now int64, out *Output) {
	k := &f.park
	e := k.find(iface, addr)
	if e == nil {
		if k.used == parkSlots {
			out.drop(p, packet.DropNeighQueue)
			return
		}
		if k.used == 0 {
			k.looked = now
		}
		e = &k.slots[k.used]
		*e = parked{iface: iface, addr: addr, since: now, asked: now - askAgain}
		k.used++
	}
	e.ask(now, out)
	if e.list.Len() == parkPackets || e.list.Len() > 0 && k.n == parkAll {
		out.drop(k.pop(e), packet.DropNeighQueue) // the oldest makes room, as in the kernel
	}
	if k.n == parkAll || large(p) && k.large == parkLarge {
		out.drop(p, packet.DropNeighQueue)
		return
	}
	k.push(e, p)
}

// ask asks for the neighbour unless that was done a short while ago.
func (e *parked) ask(now int64, out *Output) {
	if now-e.asked >= askAgain && out.resolve(e.iface, e.addr) {
		e.asked = now
	}
}

func (k *park) push(e *parked, p *packet.Packet) {
	k.n++
	k.segs += int(p.Segs)
	if large(p) {
		k.large++
	}
	e.list.Push(p)
}

// pop takes the oldest packet that waits for e; nil if there is none.
func (k *park) pop(e *parked) *packet.Packet {
	p := e.list.Pop()
	if p == nil {
		return nil
	}
	k.n--
	k.segs -= int(p.Segs)
	if large(p) {
		k.large--
	}
	return p
}

func (k *park) find(iface uint16, addr netip.Addr) *parked {
	for i := range k.slots[:k.used] {
		if e := &k.slots[i]; e.iface == iface && e.addr == addr {
			return e
		}
	}
	return nil
}

// remove frees slot i, whose list is empty.
func (k *park) remove(i int) {
	k.used--
	k.slots[i] = k.slots[k.used]
	k.slots[k.used] = parked{}
}

// Retry sends what waited for neighbours that s knows, and drops what waited
// for those that did not answer, or for too long. It is called with each new
// snapshot, before anything is read.
func (f *Forwarder) Retry(s *Snapshot, now int64, out *Output) {
	f.use(s)
	k := &f.park
	k.looked = now
	for i := 0; i < k.used; {
		e := &k.slots[i]
		var n *fib.Neigh
		if int(e.iface) < len(s.Ifaces) {
			n = f.neighbour(s, e.iface, e.addr, now)
		}
		if n == nil && now-e.since < parkTime {
			e.ask(now, out)
			i++
			continue
		}
		f.unpark(s, e, n, now, out)
		k.remove(i)
	}
}

// unpark empties e: n is the neighbour, nil if it was waited for too long.
func (f *Forwarder) unpark(s *Snapshot, e *parked, n *fib.Neigh, now int64, out *Output) {
	for p := f.park.pop(e); p != nil; p = f.park.pop(e) {
		if n != nil && !n.Failed {
			f.toEther(s, &s.Ifaces[e.iface], fib.MAC(n.MAC[:]), p, out)
			continue
		}
		f.icmpError(s, p, icmpHostUnreachable, 0, now, out)
		out.drop(p, packet.DropNeighFailed)
	}
}

func (k *park) purge(out *Output, why packet.Reason) {
	for ; k.used > 0; k.remove(k.used - 1) {
		e := &k.slots[k.used-1]
		for p := k.pop(e); p != nil; p = k.pop(e) {
			out.drop(p, why)
		}
	}
}

// large reports whether p holds more than a head.
func large(p *packet.Packet) bool { return p.Memory() > packet.HeadLen }
