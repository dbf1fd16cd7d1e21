package forward

import (
	"net/netip"

	"taprouter/packet"
)

// Bounds of waiting: neighbours waited for, packets for one of them, and how
// often and how long.
const (
	parkSlots   = 64
	parkPackets = 64
	askAgain    = 1e9  // ns between two requests for one neighbour
	parkTime    = 10e9 // ns until a packet that nobody cares for is dropped
)

// A park holds packets whose neighbour is not known yet.
type park struct {
	segs  int // wire packets waiting
	used  int // slots in use, the first ones
	slots [parkSlots]parked
}

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
		e = &k.slots[k.used]
		*e = parked{iface: iface, addr: addr, since: now, asked: now - askAgain}
		k.used++
	}
	if now-e.asked >= askAgain {
		e.asked = now
		out.resolve(iface, addr)
	}
	if e.list.Len() == parkPackets { // the oldest makes room, as in the kernel
		k.segs -= int(e.list.Front().Segs)
		out.drop(e.list.Pop(), packet.DropNeighQueue)
	}
	k.segs += int(p.Segs)
	e.list.Push(p)
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
// for those that did not answer. It is called with each new snapshot, before
// anything is read.
func (f *Forwarder) Retry(s *Snapshot, now int64, out *Output) {
	f.use(s)
	k := &f.park
	for i := 0; i < k.used; {
		e := &k.slots[i]
		n := s.Neigh.Lookup(e.iface, e.addr)
		if n == nil && now-e.since < parkTime && int(e.iface) < len(s.Ifaces) {
			i++
			continue
		}
		for p := e.list.Pop(); p != nil; p = e.list.Pop() {
			k.segs -= int(p.Segs)
			switch {
			case n == nil || int(e.iface) >= len(s.Ifaces):
				out.drop(p, packet.DropNeighFailed)
			case n.Failed:
				f.icmpError(s, p.In, p, icmpHostUnreachable, now, out)
				out.drop(p, packet.DropNeighFailed)
			default:
				f.toEther(s, &s.Ifaces[e.iface], n, p, out)
			}
		}
		k.remove(i)
	}
}

func (k *park) purge(out *Output, why packet.Reason) {
	for k.used > 0 {
		e := &k.slots[k.used-1]
		for p := e.list.Pop(); p != nil; p = e.list.Pop() {
			out.drop(p, why)
		}
		k.remove(k.used - 1)
	}
	k.segs = 0
}
