package qdisc

import "taprouter/packet"

// Bands is the number of bands of pfifo_fast.
const Bands = 3

// Priomap gives the band of a packet by the low four bits of its priority,
// the kernel's fixed table (sch_generic.c, prio2band).
var Priomap = [16]uint8{1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}

// PfifoFast is the kernel's default qdisc: three bands of strict priority,
// band 0 first, each a ring of txqueuelen packets. It locks nothing.
type PfifoFast struct {
	rings [Bands]ring
}

// NewPfifoFast makes a pfifo_fast whose bands hold txqueuelen packets each.
func NewPfifoFast(txqueuelen int) *PfifoFast {
	d := &PfifoFast{}
	for i := range d.rings {
		d.rings[i].init(txqueuelen)
	}
	return d
}

// Kind is the qdisc's name in tc.
func (d *PfifoFast) Kind() string { return "pfifo_fast" }

// CanBypass: a packet that meets an empty qdisc may go straight on.
func (d *PfifoFast) CanBypass() bool { return true }

// Enqueue takes packets of l into their bands; what is left in l did not fit.
// Any worker may call it.
func (d *PfifoFast) Enqueue(l *packet.List) (s Sum) {
	first := Priomap[l.Front().Priority&15]
	if n := d.sameBand(l, first); n == l.Len() { // nearly always
		d.rings[first].push(l, &s)
		return s
	}
	var bands [Bands]packet.List
	for p := l.Pop(); p != nil; p = l.Pop() {
		bands[Priomap[p.Priority&15]].Push(p)
	}
	for b := range bands {
		if bands[b].Len() > 0 {
			d.rings[b].push(&bands[b], &s)
		}
		l.Append(&bands[b])
	}
	return s
}

func (d *PfifoFast) sameBand(l *packet.List, band uint8) int {
	n := 0
	for p := l.Front(); p != nil && Priomap[p.Priority&15] == band; p = p.Next {
		n++
	}
	return n
}

// Dequeue takes the next packet; nil if every band is empty.
func (d *PfifoFast) Dequeue(int64) *packet.Packet {
	for i := range d.rings {
		if p := d.rings[i].pop(); p != nil {
			return p
		}
	}
	return nil
}

// Len is the number of places that are taken or reserved.
func (d *PfifoFast) Len() (n int) {
	for i := range d.rings {
		n += d.rings[i].len()
	}
	return n
}

// Resize changes the length of each band; the newest packets that do not fit
// any more go to surplus. The caller excludes producers.
func (d *PfifoFast) Resize(txqueuelen int, surplus *packet.List) {
	for i := range d.rings {
		var all packet.List
		for p := d.rings[i].pop(); p != nil; p = d.rings[i].pop() {
			all.Push(p)
		}
		d.rings[i].init(txqueuelen)
		d.rings[i].head.Store(0)
		d.rings[i].tail.Store(0)
		d.rings[i].next, d.rings[i].left = 0, 0
		if all.Len() > 0 {
			d.rings[i].push(&all, &Sum{})
		}
		surplus.Append(&all)
	}
}
