package demo

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taprouter/control/api"
	"taprouter/control/config"
	"taprouter/internal/traffic"
)

func TestDisorder(t *testing.T) {
	tests := []struct {
		name string
		seen seen
		sent traffic.TCPSent
		want uint64
	}{
		{"nothing", seen{}, traffic.TCPSent{}, 0},
		{"no loss: every entry", seen{ofo: 7}, traffic.TCPSent{Retransmits: 2}, 7},
		{"loss explains what waits behind it", seen{ofo: 700, tap: 1}, traffic.TCPSent{Retransmits: 1}, 0},
		{"loss, and the sender saw disorder", seen{ofo: 700, router: 1}, traffic.TCPSent{ReordSeen: 5}, 5},
		{"not more than the receiver saw", seen{ofo: 3, end: 1}, traffic.TCPSent{ReordSeen: 5}, 3},
		{"sent again for nothing", seen{ofo: 700, tap: 1}, traffic.TCPSent{ReordSeen: 5, DSACKDups: 9}, 0},
	}
	for _, tt := range tests {
		if got := disorder(tt.seen, tt.sent); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestSince(t *testing.T) {
	ports := [2]string{"pa", "pb"}
	before := observation{
		a:     traffic.Counters{"dev.pa.tx_dropped": 1, "dev.other.tx_dropped": 0},
		b:     traffic.Counters{"dev.pb.rx_dropped": 0, "TcpExt.TCPOFOQueue": 10},
		drops: dropCounts{{"pa", "ttl"}: 3},
		cpu:   time.Second,
	}
	after := observation{
		a: traffic.Counters{"dev.pa.tx_dropped": 3, "dev.other.tx_dropped": 50},
		b: traffic.Counters{"dev.pb.rx_dropped": 4, "TcpExt.TCPOFOQueue": 15, "Udp.RcvbufErrors": 8},
		drops: dropCounts{
			{"pa", "ttl"}: 4, {"pb", "qdisc_full"}: 16, {"", "no_buffer"}: 32,
			{"pb", "no_bridge_port"}: 100, {"other", "ttl"}: 100,
		},
		cpu: 3 * time.Second,
	}
	want := seen{router: 1 + 16 + 32, tap: 2 + 4, end: 8, ofo: 5, cpu: 2 * time.Second}
	if got := after.since(before, ports); got != want {
		t.Errorf("since = %+v, want %+v", got, want)
	}
}

func TestFailures(t *testing.T) {
	good := func() *measured {
		m := &measured{leg: leg{proto: "udp", flows: 8}}
		m.Packets, m.MbitS, m.pings.Received = 100, 10, 5
		m.got.UDP = traffic.UDPReceived{Flows: 8}
		return m
	}
	tests := []struct {
		name  string
		spoil func(m *measured)
		says  string
	}{
		{"good", func(*measured) {}, ""},
		{"counted loss", func(m *measured) { m.Lost, m.seen.tap = 5, 5 }, ""},
		{"uncounted loss", func(m *measured) { m.Lost, m.seen.tap = 5, 4 }, "5 packets lost, but only 4"},
		{"nothing", func(m *measured) { m.Packets = 0 }, "no traffic"},
		{"a flow missing", func(m *measured) { m.got.UDP.Flows = 7 }, "7 of 8 flows"},
		{"no echo", func(m *measured) { m.pings.Received = 0 }, "no answer"},
		{"spoilt", func(m *measured) { m.got.UDP.Corrupt = 1 }, "payload"},
		{"reordered", func(m *measured) { m.Reordered = 2 }, "2 packets reordered"},
		{"doubled", func(m *measured) { m.got.UDP.Duplicates = 3 }, "3 packets came twice"},
	}
	for _, tt := range tests {
		m := good()
		tt.spoil(m)
		got := strings.Join(m.failures(), "; ")
		if (got == "") != (tt.says == "") || !strings.Contains(got, tt.says) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.says)
		}
	}
}

// Names stay below the kernel's limit of 15 characters for a device, and the
// configuration uses them all.
func TestNames(t *testing.T) {
	n := newNames(4194304) // the highest pid of 64-bit Linux
	c := n.config()
	for _, dev := range []string{n.l2a, n.l2b, n.l3a, n.l3b, n.nsA, n.nsB} {
		if len(dev) > 15 || !strings.Contains(c, dev) {
			t.Errorf("%q is too long or not in the configuration:\n%s", dev, c)
		}
	}
	seen := map[string]bool{}
	for _, l := range allLegs() {
		seen[l.name()] = true
	}
	if len(seen) != 16 {
		t.Errorf("%d legs, want 16: %v", len(seen), seen)
	}
}

// The router takes the configuration, without a warning.
func TestConfig(t *testing.T) {
	c, err := config.Parse("demo.yaml", []byte(newNames(4194304).config()))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Warnings) > 0 || len(c.Ports) != 4 || len(c.Bridges) != 1 {
		t.Errorf("%d ports, %d bridges, warnings %q", len(c.Ports), len(c.Bridges), c.Warnings)
	}
}

func TestJoin(t *testing.T) {
	links := []api.Link{
		{Name: "a", Queues: []api.Queue{{Queue: 0, RxPackets: 1}, {Queue: 1, TxPackets: 2}}},
		{Name: "b", Queues: []api.Queue{{Queue: 0}, {Queue: 1}}},
	}
	qdiscs := []api.Qdisc{
		{Dev: "a", Kind: "mq", Root: true, Drops: 9}, {Dev: "a", Kind: "pfifo_fast", Drops: 4}, {Dev: "a", Kind: "pfifo_fast", Drops: 5},
		{Dev: "b", Kind: "pfifo_fast", Root: true, Requeues: 6},
	}
	got := join(links, qdiscs)
	want := []queue{
		{Dev: "a", Queue: api.Queue{Queue: 0, RxPackets: 1}, Qdisc: "pfifo_fast", Drops: 4},
		{Dev: "a", Queue: api.Queue{Queue: 1, TxPackets: 2}, Qdisc: "pfifo_fast", Drops: 5},
		{Dev: "b", Queue: api.Queue{Queue: 0}, Qdisc: "pfifo_fast", Requeues: 6},
		{Dev: "b", Queue: api.Queue{Queue: 1}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("join (-want +got):\n%s", d)
	}
	b, err := json.Marshal(got[1])
	if err != nil || !strings.Contains(string(b), `"dev":"a","queue":1,`) || !strings.Contains(string(b), `"tx_packets":2,`) {
		t.Errorf("as JSON: %s, %v", b, err)
	}
}
