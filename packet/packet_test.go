package packet

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
)

func pool(t testing.TB, m Memory) *Pool {
	p, err := NewPool(m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestPushPullMoveOffsets(t *testing.T) {
	c := pool(t, Memory{Heads: 64, Tails: 1}).NewCache()
	p := c.Get()
	p.Set([]byte("0123456789"))
	p.L3, p.L4 = 2, 4
	p.Vnet = Vnet{Flags: NeedsCsum, CsumStart: 4, HdrLen: 6}
	copy(p.Push(3), "abc")
	if got := string(p.Bytes()); got != "abc0123456789" {
		t.Errorf("after Push: %q", got)
	}
	if p.L3 != 5 || p.L4 != 7 || p.Vnet.CsumStart != 7 || p.Vnet.HdrLen != 9 {
		t.Errorf("after Push: L3 %d L4 %d csum_start %d hdr_len %d", p.L3, p.L4, p.Vnet.CsumStart, p.Vnet.HdrLen)
	}
	p.Pull(5)
	if got := string(p.Bytes()); got != "23456789" || p.L3 != 0 || p.L4 != 2 || p.Vnet.CsumStart != 2 {
		t.Errorf("after Pull: %q L3 %d L4 %d csum_start %d", got, p.L3, p.L4, p.Vnet.CsumStart)
	}
	if p.Push(HeadLen) != nil {
		t.Error("Push beyond the headroom succeeded")
	}
	c.Put(p)
}

func TestTrimAndCopyOut(t *testing.T) {
	c := pool(t, Memory{Heads: 64, Tails: 2}).NewCache()
	whole := []byte("headTAILTAIL")
	for n := range len(whole) + 2 {
		p := c.Get()
		p.Set(whole[:4])
		tail := c.GetTail()
		copy(tail.B, whole[4:])
		p.SetTail(tail, 0, 8)
		p.Trim(n)
		want := whole[:min(n, len(whole))]
		got := make([]byte, 20)
		if got = got[:p.CopyOut(got, 0)]; !bytes.Equal(got, want) || p.Len() != len(want) {
			t.Errorf("Trim(%d) leaves %q, Len %d, want %q", n, got, p.Len(), want)
		}
		for from := range len(want) {
			b := make([]byte, 3)
			if k := p.CopyOut(b, from); !bytes.Equal(b[:k], want[from:min(from+3, len(want))]) {
				t.Errorf("CopyOut(3 bytes from %d of %q) = %q", from, want, b[:k])
			}
		}
		c.Put(p)
	}
}

// Clones share the tail; it is free when the last of them has ended.
func TestCloneSharesTail(t *testing.T) {
	pool := pool(t, Memory{Heads: 64, Tails: 2})
	c := pool.NewCache()
	p := c.Get()
	p.Set([]byte("head"))
	tail := c.GetTail()
	copy(tail.B, "tail")
	p.SetTail(tail, 0, 4)
	q := c.Clone(p)
	q.Bytes()[0] = 'H'
	c.Put(p)
	if got := string(q.Bytes()) + string(q.TailBytes()); got != "Headtail" {
		t.Errorf("the clone reads %q", got)
	}
	if _, tails := pool.InUse(); tails != 1 {
		t.Errorf("%d tails in use while a clone lives, want 1", tails)
	}
	c.Put(q)
	if heads, tails := pool.InUse(); heads != 0 || tails != 0 {
		t.Errorf("%d heads and %d tails in use at the end", heads, tails)
	}
}

// What is appended is frame: for Len, for CopyOut from anywhere, for a clone
// (flat) and for Put.
func TestAppend(t *testing.T) {
	pl := pool(t, Memory{Heads: 64, Tails: 3})
	c := pl.NewCache()
	frame := func(head, tail string) *Packet {
		p := c.Get()
		p.Set([]byte(head))
		if tail != "" {
			b := c.GetTail()
			p.SetTail(b, 0, copy(b.B, tail))
		}
		return p
	}
	p := frame("HDRabc", "def")
	for _, q := range []*Packet{frame("HDRghi", ""), frame("HDRjkl", "mno"), frame("HDRp", "")} {
		p.Append(q, 3)
		p.Segs++
	}
	want := "HDRabcdefghijklmnop"
	if !p.Merged() || p.Len() != len(want) || p.Memory() != 4*HeadLen+2*TailLen {
		t.Errorf("Merged %v, Len %d, Memory %d", p.Merged(), p.Len(), p.Memory())
	}
	flat := c.Clone(p)
	if flat.Merged() || flat.HeadLength() != 6 {
		t.Errorf("a clone is merged: %v, with a head of %d bytes", flat.Merged(), flat.HeadLength())
	}
	if c.Clone(p) != nil {
		t.Error("a clone without a tail to be had")
	}
	for _, p := range []*Packet{p, flat} {
		for from := range len(want) + 1 {
			for n := range len(want) + 2 {
				b := make([]byte, n)
				if got := string(b[:p.CopyOut(b, from)]); got != want[from:min(from+n, len(want))] {
					t.Fatalf("CopyOut(%d bytes from %d) = %q", n, from, got)
				}
			}
		}
		c.Put(p)
	}
	if heads, tails := pl.InUse(); heads != 0 || tails != 0 {
		t.Errorf("%d heads and %d tails are lost", heads, tails)
	}
	if p := c.Get(); p.Merged() || p.Len() != 0 {
		t.Error("a packet remembers what was appended in its last life")
	}
}

func TestPoolEndsAndRefills(t *testing.T) {
	pool := pool(t, Memory{Heads: 200, Tails: 3})
	a, b := pool.NewCache(), pool.NewCache()
	seen := map[*Packet]bool{}
	var l List
	for p := a.Get(); p != nil; p = a.Get() {
		if seen[p] {
			t.Fatal("the same packet was given twice")
		}
		seen[p] = true
		l.Push(p)
	}
	if len(seen) != 200 || a.GetTail() == nil {
		t.Fatalf("a pool of 200 gave %d packets", len(seen))
	}
	b.PutList(&l)
	n := 0
	for p := a.Get(); p != nil; p = a.Get() {
		l.Push(p)
		n++
	}
	for p := b.Get(); p != nil; p = b.Get() {
		l.Push(p)
		n++
	}
	if n != 200 {
		t.Errorf("%d of 200 packets came back through another cache", n)
	}
}

// Packets that move between caches as between workers are never given twice
// and never lost.
func TestPoolStress(t *testing.T) {
	const workers, rounds = 4, 20000
	pool := pool(t, Memory{Heads: 256, SmallTails: 64, Tails: 64})
	var caches [workers]*Cache
	var hand [workers]chan *Packet
	for i := range caches {
		caches[i], hand[i] = pool.NewCache(), make(chan *Packet, 256)
	}
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range workers {
		wg.Go(func() {
			<-start
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for range rounds {
				if p := caches[i].Get(); p != nil {
					p.Set([]byte{byte(i)})
					if rng.IntN(8) == 0 {
						if t := caches[i].GetTail(); t != nil {
							p.SetTail(t, 0, 1)
						}
					}
					select {
					case hand[rng.IntN(workers)] <- p:
					default:
						caches[i].Put(p)
					}
				}
				select {
				case p := <-hand[i]:
					if p.HeadLength() != 1 {
						panic("a packet was reused while it was in flight")
					}
					caches[i].Put(p)
				default:
				}
			}
		})
	}
	close(start)
	wg.Wait()
	for i := range hand {
		close(hand[i])
		for p := range hand[i] {
			caches[i].Put(p)
		}
	}
	if heads, tails := pool.InUse(); heads != 0 || tails != 0 {
		t.Errorf("%d heads and %d tails are missing", heads, tails)
	}
}

func TestListKeepsOrder(t *testing.T) {
	var a, b List
	var want []*Packet
	for i := range 6 {
		p := &Packet{Hash: uint32(i)}
		want = append(want, p)
		if i < 3 {
			a.Push(p)
		} else {
			b.Push(p)
		}
	}
	a.Append(&b)
	a.Append(&b)
	if a.Len() != 6 || b.Len() != 0 || b.Front() != nil {
		t.Errorf("lengths after Append: %d, %d", a.Len(), b.Len())
	}
	for _, w := range want {
		if got := a.Pop(); got != w {
			t.Errorf("Pop = packet %d, want %d", got.Hash, w.Hash)
		}
	}
	if a.Pop() != nil || a.Front() != nil || a.Len() != 0 {
		t.Error("the list is not empty at the end")
	}
}

func TestReasonsAreComplete(t *testing.T) {
	seen := map[string]bool{}
	for r := range NumReasons {
		if r.String() == "" || r.Text() == "" || seen[r.String()] {
			t.Errorf("reason %d: name %q, text %q", r, r.String(), r.Text())
		}
		seen[r.String()] = true
	}
}

func BenchmarkCache(b *testing.B) {
	c := pool(b, Memory{Heads: 1024, Tails: 1}).NewCache()
	b.ReportAllocs()
	for b.Loop() { // a packet taken and put back, hot
		c.Put(c.Get())
	}
}

// Two caches of which one takes and the other gives: everything goes through
// the depot.
func BenchmarkDepot(b *testing.B) {
	pool := pool(b, Memory{Heads: 8192, Tails: 1})
	in, out := pool.NewCache(), pool.NewCache()
	var l List
	b.ReportAllocs()
	for b.Loop() { // 64 packets taken by one and given by the other
		for range MaxBatch {
			p := in.Get()
			p.buf[0] = 1
			l.Push(p)
		}
		out.PutList(&l)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/MaxBatch, "ns/pkt")
}
