package tun_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"taprouter/packet"
	"taprouter/tun"
	"taprouter/tun/tuntest"
)

// BenchmarkRead reads and writes batches of frames, with small tails, to which
// they are copied, and without. In the loop are also the peer's two system
// calls a frame.
func BenchmarkRead(b *testing.B) {
	for _, size := range []int{1500, 3000, 6000, 9900, 30000} {
		for _, small := range []int{0, 64} {
			b.Run(fmt.Sprintf("bytes=%d/small=%d", size, small), func(b *testing.B) {
				pool, err := packet.NewPool(packet.Memory{Heads: 512, SmallTails: small, Tails: 256})
				if err != nil {
					b.Fatal(err)
				}
				defer pool.Close()
				c := pool.NewCache()
				r := tun.NewReader(c)
				defer r.Close()
				q, peer := tuntest.Pair(b, tuntest.VnetLen)
				defer q.Close()
				var w tun.Writer
				var batch packet.Batch
				f := frame(rand.New(rand.NewPCG(1, 2)), tuntest.VnetLen, size)
				buf := make([]byte, 1<<17)
				n := min(256<<10/size, packet.MaxBatch, 16)
				b.ReportAllocs()
				for b.Loop() {
					for range n {
						peer.Send(f)
					}
					batch.N = 0
					if r.ReadBatch(q, &batch, n); batch.N != n {
						b.Fatalf("%d of %d frames", batch.N, n)
					}
					w.WriteBatch(q, batch.Slice())
					for _, p := range batch.Slice() {
						c.Put(p)
						_, _ = unix.Read(peer.FD, buf)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/pkt")
			})
		}
	}
}
