package offload

import (
	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"taprouter/packet"
)

// A cursor walks through a frame piece by piece: the head and the tail of a
// packet, then those of each packet that was appended to it. What it gives
// aliases the packet's memory.
type cursor struct {
	p      *packet.Packet
	at     *packet.Packet // p, or what was appended to it
	inTail bool           // of at
	left   []byte         // of the piece that it is in
}

// start gives a cursor that stands at offset from, which lies in p's head.
func start(p *packet.Packet, from int) cursor {
	return cursor{p: p, at: p, left: p.Bytes()[from:]}
}

// take gives the next bytes of one piece, n at most; none at the frame's end.
func (c *cursor) take(n int) []byte {
	for len(c.left) == 0 {
		if !c.step() {
			return nil
		}
	}
	n = min(n, len(c.left))
	b := c.left[:n:n]
	c.left = c.left[n:]
	return b
}

// step goes on to the next piece, which may be empty; false if there is none.
func (c *cursor) step() bool {
	if !c.inTail {
		c.inTail, c.left = true, c.at.TailBytes()
		return true
	}
	next := c.p.FirstFrag()
	if c.at != c.p {
		next = c.p.NextFrag(c.at)
	}
	if next == nil {
		return false
	}
	c.at, c.inTail, c.left = next, false, next.Bytes()
	return true
}

// skip goes n bytes on.
func (c *cursor) skip(n int) {
	for n > 0 {
		n -= len(c.take(n))
	}
}

// A summer adds up pieces that follow one another (RFC 1071).
type summer struct {
	sum uint16
	odd bool // the next piece begins at an odd place: the bytes of each word are swapped
}

func (s *summer) add(b []byte) {
	sum := checksum.Checksum(b, 0)
	if s.odd {
		sum = sum<<8 | sum>>8
	}
	s.sum = checksum.Combine(s.sum, sum)
	s.odd = s.odd != (len(b)&1 != 0)
}
