package netns

import (
	"fmt"
	"strings"
	"testing"

	"taprouter/control/api"
)

// B13: ports that have nothing to do, though they were learned, get only
// what is flooded, and cost the busy ones nothing that shows.
func TestIdlePortsCostNothing(t *testing.T) {
	var alone float64
	for _, idle := range []int{0, 1, 8, 32} {
		n := newNet(t)
		conf := bridged[:strings.Index(bridged, "bridges:")]
		names := ""
		for i := range idle {
			conf += fmt.Sprintf("  - {name: @dev:i%d, type: tap, queues: 2, netns: @ns:i%d, create: true, host: {addresses: [10.99.0.%d/24]}}\n", i, i, 10+i)
			names += fmt.Sprintf(", @dev:i%d", i)
		}
		r := n.router(conf + "bridges:\n  - {name: br0, ports: [@dev:a, @dev:b" + names + "]}\n")
		n.ping("a", "10.99.0.2")
		for i := range idle {
			k := fmt.Sprintf("i%d", i)
			n.ping(k, "10.99.0.1")                                   // now it is learned
			n.must(k, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1") // and has nothing more to say
		}
		before := r.idleTx(idle)
		busy := r.link("@dev:b")
		res := n.iperf("a", "b", "10.99.0.2", "-t 2")
		got, sent := r.idleTx(idle)-before, txPackets(r.link("@dev:b").Queues)-txPackets(busy.Queues)
		t.Logf("%d idle ports: %.0f Mbit/s, %d packets to the busy port, %d to the idle ones", idle, res.End.Received.BitsPerSecond/1e6, sent, got)
		// What hosts say to all when they come up is flooded, to each of them.
		if sent < 1000 || got > uint64(20*idle*(idle+2)) {
			t.Errorf("%d idle ports got %d packets while the busy one got %d", idle, got, sent)
		}
		if idle == 0 {
			alone = res.End.Received.BitsPerSecond
		} else {
			t.Logf("ratio to the pair alone: %.2f", res.End.Received.BitsPerSecond/alone)
		}
		r.stop()
	}
}

func (r *Router) idleTx(idle int) (n uint64) {
	for i := range idle {
		n += txPackets(r.link(fmt.Sprintf("@dev:i%d", i)).Queues)
	}
	return n
}

func txPackets(queues []api.Queue) (n uint64) {
	for _, q := range queues {
		n += q.TxPackets
	}
	return n
}
