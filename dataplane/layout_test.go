package dataplane

import (
	"testing"
	"unsafe"
)

// Fields that different threads write, or that one writes and others read with
// every packet, lie on different cache lines. Each row names a struct and what
// must lie apart in it: the offset of a group's first byte and of its last one.
func TestLayout(t *testing.T) {
	type group struct {
		name       string
		first, end uintptr
	}
	var q TxQueue
	var w Worker
	var l line
	var p Port
	var r txRing
	for _, s := range []struct {
		name   string
		groups []group
	}{
		{"TxQueue", []group{
			{"read by all", 0, unsafe.Offsetof(q.line) + 8},
			{"stop bits", unsafe.Offsetof(q.xoff), unsafe.Offsetof(q.xoff) + unsafe.Sizeof(q.xoff)},
			{"ring", unsafe.Offsetof(q.ring) + unsafe.Offsetof(r.head), unsafe.Offsetof(q.ring) + unsafe.Offsetof(r.mem) + 8},
			{"home's", unsafe.Offsetof(q.load), unsafe.Offsetof(q.through) + unsafe.Sizeof(q.through)},
			{"counters of the run bit holder", unsafe.Offsetof(q.packets), unsafe.Sizeof(q)},
		}},
		{"txRing", []group{
			{"read by both", 0, unsafe.Offsetof(r.limit) + 8},
			{"producer's", unsafe.Offsetof(r.head), unsafe.Offsetof(r.head) + 4},
			{"consumer's", unsafe.Offsetof(r.tail), unsafe.Offsetof(r.mem) + 8},
		}},
		{"Worker", []group{
			{"its own", 0, unsafe.Offsetof(w.counters)},
			{"published counters", unsafe.Offsetof(w.counters) + unsafe.Offsetof(w.counters.pub.punted), unsafe.Offsetof(w.counters) + unsafe.Offsetof(w.counters.pub.drops)},
			{"its own timers", unsafe.Offsetof(w.timers), unsafe.Offsetof(w.ticked) + 1},
			{"for others", unsafe.Offsetof(w.inbox), unsafe.Offsetof(w.epoch) + 4},
			{"the next object", unsafe.Sizeof(w) + 63, unsafe.Sizeof(w) + 64},
		}},
		{"line", []group{
			{"read by both", 0, unsafe.Offsetof(l.queues) + 24},
			{"idle", unsafe.Offsetof(l.idle), unsafe.Offsetof(l.idle) + 1},
			{"home's", unsafe.Offsetof(l.timer), unsafe.Sizeof(l)},
		}},
		{"Port", []group{
			{"read by all", 0, unsafe.Offsetof(p.steer) + 8},
			{"order", unsafe.Offsetof(p.order) + unsafe.Offsetof(p.order.slots), unsafe.Offsetof(p.order) + unsafe.Offsetof(p.order.reordered) + 8},
			{"control's", unsafe.Offsetof(p.stopHop), unsafe.Sizeof(p)},
		}},
	} {
		for i, g := range s.groups[1:] {
			if before := s.groups[i]; (before.end-1)/64 >= g.first/64 {
				t.Errorf("%s: %q ends at %d and %q begins at %d, on the same cache line", s.name, before.name, before.end, g.name, g.first)
			}
		}
	}
	// An object begins on a line of its own if its size class is whole lines;
	// an rxQueue, whose class may not be, ends with one that nobody touches.
	var rx rxQueue
	if used := unsafe.Offsetof(rx.merged) + unsafe.Sizeof(rx.merged); unsafe.Sizeof(rx)-used < 64 {
		t.Errorf("an rxQueue has %d bytes, of which %d are used", unsafe.Sizeof(rx), used)
	}
}
