// Package packet (data path) holds the unit of work: a frame in a head buffer
// and an optional tail, its virtio-net header, what the stages learned about
// it, the pool it comes from and the reasons for which it can be dropped.
//
// A packet has one owner at any time: the worker that read it, then the ring
// it was enqueued to, then the holder of the qdisc's run bit, then the pool.
// Passing a *Packet passes ownership; nothing here locks.
package packet

import "sync/atomic"

const (
	// HeadLen is the size of a head buffer in bytes, headroom included.
	HeadLen = 2048
	// Headroom is what a fresh packet leaves free in front of the frame:
	// the largest virtio-net header (24) and room to push headers.
	Headroom = 64
	// TailLen is the size of a tail in bytes. Head and tail together hold the
	// largest frame a TAP gives: 65535 + Ethernet 14 + two VLAN tags 8.
	TailLen = 1 << 16
	// SmallTailLen is the size of a small tail in bytes: with a head it holds a
	// frame of 9000 bytes, or a superpacket of six segments of 1500.
	SmallTailLen = 1 << 13
	// MaxBatch is the largest number of packets that one Batch carries.
	MaxBatch = 256
	// NoPort is the port index that names no port.
	NoPort = 0xffff
)

// Flags say what classify found; they are only valid after it ran.
type Flags uint16

const (
	IPv4      Flags = 1 << iota // the network header is IPv4
	IPv6                        // the network header is IPv6
	Fragment                    // an IP fragment, the first one included
	LaterFrag                   // an IP fragment with a non-zero offset: no L4 header
	L4Hash                      // Hash covers ports (the kernel's l4_hash)
	IPOptions                   // IPv4 options or IPv6 extension headers are present
	ARP                         // the payload is ARP
	Mcast                       // the destination MAC has its group bit set, broadcast included
	Raw                         // the frame starts at the network header (TUN), there is no Ethernet header
	Local                       // created by the router itself
	FixedID                     // a superpacket whose segments have one IPv4 id (SKB_GSO_TCP_FIXEDID)
)

// A Vnet is a virtio-net header in host form.
// struct virtio_net_hdr, include/uapi/linux/virtio_net.h.
// CsumStart counts from the first byte of the frame.
type Vnet struct {
	Flags      uint8
	GSOType    uint8
	HdrLen     uint16
	GSOSize    uint16
	CsumStart  uint16
	CsumOffset uint16
}

// Values of Vnet.Flags and Vnet.GSOType.
const (
	NeedsCsum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	DataValid = 2 // VIRTIO_NET_HDR_F_DATA_VALID

	GSONone  = 0    // VIRTIO_NET_HDR_GSO_NONE
	GSOTCPv4 = 1    // VIRTIO_NET_HDR_GSO_TCPV4
	GSOTCPv6 = 4    // VIRTIO_NET_HDR_GSO_TCPV6
	GSOUDPL4 = 5    // VIRTIO_NET_HDR_GSO_UDP_L4
	GSOECN   = 0x80 // VIRTIO_NET_HDR_GSO_ECN, or-ed to a TCP type
)

// A Packet is one frame. The zero value is of no use: packets come from a
// Cache. All fields belong to the current owner.
//
//	buf   [ headroom | frame bytes of the head ........ | free ]
//	       0          off                              end   HeadLen
//	tail  [ further frame bytes ............... | free ]
//	       tailOff                     +tailLen
//	frags packet ─▶ packet ─▶ ...               payload of the next segments
//
// A merged packet is a superpacket put together from frames that were read
// one by one: the first one's headers and payload, and behind them a chain of
// packets of which only the payload is left. Nothing was copied.
type Packet struct {
	// The first cache line is what queues and tx queues touch, as there the
	// packet may come from another CPU.

	Next *Packet // link of the List that holds the packet

	// Slot is the flow table bucket that counts this packet as in flight, nil
	// if none does. xpsflow sets and clears it.
	Slot    *atomic.Uint64
	Stamp   int64  // at queue selection: rises with each packet of a worker, about ns
	DueAt   int64  // ns; a qdisc's own while it holds the packet (skb->cb), like Band
	Hash    uint32 // flow hash, 0 = none
	WireLen uint32 // bytes on the wire of all segments (qdisc_pkt_len)
	tailLen uint32

	In, Out  uint16 // port indexes: ingress (NoPort if made here) and egress
	TxQ      uint16 // tx queue of Out
	Segs     uint16 // wire packets: 1, or the segments of a GSO packet (pkt_segs)
	SegNext  uint16 // segments already written by software segmentation
	Flags    Flags
	Priority uint8 // the kernel's skb->priority, 0..15
	Band     uint8
	Burst    uint16 // a ring's own: packets of the burst that begins here
	Bad      Reason
	Drop     Reason // why the packet is being freed; 0 = it was sent
	held     uint16 // KiB of the pool's memory, appended packets included

	off, end uint16
	fragLen  uint16 // frame bytes in frags; an IP packet ends at 65535

	buf     *[HeadLen]byte // mmap'd memory, for the packet's whole life
	tail    *Tail
	tailOff uint32

	// What classify found. Offsets count from the first byte of the frame;
	// 0 means "not there" for L4 and, except with Raw, for L3.
	L3, L4    uint16
	EtherType uint16 // behind VLAN tags
	TCI       uint16 // of the outermost VLAN tag, valid if VLANs > 0
	VLANs     uint8  // number of VLAN tags in the frame
	Proto     uint8  // L4 protocol behind IPv6 extension headers
	Vnet      Vnet
	TxTime    int64 // earliest departure on the monotonic clock, ns; 0 = any (skb->tstamp, SO_TXTIME)

	// frags is the last packet of the chain, whose Next is the first one.
	frags *Packet // two cache lines end here
}

// Bytes gives the part of the frame that lies in the head. It aliases the
// packet's memory and is valid while the caller owns the packet. After
// ReadBatch every header that classify may look at lies here.
func (p *Packet) Bytes() []byte { return p.buf[p.off:p.end:p.end] }

// TailBytes gives the part of the frame behind Bytes; nil for most packets.
func (p *Packet) TailBytes() []byte {
	if p.tail == nil {
		return nil
	}
	return p.tail.B[p.tailOff : p.tailOff+p.tailLen]
}

// Len is the length of the frame in bytes, without the vnet header.
func (p *Packet) Len() int { return int(p.end-p.off) + int(p.tailLen) + int(p.fragLen) }

// HeadLength is the length in bytes of Bytes.
func (p *Packet) HeadLength() int { return int(p.end - p.off) }

// HasTail reports whether part of the frame lies in a tail.
func (p *Packet) HasTail() bool { return p.tailLen != 0 }

// Memory is what the packet holds of the pool, in bytes: its head, its tail
// and what was appended. A tail counts in full for each packet that shares it.
func (p *Packet) Memory() int { return int(p.held) << 10 }

// Append makes the bytes of q from offset from on, which must lie in q's head,
// the end of p's frame. p owns q from then on; q is payload and no longer a
// packet of its own. Headers, Vnet and Segs of p are the caller's business:
// in the end Segs must count one for each packet that was appended, and one.
func (p *Packet) Append(q *Packet, from int) {
	q.off += uint16(from)
	p.fragLen += uint16(q.Len())
	p.held += q.held
	if p.frags == nil {
		q.Next = q
	} else {
		q.Next, p.frags.Next = p.frags.Next, q
	}
	p.frags = q
}

// Merged reports whether p has packets appended to it.
func (p *Packet) Merged() bool { return p.frags != nil }

// FirstFrag gives the first packet that was appended to p, nil if none was.
// Its Bytes and TailBytes are the part of the frame behind p's own.
func (p *Packet) FirstFrag() *Packet {
	if p.frags == nil {
		return nil
	}
	return p.frags.Next
}

// NextFrag gives the packet that was appended to p after f; nil at the end.
func (p *Packet) NextFrag(f *Packet) *Packet {
	if f == p.frags {
		return nil
	}
	return f.Next
}

// Buffer gives the whole head buffer, for the reader of a device. SetFrame
// says afterwards where the frame lies in it.
func (p *Packet) Buffer() []byte { return p.buf[:] }

// SetFrame sets the head's share of the frame to buf[off:end].
func (p *Packet) SetFrame(off, end int) { p.off, p.end = uint16(off), uint16(end) }

// Before gives the n bytes in front of the frame, for a header that is only
// written out with it (the vnet header). n must not exceed the headroom left.
func (p *Packet) Before(n int) []byte { return p.buf[int(p.off)-n : p.off] }

// WithHeader gives the n bytes in front of the frame together with Bytes.
func (p *Packet) WithHeader(n int) []byte { return p.buf[int(p.off)-n : p.end] }

// HeadroomLeft is the number of bytes that Push can still take.
func (p *Packet) HeadroomLeft() int { return int(p.off) }

// SetTail gives the packet the tail t of which n bytes from off belong to the
// frame. The packet, which has no tail yet, takes over one reference to t.
func (p *Packet) SetTail(t *Tail, off, n int) {
	p.tail, p.tailOff, p.tailLen = t, uint32(off), uint32(n)
	p.held += uint16(len(t.B) >> 10)
}

// Set copies frame into the head and forgets everything else. It reports
// false, and changes nothing, if the frame is longer than a head takes.
func (p *Packet) Set(frame []byte) bool {
	if len(frame) > HeadLen-Headroom || p.tail != nil {
		return false
	}
	p.off = Headroom
	p.end = Headroom + uint16(copy(p.buf[Headroom:], frame))
	p.Vnet = Vnet{}
	return true
}

// Push makes room for n bytes in front of the frame and gives them; the
// offsets of headers and of the checksum move with the frame. The caller
// fills the bytes. It returns nil if the headroom is too small.
func (p *Packet) Push(n int) []byte {
	if int(p.off) < n {
		return nil
	}
	p.off -= uint16(n)
	p.shift(n)
	return p.buf[p.off : int(p.off)+n]
}

// Pull takes n bytes off the front of the frame. n must not reach beyond the
// head's share; offsets move with the frame.
func (p *Packet) Pull(n int) {
	p.off += uint16(n)
	p.shift(-n)
}

func (p *Packet) shift(n int) {
	p.L3 = uint16(int(p.L3) + n)
	if p.L4 != 0 {
		p.L4 = uint16(int(p.L4) + n)
	}
	if p.Vnet.Flags&NeedsCsum != 0 {
		p.Vnet.CsumStart = uint16(int(p.Vnet.CsumStart) + n)
	}
	if p.Vnet.HdrLen != 0 {
		p.Vnet.HdrLen = uint16(int(p.Vnet.HdrLen) + n)
	}
}

// Trim cuts the frame to n bytes; a longer n changes nothing. A merged packet
// cannot be cut.
func (p *Packet) Trim(n int) {
	head := int(p.end - p.off)
	switch {
	case n >= p.Len():
	case n <= head:
		p.end = p.off + uint16(n)
		p.tailLen = 0 // the tail itself goes back with the packet
	default:
		p.tailLen = uint32(n - head)
	}
}

// CopyOut copies frame bytes from offset from into b and gives the number
// copied. It is for slow paths: replies, captures, tests.
func (p *Packet) CopyOut(b []byte, from int) int {
	n, from := p.copyOwn(b, from)
	for f := p.FirstFrag(); f != nil && n < len(b); f = p.NextFrag(f) {
		var k int
		k, from = f.copyOwn(b[n:], from)
		n += k
	}
	return n
}

// copyOwn copies from head and tail. It also gives how far behind them from
// lies, 0 if it does not.
func (p *Packet) copyOwn(b []byte, from int) (n, rest int) {
	for _, piece := range [2][]byte{p.Bytes(), p.TailBytes()} {
		if from < len(piece) {
			n += copy(b[n:], piece[from:])
			from = 0
		} else {
			from -= len(piece)
		}
	}
	return n, from
}

// A Tail is a buffer for what a head does not hold, shared by reference: a
// flooded copy has its own head and the same tail.
type Tail struct {
	B    []byte // TailLen or SmallTailLen bytes of mmap'd memory
	refs atomic.Int32
}
