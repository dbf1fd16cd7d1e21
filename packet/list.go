package packet

// A List is a FIFO of packets linked through Next. The zero value is an empty
// list. It is not safe for concurrent use.
type List struct {
	head, tail *Packet
	n          int
}

// Chain makes a list of n packets that are linked through Next already.
func Chain(first, last *Packet, n int) List { return List{head: first, tail: last, n: n} }

// Len is the number of packets in the list.
func (l *List) Len() int { return l.n }

// Front gives the first packet without taking it; nil if there is none.
func (l *List) Front() *Packet { return l.head }

// Back gives the last packet; nil if there is none.
func (l *List) Back() *Packet { return l.tail }

// Push appends p and takes ownership of it.
func (l *List) Push(p *Packet) {
	p.Next = nil
	if l.tail == nil {
		l.head = p
	} else {
		l.tail.Next = p
	}
	l.tail = p
	l.n++
}

// Pop takes the first packet; nil if there is none.
func (l *List) Pop() *Packet {
	p := l.head
	if p == nil {
		return nil
	}
	l.head = p.Next
	if l.head == nil {
		l.tail = nil
	}
	p.Next = nil
	l.n--
	return p
}

// Cut takes the first n packets, of which last is the last. The list has at
// least those.
func (l *List) Cut(last *Packet, n int) List {
	front := List{head: l.head, tail: last, n: n}
	l.head, l.n = last.Next, l.n-n
	if l.head == nil {
		l.tail = nil
	}
	last.Next = nil
	return front
}

// Append moves every packet of m to the end of l, in order.
func (l *List) Append(m *List) {
	if m.head == nil {
		return
	}
	if l.tail == nil {
		l.head = m.head
	} else {
		l.tail.Next = m.head
	}
	l.tail = m.tail
	l.n += m.n
	*m = List{}
}

// A Batch is up to MaxBatch packets in order; slots from N on are stale.
type Batch struct {
	N    int
	Pkts [MaxBatch]*Packet
}

// Slice gives the packets of the batch; it aliases the batch.
func (b *Batch) Slice() []*Packet { return b.Pkts[:b.N] }

// Add appends p; the caller has seen that the batch has room.
func (b *Batch) Add(p *Packet) {
	b.Pkts[b.N] = p
	b.N++
}
