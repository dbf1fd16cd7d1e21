package tun

import (
	"fmt"

	"golang.org/x/sys/unix"

	"taprouter/tun/uring"
)

// A Ring is a worker's io_uring: through it its Writer and Reader make the
// system calls of a batch in one, and its Poller waits and reads in one. From
// Enable to Close it belongs to one locked thread, as do the three.
type Ring struct {
	u       *uring.Ring
	enabled bool
	poller  *Poller
	reader  *Reader
	writer  *Writer

	res  [ringBatch]int32 // results of the batch under way: bytes, or a negative errno
	left int              // how many of them are missing

	// The Poller's: what it waits for, and what has come.
	queues           []*Queue // by token
	idle             []uint32 // tokens of queues to be waited for from the next Wait on
	ready, out       []Event  // what has come since the last Wait; what that gave
	waking, watching bool     // the wake-up descriptor is being read, the epoll descriptor polled
	woken, watched   bool     // the first was read, the second is ready
	wakes            []byte   // the page into which the first is read
	armed, maxArmed  int      // reads that wait, each with a head and a tail
}

// User data of a submission: its kind, and a number.
const (
	kindBatch = iota << 32 // the index in the batch
	kindRead               // the token of the queue
	kindPoll               // the token of the queue
	kindWake
	kindEpoll
	kindMask = 0xff << 32
)

const (
	// ringBatch is the largest number of frames of one call: with twice as
	// many a frame takes the same time.
	ringBatch = 64
	// ringSize leaves room for the reads that are to wait.
	ringSize = 2 * ringBatch
)

// rwfNowait is RWF_NOWAIT: an operation that would have to wait fails with
// EAGAIN, where O_NONBLOCK alone lets io_uring try again behind our back.
const rwfNowait = 8

// NewRing makes a Ring for a Poller that watches nothing yet, a Reader and a
// Writer. Up to maxArmed queues are waited for with a read, which holds a
// head and a tail; others are polled. The error is uring.ErrNotSupported if the
// kernel has no io_uring for us.
func NewRing(p *Poller, r *Reader, w *Writer, maxArmed int) (*Ring, error) {
	u, err := uring.New(ringSize)
	if err != nil {
		return nil, err
	}
	g := &Ring{u: u, poller: p, reader: r, writer: w, maxArmed: maxArmed}
	if g.wakes, err = unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE); err != nil {
		u.Close()
		return nil, fmt.Errorf("tun: mmap: %w", err)
	}
	// A wake-up is read by the ring, not reported by epoll.
	_ = unix.EpollCtl(p.epfd, unix.EPOLL_CTL_DEL, p.evfd, nil)
	p.ring, r.ring, w.ring = g, g, g
	return g, nil
}

// Memory is the bytes of memory that the ring shares with the kernel.
func (g *Ring) Memory() int { return g.u.Memory() + len(g.wakes) }

// Enable makes the calling thread, which must be locked, the owner.
func (g *Ring) Enable() error {
	g.enabled = true
	return g.u.Enable()
}

// Close ends what waits and frees the ring; Unwatch has ended the reads. The
// Reader and the Writer go on without. A ring that was enabled is closed by
// its owner.
func (g *Ring) Close() {
	if g.enabled {
		g.submit()
		g.u.CancelAll()
	}
	for g.waking || g.watching {
		_ = g.u.Enter(1, -1, true)
		g.reap()
	}
	_ = unix.Munmap(g.wakes)
	g.u.Close()
	g.poller.ring, g.reader.ring, g.writer.ring = nil, nil, nil
}

// batch runs the n submissions that were put together for a batch and waits
// until each of them has its result in g.res. None of them can block.
func (g *Ring) batch(n int) {
	g.left = n
	for g.left > 0 {
		errno := g.u.Enter(g.left, -1, true)
		g.reap()
		if errno == 0 || errno == unix.EINTR {
			continue
		}
		// The kernel is out of memory for what is not submitted. Those are
		// the last ones, so none is overtaken.
		k := min(g.u.Unsubmitted(), g.left)
		for i := range k {
			g.res[n-1-i] = -int32(unix.EAGAIN)
		}
		g.left -= k
		g.u.Forget(k)
	}
}

// reap takes in every completion.
func (g *Ring) reap() {
	for c, ok := g.u.Reap(); ok; c, ok = g.u.Reap() {
		i := uint32(c.UserData)
		switch c.UserData & kindMask {
		case kindBatch:
			g.res[i] = c.Res
			g.left--
		case kindRead:
			g.queues[i].rx.state, g.queues[i].rx.res = rxDone, c.Res
			g.armed--
			g.ready = append(g.ready, Event{Token: i, Bits: Readable})
		case kindPoll:
			g.queues[i].rx.state = rxIdle
			g.ready = append(g.ready, Event{Token: i, Bits: Readable})
		case kindWake:
			g.waking, g.woken = false, true
		case kindEpoll:
			g.watching, g.watched = c.Flags&uring.More != 0, true
		}
	}
}
