package packet

import (
	"testing"
	"unsafe"
)

// A Packet is two cache lines, and what queues touch is in the first.
func TestLayout(t *testing.T) {
	var p Packet
	if n := unsafe.Sizeof(p); n != 128 {
		t.Errorf("a Packet has %d bytes, want 128", n)
	}
	if n := unsafe.Offsetof(p.off); n != 64 {
		t.Errorf("what queues touch takes %d bytes, want a cache line", n)
	}
}

// What one worker's cache writes with every packet lies on no cache line of
// another's; the depot's stacks are written apart from what is read mostly,
// and from each other.
func TestCachesAreApart(t *testing.T) {
	if n := unsafe.Sizeof(magazine[Packet]{}); n%64 != 0 {
		t.Errorf("a magazine has %d bytes, want whole cache lines, as they lie in an array", n)
	}
	if n := unsafe.Sizeof(Cache{}); n%64 != 0 {
		t.Errorf("a Cache has %d bytes, want whole cache lines", n)
	}
	var d depot[Packet]
	if r, f, e := unsafe.Offsetof(d.mags)+24, unsafe.Offsetof(d.full), unsafe.Offsetof(d.empty); (r-1)/64 >= unsafe.Offsetof(d.made)/64 || f/64 >= e/64 {
		t.Errorf("a depot's read part ends at %d, its counter is at %d, its stacks at %d and %d", r, unsafe.Offsetof(d.made), f, e)
	}
}
