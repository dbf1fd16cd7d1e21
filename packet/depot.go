package packet

import (
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A depot is the pool's shared stock: a bounded ring with many producers and
// many consumers, a sequence number in every slot (D. Vyukov's queue). It is
// as large as the number of objects that exist, so put never fails.
type depot[T any] struct {
	mask  uint32
	slots []slot[T]
	_     [128]byte
	in    atomic.Uint32 // free-running; wraps harmlessly, slots compare by difference
	_     [128]byte
	out   atomic.Uint32
	_     [128]byte
}

type slot[T any] struct {
	seq atomic.Uint32
	obj *T
}

func newDepot[T any](n int) *depot[T] {
	size := 1
	for size < n {
		size *= 2
	}
	d := &depot[T]{mask: uint32(size - 1), slots: make([]slot[T], size)}
	for i := range d.slots {
		d.slots[i].seq.Store(uint32(i))
	}
	return d
}

func (d *depot[T]) put(obj *T) {
	for {
		pos := d.in.Load()
		s := &d.slots[pos&d.mask]
		switch diff := int32(s.seq.Load() - pos); {
		case diff == 0:
			if d.in.CompareAndSwap(pos, pos+1) {
				s.obj = obj
				s.seq.Store(pos + 1) // release, pairs with the load in get
				return
			}
		case diff < 0:
			// The slot's consumer has taken its turn but not yet released the
			// slot; it does so in its next instructions.
			runtime.Gosched()
		}
	}
}

func (d *depot[T]) get() *T {
	for {
		pos := d.out.Load()
		s := &d.slots[pos&d.mask]
		switch diff := int32(s.seq.Load() - (pos + 1)); {
		case diff == 0:
			if d.out.CompareAndSwap(pos, pos+1) {
				obj := s.obj
				s.obj = nil
				s.seq.Store(pos + d.mask + 1) // release, pairs with the load in put
				return obj
			}
		case diff < 0:
			return nil
		}
	}
}

func (d *depot[T]) len() int { return int(d.in.Load() - d.out.Load()) }

func munmap(b []byte) error { return unix.Munmap(b) }
