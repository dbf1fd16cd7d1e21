package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/offload/offloadtest"
	"taprouter/packet"
)

// A vnetSocket sends and receives frames of a device with their virtio-net
// header: superpackets and partial checksums are seen as they are.
type vnetSocket struct {
	*rawSocket
	buf, oob []byte
}

const vnetBytes = 10 // struct virtio_net_hdr

// vnet opens one in namespace k on its device k, with room for what comes in
// while nobody reads.
func (n *Net) vnet(k string) *vnetSocket {
	n.t.Helper()
	s := &vnetSocket{n.raw(k), make([]byte, 1<<17), make([]byte, 128)}
	addr := s.addr
	addr.Protocol = unix.ETH_P_ALL << 8 // in network byte order
	err := errors.Join(
		unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
		unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1), // the kernel takes a VLAN tag out of the frame
		unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 128<<20),
		unix.Bind(s.fd, &addr))
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

// recv gives the next frame that came in, its VLAN tag put back; ok is false
// if there is none. The frame is valid until the next call.
func (s *vnetSocket) recv() (f offloadtest.Frame, ok bool, err error) {
	const room = 4 // for the tag
	n, noob, _, _, err := unix.Recvmsg(s.fd, s.buf[room:], s.oob, unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) {
		return f, false, nil
	}
	if err != nil {
		return f, false, fmt.Errorf("read a frame: %w", err)
	}
	h, b := s.buf[room:room+vnetBytes], s.buf[room+vnetBytes:room+n]
	word := binary.NativeEndian.Uint16
	f.Vnet = packet.Vnet{Flags: h[0], GSOType: h[1], HdrLen: word(h[2:]), GSOSize: word(h[4:]), CsumStart: word(h[6:]), CsumOffset: word(h[8:])}
	if tpid, tci, tagged := auxTag(s.oob[:noob]); tagged {
		b = s.buf[vnetBytes : room+n] // begins four bytes earlier: the MAC addresses move there
		copy(b, b[room:room+12])
		binary.BigEndian.PutUint16(b[12:], tpid)
		binary.BigEndian.PutUint16(b[14:], tci)
		f.Vnet.CsumStart += room
	}
	f.B = b
	return f, true, nil
}

// wait returns when a frame has come in, or at that time.
func (s *vnetSocket) wait(until time.Time) {
	fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	_, _ = unix.Poll(fds, int(max(time.Until(until), 0).Milliseconds()))
}

// auxTag finds the VLAN tag in a struct tpacket_auxdata.
func auxTag(oob []byte) (tpid, tci uint16, ok bool) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) == 0 || len(msgs[0].Data) < 20 {
		return 0, 0, false
	}
	aux := msgs[0].Data
	status := binary.NativeEndian.Uint32(aux)
	return binary.NativeEndian.Uint16(aux[18:]), binary.NativeEndian.Uint16(aux[16:]), status&unix.TP_STATUS_VLAN_VALID != 0
}

// lost is how many frames found no room since it was last asked.
func (s *vnetSocket) lost() uint32 {
	st, err := unix.GetsockoptTpacketStats(s.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 1
	}
	return st.Drops
}

// sendFrame is send of a frame with its header.
func (s *vnetSocket) sendFrame(f offloadtest.Frame) bool {
	v := f.Vnet
	return s.send(vnetHdr{v.Flags, v.GSOType, v.HdrLen, v.GSOSize, v.CsumStart, v.CsumOffset}.before(f.B))
}

// judge says what is wrong with a frame that came in at a host whose port
// takes these offloads and has this MTU.
func judge(f offloadtest.Frame, takes offloads, mtu int) error {
	l := f.Layout()
	if l.Tags > 0 {
		mtu += 4 // of one tag, as for the kernel's bridge
	}
	kind := f.Vnet.GSOType &^ packet.GSOECN
	size := len(f.B) - 14
	if kind != packet.GSONone {
		size = f.Headers(l) - 14 + int(f.Vnet.GSOSize)
	}
	switch {
	case size > mtu:
		return fmt.Errorf("%d bytes of packet, more than the MTU", size)
	case l.EtherType != 0x0800 && l.EtherType != 0x86dd:
		return nil
	case (kind == packet.GSOTCPv4 || kind == packet.GSOTCPv6) && !takes.tso, kind == packet.GSOUDPL4 && !takes.uso:
		return errors.New("a superpacket that the port does not take")
	case f.Vnet.Flags&packet.NeedsCsum != 0 && !takes.csum:
		return errors.New("a partial checksum, which the port does not take")
	case kind != packet.GSONone && f.Vnet.Flags&packet.NeedsCsum == 0:
		return errors.New("a superpacket without a partial checksum")
	}
	return judgeSums(f, l)
}

func judgeSums(f offloadtest.Frame, l offloadtest.Layout) error {
	ip := f.B[l.L3:]
	total := 40 + int(binary.BigEndian.Uint16(ip[4:]))
	if l.EtherType == 0x0800 {
		total = int(binary.BigEndian.Uint16(ip[2:]))
		if offloadtest.Sum(ip[:int(ip[0]&15)*4]) != 0xffff {
			return errors.New("wrong IPv4 header checksum")
		}
	}
	if total != len(ip) {
		return fmt.Errorf("%d bytes of packet, but its header says %d", len(ip), total)
	}
	if f.Vnet.Flags&packet.NeedsCsum != 0 {
		field := binary.BigEndian.Uint16(f.B[f.Vnet.CsumStart+f.Vnet.CsumOffset:])
		if want := offloadtest.Sum(offloadtest.Pseudo(f.B, l)); int(f.Vnet.CsumStart) != l.L4 || field != want && field+want != 0xffff {
			return fmt.Errorf("a partial checksum of %04x from %d, the pseudo header's is %04x from %d", field, f.Vnet.CsumStart, want, l.L4)
		}
		return nil
	}
	if l.Fragment || l.L4 == 0 {
		return nil
	}
	var sum uint16
	switch l.Proto {
	case 1:
		sum = offloadtest.Sum(f.B[l.L4:])
	case 6, 17, 58:
		sum = offloadtest.Sum(append(offloadtest.Pseudo(f.B, l), f.B[l.L4:]...))
	default:
		return nil
	}
	if sum != 0xffff {
		return fmt.Errorf("wrong checksum of protocol %d", l.Proto)
	}
	return nil
}
