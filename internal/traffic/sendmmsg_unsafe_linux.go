package traffic

import (
	"encoding/binary"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// messages are what sendmmsg(2) takes: frames for one device, without copies.
type messages struct {
	hdr  []mmsghdr
	iov  []unix.Iovec
	addr unix.RawSockaddrLinklayer // of all
}

// mmsghdr is struct mmsghdr, include/linux/socket.h.
type mmsghdr struct {
	unix.Msghdr
	len uint32
}

// newMessages makes n messages for the device with this index; protocol is an
// EtherType in host order.
func newMessages(n, ifindex int, protocol uint16) *messages {
	m := &messages{hdr: make([]mmsghdr, n), iov: make([]unix.Iovec, n)}
	network := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, protocol))
	m.addr = unix.RawSockaddrLinklayer{Family: unix.AF_PACKET, Ifindex: int32(ifindex), Protocol: network}
	for i := range m.hdr {
		m.hdr[i].Name, m.hdr[i].Namelen = (*byte)(unsafe.Pointer(&m.addr)), unix.SizeofSockaddrLinklayer
		m.hdr[i].Iov = &m.iov[i]
		m.hdr[i].SetIovlen(1)
	}
	return m
}

// set makes frame message i; it stays where it is until it was sent.
func (m *messages) set(i int, frame []byte) {
	m.iov[i].Base = &frame[0]
	m.iov[i].SetLen(len(frame))
}

// send sends messages from up to to and gives how many went out before the
// first that did not.
func (m *messages) send(fd, from, to int) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.hdr[from])), uintptr(to-from), 0, 0, 0)
	runtime.KeepAlive(m)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
