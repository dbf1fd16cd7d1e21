package netns

import (
	"slices"
	"strings"
	"testing"
	"time"

	"taprouter/internal/traffic"
)

// A device that refuses superpackets with EINVAL: all that is sent arrives,
// the port goes over to segments, says so, and comes back when told.
func TestRefusedSuperpackets(t *testing.T) {
	for _, top := range topologies {
		t.Run(top.name, func(t *testing.T) {
			n := newNet(t)
			r := n.router(top.conf, "--fault", "einval:@dev:b:tcp4,einval:@dev:b:udp")
			n.ping("a", top.b4)
			n.ping("a", top.b6)
			e := n.ends(r)
			n.iperf("a", "b", top.b4, amount()+" -P 2")
			n.iperf("a", "b", top.b6, amount())
			u := e.udp(t.Context(), "a", "b", top.b4, traffic.UDPSend{Flows: 2, PPS: 200, Burst: 8, Size: 1000, Count: 400, Duration: 5 * time.Second})
			u.check(t, "datagrams")
			if u.Lost != 0 {
				t.Errorf("%d datagrams lost", u.Lost)
			}
			l := r.link("@dev:b")
			if !slices.Contains(l.GSOOff, "tcp4") || slices.Contains(l.GSOOff, "tcp6") || l.GSORefused < 8 || l.Segments == 0 {
				t.Errorf("tcp4 is refused, but the port shows off %v, %d refused, %d segments", l.GSOOff, l.GSORefused, l.Segments)
			}
			if d := r.drops()["tx_einval"]; d != 0 {
				t.Errorf("%d packets were dropped", d)
			}
			if n := r.reordered("b"); n != 0 {
				t.Errorf("%d packets reordered", n)
			}
			if log := r.log.String(); strings.Count(log, "shape=tcp4") != 2 || !strings.Contains(log, "off=true") {
				t.Errorf("want a line for the first refusal and one for the end:\n%s", log)
			}
			r.mustDo("link", "set", "dev", n.dev("b"), "gso", "on")
			if l := r.link("@dev:b"); len(l.GSOOff) != 0 {
				t.Errorf("gso on leaves %v off", l.GSOOff)
			}
			n.iperf("a", "b", top.b4, amount())
			if again := r.link("@dev:b"); again.GSORefused < l.GSORefused+8 || len(again.GSOOff) != 1 {
				t.Errorf("gso on had no effect: %d refused, off %v", again.GSORefused, again.GSOOff)
			}
		})
	}
}
