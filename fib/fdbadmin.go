package fib

import "fmt"

// An FDBEntry is one line of a MAC table as people see it.
type FDBEntry struct {
	MAC    [6]byte
	Port   uint16
	Age    int64 // ns since the address was last noted, 0 for static ones
	Static bool
}

// AddStatic enters an address that is neither aged nor moved by traffic.
func (t *FDB) AddStatic(mac uint64, port uint16) error {
	if mac&groupBit != 0 || mac == 0 || mac>>48 != 0 {
		return fmt.Errorf("fib: %012x is not a unicast MAC address", mac)
	}
	t.acquire()
	defer t.lock.Store(false)
	if !t.put(mac, port, static) {
		return ErrFull
	}
	return nil
}

// Delete removes mac, static or not, and reports whether it was there.
func (t *FDB) Delete(mac uint64) bool {
	return t.remove(func(m uint64, _ uint16, _ int64) bool { return m == mac }) > 0
}

// Age removes what was not seen for ageing ns and gives the number removed.
func (t *FDB) Age(now, ageing int64) int {
	return t.remove(func(_ uint64, _ uint16, seen int64) bool { return seen != static && now-seen > ageing })
}

// FlushPort removes the learned addresses of port and gives their number.
func (t *FDB) FlushPort(port uint16) int {
	return t.remove(func(_ uint64, p uint16, seen int64) bool { return p == port && seen != static })
}

// Flush removes every learned address and gives the number removed.
func (t *FDB) Flush() int {
	return t.remove(func(_ uint64, _ uint16, seen int64) bool { return seen != static })
}

// Len is the number of addresses in the table.
func (t *FDB) Len() int { return int(t.n.Load()) }

// Max is the largest number of addresses.
func (t *FDB) Max() int { return t.max }

// FDBSlotSize is the bytes of a place for an address.
const FDBSlotSize = 16

// Places is the number of places for addresses, twice the largest number of
// these or more.
func (t *FDB) Places() int { return len(t.slots) }

// Counters gives how often an address moved to another port, and how often a
// new one found the table full.
func (t *FDB) Counters() (moves, refused uint64) { return t.moves.Load(), t.refused.Load() }

// Entries gives a copy of the table, in no order.
func (t *FDB) Entries(now int64) []FDBEntry {
	es := make([]FDBEntry, 0, t.Len())
	for i := range t.slots {
		w := t.slots[i].word.Load()
		if w == 0 || w == tombstone {
			continue
		}
		e := FDBEntry{Port: uint16(w)}
		for k := range e.MAC {
			e.MAC[k] = byte(w >> (56 - 8*k))
		}
		if seen := t.slots[i].seen.Load(); seen == static {
			e.Static = true
		} else {
			e.Age = max(now-seen, 0)
		}
		es = append(es, e)
	}
	return es
}
