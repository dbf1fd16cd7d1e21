package api

import (
	"fmt"
	"io"
	"text/tabwriter"

	"taprouter/control/tc"
)

// Memory is what the router takes of the machine's, in bytes.
type Memory struct {
	Buffers []BufferKind `json:"buffers"` // of packets, outside the Go heap
	Kinds   []MemoryKind `json:"kinds"`   // tables and structs
	Huge    string       `json:"huge"`    // as configured: auto, on or off
	Hugetlb int          `json:"hugetlb"` // of the buffers, in huge pages that were reserved; not part of rss
	THP     int          `json:"thp"`     // of the process, in huge pages that the kernel made

	GoHeap  int `json:"go_heap"`  // objects, dead ones that were not collected yet included
	GoTotal int `json:"go_total"` // all that the Go runtime has
	GoLimit int `json:"go_limit"` // what it collects more often for, rather than exceed
	RSS     int `json:"rss"`      // resident now (VmRSS)
	MaxRSS  int `json:"rss_max"`  // and at most since the start (VmHWM)
	Program int `json:"program"`  // of rss, pages of the program file (RssFile)
	Bound   int `json:"bound"`    // of rss without program: all buffers and go_limit
}

// A BufferKind is the buffers of one size. Most is the sum of the counts that
// follow it.
type BufferKind struct {
	Kind      string `json:"kind"`
	Size      int    `json:"size"`      // bytes of one
	Most      int    `json:"most"`      // as configured
	InUse     int    `json:"in_use"`    // held by packets, and by readers
	Free      int    `json:"free"`      // in the pool
	Workers   []int  `json:"workers"`   // free, in the cache of each worker
	Control   int    `json:"control"`   // free, in those of the control plane
	Untouched int    `json:"untouched"` // never needed: no memory was taken
}

// A MemoryKind is one kind of table or struct.
type MemoryKind struct {
	Kind string `json:"kind"`
	Size int    `json:"size"` // bytes of one
	Most int    `json:"most"` // how many there can be, as configured
	Now  int    `json:"now"`
}

// PrintMemory prints what takes memory, and how much that can be at most.
func PrintMemory(w io.Writer, m Memory) {
	size := func(n int) string {
		if n >= 1<<20 {
			return fmt.Sprintf("%.1fMb", float64(n)/(1<<20))
		}
		return tc.Size(uint64(n))
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "buffers\tsize\tmost\tbytes\tin use\tfree\tuntouched\tcontrol\t")
	if len(m.Buffers) > 0 {
		for i := range m.Buffers[0].Workers {
			fmt.Fprintf(t, "worker %d\t", i)
		}
	}
	fmt.Fprintln(t)
	for _, b := range m.Buffers {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%d\t%d\t%d\t%d\t", b.Kind, size(b.Size), b.Most, size(b.Size*b.Most), b.InUse, b.Free, b.Untouched, b.Control)
		for _, n := range b.Workers {
			fmt.Fprintf(t, "%d\t", n)
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintln(t, "tables\tsize\tmost\tbytes\tin use\t")
	for _, k := range m.Kinds {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%d\t\n", k.Kind, size(k.Size), k.Most, size(k.Size*k.Most), k.Now)
	}
	t.Flush()
	fmt.Fprintf(w, "huge pages %s: %s reserved, %s made by the kernel\n", m.Huge, size(m.Hugetlb), size(m.THP))
	fmt.Fprintf(w, "go: heap %s, total %s, limit %s\n", size(m.GoHeap), size(m.GoTotal), size(m.GoLimit))
	fmt.Fprintf(w, "resident %s, at most %s, of that the program %s; bound %s and the program\n", size(m.RSS), size(m.MaxRSS), size(m.Program), size(m.Bound))
}
