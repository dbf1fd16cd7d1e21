package packet

import (
	"errors"
	"fmt"
)

// Memory sizes a Pool, in numbers of buffers.
type Memory struct {
	Heads int // head buffers of HeadLen bytes, one a packet
	Tails int // tails of TailLen bytes, one a packet larger than a head
}

// Bytes is the memory that the buffers take at most.
func (m Memory) Bytes() int { return m.Heads*HeadLen + m.Tails*TailLen }

// A Pool owns every packet and tail of a router. Everything is allocated by
// NewPool; pages of buffers that were never used stay untouched. Workers take
// from it through a Cache of their own.
type Pool struct {
	heads *depot[Packet]
	tails *depot[Tail]
	mem   Memory
	raw   [][]byte
	cache []*Cache
}

const minHeads = 64

// NewPool allocates the packets and tails of m.
func NewPool(m Memory) (*Pool, error) {
	if m.Heads < minHeads || m.Tails < 1 {
		return nil, errors.New("packet: a pool needs at least 64 heads and a tail")
	}
	p := &Pool{mem: m, heads: newDepot[Packet](m.Heads), tails: newDepot[Tail](m.Tails)}
	hb, err := mmap(m.Heads * HeadLen)
	if err != nil {
		return nil, fmt.Errorf("packet: %d bytes for heads: %w", m.Heads*HeadLen, err)
	}
	p.raw = append(p.raw, hb)
	tb, err := mmap(m.Tails * TailLen)
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("packet: %d bytes for tails: %w", m.Tails*TailLen, err)
	}
	p.raw = append(p.raw, tb)
	pkts := make([]Packet, m.Heads)
	for i := range pkts {
		pkts[i].buf = (*[HeadLen]byte)(hb[i*HeadLen:])
		p.heads.put(&pkts[i])
	}
	tails := make([]Tail, m.Tails)
	for i := range tails {
		tails[i].B = tb[i*TailLen : (i+1)*TailLen : (i+1)*TailLen]
		p.tails.put(&tails[i])
	}
	return p, nil
}

// Memory gives the sizes that the pool was made with.
func (p *Pool) Memory() Memory { return p.mem }

// NewCache makes a worker's stock. It must not be called once packets move.
func (p *Pool) NewCache() *Cache {
	c := &Cache{pool: p}
	p.cache = append(p.cache, c)
	return c
}

// InUse counts the packets and tails that are neither in the pool nor in a
// cache. It is exact only while no worker runs.
func (p *Pool) InUse() (heads, tails int) {
	heads, tails = p.mem.Heads-p.heads.len(), p.mem.Tails-p.tails.len()
	for _, c := range p.cache {
		heads -= c.n
		tails -= c.nt
	}
	return heads, tails
}

// Close gives the buffers back to the kernel. No packet may be touched after.
func (p *Pool) Close() {
	for _, b := range p.raw {
		_ = munmap(b)
	}
	p.raw = nil
}

const (
	cacheHeads = 2 * MaxBatch
	cacheTails = 32
)

// A Cache is a worker's private stock of free packets and tails, last in first
// out so that warm memory is used again. It is not safe for concurrent use.
// What was taken from one cache may be put into another.
type Cache struct {
	pool  *Pool
	n, nt int
	heads [cacheHeads]*Packet
	tails [cacheTails]*Tail
}

// Get takes a packet whose frame is empty; nil if the pool is exhausted.
func (c *Cache) Get() *Packet {
	if c.n == 0 {
		for c.n < cacheHeads/2 {
			p := c.pool.heads.get()
			if p == nil {
				break
			}
			c.heads[c.n] = p
			c.n++
		}
		if c.n == 0 {
			return nil
		}
	}
	c.n--
	p := c.heads[c.n]
	p.reset()
	return p
}

// reset clears what the previous life left; buf stays.
func (p *Packet) reset() {
	buf := p.buf
	*p = Packet{buf: buf, off: Headroom, end: Headroom, In: NoPort, Out: NoPort, Segs: 1}
}

// GetTail takes a tail with one reference; nil if the pool is exhausted.
func (c *Cache) GetTail() *Tail {
	if c.nt == 0 {
		for c.nt < cacheTails/2 {
			t := c.pool.tails.get()
			if t == nil {
				break
			}
			c.tails[c.nt] = t
			c.nt++
		}
		if c.nt == 0 {
			return nil
		}
	}
	c.nt--
	t := c.tails[c.nt]
	t.refs.Store(1)
	return t
}

// Put ends p's life: its reference to a tail is dropped, and its buffers and
// what was appended to it become free. p must not be in any list.
func (c *Cache) Put(p *Packet) {
	if p.frags != nil {
		c.putFrags(p)
	}
	if p.tail != nil {
		c.PutTail(p.tail)
		p.tail, p.tailLen = nil, 0
	}
	if c.n == cacheHeads {
		for range cacheHeads / 2 {
			c.n--
			c.pool.heads.put(c.heads[c.n])
		}
	}
	c.heads[c.n] = p
	c.n++
}

func (c *Cache) putFrags(p *Packet) {
	f := p.frags.Next
	p.frags.Next = nil
	p.frags, p.fragLen = nil, 0
	for f != nil {
		next := f.Next
		c.Put(f)
		f = next
	}
}

// PutList ends every packet of l.
func (c *Cache) PutList(l *List) {
	for p := l.Pop(); p != nil; p = l.Pop() {
		c.Put(p)
	}
}

// PutTail drops one reference to t; the last one makes it free.
func (c *Cache) PutTail(t *Tail) {
	// A tail with one reference is ours alone: no other owner can add one.
	if t.refs.Load() != 1 && t.refs.Add(-1) != 0 {
		return
	}
	if c.nt == cacheTails {
		for range cacheTails / 2 {
			c.nt--
			c.pool.tails.put(c.tails[c.nt])
		}
	}
	c.tails[c.nt] = t
	c.nt++
}

// Clone gives a packet with a copy of p's head and metadata over the same
// tail, as a flood needs it; nil if the pool is exhausted. The clone of a
// merged packet has all that was appended in a tail of its own. The clone is
// not counted in any flow table bucket.
func (c *Cache) Clone(p *Packet) *Packet {
	var flat *Tail
	if p.frags != nil {
		if flat = c.GetTail(); flat == nil {
			return nil
		}
	}
	q := c.Get()
	if q == nil {
		if flat != nil {
			c.PutTail(flat)
		}
		return nil
	}
	buf := q.buf
	*q = *p
	q.buf, q.Next, q.Slot = buf, nil, nil
	copy(q.buf[q.off:q.end], p.buf[p.off:p.end])
	switch {
	case flat != nil:
		q.frags, q.fragLen = nil, 0
		n := p.CopyOut(flat.B, p.HeadLength())
		q.SetTail(flat, 0, n)
	case q.tail != nil:
		q.tail.refs.Add(1)
	}
	return q
}
