package tun

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/packet"
	"taprouter/tun/uring"
)

// IO says how the system calls of a batch are made.
type IO uint8

const (
	IOAuto  IO = iota // whichever of the others is quicker here
	IOUring           // a batch in one call, by io_uring
	IOReadv           // a call a frame: readv and writev
)

var ios = [...]string{"auto", "uring", "readv"}

func (io IO) String() string { return ios[io] }

// ParseIO reads what String writes.
func ParseIO(s string) (IO, error) {
	if i := slices.Index(ios[:], s); i >= 0 {
		return IO(i), nil
	}
	return 0, fmt.Errorf("io %q: want auto, uring or readv", s)
}

// clearly is the part of readv's time below which auto takes io_uring: less is
// no more than what two measurements differ by.
const clearly = 0.97

// ChooseIO turns want into IOUring or IOReadv and says why. Auto measures both
// for a few milliseconds. The error says that io_uring was wanted and is not
// available.
func ChooseIO(want IO) (IO, string, error) {
	if want == IOReadv {
		return IOReadv, "configured", nil
	}
	ratio, err := compareIO()
	switch {
	case err == nil && want == IOUring:
		return IOUring, fmt.Sprintf("configured; a batch takes %.2f of readv's time", ratio), nil
	case want == IOUring:
		return IOReadv, "", fmt.Errorf("io: uring: %w; take io: auto or readv", err)
	case errors.Is(err, uring.ErrNotSupported):
		return IOReadv, err.Error(), nil
	case err != nil:
		return IOReadv, fmt.Sprintf("could not be compared: %v", err), nil
	case ratio < clearly:
		return IOUring, fmt.Sprintf("measured: a batch takes %.2f of readv's time", ratio), nil
	}
	return IOReadv, fmt.Sprintf("measured: with io_uring a batch takes %.2f of the time", ratio), nil
}

// compareIO gives the time that a batch takes with io_uring as a part of what
// it takes without, by the median of a few rounds through a pair of sockets.
func compareIO() (ratio float64, err error) {
	done := make(chan struct{})
	go func() { // a thread of its own, which goes when the ring has gone
		defer close(done)
		runtime.LockOSThread()
		ratio, err = compareHere()
	}()
	<-done
	return ratio, err
}

const (
	compareRounds = 24 // about 0.1 ms each
	compareFrames = 32
	compareLimit  = 20 * time.Millisecond
)

func compareHere() (float64, error) {
	pool, err := packet.NewPool(packet.Memory{Heads: 4 * packet.MaxBatch, Tails: 64})
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("tun: socketpair: %w", err)
	}
	q, peer := NewQueue(fds[0], 0), NewQueue(fds[1], 0)
	defer q.Close()
	defer peer.Close()
	c := comparison{cache: pool.NewCache(), q: q, peer: peer}
	r, w := NewReader(c.cache), &Writer{}
	defer r.Close()
	ring, err := NewRing(r, w)
	if err != nil {
		return 0, err
	}
	defer ring.Close()
	if err := ring.Enable(); err != nil {
		return 0, err
	}
	plain := NewReader(c.cache)
	defer plain.Close()
	var ratios []float64
	for begun := time.Now(); len(ratios) < compareRounds && time.Since(begun) < compareLimit; {
		without := c.round(plain, &Writer{})
		with := c.round(r, w)
		ratios = append(ratios, float64(with)/float64(without))
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2], nil
}

// A comparison is what a batch goes through: written at one end, read at the
// other.
type comparison struct {
	cache   *packet.Cache
	q, peer *Queue
	batch   packet.Batch
}

func (c *comparison) round(r *Reader, w *Writer) time.Duration {
	b := &c.batch
	for b.N = 0; b.N < compareFrames; {
		p := c.cache.Get()
		p.SetFrame(packet.Headroom, packet.Headroom+60)
		b.Add(p)
	}
	begun := time.Now()
	w.WriteBatch(c.q, b.Slice())
	c.free()
	c.peer.rx = rxSide{lately: compareFrames}
	r.ReadBatch(c.peer, b, compareFrames)
	took := time.Since(begun)
	c.free()
	return took
}

func (c *comparison) free() {
	for _, p := range c.batch.Slice() {
		c.cache.Put(p)
	}
	c.batch.N = 0
}
