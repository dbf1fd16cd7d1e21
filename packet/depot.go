package packet

import "sync/atomic"

// A depot is the pool's shared stock of one kind of object. Caches take from
// it and give to it by the magazine (J. Bonwick and J. Adams, Magazines and
// Vmem, USENIX 2001), the last one first, so that memory that was used lately,
// and is warm, is used next. Objects are made when the stock is empty for the
// first time: what was never needed at once was never touched.
type depot[T any] struct {
	total int            // objects there can be
	size  int            // of a magazine
	make  func(i int) *T // gives object i its memory
	mags  []*magazine[T] // by id - 1; grows with caches, before traffic
	_     [128]byte      // below: written by all
	made  atomic.Int64   // objects
	full  stack[T]       // size objects each
	empty stack[T]
}

// A magazine is a stack of free objects. It belongs to a cache, or lies in one
// of the depot's stacks.
type magazine[T any] struct {
	n    int
	objs []*T
	id   uint32
	next atomic.Uint32 // id of the one below it in the depot's stack

	_ [128 - 40]byte // the next one may be another worker's
}

// A stack holds magazines by id. The high half of top counts changes, so that
// a top that has gone and come back is not taken for one that stayed.
type stack[T any] struct {
	top atomic.Uint64
	_   [128 - 8]byte
}

func (s *stack[T]) push(m *magazine[T]) {
	for {
		top := s.top.Load()
		m.next.Store(uint32(top))
		if s.top.CompareAndSwap(top, (top>>32+1)<<32|uint64(m.id)) { // release, pairs with the load in pop
			return
		}
	}
}

func (s *stack[T]) pop(mags []*magazine[T]) *magazine[T] {
	for {
		top := s.top.Load()
		if uint32(top) == 0 {
			return nil
		}
		m := mags[uint32(top)-1]
		if s.top.CompareAndSwap(top, (top>>32+1)<<32|uint64(m.next.Load())) {
			return m
		}
	}
}

// newDepot makes a depot of total objects in magazines of at most size; fresh
// gives object i its memory.
func newDepot[T any](total, size int, fresh func(i int) *T) *depot[T] {
	// Small pools have small magazines, so that caches do not strand them.
	d := &depot[T]{total: total, size: max(min(size, total/32), 1), make: fresh}
	d.grow(total / d.size)
	return d
}

// grow makes n more empty magazines.
func (d *depot[T]) grow(n int) {
	all, objs := make([]magazine[T], n), make([]*T, n*d.size)
	for i := range all {
		m := &all[i]
		m.objs = objs[i*d.size : (i+1)*d.size : (i+1)*d.size]
		d.mags = append(d.mags, m)
		m.id = uint32(len(d.mags))
		d.empty.push(m)
	}
}

// fill makes objects for m, which is empty, if some are left to be made.
func (d *depot[T]) fill(m *magazine[T]) {
	for {
		made := d.made.Load()
		n := min(int64(d.size), int64(d.total)-made)
		if n <= 0 {
			return
		}
		if d.made.CompareAndSwap(made, made+n) {
			for i := range n {
				m.objs[i] = d.make(int(made + i))
			}
			m.n = int(n)
			return
		}
	}
}

// free counts the objects in the depot. In a pause only.
func (d *depot[T]) free() (n int) {
	for id := uint32(d.full.top.Load()); id != 0; id = d.mags[id-1].next.Load() {
		n += d.mags[id-1].n
	}
	return n
}

// A stock is a cache's part of a depot's objects: two magazines, so that one
// object more or less does not go to the depot and back each time.
type stock[T any] struct {
	depot       *depot[T]
	load, spare *magazine[T]
}

// newStock takes two magazines, and leaves the depot one for the moment in
// which a cache has three.
func (d *depot[T]) newStock() stock[T] {
	d.grow(3)
	return stock[T]{d, d.empty.pop(d.mags), d.empty.pop(d.mags)}
}

// get takes an object; nil if there is none.
func (s *stock[T]) get() *T {
	if m := s.load; m.n > 0 {
		m.n--
		return m.objs[m.n]
	}
	return s.refill()
}

// refill finds another magazine to take from, and takes.
func (s *stock[T]) refill() *T {
	s.load, s.spare = s.spare, s.load
	if s.load.n == 0 {
		if m := s.depot.full.pop(s.depot.mags); m != nil {
			s.depot.empty.push(s.load)
			s.load = m
		} else if s.depot.fill(s.load); s.load.n == 0 {
			return nil
		}
	}
	return s.get()
}

// put gives an object back.
func (s *stock[T]) put(obj *T) {
	if m := s.load; m.n < len(m.objs) {
		m.objs[m.n] = obj
		m.n++
		return
	}
	s.spill(obj)
}

// spill finds another magazine to put into, and puts.
func (s *stock[T]) spill(obj *T) {
	s.load, s.spare = s.spare, s.load
	if s.load.n == len(s.load.objs) {
		s.depot.full.push(s.load)
		// There is one: of total / size magazines and three for each cache, no
		// more than total / size are full, and no cache has more than three.
		s.load = s.depot.empty.pop(s.depot.mags)
	}
	s.put(obj)
}

func (s *stock[T]) len() int { return s.load.n + s.spare.n }
