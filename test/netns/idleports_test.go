package netns

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taprouter/control/api"
)

// B13: ports that have nothing to do, though they were learned, get only
// what is flooded, and cost the busy ones nothing that shows.
func TestIdlePortsCostNothing(t *testing.T) {
	var alone float64
	seconds := "1"
	if full {
		seconds = "10"
	}
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
		stop := n.strangers(idle)
		before := r.idleTx(idle)
		busy := r.link("@dev:b")
		cpu := r.usage().cpu
		res := n.iperf("a", "b", "10.99.0.2", "-t "+seconds)
		cpu = r.usage().cpu - cpu
		got, sent := r.idleTx(idle)-before, txPackets(r.link("@dev:b").Queues)-txPackets(busy.Queues)
		t.Logf("%d idle ports: %.0f Mbit/s, %d packets to the busy port, %d to the idle ones", idle, res.End.Received.BitsPerSecond/1e6, sent, got)
		t.Logf("router CPU: %.2f s/GB", cpu.Seconds()/(res.End.Received.Bytes/1e9))
		// What hosts say to all when they come up is flooded, to each of them.
		if sent < 1000 || got > uint64(20*idle*(idle+2)) {
			t.Errorf("%d idle ports got %d packets while the busy one got %d", idle, got, sent)
		}
		if seen := stop(); seen != 0 {
			t.Errorf("idle ports got %d frames that were for others", seen)
		}
		if idle == 0 {
			alone = res.End.Received.BitsPerSecond
		} else {
			t.Logf("ratio to the pair alone: %.2f", res.End.Received.BitsPerSecond/alone)
		}
		r.stop()
	}
}

// strangers counts, until it is stopped, frames that come in at the idle hosts
// and are for another host's address alone: nothing that may be flooded.
func (n *Net) strangers(idle int) (stop func() uint64) {
	n.t.Helper()
	var all []*rawSocket
	for i := range idle {
		s := n.raw(fmt.Sprintf("i%d", i))
		s.addr.Protocol = unix.ETH_P_ALL << 8 // in network byte order
		if err := unix.Bind(s.fd, &s.addr); err != nil {
			n.t.Fatal(err)
		}
		all = append(all, s)
	}
	return func() (seen uint64) {
		buf := make([]byte, 64)
		for _, s := range all {
			for {
				_, from, err := unix.Recvfrom(s.fd, buf, unix.MSG_DONTWAIT)
				if err != nil {
					break
				}
				if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OTHERHOST {
					seen++
				}
			}
		}
		return seen
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
