package uring

import (
	"errors"
	"os"
	"runtime"
	"testing"

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

// completed is the next completion.
func completed(t *testing.T, r *Ring) CQE {
	t.Helper()
	for range 1000 {
		if c, ok := r.Reap(); ok {
			return c
		}
		if errno := r.Enter(1); errno != 0 && errno != unix.EINTR {
			t.Fatalf("Enter: %v", errno)
		}
	}
	t.Fatal("no completion")
	return CQE{}
}

// With each set of flags that an older kernel may need: of linked entries none
// begins before the one in front has succeeded, and none behind one that
// failed.
func TestLinked(t *testing.T) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	for _, flags := range setups {
		r, buf := newRing(t, flags), mapped(t)
		for range 20 { // more than the ring has entries
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
					t.Errorf("flags %#x: completion %+v, want %d of entry %d", flags, c, want, i)
				}
			}
			var got [8]byte
			if n, _ := unix.Read(p[0], got[:]); string(got[:max(n, 0)]) != "ab" {
				t.Errorf("flags %#x: %q was written, want ab", flags, got[:max(n, 0)])
			}
		}
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
	if n := r.Forget(); n != 8 || r.Next() == nil {
		t.Errorf("Forget took back %d of 8 entries", n)
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
