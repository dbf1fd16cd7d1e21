package packet

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Memory sizes a Pool, in numbers of buffers, and says where they lie.
type Memory struct {
	Heads      int // head buffers of HeadLen bytes, one a packet
	SmallTails int // of SmallTailLen bytes; where they run out, tails do
	Tails      int // of TailLen bytes
	Huge       Huge
}

// Bytes is the memory that the buffers take at most.
func (m Memory) Bytes() int { return m.Heads*HeadLen + m.SmallTails*SmallTailLen + m.Tails*TailLen }

// A Pool owns every packet and tail of a router. NewPool takes the addresses;
// a page of memory is taken when a buffer is first needed. Workers take from
// it through a Cache of their own.
type Pool struct {
	heads *depot[Packet]
	small *depot[Tail]
	tails *depot[Tail]
	mem   Memory
	raw   [][]byte
	cache []*Cache

	hugetlb int // bytes of raw
}

const minHeads = 64

// What a magazine of a depot holds: it is what a worker takes at a time.
const (
	magazineHeads = MaxBatch
	magazineTails = 32
)

// NewPool makes a pool of the packets and tails of m.
func NewPool(m Memory) (*Pool, error) {
	if m.Heads < minHeads || m.Tails < 1 {
		return nil, errors.New("packet: a pool needs at least 64 heads and a tail")
	}
	p := &Pool{mem: m}
	heads, err := p.mmap(m.Heads * HeadLen)
	if err != nil {
		return nil, fmt.Errorf("packet: heads: %w", err)
	}
	pkts := make([]Packet, m.Heads)
	p.heads = newDepot(m.Heads, magazineHeads, func(i int) *Packet {
		pkts[i].buf = (*[HeadLen]byte)(heads[i*HeadLen:])
		return &pkts[i]
	})
	if p.small, err = p.newTails(m.SmallTails, SmallTailLen); err == nil {
		p.tails, err = p.newTails(m.Tails, TailLen)
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("packet: tails: %w", err)
	}
	return p, nil
}

func (p *Pool) newTails(n, size int) (*depot[Tail], error) {
	b, err := p.mmap(n * size)
	tails := make([]Tail, n)
	return newDepot(n, magazineTails, func(i int) *Tail {
		tails[i].B = b[i*size : (i+1)*size : (i+1)*size]
		return &tails[i]
	}), err
}

// Memory gives the sizes that the pool was made with.
func (p *Pool) Memory() Memory { return p.mem }

// NewCache makes a worker's stock. It must not be called once packets move.
func (p *Pool) NewCache() *Cache {
	c := &Cache{heads: p.heads.newStock(), small: p.small.newStock(), tails: p.tails.newStock()}
	p.cache = append(p.cache, c)
	return c
}

// InUse counts the packets and tails that are neither in the pool nor in a
// cache. It is exact only while no worker runs.
func (p *Pool) InUse() (heads, tails int) {
	u := p.Usage()
	return u.Heads.InUse, u.Tails.InUse + u.SmallTails.InUse
}

// Close gives the buffers back to the kernel. No packet may be touched after.
func (p *Pool) Close() {
	for _, b := range p.raw {
		_ = unix.Munmap(b)
	}
	p.raw = nil
}
