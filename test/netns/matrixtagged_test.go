package netns

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/offload/offloadtest"
	"taprouter/packet"
)

// tagged sends frames with one and two VLAN tags, which the kernel here cannot
// do by itself, and compares what is on the wire byte for byte.
func (m *matrixNet) tagged(from, to *matrixHost, traffic string, family int) error {
	for _, tags := range [][]uint16{{0x8100}, {0x88a8, 0x8100}} {
		w := &tagWriter{from: from, to: to, tags: tags, family: family}
		for _, f := range w.frames(traffic) {
			if err := m.onWire(from, to, f); err != nil {
				return fmt.Errorf("%d bytes with %d tags, vnet %+v: %w", len(f.B), len(tags), f.Vnet, err)
			}
		}
	}
	return nil
}

// onWire sends a frame and waits for what it stands for.
func (m *matrixNet) onWire(from, to *matrixHost, f offloadtest.Frame) error {
	send := func() error {
		if !from.wire.sendFrame(f) {
			return fmt.Errorf("the kernel does not take it")
		}
		return nil
	}
	want := f.Wire()
	if len(want[0])-14 > to.mtu+4 {
		return m.dropped(len(want), send)
	}
	if err := send(); err != nil {
		return err
	}
	var got [][]byte
	for end := time.Now().Add(5 * time.Second); len(got) < len(want); {
		if time.Now().After(end) {
			return fmt.Errorf("%d frames of %d came", len(got), len(want))
		}
		to.wire.wait(end)
		err := to.sniff(func(in offloadtest.Frame) {
			if in.Layout().Tags > 0 && bytes.Equal(in.B[6:12], from.mac) {
				got = append(got, in.Wire()...)
			}
		})
		if err != nil {
			return err
		}
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			return fmt.Errorf("frame %d of %d is\n%x, want\n%x", i, len(want), got[i][:min(100, len(got[i]))], want[i][:min(100, len(want[i]))])
		}
	}
	return nil
}

// A tagWriter makes frames between two hosts.
type tagWriter struct {
	from, to *matrixHost
	tags     []uint16
	family   int
}

// room is what a whole frame has behind its IP header. A bridge allows for one
// tag; a packet socket does if that is 802.1Q.
func (w *tagWriter) room() int {
	n := w.from.mtu - 20 - 20*w.family
	if len(w.tags) > 1 {
		n -= 4 * len(w.tags)
	}
	return n
}

func (w *tagWriter) frames(traffic string) (all []offloadtest.Frame) {
	room := w.room()
	switch traffic {
	case "tcp":
		kind := uint8(packet.GSOTCPv4)
		if w.family == 1 {
			kind = packet.GSOTCPv6
		}
		for _, size := range []int{1, 1000, room - 20} {
			all = append(all, w.partial(6, w.tcp(size, 0x18), packet.GSONone, 0))
		}
		for _, size := range []int{536, 1000, room - 20} {
			n := min(40*size, 60000/size*size)
			all = append(all, w.partial(6, w.tcp(n, 0x19), kind, size), w.partial(6, w.tcp(n, 0x90), kind|packet.GSOECN, size))
		}
	case "udp":
		for _, size := range []int{1, 1000, room - 8} {
			all = append(all, w.partial(17, w.udp(size), packet.GSONone, 0))
		}
		all = append(all, w.whole(17, w.udp(60000))...)
		for _, size := range []int{1, 1000, room - 8} {
			all = append(all, w.partial(17, w.udp(min(60*size, 60000/size*size)), packet.GSOUDPL4, size))
		}
	case "icmp":
		for _, size := range []int{1, 1000, room - 8, 60000} {
			if w.family == 0 {
				all = append(all, w.whole(1, append([]byte{8, 0, 0, 0, 0, 1, 0, 1}, w.from.some(size)...))...)
			} else {
				all = append(all, w.whole(58, append([]byte{128, 0, 0, 0, 0, 1, 0, 1}, w.from.some(size)...))...)
			}
		}
	}
	return all
}

func (w *tagWriter) tcp(n int, flags byte) []byte {
	h := make([]byte, 20, 20+n)
	copy(h, []byte{0x9c, 0x40, 0, 9, 0xff, 0xff, 0xf0, 0, 0, 0, 0, 1, 0x50, flags, 0x10, 0})
	return append(h, w.from.some(n)...)
}

func (w *tagWriter) udp(n int) []byte {
	h := binary.BigEndian.AppendUint16([]byte{0x9c, 0x40, 0, 9}, uint16(8+n))
	return append(append(h, 0, 0), w.from.some(n)...)
}

// header is everything in front of n bytes of L4.
func (w *tagWriter) header(proto byte, n int) []byte {
	b := append(append([]byte{}, w.to.mac...), w.from.mac...)
	for i, tpid := range w.tags {
		b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, tpid), uint16(100+i))
	}
	if w.family == 0 {
		ip := []byte{0x45, 0, 0, 0, 0xff, 0xfe, 0, 0, 64, proto, 0, 0, 10, 99, 0, 1, 10, 99, 0, 2}
		binary.BigEndian.PutUint16(ip[2:], uint16(20+n))
		binary.BigEndian.PutUint16(ip[10:], ^offloadtest.Sum(ip))
		return append(append(b, 0x08, 0), ip...)
	}
	ip := make([]byte, 40)
	ip[0], ip[6], ip[7] = 0x60, proto, 64
	binary.BigEndian.PutUint16(ip[4:], uint16(n))
	copy(ip[8:], []byte{0xfd, 0x99, 15: 1})
	copy(ip[24:], []byte{0xfd, 0x99, 15: 2})
	return append(append(b, 0x86, 0xdd), ip...)
}

// partial is a frame whose checksum is left to us.
func (w *tagWriter) partial(proto byte, l4 []byte, kind uint8, size int) offloadtest.Frame {
	h := w.header(proto, len(l4))
	f := offloadtest.Frame{B: append(h, l4...), Vnet: packet.Vnet{Flags: packet.NeedsCsum, GSOType: kind, GSOSize: uint16(size), CsumStart: uint16(len(h)), CsumOffset: 6}}
	if proto == unix.IPPROTO_TCP {
		f.Vnet.CsumOffset = 16
	}
	if kind != packet.GSONone {
		f.Vnet.HdrLen = uint16(f.Headers(f.Layout()))
	}
	binary.BigEndian.PutUint16(f.B[f.Vnet.CsumStart+f.Vnet.CsumOffset:], offloadtest.Sum(offloadtest.Pseudo(f.B, f.Layout())))
	return f
}

// whole is a packet with a complete checksum, in fragments if it is too long.
func (w *tagWriter) whole(proto byte, l4 []byte) (all []offloadtest.Frame) {
	field := 6
	if proto != unix.IPPROTO_UDP {
		field = 2
	}
	f := offloadtest.Frame{B: append(w.header(proto, len(l4)), l4...)}
	var pseudo []byte
	if l := f.Layout(); proto != unix.IPPROTO_ICMP {
		pseudo = offloadtest.Pseudo(f.B, l)
	}
	binary.BigEndian.PutUint16(l4[field:], ^offloadtest.Sum(append(pseudo, l4...)))
	if len(l4) <= w.room() {
		return []offloadtest.Frame{{B: append(w.header(proto, len(l4)), l4...)}}
	}
	size := (w.room() - 8) &^ 7
	for off := 0; off < len(l4); off += size {
		part, more := l4[off:min(off+size, len(l4))], off+size < len(l4)
		all = append(all, offloadtest.Frame{B: w.fragment(proto, part, off, more)})
	}
	return all
}

func (w *tagWriter) fragment(proto byte, part []byte, off int, more bool) []byte {
	if w.family == 1 {
		h := []byte{proto, 0, 0, 0, 0, 0, 0, 7}
		word := uint16(off)
		if more {
			word |= 1
		}
		binary.BigEndian.PutUint16(h[2:], word)
		return append(append(w.header(unix.IPPROTO_FRAGMENT, 8+len(part)), h...), part...)
	}
	b := w.header(proto, len(part))
	ip := b[len(b)-20:]
	word := uint16(off / 8)
	if more {
		word |= 0x2000
	}
	binary.BigEndian.PutUint16(ip[6:], word)
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], ^offloadtest.Sum(ip))
	return append(b, part...)
}
