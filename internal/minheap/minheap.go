// Package minheap (data path) is a binary heap of values by due time. Of
// equal times the one pushed first comes first. It allocates only to grow.
package minheap

// A Heap is empty as zero value. It is not safe for concurrent use.
type Heap[T any] struct {
	items []item[T]
	seq   uint64
}

type item[T any] struct {
	at  int64
	seq uint64
	v   T
}

// Len is the number of values.
func (h *Heap[T]) Len() int { return len(h.items) }

// Min gives the earliest time; ok is false if the heap is empty.
func (h *Heap[T]) Min() (at int64, ok bool) {
	if len(h.items) == 0 {
		return 0, false
	}
	return h.items[0].at, true
}

// Push adds v, due at that time.
func (h *Heap[T]) Push(at int64, v T) {
	h.seq++
	h.items = append(h.items, item[T]{at, h.seq, v})
	for i := len(h.items) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.less(i, up) {
			break
		}
		h.swap(i, up)
		i = up
	}
}

// Pop takes the earliest value. The heap must not be empty.
func (h *Heap[T]) Pop() T {
	v := h.items[0].v
	last := len(h.items) - 1
	h.items[0] = h.items[last]
	h.items[last] = item[T]{}
	h.items = h.items[:last]
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			return v
		}
		if down+1 < last && h.less(down+1, down) {
			down++
		}
		if !h.less(down, i) {
			return v
		}
		h.swap(i, down)
		i = down
	}
}

func (h *Heap[T]) swap(i, j int) { h.items[i], h.items[j] = h.items[j], h.items[i] }

func (h *Heap[T]) less(i, j int) bool {
	a, b := &h.items[i], &h.items[j]
	return a.at < b.at || a.at == b.at && int64(a.seq-b.seq) < 0
}
