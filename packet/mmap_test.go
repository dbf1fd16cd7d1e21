package packet

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// In each mode there is a pool, in huge pages or not, that can be written to
// from end to end.
func TestHuge(t *testing.T) {
	for _, huge := range []Huge{HugeAuto, HugeOn, HugeOff} {
		p := pool(t, Memory{Heads: 2048, Tails: 40, Huge: huge})
		c := p.NewCache()
		for q := c.Get(); q != nil; q = c.Get() {
			q.Buffer()[0], q.Buffer()[HeadLen-1] = 1, 2
		}
		for b := c.GetTail(); b != nil; b = c.GetTail() {
			b.B[0], b.B[TailLen-1] = 1, 2
		}
		if huge == HugeOff && p.Hugetlb() != 0 {
			t.Errorf("%d bytes in reserved pages, which were not to be taken", p.Hugetlb())
		}
	}
}

// Reserved pages are taken, whole, and given back; where they do not suffice
// ordinary ones take their place.
func TestReservedPages(t *testing.T) {
	const sysctl = "/proc/sys/vm/nr_hugepages"
	before, err := os.ReadFile(sysctl)
	if err == nil {
		err = os.WriteFile(sysctl, []byte("16"), 0)
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EROFS) {
		t.Skip("huge pages cannot be reserved here: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.WriteFile(sysctl, before, 0) }()
	for _, tt := range []struct {
		mem  Memory
		want int // bytes in reserved pages
	}{
		{Memory{Heads: 1500, Tails: 33}, 4 * hugePage}, // 2.9 and 2.1 MiB
		{Memory{Heads: 1500, Tails: 1024}, 2 * hugePage},
		{Memory{Heads: 1500, Tails: 33, Huge: HugeOff}, 0},
	} {
		p, err := NewPool(tt.mem)
		for tries := 0; err == nil && p.Hugetlb() < tt.want && tries < 100; tries++ {
			p.Close() // somebody else has them
			time.Sleep(50 * time.Millisecond)
			p, err = NewPool(tt.mem)
		}
		if err != nil {
			t.Fatal(err)
		}
		if p.Hugetlb() != tt.want || hugetlbPages(t) != tt.want {
			t.Errorf("%+v: %d bytes, of which the kernel counts %d, want %d", tt.mem, p.Hugetlb(), hugetlbPages(t), tt.want)
		}
		if p.Close(); hugetlbPages(t) != 0 {
			t.Errorf("%+v: %d bytes are not given back", tt.mem, hugetlbPages(t))
		}
	}
}

// hugetlbPages is how many bytes of reserved pages this process has.
func hugetlbPages(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(b), "HugetlbPages:")
	n, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}
