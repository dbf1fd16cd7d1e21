// Package uring (data path) implements what the router needs of io_uring: a
// ring, its submission and completion entries, and the call that does them. It
// knows nothing of queues and packets.
//
// A Ring is made by anybody and belongs to one thread from Enable on; see
// io_uring_setup(2), IORING_SETUP_SINGLE_ISSUER.
package uring

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ErrNotSupported says that the kernel has no io_uring that we can use, that
// it was turned off (kernel.io_uring_disabled), or that a filter of system
// calls forbids it, as those of containers do. Linux 6.0 has what we need.
var ErrNotSupported = errors.New("io_uring is not available")

// A Ring is an io_uring with a submission queue of a fixed size. All methods
// but New and, before Enable, Close belong to one locked thread.
type Ring struct {
	fd   int
	sqes []SQE // a power of two, as cqes
	cqes []CQE
	tail uint32 // entries filled by Next, free-running
	sent uint32 // of those, how many the kernel has taken
	head uint32 // completions reaped, free-running

	// Shared with the kernel. A store releases, a load acquires.
	sqTail *atomic.Uint32 // ours
	cqHead *atomic.Uint32 // ours
	cqTail *atomic.Uint32 // the kernel's

	rings, entries []byte // mappings: both rings, sqes
}

// Setup flags, include/uapi/linux/io_uring.h.
const (
	setupDisabled     = 1 << 6  // IORING_SETUP_R_DISABLED
	setupSubmitAll    = 1 << 7  // IORING_SETUP_SUBMIT_ALL, Linux 5.18
	setupCoopTaskrun  = 1 << 8  // IORING_SETUP_COOP_TASKRUN, Linux 5.19
	setupSingleIssuer = 1 << 12 // IORING_SETUP_SINGLE_ISSUER, Linux 6.0
	setupDeferTaskrun = 1 << 13 // IORING_SETUP_DEFER_TASKRUN, Linux 6.1
	setupNoSQArray    = 1 << 16 // IORING_SETUP_NO_SQARRAY, Linux 6.6
)

// setups are the flags to try, the best first: completions only when we ask
// for them, no array of indexes in front of the submission entries.
var setups = []uint32{
	setupDeferTaskrun | setupNoSQArray,
	setupDeferTaskrun,
	setupCoopTaskrun,
}

// Features without which we do without io_uring (IORING_FEAT_*): SINGLE_MMAP,
// both rings in one mapping; NODROP, no completion is lost; SUBMIT_STABLE,
// vectors are read by the call that submits.
const needed = 1<<0 | 1<<1 | 1<<2

// New makes a ring for up to entries submissions at a time, a power of two. It
// can be used from Enable on.
func New(entries uint32) (*Ring, error) {
	var fd int
	var p params
	var err error
	for _, flags := range setups {
		p = params{flags: flags | setupSingleIssuer | setupDisabled | setupSubmitAll}
		if fd, err = setup(entries, &p); !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("uring: io_uring_setup: %w", explain(err))
	}
	r := &Ring{fd: fd}
	if p.features&needed != needed {
		err = ErrNotSupported
	} else {
		err = r.mmap(&p)
	}
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("uring: %w", err)
	}
	return r, nil
}

// Memory is the bytes of memory that the ring shares with the kernel.
func (r *Ring) Memory() int { return len(r.rings) + len(r.entries) }

// explain names the errors that mean that there is no io_uring for us.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w: not in this kernel (%w)", ErrNotSupported, err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: forbidden, by kernel.io_uring_disabled or a system call filter (%w)", ErrNotSupported, err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: the kernel's is older than Linux 6.0 (%w)", ErrNotSupported, err)
	}
	return err
}

// Enable makes the calling thread, which must be locked, the ring's owner.
func (r *Ring) Enable() error {
	if errno := enable(r.fd); errno != 0 {
		return fmt.Errorf("uring: IORING_REGISTER_ENABLE_RINGS: %w", errno)
	}
	return nil
}

// Close frees the ring. Nothing is under way: the kernel would end it later,
// and hold its file until then.
func (r *Ring) Close() {
	for _, b := range [][]byte{r.rings, r.entries} {
		if b != nil {
			_ = unix.Munmap(b)
		}
	}
	_ = unix.Close(r.fd)
	*r = Ring{fd: -1}
}

// Next gives the next submission entry, cleared; nil if all are in use. It
// counts as submitted from the next Enter on.
func (r *Ring) Next() *SQE {
	if r.tail-r.sent == uint32(len(r.sqes)) {
		return nil
	}
	e := &r.sqes[r.tail&uint32(len(r.sqes)-1)]
	r.tail++
	*e = SQE{}
	return e
}

// Forget takes back the entries that the kernel has not taken and gives their
// number.
func (r *Ring) Forget() int {
	n := int(r.tail - r.sent)
	r.tail = r.sent
	return n
}

// Enter submits everything and waits until want completions can be reaped. The
// caller keeps its P, so none of them may be one that waits. With an error but
// EINTR there is something that was not submitted; a wait that ended early says
// so only if nothing was submitted with it.
func (r *Ring) Enter(want int) unix.Errno {
	r.sqTail.Store(r.tail) // releases the entries
	n, errno := r.enter(r.tail-r.sent, uint32(want))
	if errno == 0 {
		r.sent += n
	}
	return errno
}

// Reap takes the oldest completion; false if there is none.
func (r *Ring) Reap() (CQE, bool) {
	if r.cqTail.Load() == r.head { // acquires the completions
		return CQE{}, false
	}
	c := r.cqes[r.head&uint32(len(r.cqes)-1)]
	r.head++
	r.cqHead.Store(r.head)
	return c, true
}
