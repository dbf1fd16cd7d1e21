package uring

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newRing makes a ring of the calling goroutine with these setups to try.
func newRing(t *testing.T, flags ...uint32) *Ring {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	all := setups
	defer func() { setups = all }()
	if len(flags) > 0 {
		setups = flags
	}
	r, err := New(8)
	if errors.Is(err, ErrNotSupported) && os.Getenv("ROUTER_REQUIRE_NETNS") == "" {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	if err := r.Enable(); err != nil {
		t.Fatal(err)
	}
	return r
}

func mapped(t *testing.T) []byte {
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

func eventfd(t *testing.T) int {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func wake(t *testing.T, fd int) {
	if _, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
}

// completed is the next completion, of a wait that does not end for nothing.
func completed(t *testing.T, r *Ring) CQE {
	t.Helper()
	for range 1000 {
		if c, ok := r.Reap(); ok {
			return c
		}
		if errno := r.Enter(1, int64(time.Second), false); errno != 0 && errno != unix.EINTR {
			t.Fatalf("Enter: %v", errno)
		}
	}
	t.Fatal("no completion")
	return CQE{}
}

// With each set of flags that an older kernel may need, a read that waits
// completes when there is something, or is cancelled.
func TestReadWaits(t *testing.T) {
	for i := range setups {
		r := newRing(t, setups[i])
		fd, buf := eventfd(t), mapped(t)
		for round := range uint64(20) { // more than the ring has entries
			e := r.Next()
			e.Op, e.FD, e.UserData = OpRead, int32(fd), round
			e.Buffer(buf[:8])
			if errno := r.Enter(0, -1, true); errno != 0 || r.Unsubmitted() != 0 {
				t.Fatalf("flags %#x: Enter = %v", setups[i], errno)
			}
			if errno := r.Enter(1, int64(time.Millisecond), true); errno != unix.ETIME && errno != unix.EINTR {
				t.Fatalf("flags %#x: a wait for nothing ended with %v", setups[i], errno)
			}
			want := int32(8)
			if round%2 == 0 {
				wake(t, fd)
			} else {
				r.Cancel(round)
				want = -int32(unix.ECANCELED)
			}
			if c := completed(t, r); c.UserData != round || c.Res != want {
				t.Errorf("flags %#x, round %d: completion %+v, want %d", setups[i], round, c, want)
			}
		}
	}
}

// Of linked entries none begins before the one in front has succeeded, and
// none behind one that failed.
func TestLinked(t *testing.T) {
	r, buf := newRing(t), mapped(t)
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	for i, fd := range []int{p[1], p[1], p[0], p[1]} { // the third cannot be written to
		e := r.Next()
		e.Op, e.FD, e.Flags, e.UserData = OpWrite, int32(fd), Link, uint64(i)
		if i == 3 {
			e.Flags = 0
		}
		buf[i] = byte('a' + i)
		e.Buffer(buf[i : i+1])
	}
	for i, want := range []int32{1, 1, -int32(unix.EBADF), -int32(unix.ECANCELED)} {
		if c := completed(t, r); c.UserData != uint64(i) || c.Res != want {
			t.Errorf("completion %+v, want %d of entry %d", c, want, i)
		}
	}
	var got [8]byte
	if n, _ := unix.Read(p[0], got[:]); string(got[:max(n, 0)]) != "ab" {
		t.Errorf("%q was written, want ab", got[:max(n, 0)])
	}
}

func TestFullAndForget(t *testing.T) {
	r := newRing(t)
	for range 8 {
		if r.Next() == nil {
			t.Fatal("a ring of 8 has less")
		}
	}
	if r.Next() != nil {
		t.Error("a ring of 8 has more")
	}
	r.Forget(8)
	if r.Unsubmitted() != 0 || r.Next() == nil {
		t.Error("Forget left the ring full")
	}
}

// What stands between us and io_uring has a name.
func TestExplain(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOSYS, unix.EPERM, unix.EINVAL} {
		if err := explain(errno); !errors.Is(err, ErrNotSupported) || !errors.Is(err, errno) {
			t.Errorf("explain(%v) = %v", errno, err)
		}
	}
	if err := explain(unix.ENOMEM); errors.Is(err, ErrNotSupported) {
		t.Errorf("explain(ENOMEM) = %v", err)
	}
}
