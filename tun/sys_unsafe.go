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
