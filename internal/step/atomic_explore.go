//go:build explore

// Package step (data path), explore build: every operation is a step of a
// deterministic scheduler. See atomic.go for the product's side.
package step

// A Uint32 stands for atomic.Uint32. Its operations are sequentially
// consistent, and those that write drain the thread's store buffer first.
type Uint32 struct{ v uint32 }

// Load is atomic.Uint32.Load.
func (x *Uint32) Load() uint32 {
	at()
	note("Load() = %d", x.v)
	return x.v
}

// Store is atomic.Uint32.Store.
func (x *Uint32) Store(v uint32) {
	at()
	wrote()
	x.v = v
	note("Store(%d)", v)
}

// CompareAndSwap is atomic.Uint32.CompareAndSwap. If it fails it is a load.
func (x *Uint32) CompareAndSwap(old, v uint32) bool {
	at()
	ok := x.v == old
	if ok {
		wrote()
		x.v = v
	}
	note("CompareAndSwap(%d, %d) = %t", old, v, ok)
	return ok
}

// Or is atomic.Uint32.Or: a write even if it changes nothing.
func (x *Uint32) Or(mask uint32) uint32 {
	at()
	wrote()
	old := x.v
	x.v |= mask
	note("Or(%#b) = %#b", mask, old)
	return old
}

// And is atomic.Uint32.And.
func (x *Uint32) And(mask uint32) uint32 {
	at()
	wrote()
	old := x.v
	x.v &= mask
	note("And(^%#b) = %#b", ^mask, old)
	return old
}

// Add is atomic.Uint32.Add.
func (x *Uint32) Add(d uint32) uint32 {
	at()
	wrote()
	x.v += d
	note("Add(%d) = %d", int32(d), x.v)
	return x.v
}

// A Pointer stands for a slot that is published with a release store: it may
// wait in the thread's store buffer while the thread goes on to load other
// words. (Go's own Store does not; the protocol must hold without that.)
type Pointer[T any] struct{ v *T }

// Load sees the thread's own buffered store.
func (x *Pointer[T]) Load() *T {
	at()
	p := x.v
	if b := buffered(); b != nil && b.where == any(x) {
		p = b.value.(*T)
	}
	note("Load() = %s", ptr(p))
	return p
}

// Store publishes p, at once or, if the scheduler says so, later.
func (x *Pointer[T]) Store(p *T) {
	at()
	wrote()
	if p != nil && delay() {
		note("Store(%s), delayed", ptr(p))
		buffer(&store{where: x, value: p, do: func() { x.v = p }})
		return
	}
	x.v = p
	note("Store(%s)", ptr(p))
}

// CompareAndSwap is atomic.Pointer.CompareAndSwap. If it fails it is a load.
func (x *Pointer[T]) CompareAndSwap(old, p *T) bool {
	at()
	ok := x.v == old
	if ok {
		wrote()
		x.v = p
	}
	note("CompareAndSwap(%s, %s) = %t", ptr(old), ptr(p), ok)
	return ok
}

// Swap is atomic.Pointer.Swap.
func (x *Pointer[T]) Swap(p *T) *T {
	at()
	wrote()
	old := x.v
	x.v = p
	note("Swap(%s) = %s", ptr(p), ptr(old))
	return old
}

func ptr[T any](p *T) string {
	if p == nil {
		return "nil"
	}
	return "packet"
}

// Pause waits until another thread has written something.
func Pause() { pause() }

// Point is a step that touches nothing.
func Point(what string) {
	at()
	note("%s", what)
}
