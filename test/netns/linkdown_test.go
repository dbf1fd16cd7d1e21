package netns

import (
	"testing"
	"time"

	"taprouter/internal/traffic"
)

// The link of a port goes down and up again and again while numbered flows
// are sent to it: nothing is reordered, every packet that was lost is counted
// for a reason, and each time the flows are back.
func TestLinkDownUnderTraffic(t *testing.T) {
	each(t, func(t *testing.T, top topology, n *Net, r *Router) {
		e := n.ends(r)
		wayBack(n, top)
		done := make(chan udpRun, 1)
		go func() {
			done <- e.udp(t.Context(), "a", "b", top.b4, traffic.UDPSend{Flows: 8, PPS: 5000, Size: 300, Duration: 3 * time.Second})
		}()
		flaps := 0
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); flaps++ {
			n.must("b", "ip link set dev @dev:b down")
			until(t, 5*time.Second, "the port is down", func() bool { return r.link("@dev:b").OperState == "DOWN" })
			n.must("b", "ip link set dev @dev:b up")
			until(t, 5*time.Second, "the port is up", func() bool { return r.link("@dev:b").OperState == "UP" })
			wayBack(n, top)
			before := txPackets(r.link("@dev:b").Queues)
			until(t, 5*time.Second, "packets pass again", func() bool { return txPackets(r.link("@dev:b").Queues) > before+100 })
		}
		u := <-done
		u.check(t, "a link that flaps")
		t.Logf("%d times down and up; drops %v", flaps, r.drops())
		if flaps < 2 || u.Lost == 0 {
			t.Errorf("the link went down %d times and %d packets were lost: nothing was tested", flaps, u.Lost)
		}
		n.ping("a", top.b4)
	})
}

// wayBack gives host b again what its kernel forgets with a link that goes
// down: the way back.
func wayBack(n *Net, top topology) {
	n.t.Helper()
	if top.name == "l3" {
		n.must("b", "ip route replace default via 10.99.2.254")
	}
}
