package fib

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"sync/atomic"
)

// A Neigh is a neighbour whose MAC address is known, or known not to answer.
// Neighbours that are being asked for are in no snapshot. Immutable in a
// snapshot, but for Used.
type Neigh struct {
	Iface  uint16 // L3 interface
	Addr   netip.Addr
	MAC    [6]byte
	Failed bool // it did not answer: packets for it are dropped at once

	// Used is the batch clock (ns) at which a worker last sent to the
	// neighbour, give or take 250 ms. It may be nil; control shares one
	// counter between the snapshots that hold the neighbour.
	Used *atomic.Int64
}

// Neighbours is an immutable set of neighbours, open addressing with linear
// probing at a load of a half. The nil Neighbours is empty. Any number of
// goroutines may look up at once.
type Neighbours struct {
	slots []neighSlot
	mask  uint64
	n     int
}

type neighSlot struct {
	hi, lo uint64 // the address in its 16-byte form
	iface  uint16
	neigh  *Neigh // nil = free
}

// BuildNeighbours makes a snapshot of ns. Of two for the same interface and
// address the later wins. Invalid addresses are left out.
func BuildNeighbours(ns []Neigh) *Neighbours {
	size := 8
	for size < 2*len(ns) {
		size *= 2
	}
	t := &Neighbours{slots: make([]neighSlot, size), mask: uint64(size - 1)}
	all := append([]Neigh(nil), ns...)
	for i := range all {
		n := &all[i]
		if !n.Addr.IsValid() {
			continue
		}
		n.Addr = n.Addr.WithZone("").Unmap()
		hi, lo := words(n.Addr)
		s := t.find(n.Iface, hi, lo)
		if s.neigh == nil {
			t.n++
		}
		*s = neighSlot{hi: hi, lo: lo, iface: n.Iface, neigh: n}
	}
	return t
}

func words(a netip.Addr) (hi, lo uint64) {
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

// find gives the slot that holds the key, or the free one where it would go.
func (t *Neighbours) find(iface uint16, hi, lo uint64) *neighSlot {
	h, l := bits.Mul64(lo^uint64(iface)<<48, 0x9e3779b97f4a7c15)
	for i := h ^ l ^ hi*0xbf58476d1ce4e5b9; ; i++ {
		s := &t.slots[i&t.mask]
		if s.neigh == nil || s.lo == lo && s.hi == hi && s.iface == iface {
			return s
		}
	}
}

// Lookup gives the neighbour addr on interface iface; nil if it is unknown.
// It is valid as long as the caller wants.
func (t *Neighbours) Lookup(iface uint16, addr netip.Addr) *Neigh {
	if t == nil {
		return nil
	}
	hi, lo := words(addr)
	return t.find(iface, hi, lo).neigh
}

// Len is the number of neighbours.
func (t *Neighbours) Len() int {
	if t == nil {
		return 0
	}
	return t.n
}
