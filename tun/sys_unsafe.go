package tun

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"taprouter/packet"
)

// The data path's system calls are raw: the worker keeps its P while it is in
// them (decision: measured 0.9..0.95 of C's goodput against 0.77..0.85 through
// the scheduler). They never block, as descriptors are non-blocking.
//
// The buffers lie in mmap'd memory or in objects that the Writer and Reader
// keep alive, so an address stays good for as long as the kernel has it.

// iovecs is the array for readv and writev. It lives in a Reader or Writer on
// the heap, never on a stack, which may move. A merged packet takes one or two
// for each of the frames that it was read as; the kernel takes UIO_MAXIOV.
type iovecs [1024]unix.Iovec

// The largest merged packet, of a whole batch, fits: this does not compile
// otherwise.
const _ = uint(len(iovecs{}) - 2*packet.MaxBatch)

func (v *iovecs) set(i int, b []byte) {
	v[i].Base = unsafe.SliceData(b)
	v[i].SetLen(len(b))
}

func (v *iovecs) readv(fd, n int) (int, unix.Errno) {
	r, _, errno := unix.RawSyscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(v)), uintptr(n))
	return int(r), errno
}

func (v *iovecs) writev(fd, n int) unix.Errno {
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(v)), uintptr(n))
		if errno != unix.EINTR {
			return errno
		}
	}
}

func write(fd int, b []byte) unix.Errno {
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		if errno != unix.EINTR {
			return errno
		}
	}
}

// epollWait waits for events. In raw mode the calling worker keeps its P and
// EINTR is how the runtime asks for it: the caller must yield.
func epollWait(epfd int, events []unix.EpollEvent, timeout int64, raw bool) (int, unix.Errno) {
	var ts *unix.Timespec
	if timeout >= 0 {
		t := unix.NsecToTimespec(timeout)
		ts = &t
	}
	ev := unsafe.Pointer(unsafe.SliceData(events))
	var n uintptr
	var errno unix.Errno
	if raw {
		n, _, errno = unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epfd), uintptr(ev), uintptr(len(events)), uintptr(unsafe.Pointer(ts)), 0, 0)
	} else {
		n, _, errno = unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epfd), uintptr(ev), uintptr(len(events)), uintptr(unsafe.Pointer(ts)), 0, 0)
	}
	if errno == unix.ENOSYS { // before Linux 5.11
		n, _, errno = epollWaitMsec(epfd, ev, len(events), timeout, raw)
	}
	return int(n), errno
}

// epollWaitMsec is the same with the older call, which counts milliseconds.
func epollWaitMsec(epfd int, ev unsafe.Pointer, n int, timeout int64, raw bool) (uintptr, uintptr, unix.Errno) {
	ms := int64(-1)
	if timeout >= 0 {
		ms = (timeout + 999_999) / 1_000_000
	}
	if raw {
		return unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epfd), uintptr(ev), uintptr(n), uintptr(ms), 0, 0)
	}
	return unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(epfd), uintptr(ev), uintptr(n), uintptr(ms), 0, 0)
}

// rest waits raw until nsec have passed or fd is readable.
func rest(fd int, nsec int64) unix.Errno {
	ts := unix.NsecToTimespec(nsec)
	p := unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	_, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	return errno
}

// A pollFD asks whether one descriptor is ready. It belongs to one thread.
type pollFD struct {
	fd   unix.PollFd
	zero unix.Timespec
}

func (p *pollFD) init(fd int) { p.fd = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN} }

// readable reports whether a read will return at once, with a frame or an error.
func (p *pollFD) readable() bool {
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p.fd)), 1, uintptr(unsafe.Pointer(&p.zero)), 0, 0, 0)
	return errno == 0 && n == 1
}

// A message is a list of pieces to be sent with one call. It belongs to one
// thread and lies on the heap.
type message struct {
	iov iovecs
	n   int
	hdr unix.Msghdr
}

func (m *message) add(b []byte) {
	m.iov.set(m.n, b)
	m.n++
}

// send sends the pieces, or as many bytes of them as the socket has room for.
func (m *message) send(fd int) (int, unix.Errno) {
	m.hdr.Iov = &m.iov[0]
	m.hdr.SetIovlen(m.n)
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.hdr)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

func read(fd int, b []byte) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// one is an option's value.
var one int32 = 1

// quickAck acknowledges what was read at once: QEMU leaves Nagle's algorithm
// on, so its next small frame would wait for an acknowledgement, which the
// kernel delays by 40 ms. The kernel forgets the option (tcp(7), TCP_QUICKACK).
func quickAck(fd int) {
	_, _, _ = unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, uintptr(unsafe.Pointer(&one)), unsafe.Sizeof(one), 0)
}

// datagrams are several messages for one call, each of up to two pieces. They
// belong to one thread and lie on the heap.
type datagrams struct {
	hdr [packet.MaxBatch]unix.Mmsghdr
	iov [packet.MaxBatch][2]unix.Iovec
}

// set makes message i of a head and, unless it is empty, a tail.
func (d *datagrams) set(i int, head, tail []byte) {
	iov := &d.iov[i]
	iov[0].Base = unsafe.SliceData(head)
	iov[0].SetLen(len(head))
	iov[1].Base = unsafe.SliceData(tail)
	iov[1].SetLen(len(tail))
	d.hdr[i].Hdr.Iov = &iov[0]
	d.hdr[i].Hdr.SetIovlen(2)
}

// send sends messages from to end-1, or the first few of them.
func (d *datagrams) send(fd, from, end int) (int, unix.Errno) {
	return d.call(unix.SYS_SENDMMSG, fd, from, end, unix.MSG_NOSIGNAL)
}

// recv fills messages 0 to n-1, or as many as there are; Len is their length.
func (d *datagrams) recv(fd, n int) (int, unix.Errno) {
	return d.call(unix.SYS_RECVMMSG, fd, 0, n, 0)
}

func (d *datagrams) call(nr uintptr, fd, from, end, flags int) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(nr, uintptr(fd), uintptr(unsafe.Pointer(&d.hdr[from])), uintptr(end-from), uintptr(flags|unix.MSG_DONTWAIT), 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}
