package tun

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"taprouter/packet"
)

// lengthLen is the size of the length in front of a frame on a stream.
const lengthLen = 4

// A streamQueue is the driver of a stream socket. It reads as much as there
// is with one call, and writes a batch with one.
//
// A frame that the socket takes only in part is refused like one that it does
// not take at all, and comes again; what is left of it is kept here and goes
// before anything else. So it is counted once, when all of it was taken.
type streamQueue struct {
	rx, tx int // the sockets

	// The reader's.
	in      []byte // what was read; from parsed to end not yet parsed
	parsed  int
	end     int
	frames  [][]byte
	drained bool       // the last read left nothing in the socket
	tcp     bool       // the peer waits for acknowledgements
	broken  unix.Errno // found behind the frames that were given

	_ [64]byte
	// The run bit holder's.
	msg    message
	length [lengthLen]byte // of a segment
	part   []byte          // a frame, its length before it, of which only some was taken
	left   []byte          // of part
}

const (
	// streamRead is how much one read takes at most.
	streamRead = batchBytes
	// streamFrames is how many frames are given at a time: a peer that floods
	// with small ones waits for its turn like others.
	streamFrames = 4 * packet.MaxBatch
)

func newStreamQueue() *streamQueue {
	return &streamQueue{
		in: make([]byte, streamRead+lengthLen+maxFrame), frames: make([][]byte, 0, streamFrames),
		part: make([]byte, 0, lengthLen+maxFrame), rx: -1, tx: -1,
	}
}

func (d *streamQueue) connect(rx, tx int) {
	d.rx, d.tx = rx, tx
	d.parsed, d.end, d.drained, d.broken = 0, 0, false, 0
	d.left = nil
	domain, err := unix.GetsockoptInt(rx, unix.SOL_SOCKET, unix.SO_DOMAIN)
	d.tcp = err == nil && domain != unix.AF_UNIX
}

func (d *streamQueue) read() ([][]byte, unix.Errno) {
	if frames := d.parse(); len(frames) > 0 {
		return frames, 0
	}
	if d.broken != 0 {
		return nil, d.broken
	}
	if d.drained {
		d.drained = false // whoever waits for the socket is told if there is more
		return nil, unix.EAGAIN
	}
	d.end = copy(d.in, d.in[d.parsed:d.end]) // less than a frame
	d.parsed = 0
	space := d.in[d.end:]
	n, errno := read(d.rx, space)
	switch {
	case errno != 0:
		return nil, errno
	case n == 0 && d.end > 0:
		return nil, errCutOff
	case n == 0:
		return nil, errPeerClosed
	}
	if d.tcp {
		quickAck(d.rx)
	}
	d.end += n
	d.drained = n < len(space)
	return d.parse(), 0 // what is broken comes up at the next read
}

// parse takes the next whole frames out of what was read.
func (d *streamQueue) parse() [][]byte {
	d.frames = d.frames[:0]
	for d.broken == 0 && len(d.frames) < cap(d.frames) {
		b := d.in[d.parsed:d.end]
		if len(b) < lengthLen {
			break
		}
		n := int(binary.BigEndian.Uint32(b))
		if n > maxFrame {
			d.broken = errBadLength
			break
		}
		if len(b) < lengthLen+n {
			break
		}
		d.frames = append(d.frames, b[lengthLen:lengthLen+n])
		d.parsed += lengthLen + n
	}
	return d.frames
}

func (d *streamQueue) write(pkts []*packet.Packet) (int, unix.Errno) {
	done := 0
	if len(d.left) > 0 {
		if errno := d.finish(); errno != 0 {
			return 0, errno
		}
		if d.isPart(pkts[0]) {
			done = 1
		}
	}
	batch := pkts[done:]
	if len(batch) == 0 {
		return done, 0
	}
	d.msg.n = 0
	for _, p := range batch {
		binary.BigEndian.PutUint32(p.Before(lengthLen), uint32(p.Len()))
		d.msg.add(p.WithHeader(lengthLen))
		if p.HasTail() {
			d.msg.add(p.TailBytes())
		}
	}
	n, errno := d.msg.send(d.tx)
	if errno != 0 {
		return done, errno
	}
	for i, p := range batch {
		size := lengthLen + p.Len()
		if n < size {
			if n > 0 {
				part := d.part[:size]
				p.CopyOut(part[lengthLen:], 0)
				d.keep(part, n)
			}
			return done + i, unix.EAGAIN
		}
		n -= size
	}
	return len(pkts), 0
}

func (d *streamQueue) writeSegment(hdr []byte, payload [][]byte) unix.Errno {
	if len(d.left) > 0 {
		if errno := d.finish(); errno != 0 {
			return errno
		}
		if d.isPieces(hdr, payload) {
			return 0
		}
	}
	d.msg.n = 0
	d.msg.add(d.length[:])
	d.msg.add(hdr)
	size := lengthLen + len(hdr)
	for _, piece := range payload {
		d.msg.add(piece)
		size += len(piece)
	}
	binary.BigEndian.PutUint32(d.length[:], uint32(size-lengthLen))
	n, errno := d.msg.send(d.tx)
	if errno != 0 || n == size {
		return errno
	}
	if n > 0 {
		d.keep(appendPieces(d.part[:lengthLen], hdr, payload), n)
	}
	return unix.EAGAIN
}

// keep notes that of the frame in part, whose length is still to be put
// before it, n bytes were taken.
func (d *streamQueue) keep(part []byte, n int) {
	binary.BigEndian.PutUint32(part, uint32(len(part)-lengthLen))
	d.part, d.left = part, part[n:]
}

// finish writes what is left of part.
func (d *streamQueue) finish() unix.Errno {
	for len(d.left) > 0 {
		d.msg.n = 0
		d.msg.add(d.left)
		n, errno := d.msg.send(d.tx)
		if errno != 0 {
			return errno
		}
		d.left = d.left[n:]
	}
	return 0
}

// isPart reports whether p is the frame in part, come again: by its bytes,
// since p may have been dropped meanwhile and be another packet by now. If
// that has the very same bytes it makes no difference which one was sent.
func (d *streamQueue) isPart(p *packet.Packet) bool {
	rest := d.part[lengthLen:]
	if len(rest) != p.Len() {
		return false
	}
	head := p.Bytes()
	return bytes.Equal(rest[:len(head)], head) && bytes.Equal(rest[len(head):], p.TailBytes())
}

func (d *streamQueue) isPieces(hdr []byte, payload [][]byte) bool {
	rest, ok := bytes.CutPrefix(d.part[lengthLen:], hdr)
	for _, piece := range payload {
		if ok {
			rest, ok = bytes.CutPrefix(rest, piece)
		}
	}
	return ok && len(rest) == 0
}

// close has nothing to close: the queue owns the sockets.
func (d *streamQueue) close() error { return nil }
