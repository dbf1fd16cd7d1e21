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

// Operations (enum io_uring_op), and a flag of entries.
const (
	OpReadv  = 1
	OpWritev = 2
	OpWrite  = 23

	Link = 1 << 2 // IOSQE_IO_LINK: the next entry begins when this one has ended well, or else is cancelled
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

const (
	enterGetEvents      = 1 << 0     // IORING_ENTER_GETEVENTS
	registerEnableRings = 12         // IORING_REGISTER_ENABLE_RINGS
	offSQRing           = 0          // IORING_OFF_SQ_RING
	offSQEs             = 0x10000000 // IORING_OFF_SQES
)

func setup(entries uint32, p *params) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

func enable(fd int) unix.Errno {
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(fd), registerEnableRings, 0, 0, 0, 0)
	return errno
}

// enter is io_uring_enter. It is raw, as all calls of the data path are.
func (r *Ring) enter(submit, want uint32) (uint32, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(submit), uintptr(want), enterGetEvents, 0, 0)
	return uint32(n), errno
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

	word := func(off uint32) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&r.rings[off])) }
	r.sqTail, r.cqHead, r.cqTail = word(p.sq.tail), word(p.cq.head), word(p.cq.tail)
	r.sqes = unsafe.Slice((*SQE)(unsafe.Pointer(&r.entries[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*CQE)(unsafe.Pointer(&r.rings[p.cq.cqes])), p.cqEntries)
	if p.flags&setupNoSQArray == 0 {
		for i := range p.sqEntries { // entry i is always in slot i
			word(p.sq.array + 4*i).Store(i)
		}
	}
	return nil
}
