package tun

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"taprouter/packet"
)

// A driver does a queue's reading and writing in the place of one system call
// a frame on its descriptor. As with a Queue, read belongs to one worker at a
// time and the writes to the holder of the run bit; the two run concurrently.
// No method blocks.
type driver interface {
	// read gives the next frames, whose bytes are valid until the next read,
	// or EAGAIN if none is there. An empty frame stands for one that could not
	// be read; it is counted as truncated.
	read() ([][]byte, unix.Errno)
	// write is Writer.WriteBatch. The packets have no offloads left to be done.
	write(pkts []*packet.Packet) (int, unix.Errno)
	// writeSegment is Writer.WriteSegment.
	writeSegment(hdr []byte, payload [][]byte) unix.Errno
	// close closes the descriptor that the queue is waited for on.
	close() error
}

// maxFrame is the length of the largest frame without a vnet header: 65535
// bytes of packet, Ethernet header, two VLAN tags.
const maxFrame = 65535 + 14 + 8

// newDriverQueue makes a queue that d reads and writes; fd is what is waited on.
func newDriverQueue(fd int, raw bool, d driver) *Queue {
	q := NewQueue(fd, 0)
	q.raw, q.driver = raw, d
	return q
}

// readFrames is ReadBatch for a queue with a driver.
func (r *Reader) readFrames(q *Queue, b *packet.Batch, limit int) unix.Errno {
	for bytes := 0; b.N < limit && bytes < batchBytes; {
		if len(q.rx.frames) == 0 {
			var errno unix.Errno
			if q.rx.frames, errno = q.driver.read(); errno != 0 {
				return errno
			}
			continue
		}
		frame := q.rx.frames[0]
		p := r.copyIn(frame)
		if p == nil {
			return unix.ENOBUFS // the frame stays for the next call
		}
		if q.raw {
			p.Flags = packet.Raw
		}
		b.Add(p)
		bytes += len(frame)
		q.rx.frames = q.rx.frames[1:]
	}
	return 0
}

// copyIn makes a packet of a frame; nil if there are no buffers.
func (r *Reader) copyIn(frame []byte) *packet.Packet {
	p := r.cache.Get()
	if p == nil {
		return nil
	}
	n := copy(p.Buffer()[packet.Headroom:], frame)
	p.SetFrame(packet.Headroom, packet.Headroom+n)
	if n < len(frame) {
		tail := r.cache.GetTailFor(len(frame) - n)
		if tail == nil {
			r.cache.Put(p)
			return nil
		}
		p.SetTail(tail, 0, copy(tail.B, frame[n:]))
	}
	return p
}

// appendPieces appends a frame given in pieces to b, which has room for it.
func appendPieces(b, hdr []byte, payload [][]byte) []byte {
	b = append(b, hdr...)
	for _, piece := range payload {
		b = append(b, piece...)
	}
	return b
}

// notErrno stands for an error of a library that is not the kernel's.
const notErrno = unix.EIO

// errnoOf finds the kernel's reason in what a library gives.
func errnoOf(err error) unix.Errno {
	if err == nil {
		return 0
	}
	var errno unix.Errno
	switch {
	case errors.As(err, &errno):
		return errno
	case errors.Is(err, os.ErrClosed), errors.Is(err, io.EOF):
		return unix.EBADFD
	}
	return notErrno
}

// mmap takes n bytes of zeroed memory from outside the Go heap: pages that are
// never touched cost nothing.
func mmap(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return b, nil
}
