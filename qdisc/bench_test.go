//go:build !explore

package qdisc

import (
	"fmt"
	"testing"

	"taprouter/packet"
)

// Per packet: put into a list, through the qdisc and into a device that only
// counts. One sender, so the run bit is never contended.
func BenchmarkXmit(b *testing.B) {
	for _, bypass := range []bool{true, false} {
		for _, batch := range []int{1, 32} {
			b.Run(fmt.Sprintf("bypass=%t/batch=%d", bypass, batch), func(b *testing.B) {
				c := newCrowd(b, 1, 1, NewPfifoFast(1000))
				c.devs[0].avail = 64 << 10
				q, s := c.q.Load(), c.senders[0]
				q.SetBypass(bypass)
				var l packet.List
				b.ReportAllocs()
				for b.Loop() {
					s.used = 0
					for range batch {
						l.Push(s.pkt(0, 1))
					}
					q.Xmit(s.cpu, &l)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/pkt")
			})
		}
	}
}
