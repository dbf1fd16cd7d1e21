package netns

import (
	"testing"

	"taprouter/control/api"
)

// B17: what is counted is what is on the wire, whether it comes as
// superpackets, is merged, is cut or is none of that: packets of a port and
// of its qdisc, and the qdisc's bytes.
func TestCountedPerPacket(t *testing.T) {
	const bursts, count, size = 20, 60, 1000
	all := len(matrixOffloads) - 1
	for _, tt := range []struct {
		name   string
		sent   offloads
		accept int
		gro    bool
	}{
		{"superpackets pass", matrixOffloads[all], all, false},
		{"superpackets are cut", matrixOffloads[all], 0, false},
		{"packets are merged", offloads{}, all, true},
		{"merged ones are cut", offloads{}, 0, true},
		{"packets pass", offloads{}, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMatrixNet(t, matrixSetup{mtu: [2]int{1500, 1500}, accept: [2]int{all, tt.accept}, gro: tt.gro})
			a, b := m.hosts[0], m.hosts[1]
			m.setSent(a, tt.sent, false)
			for _, k := range []string{"a", "b"} { // no more than ARP is said beside
				m.must(k, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1")
			}
			m.r.balanced()
			before := m.counted()
			for range bursts {
				if err := m.udpBurst(a, b, 0, size, count); err != nil {
					t.Fatal(err)
				}
			}
			m.r.balanced()
			after := m.counted()
			const packets, bytes = bursts * count, bursts * count * (size + 42)
			for name, n := range after {
				want, other := uint64(packets), uint64(6)
				if name == "qdisc bytes" {
					want, other = bytes, 6*60
				}
				if n -= before[name]; n < want || n > want+other {
					t.Errorf("%s: %d, want %d", name, n, want)
				}
			}
			merged := m.r.link("@dev:a").GROMerged > 0
			if cut := m.r.link("@dev:b").Segments > 0; merged != tt.gro || cut != (tt.accept == 0 && (tt.sent.uso || tt.gro)) {
				t.Errorf("merged %v, cut %v", merged, cut)
			}
		})
	}
}

func (m *matrixNet) counted() map[string]uint64 {
	m.t.Helper()
	c := map[string]uint64{}
	for _, q := range m.r.link("@dev:a").Queues {
		c["received"] += q.RxPackets
	}
	c["sent"] = txPackets(m.r.link("@dev:b").Queues)
	var qdiscs []api.Qdisc
	m.r.ask(&qdiscs, "qdisc", "show", "dev", m.dev("b"))
	for _, q := range qdiscs {
		if !q.Root {
			c["qdisc packets"] += q.Packets
			c["qdisc bytes"] += q.Bytes
		}
	}
	return c
}
