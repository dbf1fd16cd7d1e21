package packet

// Usage says where a pool's buffers are.
type Usage struct{ Heads, SmallTails, Tails KindUsage }

// A KindUsage says where the buffers of one kind are. Total is the sum of
// InUse, Free, Cached and Untouched.
type KindUsage struct {
	Size      int   // bytes of a buffer
	Total     int   // buffers there can be
	InUse     int   // held by packets, and by readers
	Free      int   // in the pool
	Cached    []int // in each cache, in the order of NewCache
	Untouched int   // never needed: they have addresses but no memory
}

// Kinds gives all kinds.
func (u *Usage) Kinds() []KindUsage { return []KindUsage{u.Heads, u.SmallTails, u.Tails} }

// Usage counts buffers. It is exact only while no worker runs.
func (p *Pool) Usage() Usage {
	return Usage{
		usage(p.heads, HeadLen, p.cache, func(c *Cache) int { return c.heads.len() }),
		usage(p.small, SmallTailLen, p.cache, func(c *Cache) int { return c.small.len() }),
		usage(p.tails, TailLen, p.cache, func(c *Cache) int { return c.tails.len() }),
	}
}

func usage[T any](d *depot[T], size int, caches []*Cache, cached func(*Cache) int) KindUsage {
	made := int(d.made.Load())
	u := KindUsage{Size: size, Total: d.total, Free: d.free(), Untouched: d.total - made}
	u.InUse = made - u.Free
	for _, c := range caches {
		n := cached(c)
		u.Cached = append(u.Cached, n)
		u.InUse -= n
	}
	return u
}
