package tun

import (
	"golang.org/x/sys/unix"

	"taprouter/tun/uring"
)

// A Ring is a worker's io_uring, through which its Writer and Reader make the
// system calls of a batch in one. From Enable to Close it belongs to one
// locked thread, as do the two.
//
// Nothing waits in it: not a read for the next frame, and no descriptor is
// registered. What a ring holds when its process is killed, the kernel lets go
// of later only, up to 100 ms, and so long the queues of a TAP would stay.
type Ring struct {
	u      *uring.Ring
	reader *Reader
	writer *Writer
	res    [ringBatch]int32 // results of the batch under way: bytes, or a negative errno
	left   int              // how many of them are missing
}

// ringBatch is the largest number of frames of one call, a power of two: with
// twice as many a frame takes the same time.
const ringBatch = 64

// rwfNowait is RWF_NOWAIT: an operation that would have to wait fails with
// EAGAIN, where O_NONBLOCK alone lets io_uring try again behind our back.
const rwfNowait = 8

// NewRing makes a Ring for a Reader and a Writer. The error is
// uring.ErrNotSupported if the kernel has no io_uring for us.
func NewRing(r *Reader, w *Writer) (*Ring, error) {
	u, err := uring.New(ringBatch)
	if err != nil {
		return nil, err
	}
	return &Ring{u: u, reader: r, writer: w}, nil
}

// Memory is the bytes of memory that the ring shares with the kernel.
func (g *Ring) Memory() int { return g.u.Memory() }

// Enable makes the calling thread, which must be locked, the owner. The Reader
// and the Writer use the ring from here on.
func (g *Ring) Enable() error {
	if err := g.u.Enable(); err != nil {
		return err
	}
	g.reader.ring, g.writer.ring = g, g
	return nil
}

// Close frees the ring, on its owner's thread if it has one. The Reader and
// the Writer go on without.
func (g *Ring) Close() {
	g.reader.ring, g.writer.ring = nil, nil
	g.u.Close()
}

// batch runs the n submissions that were put together and waits until each of
// them has its result in g.res. None of them can block.
func (g *Ring) batch(n int) {
	for g.left = n; g.left > 0; {
		errno := g.u.Enter(g.left)
		for c, ok := g.u.Reap(); ok; c, ok = g.u.Reap() {
			g.res[c.UserData] = c.Res
			g.left--
		}
		if errno == 0 || errno == unix.EINTR {
			continue
		}
		// The kernel has no memory for what is not submitted. Those are the
		// last ones, so none is overtaken.
		k := g.u.Forget()
		for i := range k {
			g.res[n-1-i] = -int32(unix.EAGAIN)
		}
		g.left -= k
	}
}
