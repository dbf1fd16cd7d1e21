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
