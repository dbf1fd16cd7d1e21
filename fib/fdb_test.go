package fib

import (
	"math/rand/v2"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const sec = 1_000_000_000

func TestFDBRules(t *testing.T) {
	f := NewFDB(2, 1)
	for _, mac := range []uint64{0, 1 << 40, 0xffffffffffff, 0x0180c2000000} {
		if f.Learn(mac, 1, 0); f.Len() != 0 {
			t.Errorf("%012x was learned", mac)
		}
		if _, ok := f.Lookup(mac); ok {
			t.Errorf("%012x was found in an empty table", mac)
		}
	}
	f.Learn(0xa, 1, 0)
	f.Learn(0xb, 2, 0)
	f.Learn(0xc, 3, 0)
	if _, refused := f.Counters(); f.Len() != 2 || refused != 1 {
		t.Errorf("limit 2: %d addresses, %d refused; want 2, 1", f.Len(), refused)
	}
	f.Learn(0xa, 4, 1)
	if p, ok := f.Lookup(0xa); !ok || p != 4 {
		t.Errorf("moved: Lookup = %d, %v, want 4", p, ok)
	}
	if moves, _ := f.Counters(); moves != 1 {
		t.Errorf("moves = %d, want 1", moves)
	}
	f.Learn(0xb, 2, 10*sec)
	if n := f.Age(10*sec+5, 5*sec); n != 1 || f.Len() != 1 {
		t.Errorf("Age removed %d, %d left; want 1, 1", n, f.Len())
	}
	if err := f.AddStatic(0xd, 7); err != nil {
		t.Error(err)
	}
	if err := f.AddStatic(0xe, 7); err != ErrFull {
		t.Errorf("AddStatic to a full table = %v, want ErrFull", err)
	}
	if err := f.AddStatic(1<<40, 7); err == nil {
		t.Error("AddStatic took a group address")
	}
	f.Learn(0xd, 1, 20*sec)
	f.Age(1<<60, 0)
	f.FlushPort(7)
	if p, ok := f.Lookup(0xd); !ok || p != 7 || f.Len() != 1 {
		t.Errorf("static entry: Lookup = %d, %v, Len %d; want 7, true, 1", p, ok, f.Len())
	}
	if err := f.AddStatic(0xd, 8); err != nil || f.Len() != 1 {
		t.Errorf("AddStatic again: %v, Len %d; want nil, 1", err, f.Len())
	}
	if !f.Delete(0xd) || f.Delete(0xd) || f.Len() != 0 {
		t.Error("Delete did not remove the static entry once")
	}
}

func TestFDBRefreshOncePerSecond(t *testing.T) {
	f := NewFDB(8, 1)
	f.Learn(0xa, 1, 0)
	for _, tt := range []struct{ at, age int64 }{{sec - 1, sec - 1}, {sec, 0}, {sec + sec/2, sec / 2}} {
		f.Learn(0xa, 1, tt.at)
		if es := f.Entries(tt.at); len(es) != 1 || es[0].Age != tt.age || es[0].MAC != [6]byte{5: 0xa} || es[0].Port != 1 {
			t.Errorf("at %d: %+v, want age %d", tt.at, es, tt.age)
		}
	}
}

// The golden twin is a map; seeded random operations, one goroutine.
func TestFDBAgainstMap(t *testing.T) {
	type twin struct {
		port uint16
		seen int64
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	f, m := NewFDB(64, 99), map[uint64]twin{}
	now := int64(0)
	for i := range 200_000 {
		mac, port := 1+rnd.Uint64N(100), uint16(rnd.UintN(4))
		now += rnd.Int64N(sec / 4)
		switch op := rnd.UintN(100); {
		case op < 70:
			f.Learn(mac, port, now)
			e, ok := m[mac]
			switch {
			case !ok && len(m) < 64:
				m[mac] = twin{port, now}
			case ok && (e.port != port || now-e.seen >= sec):
				m[mac] = twin{port, now}
			}
		case op < 97:
			got, ok := f.Lookup(mac)
			if e, want := m[mac]; ok != want || ok && got != e.port {
				t.Fatalf("step %d: Lookup(%x) = %d, %v, want %d, %v", i, mac, got, ok, e.port, want)
			}
		case op < 98:
			f.FlushPort(port)
			for k, e := range m {
				if e.port == port {
					delete(m, k)
				}
			}
		case op < 99:
			f.Delete(mac)
			delete(m, mac)
		default:
			f.Age(now, 3*sec)
			for k, e := range m {
				if now-e.seen > 3*sec {
					delete(m, k)
				}
			}
		}
		if f.Len() != len(m) {
			t.Fatalf("step %d: %d addresses, want %d", i, f.Len(), len(m))
		}
	}
}

// Workers learn and look up while control ages and flushes: no address ever
// stands twice, and nobody gets a port that its MAC never had.
func TestFDBStress(t *testing.T) {
	f := NewFDB(300, 7)
	start, stop := make(chan struct{}), make(chan struct{})
	var workers, control sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			<-start
			for i := range int64(30_000) {
				mac := 1 + rnd.Uint64N(400)
				f.Learn(mac, uint16(mac%7)*8+uint16(rnd.UintN(2)), i)
				if p, ok := f.Lookup(1 + rnd.Uint64N(400)); ok && p&7 > 1 {
					t.Errorf("port %d was never learned", p)
				}
				mac = 1 + rnd.Uint64N(400)
				if p, ok := f.Lookup(mac); ok && uint64(p/8) != mac%7 {
					t.Errorf("%x has port %d", mac, p)
				}
			}
		})
	}
	control.Go(func() {
		for i := uint16(0); ; i++ {
			select {
			case <-stop:
				return
			default:
				f.FlushPort(i % 56)
				f.Age(int64(i), 1000)
				f.Delete(uint64(i % 400))
			}
		}
	})
	close(start)
	workers.Wait()
	close(stop)
	control.Wait()
	seen := map[[6]byte]bool{}
	for _, e := range f.Entries(0) {
		if seen[e.MAC] {
			t.Errorf("%x stands twice", e.MAC)
		}
		seen[e.MAC] = true
	}
	if len(seen) != f.Len() || f.Len() > f.Max() {
		t.Errorf("%d entries, Len %d, Max %d", len(seen), f.Len(), f.Max())
	}
}

// An address that moves once has migrated; one that moves again soon is
// reported, once in a while only, whatever else moves.
func TestFDBFlaps(t *testing.T) {
	f := NewFDB(100, 1)
	now := int64(sec)
	next := func() (got Flap) {
		select {
		case got = <-f.Flaps():
		default:
		}
		return got
	}
	f.Learn(5, 1, now)
	f.Learn(5, 2, now) // migrated
	f.Learn(6, 1, now)
	f.Learn(5, 1, now+15*sec) // and back, much later
	if got := next(); got != (Flap{}) {
		t.Fatalf("an address that moved once is reported: %+v", got)
	}
	now += 30 * sec
	for range 1000 {
		f.Learn(5, 2, now)
		f.Learn(5, 1, now)
		now += sec / 1000
	}
	if got, want := next(), (Flap{MAC: 5, From: 2, To: 1, Count: 1}); got != want {
		t.Errorf("reported %+v, want %+v", got, want)
	}
	f.Learn(5, 2, now)
	f.Learn(5, 1, now)
	if got := next(); got != (Flap{}) {
		t.Errorf("reported again at once: %+v", got)
	}
	now += flapReport
	f.Learn(5, 2, now)
	f.Learn(5, 1, now)
	if got := next(); got.Count < 1999 || got.MAC != 5 {
		t.Errorf("reported %+v, want it with the count so far", got)
	}
	if n := testing.AllocsPerRun(100, func() {
		now += flapReport
		f.Learn(5, 2, now)
		f.Learn(5, 1, now+1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestFDBAllocs(t *testing.T) {
	f := NewFDB(100, 1)
	now := int64(0)
	if n := testing.AllocsPerRun(100, func() {
		now += sec
		f.Learn(uint64(now%97), uint16(now%3), now)
		f.Lookup(5)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkFDBLookup(b *testing.B) {
	f := NewFDB(8192, 42)
	for i := range uint64(8192) {
		f.Learn(0x020000000000+i*77, uint16(i&7), 0)
	}
	b.ReportAllocs()
	i := uint64(0)
	for b.Loop() { // one lookup of a random known MAC
		i = i*6364136223846793005 + 1
		f.Lookup(0x020000000000 + i>>51*77)
	}
}
