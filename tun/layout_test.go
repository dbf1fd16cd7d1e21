package tun

import (
	"testing"
	"unsafe"
)

// What the reader of a queue writes lies on no cache line that its writers
// read, of this queue or of the next.
func TestLayout(t *testing.T) {
	var q Queue
	if d := unsafe.Offsetof(q.rx) - (unsafe.Offsetof(q.driver) + unsafe.Sizeof(q.driver)); d < 64 {
		t.Errorf("the reader's part begins %d bytes behind what writers read", d)
	}
	if d := unsafe.Sizeof(q) - (unsafe.Offsetof(q.rx) + unsafe.Sizeof(q.rx)); d < 64 {
		t.Errorf("the reader's part ends %d bytes before the next queue", d)
	}
}
