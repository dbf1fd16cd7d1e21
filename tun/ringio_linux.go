package tun

import (
	"golang.org/x/sys/unix"

	"taprouter/packet"
	"taprouter/tun/uring"
)

// From how many frames on the ring takes less time than one call for each: its
// own call costs more than a read or a write, and what it saves comes with
// each further frame. A read that finds nothing costs as much as a call.
const (
	ringWrites = 6
	ringReads  = 6

	ringReadsMax = 32 // as many tails as a cache keeps
)

// writeRing writes up to a batch in one call. The writes are linked: each
// begins when the one before has succeeded, and what is behind one that was
// refused is not tried, so nothing is overtaken.
func (w *Writer) writeRing(q *Queue, pkts []*packet.Packet) (int, unix.Errno) {
	var e *uring.SQE
	n, used := 0, 0
	for _, p := range pkts {
		need := 2
		if p.Merged() {
			need *= int(p.Segs)
		}
		if n == ringBatch || used+need > len(w.iov) {
			break // the rest with the next call
		}
		k := w.pieces(q, p, used)
		e = w.ring.u.Next()
		e.Op, e.FD, e.OpFlags, e.Flags, e.UserData = uring.OpWritev, int32(q.fd), rwfNowait, uring.Link, uint64(n)
		if k == 1 {
			e.Op = uring.OpWrite
			e.Buffer(p.WithHeader(q.vnet))
		} else {
			e.Iovecs(w.iov[used : used+k])
		}
		used += k
		n++
	}
	e.Flags = 0
	w.ring.batch(n)
	for i, res := range w.ring.res[:n] {
		if res < 0 {
			return i, unix.Errno(-res)
		}
	}
	return n, 0
}

// readRing reads up to n frames into b in one call. The kernel carries out
// one read after the other, so that they come in order; from the first that
// finds the ring empty on they are in vain, unless a frame comes just then.
func (r *Reader) readRing(q *Queue, b *packet.Batch, n int, bytes *int) (errno unix.Errno) {
	k := 0
	for n = min(n, len(r.heads)); k < n; k++ {
		if r.heads[k], r.tails[k] = r.take(); r.heads[k] == nil {
			break
		}
		e := r.ring.u.Next()
		e.Op, e.FD, e.OpFlags, e.UserData = uring.OpReadv, int32(q.fd), rwfNowait, uint64(k)
		e.Iovecs(r.iov.into(q, r.heads[k], r.tails[k], 2*k))
	}
	if k == 0 {
		return unix.ENOBUFS
	}
	r.ring.batch(k)
	for i, res := range r.ring.res[:k] {
		got, why := r.ended(q, b, r.heads[i], r.tails[i], res)
		r.heads[i], r.tails[i] = nil, nil
		*bytes += got
		if why != 0 && (errno == 0 || errno == unix.EAGAIN) {
			errno = why
		}
	}
	return errno
}

// ended adds to b the frame that a read with this result has brought; what is
// not needed of the buffers goes back.
func (r *Reader) ended(q *Queue, b *packet.Batch, p *packet.Packet, tail *packet.Tail, res int32) (n int, errno unix.Errno) {
	took := false
	if res < 0 {
		errno = unix.Errno(-res)
	} else {
		took, errno = r.received(q, p, tail, int(res))
	}
	if !took {
		r.cache.PutTail(tail)
	}
	if errno != 0 {
		r.cache.Put(p)
		return 0, errno
	}
	b.Add(p)
	return int(res), 0
}

// take takes a head and a tail from the cache; both are nil if one is missing.
func (r *Reader) take() (*packet.Packet, *packet.Tail) {
	p, tail := r.cache.Get(), r.cache.GetTail()
	if p != nil && tail != nil {
		return p, tail
	}
	if p != nil {
		r.cache.Put(p)
	}
	if tail != nil {
		r.cache.PutTail(tail)
	}
	return nil, nil
}
