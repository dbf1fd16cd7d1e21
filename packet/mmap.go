package packet

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Huge says whether buffers lie in huge pages.
type Huge uint8

const (
	// HugeAuto takes pages that the administrator has reserved
	// (vm.nr_hugepages) if there are enough, and ordinary ones otherwise.
	HugeAuto Huge = iota
	// HugeOn has the kernel put together huge pages if too few are reserved
	// (MADV_HUGEPAGE). Then memory is touched 2 MiB at a time.
	HugeOn
	HugeOff
)

const hugePage = 2 << 20 // MAP_HUGE_2MB

// mmap takes n bytes of zeroed memory from outside the Go heap: system calls
// name it by address only, and pages that are not touched cost nothing.
func (p *Pool) mmap(n int) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_ANON | unix.MAP_PRIVATE
	if p.mem.Huge != HugeOff {
		size := (n + hugePage - 1) &^ (hugePage - 1)
		if b, err := unix.Mmap(-1, 0, size, prot, flags|unix.MAP_HUGETLB|unix.MAP_HUGE_2MB); err == nil {
			// A control group may grant fewer than were reserved, which a touch
			// would find out by SIGBUS. These pages are taken either way.
			if unix.Madvise(b, unix.MADV_POPULATE_WRITE) == nil {
				p.raw = append(p.raw, b)
				p.hugetlb += size
				return b[:n:n], nil
			}
			_ = unix.Munmap(b)
		}
	}
	b, err := unix.Mmap(-1, 0, n, prot, flags|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("mmap %d bytes: %w", n, err)
	}
	switch p.mem.Huge { // a kernel without them has nothing to be told
	case HugeOn:
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	case HugeOff:
		_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE)
	}
	p.raw = append(p.raw, b)
	return b, nil
}

// Hugetlb is how many bytes of the pool lie in reserved huge pages.
func (p *Pool) Hugetlb() int { return p.hugetlb }
