package tun_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/packet"
	"taprouter/tun"
	"taprouter/tun/tuntest"
	"taprouter/tun/uring"
)

// A worker is what reads, writes and waits on one thread.
type worker struct {
	*tun.Poller
	r    *tun.Reader
	w    *tun.Writer
	ring *tun.Ring // nil: plain calls
}

// newWorker makes a worker of the calling goroutine.
func newWorker(t testing.TB, c *packet.Cache, io tun.IO) *worker {
	t.Helper()
	p, err := tun.NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{Poller: p, r: tun.NewReader(c), w: &tun.Writer{}}
	t.Cleanup(p.Close)
	t.Cleanup(w.r.Close)
	if io != tun.IOUring {
		return w
	}
	runtime.LockOSThread()
	if w.ring, err = tun.NewRing(w.r, w.w); errors.Is(err, uring.ErrNotSupported) && os.Getenv("ROUTER_REQUIRE_NETNS") == "" {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if err := w.ring.Enable(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.close(); runtime.UnlockOSThread() })
	return w
}

func (w *worker) close() {
	if w.ring != nil {
		w.ring.Close()
		w.ring = nil
	}
}

// event waits for an event, through waits that end for no reason.
func (w *worker) event() (tun.Event, bool) {
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		ev, _, err := w.Wait(int64(10*time.Millisecond), true)
		if err != nil {
			panic(err)
		}
		if len(ev) > 0 {
			return ev[0], true
		}
	}
	return tun.Event{}, false
}

// eachIO runs a test with plain calls and with io_uring.
func eachIO(t *testing.T, f func(t *testing.T, io tun.IO)) {
	for _, io := range []tun.IO{tun.IOReadv, tun.IOUring} {
		t.Run(io.String(), func(t *testing.T) { f(t, io) })
	}
}

// numbered fills b with n packets of some length that carry first, first+1, …
func numbered(c *packet.Cache, b *packet.Batch, first uint32, n int) {
	for i := range n {
		p := c.Get()
		f := make([]byte, 60+int(first)%7*200)
		binary.BigEndian.PutUint32(f, first+uint32(i))
		p.Set(f)
		b.Add(p)
	}
}

func free(c *packet.Cache, b *packet.Batch) {
	for _, p := range b.Slice() {
		c.Put(p)
	}
	b.N = 0
}

// Bursts of every size come out as they went in: nothing is lost, doubled or
// overtaken, whatever number of frames the reader expects.
func TestBurstsKeepOrder(t *testing.T) {
	eachIO(t, func(t *testing.T, io tun.IO) {
		pool, c := cachePool(t)
		w := newWorker(t, c, io)
		q, peer := tuntest.Pair(t, 0)
		back := tun.NewQueue(peer.FD, 0)
		if err := w.Watch(q, 3); err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(7, 8))
		var sent, got uint32
		var b packet.Batch
		for range 400 {
			n := 1 + rng.IntN(packet.MaxBatch)
			numbered(c, &b, sent, n)
			if k, errno := w.w.WriteBatch(back, b.Slice()); k != n || errno != 0 {
				t.Fatalf("WriteBatch of %d = %d, %v", n, k, errno)
			}
			free(c, &b)
			sent += uint32(n)
			for got < sent {
				ev, ok := w.event()
				if !ok || ev.Token != 3 {
					t.Fatalf("event %+v, %v at %d of %d", ev, ok, got, sent)
				}
				for errno := unix.Errno(0); errno == 0; {
					errno = w.r.ReadBatch(q, &b, 1+rng.IntN(packet.MaxBatch))
					for _, p := range b.Slice() {
						if seq := binary.BigEndian.Uint32(p.Bytes()); seq != got {
							t.Fatalf("frame %d came as number %d", seq, got)
						}
						got++
					}
					free(c, &b)
					if errno != 0 && errno != unix.EAGAIN {
						t.Fatalf("ReadBatch: %v", errno)
					}
				}
			}
		}
		w.Unwatch(q)
		w.close()
		w.r.Close()
		if heads, tails := pool.InUse(); heads != 0 || tails != 0 {
			t.Errorf("%d heads and %d tails in use at the end", heads, tails)
		}
		_ = q.Close()
	})
}

func cachePool(t testing.TB) (*packet.Pool, *packet.Cache) {
	pool, err := packet.NewPool(packet.Memory{Heads: 512, Tails: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, pool.NewCache()
}

// A frame that is refused, for good or for want of room, is not overtaken by
// those behind it in the batch, and nothing of it stays in the kernel.
func TestRefusedInTheMiddle(t *testing.T) {
	eachIO(t, func(t *testing.T, io tun.IO) {
		c := cache(t)
		w := newWorker(t, c, io)
		q, peer := tuntest.Pair(t, 0)
		if err := unix.SetsockoptInt(q.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF, 8<<10); err != nil {
			t.Fatal(err)
		}
		var b packet.Batch
		numbered(c, &b, 0, packet.MaxBatch)
		const bad = 9
		tail := c.GetTail()
		b.Pkts[bad].SetTail(tail, 0, packet.TailLen) // larger than the socket takes
		n, errno := w.w.WriteBatch(q, b.Slice())
		if n != bad || errno != unix.EMSGSIZE {
			t.Fatalf("WriteBatch = %d, %v, want %d, EMSGSIZE", n, errno, bad)
		}
		got := uint32(0)
		drain := func(want int) {
			t.Helper()
			for ; want > 0; want-- {
				if f := peer.Recv(time.Second); f == nil || binary.BigEndian.Uint32(f) != got {
					t.Fatalf("got %x, want frame %d", f, got)
				}
				got++
			}
			if f := peer.Recv(0); f != nil {
				t.Fatalf("frame %d was written behind one that was refused", binary.BigEndian.Uint32(f))
			}
		}
		drain(bad)
		got = bad + 1
		full := 0
		for rest := b.Slice()[bad+1:]; len(rest) > 0; {
			n, errno := w.w.WriteBatch(q, rest)
			if errno == unix.EAGAIN {
				full++
				nothingWaits(t)
			} else if errno != 0 || n == 0 {
				t.Fatalf("WriteBatch of the rest = %d, %v", n, errno)
			}
			drain(n)
			rest = rest[n:]
		}
		if full == 0 {
			t.Error("the buffer was never full")
		}
		free(c, &b)
	})
}

// nothingWaits fails if a ring of ours has a request that waits, or if the
// kernel gave one to a thread of its own.
func nothingWaits(t *testing.T) {
	t.Helper()
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		if l, _ := os.Readlink(fd); l != "anon_inode:[io_uring]" {
			continue
		}
		info, err := os.ReadFile("/proc/self/fdinfo/" + filepath.Base(fd))
		if err != nil {
			t.Fatal(err)
		}
		if _, polls, ok := strings.Cut(string(info), "PollList:"); !ok || strings.Contains(polls, "op=") {
			t.Errorf("a request waits in the kernel:\n%s", info)
		}
	}
	comms, _ := filepath.Glob("/proc/self/task/*/comm")
	for _, comm := range comms {
		if name, _ := os.ReadFile(comm); bytes.HasPrefix(name, []byte("iou-wrk")) {
			t.Errorf("the kernel has a worker for our requests: %s", name)
		}
	}
}

// A turn with a ring allocates nothing.
func TestRingAllocatesNothing(t *testing.T) {
	c := cache(t)
	w := newWorker(t, c, tun.IOUring)
	q, peer := tuntest.Pair(t, 0)
	back := tun.NewQueue(peer.FD, 0)
	_ = w.Watch(q, 0)
	var b, in packet.Batch
	numbered(c, &b, 0, 32)
	allocs := testing.AllocsPerRun(100, func() {
		w.w.WriteBatch(back, b.Slice())
		for got := 0; got < b.N; {
			w.event()
			w.r.ReadBatch(q, &in, packet.MaxBatch)
			got += in.N
			free(c, &in)
		}
	})
	if allocs != 0 {
		t.Errorf("a turn allocates %v times, want 0", allocs)
	}
	free(c, &b)
	w.Unwatch(q)
	_ = q.Close()
}

func TestParseIO(t *testing.T) {
	for _, io := range []tun.IO{tun.IOAuto, tun.IOUring, tun.IOReadv} {
		if got, err := tun.ParseIO(io.String()); got != io || err != nil {
			t.Errorf("ParseIO(%q) = %v, %v", io, got, err)
		}
	}
	if _, err := tun.ParseIO("epoll"); err == nil {
		t.Error("epoll was accepted")
	}
}

// Whatever is chosen, the reason says how; what is asked for is what comes.
func TestChooseIO(t *testing.T) {
	if io, why, err := tun.ChooseIO(tun.IOReadv); io != tun.IOReadv || why != "configured" || err != nil {
		t.Errorf("ChooseIO(readv) = %v, %q, %v", io, why, err)
	}
	io, why, err := tun.ChooseIO(tun.IOUring)
	if errors.Is(err, uring.ErrNotSupported) && os.Getenv("ROUTER_REQUIRE_NETNS") == "" {
		t.Skip(err)
	}
	if io != tun.IOUring || !strings.HasPrefix(why, "configured") || err != nil {
		t.Errorf("ChooseIO(uring) = %v, %q, %v", io, why, err)
	}
	io, why, err = tun.ChooseIO(tun.IOAuto)
	var ratio float64
	if _, scan := fmt.Sscanf(why[strings.LastIndex(why, "takes ")+6:], "%f", &ratio); scan != nil || err != nil {
		t.Fatalf("ChooseIO(auto) = %v, %q, %v", io, why, err)
	}
	if (io == tun.IOUring) != (ratio < 0.97) {
		t.Errorf("ChooseIO(auto) = %v, although %s", io, why)
	}
}
