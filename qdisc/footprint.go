package qdisc

import "reflect"

// Places is how many packets the rings have memory for, and the bytes of a
// place: the packet, and the burst that may begin there.
func (d *PfifoFast) Places() (n, size int) {
	for i := range d.rings {
		n += len(d.rings[i].slots)
	}
	return n, 2 * sizeOf[uintptr]()
}

// Flows is how many flows there are, how many there can be, one for each value
// that orphan_mask leaves of the flow hash, and the bytes of one, with its
// places in a bucket and in the heap of delayed flows.
func (f *FQ) Flows() (n, most, size int) {
	most = 1
	for mask := f.cfg.OrphanMask; mask != 0; mask &= mask - 1 {
		most *= 2
	}
	return f.flows, most, sizeOf[fqFlow]() + sizeOf[fqSlot]() + 2*sizeOf[uint64]()
}

func sizeOf[T any]() int { return int(reflect.TypeFor[T]().Size()) }
