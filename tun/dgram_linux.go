package tun

import (
	"golang.org/x/sys/unix"

	"taprouter/packet"
)

// A dgramQueue is the driver of a pair of datagram sockets: one that is bound
// to our address, so that anybody who may write there reaches us, and one that
// is connected to the peer's, so that it says when the peer has room. It reads
// and writes batches, each with one call.
type dgramQueue struct {
	rx, tx int

	// The reader's.
	in      datagrams
	slots   [][]byte // for the frames of in
	frames  [][]byte
	drained bool // the last call left nothing in the socket
	mem     []byte

	_ [64]byte
	// The run bit holder's.
	out datagrams
	msg message // a segment
}

// dgramReads is how many datagrams one call reads at most: the queue of a
// unix socket holds eleven, if nobody has changed net.unix.max_dgram_qlen.
const dgramReads = 16

func newDgramQueue() (d *dgramQueue, err error) {
	const slot = 68 << 10 // a frame and a byte more, in whole pages
	d = &dgramQueue{rx: -1, tx: -1, frames: make([][]byte, 0, dgramReads)}
	if d.mem, err = mmap(dgramReads * slot); err != nil {
		return nil, err
	}
	for i := range dgramReads {
		d.slots = append(d.slots, d.mem[i*slot:][:maxFrame+1])
		d.in.set(i, d.slots[i], nil)
	}
	return d, nil
}

func (d *dgramQueue) connect(rx, tx int) { d.rx, d.tx, d.drained = rx, tx, false }

// read gives a datagram that is longer than any frame as one that could not
// be read.
func (d *dgramQueue) read() ([][]byte, unix.Errno) {
	if d.drained {
		d.drained = false // whoever waits for the socket is told if there is more
		return nil, unix.EAGAIN
	}
	n, errno := d.in.recv(d.rx, dgramReads)
	if errno != 0 {
		return nil, errno
	}
	d.drained = n < dgramReads
	d.frames = d.frames[:n]
	for i := range d.frames {
		size := int(d.in.hdr[i].Len)
		if size > maxFrame {
			size = 0
		}
		d.frames[i] = d.slots[i][:size]
	}
	return d.frames, 0
}

func (d *dgramQueue) write(pkts []*packet.Packet) (done int, errno unix.Errno) {
	for i, p := range pkts {
		d.out.set(i, p.Bytes(), p.TailBytes())
	}
	for done < len(pkts) && errno == 0 {
		var n int
		if n, errno = d.out.send(d.tx, done, len(pkts)); errno == 0 {
			done += n
		}
	}
	return done, errno
}

func (d *dgramQueue) writeSegment(hdr []byte, payload [][]byte) unix.Errno {
	d.msg.n = 0
	d.msg.add(hdr)
	for _, piece := range payload {
		d.msg.add(piece)
	}
	_, errno := d.msg.send(d.tx)
	return errno
}

func (d *dgramQueue) close() error { return unix.Munmap(d.mem) }
