package fib

import (
	"errors"
	"math/bits"
	"runtime"
	"sync/atomic"
)

const (
	groupBit  = 1 << 40       // of a MAC address held in the low 48 bits
	tombstone = ^uint64(0)    // a slot that was freed in the middle of a run
	static    = -1            // value of seen: never aged, never moved
	refresh   = 1_000_000_000 // ns; a MAC's time is stored at most this often
)

// ErrFull says that the MAC table holds as many addresses as it may.
var ErrFull = errors.New("fib: the MAC table is full")

// An FDB is the MAC table of a bridge: open addressing with linear probing,
// one atomic word an entry.
//
//	word   [ MAC address, 48 bits | port, 16 bits ]   0 = free
//
// Lookup and Learn may be called by any number of workers at once, the other
// methods by any goroutine. Nobody waits for a lock on the data path: a move
// is one compare-and-swap; a new address takes the insertion bit, and if
// another worker has it the address is learned from a later frame.
type FDB struct {
	slots []fdbSlot
	mask  uint64
	seed  uint64
	max   int

	_    [128]byte
	lock atomic.Bool  // the insertion bit: held to fill or free a slot
	n    atomic.Int64 // addresses in the table; changed under lock

	moves, refused atomic.Uint64
	flaps          flapWatch
}

type fdbSlot struct {
	word atomic.Uint64
	seen atomic.Int64 // batch clock, ns, or static
}

// NewFDB makes a table for limit addresses. seed keys the hash, so that nobody
// can choose addresses that collide.
func NewFDB(limit int, seed uint64) *FDB {
	size := 8
	for size < 2*limit {
		size *= 2
	}
	return &FDB{slots: make([]fdbSlot, size), mask: uint64(size - 1), seed: seed, max: limit, flaps: flapWatch{reports: make(chan Flap, 1)}}
}

// MAC gives the first six bytes of b as a number, the first byte highest.
func MAC(b []byte) uint64 {
	_ = b[5]
	return uint64(b[0])<<40 | uint64(b[1])<<32 | uint64(b[2])<<24 | uint64(b[3])<<16 | uint64(b[4])<<8 | uint64(b[5])
}

func (t *FDB) hash(mac uint64) uint64 {
	hi, lo := bits.Mul64(mac^t.seed, 0x9e3779b97f4a7c15)
	return hi ^ lo
}

// find gives the slot that holds mac and the word that was read from it; nil
// if there is none.
func (t *FDB) find(mac uint64) (*fdbSlot, uint64) {
	// The bound only matters to a reader that races with a busy writer.
	for i, n := t.hash(mac), 0; n < len(t.slots); i, n = i+1, n+1 {
		s := &t.slots[i&t.mask]
		w := s.word.Load()
		if w == 0 {
			return nil, 0
		}
		if w>>16 == mac {
			return s, w
		}
	}
	return nil, 0
}

// Lookup gives the port behind which mac lives.
func (t *FDB) Lookup(mac uint64) (port uint16, ok bool) {
	s, w := t.find(mac)
	if s == nil || mac == tombstone>>16 {
		return 0, false
	}
	return uint16(w), true
}

// Learn notes that a frame from mac came in by port. Group addresses and the
// zero address are never learned; a static entry stays where it is.
func (t *FDB) Learn(mac uint64, port uint16, now int64) {
	if mac&groupBit != 0 || mac == 0 {
		return
	}
	s, w := t.find(mac)
	if s == nil {
		t.insert(mac, port, now)
		return
	}
	seen := s.seen.Load()
	if seen == static {
		return
	}
	moved := uint16(w) != port && s.word.CompareAndSwap(w, mac<<16|uint64(port))
	if moved {
		t.moves.Add(1)
		t.flaps.moved(t.hash(mac), Flap{MAC: mac, From: uint16(w), To: port}, now)
	}
	if moved || now-seen >= refresh {
		// Compare, because the slot may have become a static address's meanwhile.
		s.seen.CompareAndSwap(seen, now)
	}
}

// insert adds mac unless another goroutine is inserting or the table is full.
func (t *FDB) insert(mac uint64, port uint16, now int64) {
	if t.n.Load() >= int64(t.max) {
		t.refused.Add(1)
		return
	}
	if !t.lock.CompareAndSwap(false, true) {
		return
	}
	if !t.put(mac, port, now) {
		t.refused.Add(1)
	}
	t.lock.Store(false)
}

// put writes mac's entry under the lock; false if the table is full. Fresh
// probing finds what was inserted before the lock was taken, so that no
// address ever stands twice.
func (t *FDB) put(mac uint64, port uint16, seen int64) bool {
	var free *fdbSlot
	for i := t.hash(mac); ; i++ {
		s := &t.slots[i&t.mask]
		w := s.word.Load()
		if w>>16 == mac {
			free = s
			t.n.Add(-1)
			break
		}
		if free == nil && (w == 0 || w == tombstone) {
			free = s
		}
		if w == 0 {
			break
		}
		if i-t.hash(mac) > t.mask { // no free slot, only tombstones: they do
			break
		}
	}
	if free == nil || t.n.Load() >= int64(t.max) {
		return false
	}
	free.seen.Store(seen)
	free.word.Store(mac<<16 | uint64(port)) // release: seen is there before the word
	t.n.Add(1)
	return true
}

// drop frees slot i under the lock if it still holds w.
func (t *FDB) drop(i uint64, w uint64) bool {
	if !t.slots[i&t.mask].word.CompareAndSwap(w, tombstone) {
		return false
	}
	t.n.Add(-1)
	// At the end of a run tombstones are of no use: no probe goes past them.
	if t.slots[(i+1)&t.mask].word.Load() == 0 {
		for ; t.slots[i&t.mask].word.Load() == tombstone; i-- {
			t.slots[i&t.mask].word.Store(0)
		}
	}
	return true
}

// acquire takes the insertion bit; workers hold it for one insertion only.
func (t *FDB) acquire() {
	for !t.lock.CompareAndSwap(false, true) {
		runtime.Gosched()
	}
}

// remove drops every entry for which gone holds and counts them. The table
// stays open to workers meanwhile.
func (t *FDB) remove(gone func(mac uint64, port uint16, seen int64) bool) int {
	n := 0
	for i := range t.slots {
		s := &t.slots[i]
		w := s.word.Load()
		if w == 0 || w == tombstone || !gone(w>>16, uint16(w), s.seen.Load()) {
			continue
		}
		t.acquire()
		if t.drop(uint64(i), w) {
			n++
		}
		t.lock.Store(false)
	}
	return n
}
