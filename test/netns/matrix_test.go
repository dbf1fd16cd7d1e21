package netns

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"taprouter/control/api"
)

// The offload matrix. What a port's reader accepts and what its kernel sends
// us are both varied, at both sides, with what is carried, how, and how large.
const (
	ofTopology = iota
	ofMTU
	ofAcceptA
	ofAcceptB
	ofGRO
	ofSentA // from here on, what changes while a router runs
	ofSentB
	ofTraffic
	ofFamily
)

// offloads are what one side takes from, or sends to, the other.
type offloads struct{ csum, tso, uso bool }

func (o offloads) String() string {
	var names []string
	for _, n := range []struct {
		on   bool
		name string
	}{{o.csum, "csum"}, {o.tso, "tso"}, {o.uso, "uso"}} {
		if n.on {
			names = append(names, n.name)
		}
	}
	return "[" + strings.Join(names, ",") + "]"
}

var (
	matrixTopologies = []string{"l2", "tagged", "l3"}
	matrixMTUs       = [][2]int{{1500, 1500}, {1500, 1450}, {9000, 1500}}
	matrixOffloads   = []offloads{{}, {csum: true}, {csum: true, tso: true}, {csum: true, uso: true}, {true, true, true}}
	matrixGRO        = []bool{false, true}
	matrixTraffic    = []string{"tcp", "udp", "icmp"}
	matrixFamilies   = []string{"ipv4", "ipv6"}
)

// plainPort is one more level of what is accepted: a port without a vnet
// header, which nothing is sent to, or comes from, but plain frames.
var plainPort = len(matrixOffloads)

func matrixCells() [][]int {
	n, sets := len(matrixMTUs), len(matrixOffloads)
	levels := []int{len(matrixTopologies), n, sets + 1, sets + 1, len(matrixGRO), sets, sets, len(matrixTraffic), len(matrixFamilies)}
	return every(levels, func(c []int) bool {
		return (c[ofAcceptA] != plainPort || c[ofSentA] == 0) && (c[ofAcceptB] != plainPort || c[ofSentB] == 0)
	})
}

// Every offload that is taken or not, sent or not, at either side: what is
// sent arrives, with right checksums and in nothing that the port does not
// take or that its MTU forbids. ROUTER_MATRIX=full runs every combination,
// ROUTER_MATRIX=2/6 the second sixth of them; otherwise every pair of levels
// of two factors occurs.
func TestOffloadMatrix(t *testing.T) {
	cells := matrixCells()
	part, parts := 1, 1
	switch which := os.Getenv("ROUTER_MATRIX"); which {
	case "":
		cells = pairwise(cells)
	case "full":
	default:
		if _, err := fmt.Sscanf(which, "%d/%d", &part, &parts); err != nil || part < 1 || part > parts {
			t.Fatalf("ROUTER_MATRIX=%s: want full or a part such as 2/6", which)
		}
	}
	slices.SortFunc(cells, slices.Compare)
	var groups [][][]int // by what needs a router of its own
	for _, c := range cells {
		if last := len(groups) - 1; last >= 0 && slices.Equal(groups[last][0][:ofSentA], c[:ofSentA]) {
			groups[last] = append(groups[last], c)
		} else {
			groups = append(groups, [][]int{c})
		}
	}
	ran := 0
	for i, g := range groups {
		if i%parts == part-1 {
			t.Run(setupName(g[0]), func(t *testing.T) { runMatrix(t, g) })
			ran += len(g)
		}
	}
	t.Logf("%d of %d combinations", ran, len(matrixCells()))
}

func setupName(c []int) string {
	mtu := matrixMTUs[c[ofMTU]]
	return fmt.Sprintf("%s/mtu=%d-%d/accept=%s-%s/gro=%v", matrixTopologies[c[ofTopology]], mtu[0], mtu[1],
		acceptName(c[ofAcceptA]), acceptName(c[ofAcceptB]), matrixGRO[c[ofGRO]])
}

func acceptName(level int) string {
	if level == plainPort {
		return "plain"
	}
	return matrixOffloads[level].String()
}

// A matrixNet is one router with its two hosts.
type matrixNet struct {
	*Net
	matrixSetup
	r     *Router
	api   *api.Client
	hosts [2]*matrixHost
}

// A matrixSetup is what needs a router of its own.
type matrixSetup struct {
	routed bool
	mtu    [2]int
	accept [2]int // levels
	gro    bool
}

// everything is a setup in which both kernels take all offloads.
func everything(routed bool, mtuA, mtuB int) matrixSetup {
	all := len(matrixOffloads) - 1
	return matrixSetup{routed: routed, mtu: [2]int{mtuA, mtuB}, accept: [2]int{all, all}, gro: true}
}

// newMatrixNet starts a router and opens the hosts' sockets.
func newMatrixNet(t *testing.T, s matrixSetup) *matrixNet {
	t.Helper()
	m := &matrixNet{Net: newNet(t), matrixSetup: s}
	top := topologies[0]
	if s.routed {
		top = topologies[1]
	}
	conf := top.conf
	var takes [2]offloads
	for i, k := range []string{"a", "b"} {
		accept := "vnet_hdr: false"
		if level := s.accept[i]; level != plainPort {
			takes[i] = matrixOffloads[level]
			accept = "accept: " + takes[i].String()
		}
		conf = withPort(conf, k, fmt.Sprintf("mtu: %d", s.mtu[i]), fmt.Sprintf("gro: %v", s.gro), accept)
	}
	m.r = m.router(conf)
	m.api = api.Dial(m.r.name)
	t.Cleanup(m.api.Close)
	m.hosts[0] = m.host("a", [2]string{top.a4, top.a6}, s.mtu[0], takes[0])
	m.hosts[1] = m.host("b", [2]string{top.b4, top.b6}, s.mtu[1], takes[1])
	m.ping("a", top.b4)
	m.ping("a", top.b6)
	return m
}

// withPort adds keys to port k of a configuration.
func withPort(conf, k string, keys ...string) string {
	if flow := "{name: @dev:" + k + ","; strings.Contains(conf, flow) {
		return strings.Replace(conf, flow, flow+" "+strings.Join(keys, ", ")+",", 1)
	}
	block := "- name: @dev:" + k + "\n"
	return strings.Replace(conf, block, block+"    "+strings.Join(keys, "\n    ")+"\n", 1)
}

// runMatrix runs cells that differ in nothing that needs another router.
func runMatrix(t *testing.T, cells [][]int) {
	first := cells[0]
	m := newMatrixNet(t, matrixSetup{
		routed: matrixTopologies[first[ofTopology]] == "l3", mtu: matrixMTUs[first[ofMTU]],
		accept: [2]int{first[ofAcceptA], first[ofAcceptB]}, gro: matrixGRO[first[ofGRO]],
	})
	for _, c := range cells {
		for i, h := range m.hosts {
			m.setSent(h, matrixOffloads[c[ofSentA+i]], m.accept[i] == plainPort)
		}
		name := fmt.Sprintf("sent %v-%v, %s over %s", m.hosts[0].sent, m.hosts[1].sent, matrixTraffic[c[ofTraffic]], matrixFamilies[c[ofFamily]])
		err := m.cell(matrixTopologies[c[ofTopology]], matrixTraffic[c[ofTraffic]], c[ofFamily])
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for reason, n := range m.r.drops() {
		switch reason {
		case "too_big", "not_for_us", "no_bridge_port", "protocol", "martian": // the latter are what hosts say to all
		default:
			if n > 0 {
				t.Errorf("%d packets dropped: %s", n, reason)
			}
		}
	}
}

// cell carries one kind of traffic both ways and looks at all that came in.
func (m *matrixNet) cell(topology, traffic string, family int) error {
	for _, h := range m.hosts {
		h.seen = seen{}
	}
	legs := map[string]func(from, to *matrixHost, family int) error{"tcp": m.tcp, "udp": m.udp, "icmp": m.echo}
	leg := legs[traffic]
	if topology == "tagged" {
		leg = func(from, to *matrixHost, family int) error { return m.tagged(from, to, traffic, family) }
	}
	for i, from := range m.hosts {
		if err := leg(from, m.hosts[1-i], family); err != nil {
			return fmt.Errorf("%s to %s: %w", from.k, m.hosts[1-i].k, err)
		}
	}
	for i, h := range m.hosts {
		if err := h.sniff(nil); err != nil {
			return fmt.Errorf("to %s: %w", h.k, err)
		}
		if err := h.seen.check(traffic, m.hosts[1-i].sent, h.takes, m.gro); err != nil {
			return fmt.Errorf("to %s: %w", h.k, err)
		}
	}
	return nil
}

// tooBig is how many packets the router has dropped as too big.
func (m *matrixNet) tooBig() (sum uint64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var all []api.Drop
	err = m.api.Get(ctx, "drops", &all)
	for _, d := range all {
		if d.Reason == "too_big" {
			sum += d.Packets
		}
	}
	return sum, err
}

// dropped runs send and waits until the router has counted n packets more as
// too big.
func (m *matrixNet) dropped(n int, send func() error) error {
	before, err := m.tooBig()
	if err != nil {
		return err
	}
	if err := send(); err != nil {
		return err
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		now, err := m.tooBig()
		if err != nil || now-before == uint64(n) {
			return err
		}
		if now-before > uint64(n) || time.Now().After(end) {
			return fmt.Errorf("%d packets dropped as too big, want %d", now-before, n)
		}
	}
}

// Packets that were merged come out of a port that takes no superpackets as
// they went in, byte for byte.
func TestMergedComeOutAsSent(t *testing.T) {
	m := newMatrixNet(t, matrixSetup{mtu: [2]int{1500, 1500}, gro: true})
	for _, h := range m.hosts {
		m.setSent(h, offloads{}, false)
	}
	for family, name := range matrixFamilies {
		for _, traffic := range []string{"tcp", "udp"} {
			before := m.r.link("@dev:a").GROMerged
			if err := m.cell("tagged", traffic, family); err != nil {
				t.Errorf("%s over %s: %v", traffic, name, err)
			}
			if merged := m.r.link("@dev:a").GROMerged - before; merged < 20 {
				t.Errorf("%s over %s: only %d packets were merged", traffic, name, merged)
			}
		}
	}
}
