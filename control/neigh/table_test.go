package neigh

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"taprouter/fib"
)

var otherMAC = [6]byte{2, 0, 0, 0, 0, 2}

// addr is host n of a large IPv6 subnet of ours.
func addr(n int) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 12: 1, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)})
}

// check holds the heap and the map to each other.
func check(t *testing.T, tab *Table) {
	t.Helper()
	if len(tab.due) != len(tab.all) || len(tab.all) > MaxEntries {
		t.Fatalf("%d entries in the heap, %d in the table", len(tab.due), len(tab.all))
	}
	for i, e := range tab.due {
		if e.pos != i || tab.all[e.key] != e || i > 0 && tab.due[(i-1)/2].due > e.due {
			t.Fatalf("entry %v at %d of the heap is out of place", e.addr, i)
		}
	}
}

// A probe goes to the neighbour, then to everybody, then it has failed; the
// data path uses the neighbour meanwhile. One that moved is found.
func TestProbe(t *testing.T) {
	for _, moved := range []bool{false, true} {
		w := newWire(t)
		w.tab.Resolve(0, host4)
		w.hear(arpOf(t, 2, hostMAC, host4, ours4))
		n := w.known(host4)
		n.Used.Store(w.now + int64(29*time.Second))
		w.after(30 * time.Second)
		for i := 1; i < 6; i++ {
			if len(w.sent) != 1 || w.sent[0][0] == 0xff != (i > 3) || w.known(host4).Failed {
				t.Fatalf("probe %d: %d frames", i, len(w.sent))
			}
			w.after(time.Second)
		}
		if moved {
			w.hear(arpOf(t, 2, otherMAC, host4, ours4))
			if n := w.known(host4); n.MAC != otherMAC || w.state(host4) != "REACHABLE" {
				t.Errorf("moved: %+v, %s", n, w.state(host4))
			}
			continue
		}
		if w.after(time.Second); w.state(host4) != "FAILED" || !w.known(host4).Failed {
			t.Errorf("after six probes: %s", w.state(host4))
		}
		if w.after(3 * time.Second); w.known(host4) != nil {
			t.Error("the failure is not forgotten")
		}
	}
}

// A stale neighbour that is used again is asked within Delay, and shown as
// DELAY until then.
func TestStaleUsed(t *testing.T) {
	w := newWire(t)
	w.hear(arpOf(t, 1, hostMAC, host4, ours4))
	if got := w.after(20 * time.Second); len(got) != 0 || w.state(host4) != "STALE" {
		t.Fatalf("unused: %d requests, %s", len(got), w.state(host4))
	}
	w.known(host4).Used.Store(w.now)
	if got := w.state(host4); got != "DELAY" {
		t.Errorf("used: %s, want DELAY", got)
	}
	if got := w.after(5 * time.Second); len(got) != 1 || w.state(host4) != "PROBE" {
		t.Errorf("5 s later: %d requests, %s", len(got), w.state(host4))
	}
}

// Nothing is due without neighbours, and many idle ones wake Run no more
// often than one.
func TestQuiet(t *testing.T) {
	w := newWire(t)
	if next := w.tab.tick(); next != never {
		t.Errorf("an empty table is due at %d", next)
	}
	for i := range 200 {
		w.now += int64(7 * time.Millisecond)
		w.hear(arpOf(t, 1, hostMAC, netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), ours4))
	}
	wakes := 0
	for end := w.now + int64(time.Hour); ; wakes++ {
		next := w.tab.tick()
		if next == never || next > end {
			break
		}
		w.now = next
	}
	if wakes > 125 { // ten minutes, one each five seconds
		t.Errorf("%d wake-ups", wakes)
	}
	if n := len(w.tab.Entries()); n != 0 || w.last.Len() != 0 {
		t.Errorf("%d entries after an hour", n)
	}
}

func TestPermanent(t *testing.T) {
	var last *fib.Neighbours
	w := newWire(t)
	cfg := w.tab.cfg
	cfg.Permanent = []fib.Neigh{{Iface: 0, Addr: host4, MAC: hostMAC}}
	cfg.Publish = func(n *fib.Neighbours) { last = n }
	w.tab = New(cfg)
	if next := w.tab.tick(); next != never || last.Lookup(0, host4) == nil || last.Lookup(0, host4).MAC != hostMAC {
		t.Fatalf("due at %d, known as %+v", next, last.Lookup(0, host4))
	}
	w.tab.Resolve(0, host4)
	w.hear(arpOf(t, 2, otherMAC, host4, ours4))
	w.hear(arpOf(t, 1, otherMAC, host4, ours4))
	if n := w.tab.Flush(0); n != 0 {
		t.Errorf("Flush forgot %d", n)
	}
	for i := range 2 * MaxEntries {
		w.tab.learn(0, addr(i), claim{mac: hostMAC, create: true})
	}
	w.after(time.Hour)
	if n := last.Lookup(0, host4); w.state(host4) != "PERMANENT" || n == nil || n.MAC != hostMAC || n.Failed {
		t.Errorf("at the end: %s, %+v", w.state(host4), n)
	}
	check(t, w.tab)
}

func TestFlush(t *testing.T) {
	w := newWire(t)
	w.hear(arpOf(t, 1, hostMAC, host4, ours4))
	if w.known(host4) == nil {
		t.Fatal("the asker is not known")
	}
	if n := w.tab.Flush(1); n != 0 {
		t.Errorf("another interface's: %d", n)
	}
	if n := w.tab.Flush(0); n != 1 || w.known(host4) != nil {
		t.Errorf("Flush = %d, still known as %v", n, w.known(host4))
	}
}

// Requests are spaced out, and a scan that is far ahead of them is not
// followed; an hour later all is as before.
func TestRequestLimit(t *testing.T) {
	w := newWire(t)
	for i := range 10_000 {
		w.tab.Resolve(0, addr(i))
	}
	if n := len(w.sent); n != requestBurst {
		t.Errorf("%d requests at once, want %d", n, requestBurst)
	}
	s := w.tab.Stats()
	if n := len(w.tab.Entries()); uint64(n)+s.Limited != 10_000 || n > requestBurst+1001 {
		t.Errorf("%d entries, %d not asked for", n, s.Limited)
	}
	for range 50 {
		if n := len(w.after(100 * time.Millisecond)); n > 101 {
			t.Errorf("%d requests in 100 ms", n)
		}
	}
	w.after(time.Hour)
	w.after(time.Hour)
	w.tab.Resolve(0, host6)
	if len(w.tab.Entries()) != 1 || len(w.sent) != 1 {
		t.Errorf("afterwards: %d entries, %d requests", len(w.tab.Entries()), len(w.sent))
	}
}

// Whatever is asked for or announced, the table is bounded, and a neighbour
// that is used stays.
func TestBounded(t *testing.T) {
	w := newWire(t)
	w.hear(arpOf(t, 1, hostMAC, host4, ours4))
	w.known(host4).Used.Store(w.now)
	for i := range MaxEntries + 2*sweep {
		w.now += int64(10 * time.Microsecond)
		if i%2 == 0 {
			w.tab.Resolve(0, addr(i))
		} else {
			w.tab.learn(0, addr(i), claim{mac: hostMAC, create: true})
		}
	}
	for i := range MaxEntries + 2*sweep {
		w.tab.learn(0, addr(1<<20+i), claim{mac: hostMAC, create: true})
	}
	check(t, w.tab)
	if w.known(host4) == nil || w.tab.Stats().Evicted == 0 {
		t.Errorf("the neighbour in use is %s, %d evicted", w.state(host4), w.tab.Stats().Evicted)
	}
}

// The first change is published at once, a burst of them together.
func TestPublishTogether(t *testing.T) {
	w := newWire(t)
	w.tab.Resolve(0, host4)
	before := w.tab.Stats().Published
	w.hear(arpOf(t, 2, hostMAC, host4, ours4))
	if w.last.Lookup(0, host4) == nil {
		t.Error("an answer is not published at once")
	}
	for i := range 200 {
		w.tab.learn(0, addr(i), claim{mac: hostMAC, create: true})
		w.tab.settle(w.now)
	}
	if n := w.tab.Stats().Published - before; n != 1 {
		t.Errorf("%d snapshots, want 1", n)
	}
	if next := w.tab.next(); next != w.now+int64(time.Millisecond) {
		t.Errorf("the rest is due in %v", time.Duration(next-w.now))
	}
	if w.after(time.Millisecond); w.last.Len() != 201 {
		t.Errorf("%d neighbours are known, want 201", w.last.Len())
	}
}

// Random events: heap and map agree, and what the data path sees is what the
// table holds.
func TestRandom(t *testing.T) {
	w := newWire(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 20_000 {
		a := addr(rnd.IntN(100))
		switch rnd.IntN(6) {
		case 0, 1:
			w.tab.Resolve(0, a)
		case 2:
			flags := uint8(rnd.IntN(8)) << 5
			w.hear(ndOf(t, 136, 255, [6]byte{2, 5: byte(rnd.IntN(3))}, a, ours6, a, flags, 2*uint8(rnd.IntN(2))))
		case 3:
			w.hear(ndOf(t, 135, 255, hostMAC, a, ours6, ours6, 0, 1))
		case 4:
			if n := w.last.Lookup(0, a); n != nil {
				n.Used.Store(w.now)
			}
		default:
			w.after(time.Duration(rnd.IntN(3000)) * time.Millisecond)
		}
		if i%2000 == 0 {
			w.tab.Flush(0)
		}
		check(t, w.tab)
		w.known(a)
		seen := 0
		for _, e := range w.tab.all {
			n := w.last.Lookup(0, e.addr)
			if (n == nil) != (e.state == incomplete) || n != nil && (n.MAC != e.mac || n.Failed != (e.state == failed)) {
				t.Fatalf("step %d: %v is %s, the data path sees %+v", i, e.addr, e.state, n)
			}
			if n != nil {
				seen++
			}
		}
		if seen != w.last.Len() {
			t.Fatalf("step %d: the data path sees %d neighbours, want %d", i, w.last.Len(), seen)
		}
	}
}

// Several callers at once, and Run: for the race detector.
func TestConcurrent(t *testing.T) {
	w := newWire(t)
	begin := time.Now()
	cfg := w.tab.cfg
	cfg.Inject = func(uint16, []byte) bool { return true }
	cfg.Publish = func(*fib.Neighbours) {}
	cfg.Now = func() int64 { return int64(time.Since(begin)) }
	cfg.Timing = Timing{Retrans: time.Millisecond, Reachable: time.Millisecond, Delay: time.Millisecond, Failed: time.Millisecond, Unused: time.Millisecond}
	tab := New(cfg)
	stop := runTable(t, tab)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 500 {
				a := addr(g*1000 + i%50)
				tab.Resolve(0, a)
				tab.HandleFrame(0, ndOf(t, 136, 255, hostMAC, a, ours6, a, 0x60, 2))
				tab.Entries()
				if i%100 == 0 {
					tab.Flush(0)
				}
			}
		})
	}
	wg.Wait()
	stop()
	check(t, tab)
}
