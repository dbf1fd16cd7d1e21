package uring

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An SQE is a submission entry. struct io_uring_sqe.
type SQE struct {
	Op       uint8
	Flags    uint8
	ioprio   uint16
	FD       int32
	Off      uint64
	Addr     uint64
	Len      uint32
	OpFlags  uint32 // rw_flags, poll32_events
	UserData uint64
	_        [3]uint64
}

// A CQE is a completion. Res is a result or a negative errno.
// struct io_uring_cqe.
type CQE struct {
	UserData uint64
	Res      int32
	Flags    uint32
}

// Operations (enum io_uring_op) and flags of entries and completions.
const (
	OpReadv   = 1
	OpWritev  = 2
	OpPollAdd = 6
	OpRead    = 22
	OpWrite   = 23

	Link = 1 << 2 // IOSQE_IO_LINK: the next entry begins when this one has ended well, or else is cancelled

	PollMultishot = 1 << 0 // IORING_POLL_ADD_MULTI, in Len
	More          = 1 << 1 // IORING_CQE_F_MORE: further completions follow
)

// Buffer sets the memory that e reads into or writes from. It lies outside
// the Go heap or is kept alive until e has completed.
func (e *SQE) Buffer(b []byte) {
	e.Addr = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
	e.Len = uint32(len(b))
}

// Iovecs sets a vector of such memory. The vector itself is read by the Enter
// that submits e, not later.
func (e *SQE) Iovecs(v []unix.Iovec) {
	e.Addr = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(v))))
	e.Len = uint32(len(v))
}

// params is struct io_uring_params with its two structs of offsets.
type params struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFD uint32
	_                                                                      [3]uint32
	sq                                                                     struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, _ uint32
		_                                                   uint64
	}
}

// args are what io_uring_enter and io_uring_register get by address. They lie
// in mmap'd memory, as does all that the kernel gets so.
type args struct {
	enter struct { // struct io_uring_getevents_arg
		sigmask     uint64
		sigmaskSize uint32
		minWait     uint32
		timespec    uint64
	}
	timeout struct{ sec, nsec int64 }
	cancel  struct { // struct io_uring_sync_cancel_reg
		userData  uint64
		fd        int32
		flags     uint32
		sec, nsec int64
		op        uint8
		_         [7]uint8
		_         [3]uint64
	}
}

// Flags of io_uring_enter and operations of io_uring_register.
const (
	enterGetEvents = 1 << 0 // IORING_ENTER_GETEVENTS
	enterExtArg    = 1 << 3 // IORING_ENTER_EXT_ARG

	registerEnableRings = 12 // IORING_REGISTER_ENABLE_RINGS
	registerSyncCancel  = 24 // IORING_REGISTER_SYNC_CANCEL

	offSQRing = 0          // IORING_OFF_SQ_RING
	offSQEs   = 0x10000000 // IORING_OFF_SQES

	sqCQOverflow = 1 << 1 // IORING_SQ_CQ_OVERFLOW
	sqTaskrun    = 1 << 2 // IORING_SQ_TASKRUN
)

func setup(entries uint32, p *params) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

func register(fd, op int, arg unsafe.Pointer, n int) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_IO_URING_REGISTER, uintptr(fd), uintptr(op), uintptr(arg), uintptr(n), 0, 0)
	return errno
}

// enter is io_uring_enter, with a limit of time if timeout >= 0.
func (r *Ring) enter(submit, want, flags uint32, timeout int64, raw bool) (uint32, unix.Errno) {
	var arg, size uintptr
	if timeout >= 0 {
		r.args.timeout.sec, r.args.timeout.nsec = timeout/1e9, timeout%1e9
		flags |= enterExtArg
		arg, size = uintptr(unsafe.Pointer(&r.args.enter)), unsafe.Sizeof(r.args.enter)
	}
	call := unix.Syscall6
	if raw {
		call = unix.RawSyscall6
	}
	n, _, errno := call(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(submit), uintptr(want), uintptr(flags), arg, size)
	return uint32(n), errno
}

// syncCancel is IORING_REGISTER_SYNC_CANCEL. It does not wait: the kernel
// has taken the request off its lists when it returns.
func (r *Ring) syncCancel(userData uint64, flags uint32) unix.Errno {
	c := &r.args.cancel
	c.userData, c.fd, c.flags, c.sec, c.nsec = userData, -1, flags, -1, -1
	return register(r.fd, registerSyncCancel, unsafe.Pointer(c), 1)
}

// mmap maps the rings and the entries, and finds their parts.
func (r *Ring) mmap(p *params) (err error) {
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	size := max(p.cq.cqes+p.cqEntries*uint32(unsafe.Sizeof(CQE{})), p.sq.array+4*p.sqEntries)
	if r.rings, err = unix.Mmap(r.fd, offSQRing, int(size), prot, flags); err != nil {
		return fmt.Errorf("mmap of the rings: %w", err)
	}
	if r.entries, err = unix.Mmap(r.fd, offSQEs, int(p.sqEntries)*int(unsafe.Sizeof(SQE{})), prot, flags); err != nil {
		return fmt.Errorf("mmap of the entries: %w", err)
	}
	if r.page, err = unix.Mmap(-1, 0, unix.Getpagesize(), prot, unix.MAP_ANON|unix.MAP_PRIVATE); err != nil {
		return fmt.Errorf("mmap of a page: %w", err)
	}
	r.args = (*args)(unsafe.Pointer(&r.page[0]))
	r.args.enter.timespec = uint64(uintptr(unsafe.Pointer(&r.args.timeout)))

	word := func(off uint32) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&r.rings[off])) }
	r.sqTail, r.sqFlags = word(p.sq.tail), word(p.sq.flags)
	r.cqHead, r.cqTail = word(p.cq.head), word(p.cq.tail)
	r.sqes = unsafe.Slice((*SQE)(unsafe.Pointer(&r.entries[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*CQE)(unsafe.Pointer(&r.rings[p.cq.cqes])), p.cqEntries)
	if p.flags&setupNoSQArray == 0 {
		for i := range p.sqEntries { // entry i is always in slot i
			word(p.sq.array + 4*i).Store(i)
		}
	}
	return nil
}
