// Package uring (data path) implements what the router needs of io_uring:
// one ring, its submission and completion entries, waiting with a timeout,
// and cancelling. It knows nothing of queues and packets.
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
	wait uint32 // IORING_ENTER flags of every wait
	sqes []SQE  // a power of two, as cqes
	cqes []CQE
	args *args
	tail uint32 // entries filled by Next, free-running
	sent uint32 // of those, how many the kernel has taken
	head uint32 // completions reaped, free-running

	// Shared with the kernel. A store releases, a load acquires.
	sqTail  *atomic.Uint32 // ours
	sqFlags *atomic.Uint32 // the kernel's
	cqHead  *atomic.Uint32 // ours
	cqTail  *atomic.Uint32 // the kernel's

	rings, entries, page []byte // mappings: both rings, sqes, args
}

// Setup flags, include/uapi/linux/io_uring.h.
const (
	setupCQSize       = 1 << 3  // IORING_SETUP_CQSIZE
	setupDisabled     = 1 << 6  // IORING_SETUP_R_DISABLED
	setupSubmitAll    = 1 << 7  // IORING_SETUP_SUBMIT_ALL, Linux 5.18
	setupCoopTaskrun  = 1 << 8  // IORING_SETUP_COOP_TASKRUN, Linux 5.19
	setupTaskrunFlag  = 1 << 9  // IORING_SETUP_TASKRUN_FLAG, Linux 5.19
	setupSingleIssuer = 1 << 12 // IORING_SETUP_SINGLE_ISSUER, Linux 6.0
	setupDeferTaskrun = 1 << 13 // IORING_SETUP_DEFER_TASKRUN, Linux 6.1
	setupNoSQArray    = 1 << 16 // IORING_SETUP_NO_SQARRAY, Linux 6.6
)

// setups are the flags to try, the best first: completions only when we ask
// for them, no array of indexes in front of the submission entries.
var setups = []uint32{
	setupTaskrunFlag | setupDeferTaskrun | setupNoSQArray,
	setupTaskrunFlag | setupDeferTaskrun,
	setupTaskrunFlag | setupCoopTaskrun,
}

// Features (IORING_FEAT_*): SINGLE_MMAP, both rings in one mapping; NODROP, no
// completion is lost; SUBMIT_STABLE, vectors and arguments are read by the
// call that submits; EXT_ARG, a timeout of the wait. NO_IOWAIT, Linux 6.15:
// who waits does not count as waiting for a disk.
const (
	needed        = 1<<0 | 1<<1 | 1<<2 | 1<<8
	featNoIowait  = 1 << 17
	enterNoIowait = 1 << 7 // IORING_ENTER_NO_IOWAIT
)

// New makes a ring for up to entries submissions at a time, a power of two,
// and four times as many completions. It can be used from Enable on.
func New(entries uint32) (*Ring, error) {
	var fd int
	var p params
	var err error
	for _, flags := range setups {
		p = params{flags: flags | setupSingleIssuer | setupDisabled | setupSubmitAll | setupCQSize, cqEntries: 4 * entries}
		if fd, err = setup(entries, &p); !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("uring: io_uring_setup: %w", explain(err))
	}
	r := &Ring{fd: fd}
	if p.features&featNoIowait != 0 {
		r.wait = enterNoIowait
	}
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
func (r *Ring) Memory() int { return len(r.rings) + len(r.entries) + len(r.page) }

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
	if errno := register(r.fd, registerEnableRings, nil, 0); errno != 0 {
		return fmt.Errorf("uring: IORING_REGISTER_ENABLE_RINGS: %w", errno)
	}
	return nil
}

// Close frees the ring. The kernel ends what is still under way later, and
// until then holds its files: the owner cancels that first.
func (r *Ring) Close() {
	for _, b := range [][]byte{r.rings, r.entries, r.page} {
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

// Unsubmitted is the number of entries that the kernel has not taken.
func (r *Ring) Unsubmitted() int { return int(r.tail - r.sent) }

// Forget takes back the last n entries that Next gave, of those that the
// kernel has not taken.
func (r *Ring) Forget(n int) { r.tail -= uint32(n) }

// Enter submits everything, then waits until want completions can be reaped
// or timeout ns have passed (negative: no limit). With want 0 it takes in what
// has completed meanwhile and does not wait. A raw wait keeps the caller's P.
//
// The error tells of the submission if there was something to submit: then
// Unsubmitted is not 0. A wait that ended early, with ETIME or EINTR, says so
// only if there was nothing.
func (r *Ring) Enter(want int, timeout int64, raw bool) unix.Errno {
	r.sqTail.Store(r.tail)
	if want == 0 {
		timeout = -1
	}
	n, errno := r.enter(r.tail-r.sent, uint32(want), enterGetEvents|r.wait, timeout, raw)
	if errno == 0 {
		r.sent += n
	}
	return errno
}

// Submit submits everything and looks at nothing else. Operations that need
// not wait have completed when it returns, one after the other.
func (r *Ring) Submit() unix.Errno {
	r.sqTail.Store(r.tail)
	n, errno := r.enter(r.tail-r.sent, 0, 0, -1, true)
	if errno == 0 {
		r.sent += n
	}
	return errno
}

// Pending reports whether there is something to reap, or would be after an
// Enter that does not wait.
func (r *Ring) Pending() bool {
	return r.cqTail.Load() != r.head || r.sqFlags.Load()&(sqTaskrun|sqCQOverflow) != 0
}

// Reap takes the oldest completion; false if there is none.
func (r *Ring) Reap() (CQE, bool) {
	if r.cqTail.Load() == r.head {
		return CQE{}, false
	}
	c := r.cqes[r.head&uint32(len(r.cqes)-1)]
	r.head++
	r.cqHead.Store(r.head)
	return c, true
}

// Cancel ends what was submitted with that user data: it completes with
// ECANCELED, or as usual if it was quicker. Its completion is there after an
// Enter that waits for it, also if nothing was under way any more.
func (r *Ring) Cancel(userData uint64) {
	for r.syncCancel(userData, 0) == unix.EINTR {
	}
}

// CancelAll is Cancel for whatever is under way.
func (r *Ring) CancelAll() {
	for r.syncCancel(0, cancelAll|cancelAny) == unix.EINTR {
	}
}

const (
	cancelAll = 1 << 0 // IORING_ASYNC_CANCEL_ALL
	cancelAny = 1 << 2 // IORING_ASYNC_CANCEL_ANY
)
