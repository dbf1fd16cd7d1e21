package packet

// A Cache is a worker's private stock of free packets and tails, last in first
// out so that warm memory is used again. It is not safe for concurrent use.
// What was taken from one cache may be put into another.
type Cache struct {
	heads stock[Packet]
	small stock[Tail]
	tails stock[Tail]

	_ [128 - 3*24]byte // whole cache lines: the next cache is another worker's
}

// Get takes a packet whose frame is empty; nil if the pool is exhausted.
func (c *Cache) Get() *Packet {
	p := c.heads.get()
	if p != nil {
		p.reset()
	}
	return p
}

// reset clears what the previous life left; buf stays.
func (p *Packet) reset() {
	buf := p.buf
	*p = Packet{buf: buf, off: Headroom, end: Headroom, In: NoPort, Out: NoPort, Segs: 1, held: HeadLen >> 10}
}

// GetTail takes a tail of TailLen bytes with one reference; nil if the pool
// is exhausted.
func (c *Cache) GetTail() *Tail {
	t := c.tails.get()
	if t != nil {
		t.refs.Store(1)
	}
	return t
}

// GetTailFor takes a tail of at least n bytes, a small one if that will do and
// there is one; nil if the pool is exhausted.
func (c *Cache) GetTailFor(n int) *Tail {
	if t := c.getSmall(n); t != nil {
		return t
	}
	return c.GetTail()
}

func (c *Cache) getSmall(n int) *Tail {
	if n > SmallTailLen {
		return nil
	}
	t := c.small.get()
	if t != nil {
		t.refs.Store(1)
	}
	return t
}

// Fit gives p the first n bytes of t, which has one reference, as its tail:
// few of them are copied to a small tail, so that a packet holds about what
// it needs, and true is returned: t is still the caller's (rx_copybreak of
// the kernel's drivers). More come with t itself.
func (c *Cache) Fit(p *Packet, t *Tail, n int) (copied bool) {
	small := c.getSmall(n)
	if small == nil {
		p.SetTail(t, 0, n)
		return false
	}
	copy(small.B, t.B[:n])
	p.SetTail(small, 0, n)
	return true
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
	c.heads.put(p)
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
	if len(t.B) == SmallTailLen {
		c.small.put(t)
	} else {
		c.tails.put(t)
	}
}

// Clone gives a packet with a copy of p's head and metadata over the same
// tail, as a flood needs it; nil if the pool is exhausted. The clone of a
// merged packet has all that was appended in a tail of its own. The clone is
// not counted in any flow table bucket.
func (c *Cache) Clone(p *Packet) *Packet {
	var flat *Tail
	if p.frags != nil {
		if flat = c.GetTailFor(p.Len() - p.HeadLength()); flat == nil {
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
		q.frags, q.fragLen, q.held = nil, 0, HeadLen>>10
		n := p.CopyOut(flat.B, p.HeadLength())
		q.SetTail(flat, 0, n)
	case q.tail != nil:
		q.tail.refs.Add(1)
	}
	return q
}
