package tun_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/packet"
	"taprouter/tun"
)

// BenchmarkIO writes and reads batches of small frames at a TAP, with and
// without io_uring in turn. A write includes what the kernel does with the
// frame, which is for another station; reading goes on until the queue is
// found empty. uring/readv is the median of the rounds' ratios.
func BenchmarkIO(b *testing.B) {
	for _, call := range []string{"write", "read"} {
		for _, n := range []int{1, 2, 4, 8, 32, 64, 256} {
			b.Run(fmt.Sprintf("call=%s/frames=%d", call, n), func(b *testing.B) {
				newHostBy(b, func(h *host) error {
					if err := h.open(tun.TAP, 1, false); err != nil {
						return err
					}
					benchIO(b, h, call == "write", n)
					return nil
				})
			})
		}
	}
}

func benchIO(b *testing.B, h *host, write bool, n int) {
	pool, err := packet.NewPool(packet.Memory{Heads: 2048, Tails: 128})
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	c := pool.NewCache()
	q := h.dev.Queues()[0]
	to := unix.SockaddrLinklayer{Protocol: 0x0008, Ifindex: h.ifindex}
	frame := make([]byte, 74)
	copy(frame, []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 17})
	plain, ring := newWorker(b, c, tun.IOReadv), newWorker(b, c, tun.IOUring)
	defer ring.close()
	var batch packet.Batch
	round := func(w *worker) time.Duration {
		if write {
			for range n {
				p := c.Get()
				p.Set(frame)
				batch.Add(p)
			}
			begun := time.Now()
			w.w.WriteBatch(q, batch.Slice())
			took := time.Since(begun)
			free(c, &batch)
			return took
		}
		for range n {
			if err := unix.Sendto(h.fd, frame, 0, &to); err != nil {
				b.Fatal(err)
			}
		}
		begun := time.Now()
		for w.r.ReadBatch(q, &batch, packet.MaxBatch) == 0 {
			free(c, &batch)
		}
		took := time.Since(begun)
		free(c, &batch)
		return took
	}
	var ratios, without, with []float64
	for b.Loop() { // a round of about 256 frames each
		var sum [2]time.Duration
		for i, w := range []*worker{plain, ring} {
			round(w) // what the last one left is not what this one expects
			round(w)
			for range 1 + 256/n {
				sum[i] += round(w)
			}
		}
		per := float64((1 + 256/n) * n)
		without, with = append(without, float64(sum[0])/per), append(with, float64(sum[1])/per)
		ratios = append(ratios, float64(sum[1])/float64(sum[0]))
	}
	for _, m := range []struct {
		v    []float64
		unit string
	}{{without, "readv-ns/pkt"}, {with, "uring-ns/pkt"}, {ratios, "uring/readv"}} {
		slices.Sort(m.v)
		b.ReportMetric(m.v[len(m.v)/2], m.unit)
	}
	b.ReportMetric(0, "ns/op")
}
