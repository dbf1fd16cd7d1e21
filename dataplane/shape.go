package dataplane

import (
	"fmt"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"taprouter/packet"
)

// A Shape is a set of kinds of superpackets. Which of them a kernel takes
// differs: UDP came with Linux 6.2.
type Shape uint8

const (
	ShapeTCPv4 Shape = 1 << iota // VIRTIO_NET_HDR_GSO_TCPV4
	ShapeTCPv6                   // VIRTIO_NET_HDR_GSO_TCPV6
	ShapeUDP                     // VIRTIO_NET_HDR_GSO_UDP_L4
)

var shapeNames = [...]string{"tcp4", "tcp6", "udp"}

// Names are the words for the shapes of s.
func (s Shape) Names() []string {
	names := []string{}
	for i, name := range shapeNames {
		if s>>i&1 != 0 {
			names = append(names, name)
		}
	}
	return names
}

// ParseShape reads one of the words.
func ParseShape(word string) (Shape, error) {
	for i, name := range shapeNames {
		if word == name {
			return 1 << i, nil
		}
	}
	return 0, fmt.Errorf("%q: want %s", word, strings.Join(shapeNames[:], ", "))
}

// shapeOf gives the shape of p, 0 if it is no superpacket. classify lets no
// other types pass.
func shapeOf(p *packet.Packet) Shape {
	switch p.Vnet.GSOType &^ packet.GSOECN {
	case packet.GSONone:
		return 0
	case packet.GSOUDPL4:
		return ShapeUDP
	case packet.GSOTCPv6:
		return ShapeTCPv6
	}
	return ShapeTCPv4
}

// shapes are those that the reader behind accept takes.
func (a Accept) shapes() (s Shape) {
	if a&AcceptTSO != 0 {
		s |= ShapeTCPv4 | ShapeTCPv6
	}
	if a&AcceptUSO != 0 {
		s |= ShapeUDP
	}
	return s
}

// maxRefusals is how many superpackets of a shape a device refuses, on one
// queue and none taken between, until the port no longer sends that shape.
const maxRefusals = 8

// A shapeWatch is what a port knows of the shapes that its device takes.
type shapeWatch struct {
	takes   atomic.Uint32 // the others are segmented; Shape
	refused atomic.Uint32 // those that were refused at least once; Shape
	off     atomic.Uint32 // those that takes has lost; Shape
	fault   Shape         // refused without asking the device, for tests
}

// A RefusedError is an Event's: the device refused superpackets with EINVAL.
// They went out in segments.
type RefusedError struct {
	Shape Shape
	Off   bool // from now on the port segments all of them
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the device refuses superpackets (EINVAL): %s", strings.Join(e.Shape.Names(), ", "))
}

// write is WriteBatch, or what an injected fault makes of it.
func (t *TxQueue) write(w *Worker, pkts []*packet.Packet) (n int, errno unix.Errno) {
	fault := t.port.shapes.fault
	if fault == 0 {
		return w.writer.WriteBatch(t.q, pkts)
	}
	for n < len(pkts) && fault&shapeOf(pkts[n]) == 0 {
		n++
	}
	if n < len(pkts) {
		errno = unix.EINVAL
	}
	if m, first := w.writer.WriteBatch(t.q, pkts[:n]); first != 0 {
		return m, first
	}
	return n, errno
}

// taken notes that the device took pkts: what it refused before was not a
// matter of their shapes.
func (t *TxQueue) taken(pkts []*packet.Packet) {
	for _, p := range pkts {
		if s := shapeOf(p); s != 0 {
			t.inRow[shapeIndex(s)] = 0
		}
	}
}

// refusedShape notes that the device refused p, which then went out in
// segments. One without a partial checksum, the only fault that classify lets
// pass, does not speak against its shape: no sender turns that off for others.
func (t *TxQueue) refusedShape(p *packet.Packet) {
	t.gsoRefused++
	s, watch := shapeOf(p), &t.port.shapes
	if p.Vnet.Flags&packet.NeedsCsum == 0 {
		return
	}
	if watch.refused.Or(uint32(s))&uint32(s) == 0 {
		t.port.dp.tell(Event{Port: t.port.Index, Err: &RefusedError{Shape: s}})
	}
	row := &t.inRow[shapeIndex(s)]
	if *row++; *row < maxRefusals {
		return
	}
	*row = 0
	watch.takes.And(^uint32(s))
	if watch.off.Or(uint32(s))&uint32(s) == 0 {
		t.port.dp.tell(Event{Port: t.port.Index, Err: &RefusedError{Shape: s, Off: true}})
	}
}

func shapeIndex(s Shape) int { return int(s) >> 1 } // 1, 2, 4

// SetGSO lets a port send all shapes again that its reader takes.
func (dp *Dataplane) SetGSO(dev string) error {
	p, err := dp.port(dev)
	if err != nil {
		return err
	}
	return dp.quiesce(func() error {
		p.shapes.takes.Store(uint32(p.accept.shapes()))
		p.shapes.refused.Store(0)
		p.shapes.off.Store(0)
		for _, t := range p.tx {
			t.inRow = [len(shapeNames)]uint8{}
		}
		return nil
	})
}

// Refused gives the shapes that the device has refused so often that the port
// segments them.
func (p *Port) Refused() Shape { return Shape(p.shapes.off.Load()) }
