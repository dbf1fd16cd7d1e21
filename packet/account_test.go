package packet

import (
	"testing"

	"pgregory.net/rapid"
)

// Whatever happens to packets, what they say that they hold is what the pool
// has given out: heads, and tails of both kinds once for each holder. The
// oracle walks over everything.
func TestMemoryIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := Memory{Heads: 200, SmallTails: 6, Tails: 9}
		pl, err := NewPool(m)
		if err != nil {
			t.Fatal(err)
		}
		defer pl.Close()
		caches := []*Cache{pl.NewCache(), pl.NewCache()}
		var live []*Packet
		pick := func(t *rapid.T, n int, what string) int { return rapid.IntRange(0, n-1).Draw(t, what) }
		cache := func(t *rapid.T) *Cache { return caches[pick(t, 2, "cache")] }
		take := func(i int) *Packet {
			p := live[i]
			live = append(live[:i], live[i+1:]...)
			return p
		}
		check := func(t *rapid.T) {
			sum, pieces, tails := 0, 0, map[*Tail]bool{}
			for _, p := range live {
				held := 0
				own := func(p *Packet) {
					pieces++
					held += HeadLen
					if p.tail != nil {
						held += len(p.tail.B)
						tails[p.tail] = true
					}
				}
				own(p)
				for f := p.FirstFrag(); f != nil; f = p.NextFrag(f) {
					own(f)
				}
				if p.Memory() != held {
					t.Fatalf("Memory = %d, want %d", p.Memory(), held)
				}
				sum += held
			}
			u := pl.Usage()
			bytes := 0
			for _, k := range u.Kinds() {
				bytes += k.InUse * k.Size
				if all := k.InUse + k.Free + k.Untouched + k.Cached[0] + k.Cached[1]; all != k.Total {
					t.Fatalf("%d of %d buffers of %d bytes are somewhere: %+v", all, k.Total, k.Size, k)
				}
			}
			if u.Heads.InUse != pieces || u.Tails.InUse+u.SmallTails.InUse != len(tails) {
				t.Fatalf("%+v in use, want %d heads and %d tails", u, pieces, len(tails))
			}
			if sum < bytes || bytes > m.Bytes() {
				t.Fatalf("packets hold %d bytes, the pool has given %d of %d", sum, bytes, m.Bytes())
			}
		}
		read := func(t *rapid.T) { // as a reader does
			c, n := cache(t), rapid.SampledFrom([]int{0, 1, SmallTailLen, SmallTailLen + 1, 60000}).Draw(t, "n")
			p := c.Get()
			if p == nil {
				return
			}
			p.Set([]byte("head"))
			if n > 0 {
				tail := c.GetTail()
				if tail == nil {
					c.Put(p)
					return
				}
				tail.B[0], tail.B[n-1] = 1, 2
				if c.Fit(p, tail, n) {
					c.PutTail(tail)
				}
				if b := p.TailBytes(); len(b) != n || b[n-1] != 2 || n > 1 && b[0] != 1 {
					t.Fatalf("a tail of %d bytes came with %d", n, len(b))
				}
			}
			live = append(live, p)
		}
		t.Repeat(map[string]func(*rapid.T){
			"":     check,
			"read": read,
			"burst": func(t *rapid.T) {
				for range rapid.IntRange(1, 40).Draw(t, "burst") {
					if p := cache(t).Get(); p != nil {
						live = append(live, p)
					}
				}
			},
			"put": func(t *rapid.T) {
				for range rapid.IntRange(1, 40).Draw(t, "n") {
					if len(live) > 0 {
						cache(t).Put(take(pick(t, len(live), "which")))
					}
				}
			},
			"append": func(t *rapid.T) {
				if len(live) < 2 {
					return
				}
				q := take(pick(t, len(live), "q"))
				p := live[pick(t, len(live), "p")]
				if q.Merged() || p.Len()+q.Len() > 0xffff {
					cache(t).Put(q)
					return
				}
				p.Append(q, 0)
				p.Segs++
			},
			"clone": func(t *rapid.T) {
				if len(live) == 0 {
					return
				}
				if q := cache(t).Clone(live[pick(t, len(live), "which")]); q != nil {
					live = append(live, q)
				}
			},
			"trim": func(t *rapid.T) {
				if len(live) == 0 {
					return
				}
				if p := live[pick(t, len(live), "which")]; !p.Merged() {
					p.Trim(rapid.IntRange(0, p.Len()).Draw(t, "len"))
				}
			},
		})
		for len(live) > 0 {
			caches[0].Put(take(0))
		}
		check(t)
	})
}

// A magazine that was taken and came back while somebody was about to take it
// does not look the same: what lay under it may be gone.
func TestStackTopIsNeverTheSame(t *testing.T) {
	d := newDepot(64, 1, func(int) *Packet { return &Packet{} })
	before := d.empty.top.Load()
	a, b := d.empty.pop(d.mags), d.empty.pop(d.mags)
	d.empty.push(a)
	if after := d.empty.top.Load(); after == before || uint32(after) != uint32(before) {
		t.Errorf("top was %#x and is %#x, want the same magazine under another count", before, after)
	}
	if got := d.empty.pop(d.mags); got != a || d.empty.pop(d.mags) == b {
		t.Error("the stack has lost its order")
	}
}
