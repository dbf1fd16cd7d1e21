package tun

import (
	"golang.org/x/sys/unix"

	"taprouter/packet"
)

// A Queue is one file descriptor of a device: one rx ring to read from and
// one place to write to. Reads belong to one worker at a time (the Reader's),
// writes to the holder of the tx queue's run bit; the two may run
// concurrently, as every system call stands for itself.
type Queue struct {
	fd     int
	waitFD int  // a duplicate of fd, so that rx and tx readiness can sit in different pollers
	vnet   int  // bytes of vnet header
	raw    bool // frames start at the network header (TUN)

	driver driver // reads and writes instead of us; nil for what we do ourselves
	link   *link  // of a socket queue

	_  [64]byte
	rx rxSide
	_  [64]byte // the next Queue is written to by others
}

// An rxSide is what a queue's reading worker keeps about it.
type rxSide struct {
	frames [][]byte // that driver has read and no packet holds yet
	lately int      // frames that are found on the queue, about, when there are any
	full   bool     // the last batch was full: there may be more

	// Where batch after batch brings the same number, looking for one more is
	// a call in vain; should there be one, the Poller knows.
	trust  int // batches that may end at that number
	streak int // for how many the last look was good
}

// maxStreak is how many batches in a row may end without a look. When more
// begins to come, so many times a wait that returns at once takes its place.
const maxStreak = 15

// NewQueue wraps a non-blocking descriptor on which one read is one frame:
// an attached TUN/TAP queue, or in tests one end of a socket pair. The queue
// owns fd. vnetLen is the length of the virtio-net header, 0 for none.
func NewQueue(fd, vnetLen int) *Queue {
	wait, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		wait = -1
	}
	return &Queue{fd: fd, waitFD: wait, vnet: vnetLen}
}

// FD gives the descriptor, for the control plane's ioctls.
func (q *Queue) FD() int { return q.fd }

// Close closes the queue; the kernel detaches it from its device.
func (q *Queue) Close() error {
	if q.link != nil {
		q.Disconnect()
		return q.driver.close()
	}
	if q.waitFD >= 0 {
		_ = unix.Close(q.waitFD)
	}
	if q.driver != nil {
		return q.driver.close()
	}
	return unix.Close(q.fd)
}

// A Reader is a worker's side of reading: the packet and the tail into which
// the next frame goes. It is not safe for concurrent use.
type Reader struct {
	cache *packet.Cache
	tail  *packet.Tail
	iov   iovecs

	ring  *Ring // nil: one call a frame
	heads [ringReadsMax]*packet.Packet
	tails [ringReadsMax]*packet.Tail
}

// NewReader makes a Reader that takes its buffers from cache.
func NewReader(cache *packet.Cache) *Reader { return &Reader{cache: cache} }

// Close gives the spare tail back.
func (r *Reader) Close() {
	if r.tail != nil {
		r.cache.PutTail(r.tail)
		r.tail = nil
	}
}

// Limits of one ReadBatch. Superpackets are read in small numbers so that
// they are still in the cache when they are written.
const (
	batchBytes = 256 << 10
	maxHead    = packet.HeadLen - packet.Headroom
)

// ReadBatch reads frames from q into b until b is full, about 256 KiB were
// read, the ring is empty or buffers run out. A frame that does not fit a
// head gets a tail: the one it was read into, or a small one. The packets
// added to b belong to the caller. The error is 0 if there may be more,
// EAGAIN if the ring was found empty or is likely to be, so that the Poller
// is to be asked, ENOBUFS if the pool was, and otherwise the kernel's.
func (r *Reader) ReadBatch(q *Queue, b *packet.Batch, limit int) (errno unix.Errno) {
	if q.driver != nil {
		return r.readFrames(q, b, limit)
	}
	s := &q.rx
	had, bytes := b.N, 0
	for errno == 0 && b.N < limit && bytes < batchBytes {
		got := b.N - had
		if got > 0 && got == s.lately && s.trust > 0 {
			s.trust--
			return unix.EAGAIN
		}
		n := min(s.lately-got, limit-b.N)
		if r.ring != nil && n >= ringReads && (got > 0 || !s.full) {
			errno = r.readRing(q, b, n, &bytes)
		} else {
			errno = r.readOne(q, b, &bytes)
		}
	}
	s.count(b.N-had, bytes, errno == 0)
	return errno
}

// count takes note of n frames that were read. If they are large, fewer are
// expected next: so many as ReadBatch is to read.
func (s *rxSide) count(n, bytes int, full bool) {
	n = n * batchBytes / max(bytes, batchBytes)
	if n > 0 && n == s.lately && !full {
		s.streak = min(2*s.streak+1, maxStreak)
	} else if n > 0 || !s.full {
		s.streak = 0
	}
	s.trust = s.streak
	switch {
	case full:
		s.lately = n
	case n > s.lately:
		s.lately += (n - s.lately + 1) / 2
	case !s.full || n > 0:
		s.lately -= (s.lately - n + 1) / 2
	}
	s.full = full
}

// readOne reads one frame into b.
func (r *Reader) readOne(q *Queue, b *packet.Batch, bytes *int) unix.Errno {
	if r.tail == nil {
		if r.tail = r.cache.GetTail(); r.tail == nil {
			return unix.ENOBUFS
		}
	}
	p := r.cache.Get()
	if p == nil {
		return unix.ENOBUFS
	}
	r.iov.into(q, p, r.tail, 0)
	n, errno := r.iov.readv(q.fd, 2)
	if errno != 0 {
		r.cache.Put(p)
		if errno == unix.EINTR {
			return 0
		}
		return errno
	}
	took, errno := r.received(q, p, r.tail, n)
	if errno != 0 {
		r.cache.Put(p)
		return errno
	}
	if took {
		r.tail = nil
	}
	b.Add(p)
	*bytes += n
	return 0
}

// into sets two vectors, from v[at] on, for the next frame of q: the head of
// p from where the vnet header goes, then tail.
func (v *iovecs) into(q *Queue, p *packet.Packet, tail *packet.Tail, at int) []unix.Iovec {
	v.set(at, p.Buffer()[packet.Headroom-q.vnet:])
	v.set(at+1, tail.B)
	return v[at : at+2]
}

// received makes a packet of the n bytes that were read into p and tail, and
// reports whether p took over the tail.
func (r *Reader) received(q *Queue, p *packet.Packet, tail *packet.Tail, n int) (took bool, errno unix.Errno) {
	if n < max(q.vnet, 1) {
		return false, unix.EBADFD // end of file: the other side is gone
	}
	n -= q.vnet
	p.SetFrame(packet.Headroom, packet.Headroom+min(n, maxHead))
	if n > maxHead {
		took = !r.cache.Fit(p, tail, n-maxHead)
	}
	if q.vnet != 0 {
		decodeVnet(&p.Vnet, p.Before(q.vnet))
	}
	if q.raw {
		p.Flags = packet.Raw
	}
	return took, 0
}

// A Writer holds what one thread needs to write: iovecs. It is not safe for
// concurrent use; a worker has one for all queues.
type Writer struct {
	ring *Ring // nil: one call a frame
	iov  iovecs
	hdr  [packet.Headroom]byte
}

// WriteBatch writes frames in order until the kernel refuses one. It gives
// the number written and, if that is not all of them, why the next was
// refused. The packets stay the caller's.
func (w *Writer) WriteBatch(q *Queue, pkts []*packet.Packet) (n int, errno unix.Errno) {
	if q.driver != nil {
		return q.driver.write(pkts)
	}
	for n < len(pkts) && errno == 0 {
		k := 0
		if w.ring != nil && len(pkts)-n >= ringWrites {
			k, errno = w.writeRing(q, pkts[n:])
		} else if errno = w.write(q, pkts[n]); errno == 0 {
			k = 1
		}
		n += k
	}
	return n, errno
}

func (w *Writer) write(q *Queue, p *packet.Packet) unix.Errno {
	n := w.pieces(q, p, 0)
	if n == 1 {
		return write(q.fd, p.WithHeader(q.vnet))
	}
	return w.iov.writev(q.fd, n)
}

// pieces sets the vectors of p's frame, with its vnet header where q carries
// one, from w.iov[at] on and gives their number.
func (w *Writer) pieces(q *Queue, p *packet.Packet, at int) int {
	if q.vnet != 0 {
		encodeVnet(p.Before(q.vnet), &p.Vnet)
	}
	n := at
	w.iov.set(n, p.WithHeader(q.vnet))
	n++
	if p.HasTail() {
		w.iov.set(n, p.TailBytes())
		n++
	}
	for f := p.FirstFrag(); f != nil; f = p.NextFrag(f) {
		w.iov.set(n, f.Bytes())
		n++
		if f.HasTail() {
			w.iov.set(n, f.TailBytes())
			n++
		}
	}
	return n - at
}

// WriteSegment writes a part of a superpacket: its headers and its payload in
// pieces, with the vnet header v where q carries one. hdr must lie outside the
// Go stack; all stays the caller's.
func (w *Writer) WriteSegment(q *Queue, v packet.Vnet, hdr []byte, payload [][]byte) unix.Errno {
	if q.driver != nil {
		return q.driver.writeSegment(hdr, payload)
	}
	n := 0
	if q.vnet != 0 {
		encodeVnet(w.hdr[:], &v) // what lies behind it stays zero
		w.iov.set(0, w.hdr[:q.vnet])
		n = 1
	}
	w.iov.set(n, hdr)
	for _, piece := range payload {
		n++
		w.iov.set(n, piece)
	}
	return w.iov.writev(q.fd, n+1)
}

// The vnet header is in host byte order (legacy), which on every platform we
// build for is little endian. struct virtio_net_hdr.
func decodeVnet(v *packet.Vnet, b []byte) {
	_ = b[vnetLen-1]
	v.Flags, v.GSOType = b[0], b[1]
	v.HdrLen = le16(b[2:])
	v.GSOSize = le16(b[4:])
	v.CsumStart = le16(b[6:])
	v.CsumOffset = le16(b[8:])
}

func encodeVnet(b []byte, v *packet.Vnet) {
	_ = b[vnetLen-1]
	b[0], b[1] = v.Flags&packet.NeedsCsum, v.GSOType
	put16(b[2:], v.HdrLen)
	put16(b[4:], v.GSOSize)
	put16(b[6:], v.CsumStart)
	put16(b[8:], v.CsumOffset)
	if v.Flags&packet.NeedsCsum == 0 && v.GSOType == packet.GSONone {
		put16(b[2:], 0) // hdr_len is a hint; without an offload it only invites checks
	}
}

func le16(b []byte) uint16     { return uint16(b[0]) | uint16(b[1])<<8 }
func put16(b []byte, v uint16) { b[0], b[1] = byte(v), byte(v>>8) }
