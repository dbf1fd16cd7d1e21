package netns

import (
	"testing"
	"time"

	"taprouter/internal/traffic"
)

// B07: all fragments of all datagrams between two hosts take one egress
// queue, though every worker may use all of them and the first fragment alone
// has ports; there is no flow table to hold them together.
func TestFragmentsTakeOneQueue(t *testing.T) {
	each(t, func(t *testing.T, top topology, n *Net, r *Router) {
		dev := n.dev("b")
		r.mustDo("xps", "set", "dev", dev, "flow_table_cnt", "0")
		for _, q := range []string{"0", "1"} {
			r.mustDo("xps", "set", "dev", dev, "queue", q, "workers", "0,1")
		}
		e := n.ends(r)
		for _, addr := range []string{top.b4, top.b6} {
			before := r.link("@dev:b").Queues
			u := e.udp(t.Context(), "a", "b", addr, traffic.UDPSend{Flows: 8, PPS: 200, Burst: 1, Size: 8000, Count: 100, Duration: 5 * time.Second})
			u.check(t, addr)
			var sent [2]uint64
			for i, q := range r.link("@dev:b").Queues {
				sent[i] = q.TxPackets - before[i].TxPackets
			}
			// Six fragments a datagram; neighbours are looked for beside.
			if most, least := max(sent[0], sent[1]), min(sent[0], sent[1]); u.Lost != 0 || most < 600 || least > 20 {
				t.Errorf("to %s: %d lost, packets by queue %v, want all 600 in one", addr, u.Lost, sent)
			}
		}
	})
}
