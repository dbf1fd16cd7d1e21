package config

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taprouter/qdisc"
)

// full has every key once; its shape is the one in the documentation.
const full = `
version: 1
workers: 2
coalesce: 80us
busy_poll: 30us
balance: false
io: uring
memory: {pool: 64MiB, huge: on}
ports:
  - name: tapa
    type: tap
    queues: 2
    netns: ns1
    create: true
    persist: true
    mtu: 9000
    txqueuelen: 500
    host: {addresses: [10.99.1.1/24, "fd99:1::1/64"], routes: [{to: default, via: 10.99.1.254}, {to: 10.3.0.0/16}], mac: "02:00:00:00:0a:01", up: false, txqueuelen: 8000}
    backpressure: true
    mac: "02:00:00:00:0a:fe"
    addresses: [10.99.1.254/24, "fd99:1::fe/64"]
    qdisc: {kind: mq, child: {kind: pfifo_fast}}
    xps: {flow_table_cnt: 1024, mode: dql, map: {1: [0], 0: [1, 0]}}
    sndbuf: 256KiB
    accept: [csum, tso]
    gro: false
    steering: hash
  - {name: tapb, type: tap, queues: 1, qdisc: {kind: mq}, host: {bridge: br-vm0, create: true}}
  - {name: tun0, type: tun, vnet_hdr: false, addresses: [10.99.3.1/31]}
  - {name: vm1, type: socket, stream: {listen: /run/vm1.sock}, sndbuf: 64KiB, mac: "02:00:00:00:0c:01"}
  - {name: vm2, type: socket, dgram: {local: /run/a.sock, remote: /run/b.sock}, queues: 1, vnet_hdr: false, mac: "02:00:00:00:0c:02"}
bridges:
  - {name: br0, ports: [tapb, vm1, vm2], ageing_time: 10s, fdb_max: 100, mac: 02:00:00:00:0b:01, addresses: [10.99.2.254/24]}
routes:
  - {to: 10.1.0.0/16, via: 10.99.2.9}
  - {to: "fd10::/16", via: "fe80::1", dev: tapa}
  - {to: 10.2.0.0/16, dev: tun0}
  - {to: 10.4.0.1, type: blackhole}
  - {to: "::/0", type: unreachable}
`

// mqOf is mq with children of this kind.
func mqOf(child string) Qdisc {
	return Qdisc{Root: qdisc.Spec{Kind: MQ}, Child: qdisc.Spec{Kind: child}}
}

func prefixes(list ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range list {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func TestFull(t *testing.T) {
	got, err := Parse("x.yaml", []byte(full))
	if err != nil {
		t.Fatal(err)
	}
	if got.Ports[1].MAC[0]&3 != 2 {
		t.Errorf("made up address %s is not locally administered unicast", got.Ports[1].MAC)
	}
	got.Ports[1].MAC = MAC{}
	all := Accept{Csum: true, TSO: true, USO: true}
	want := &Config{
		Workers: 2, IO: IOUring, Coalesce: 80 * time.Microsecond, BusyPoll: 30 * time.Microsecond, Pool: 64 << 20, Huge: HugeOn,
		Ports: []Port{{
			Name: "tapa", Type: TAP, Backend: Native, Queues: 2, NetNS: "ns1", Create: true, Persist: true, MTU: 9000, TxQueueLen: 500,
			MAC: MAC{2, 0, 0, 0, 0xa, 0xfe}, Addresses: prefixes("10.99.1.254/24", "fd99:1::fe/64"),
			Host: Host{
				Addresses: prefixes("10.99.1.1/24", "fd99:1::1/64"),
				Routes: []HostRoute{
					{To: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.99.1.254")},
					{To: netip.MustParsePrefix("10.3.0.0/16")},
				},
				MAC: MAC{2, 0, 0, 0, 0xa, 1}, TxQueueLen: 8000,
			},
			VnetHdr: true, Accept: Accept{Csum: true, TSO: true}, SndBuf: 256 << 10, Backpressure: true,
			Qdisc: mqOf(PfifoFast),
			XPS:   XPS{FlowTableCnt: 1024, Mode: DQL, Map: [][]int{{1, 0}, {0}}}, Steering: SteerHash,
		}, {
			Name: "tapb", Type: TAP, Backend: Native, Queues: 1, MTU: 1500, TxQueueLen: 1000, Host: Host{Bridge: "br-vm0", Create: true, Up: true, TxQueueLen: 3000},
			VnetHdr: true, Accept: all, GRO: true, Qdisc: mqOf(PfifoFast), XPS: XPS{Mode: Inflight}, Steering: SteerKernel, Bridge: "br0",
		}, {
			Name: "tun0", Type: TUN, Backend: Native, Queues: 2, MTU: 1500, TxQueueLen: 1000, Addresses: prefixes("10.99.3.1/31"), Host: Host{Up: true, TxQueueLen: 3000},
			Qdisc: mqOf(PfifoFast), XPS: XPS{FlowTableCnt: 4096, Mode: Inflight}, Steering: SteerKernel,
		}, {
			Name: "vm1", Type: SocketType, Socket: Socket{Listen: "/run/vm1.sock"}, Backend: Native, Queues: 1, MTU: 1500, TxQueueLen: 1000, SndBuf: 64 << 10,
			MAC: MAC{2, 0, 0, 0, 0xc, 1}, Host: Host{Up: true, TxQueueLen: 3000}, Qdisc: Qdisc{Root: qdisc.Spec{Kind: PfifoFast}}, XPS: XPS{Mode: Inflight}, Steering: SteerKernel, Bridge: "br0",
		}, {
			Name: "vm2", Type: SocketType, Socket: Socket{Local: "/run/a.sock", Remote: "/run/b.sock"}, Backend: Native, Queues: 1, MTU: 1500, TxQueueLen: 1000,
			MAC: MAC{2, 0, 0, 0, 0xc, 2}, Host: Host{Up: true, TxQueueLen: 3000}, Qdisc: Qdisc{Root: qdisc.Spec{Kind: PfifoFast}}, XPS: XPS{Mode: Inflight}, Steering: SteerKernel, Bridge: "br0",
		}},
		Bridges: []Bridge{{
			Name: "br0", Ports: []string{"tapb", "vm1", "vm2"}, AgeingTime: 10 * time.Second, FDBMax: 100,
			MAC: MAC{2, 0, 0, 0, 0xb, 1}, MTU: 1500, Addresses: prefixes("10.99.2.254/24"),
		}},
		Routes: []Route{
			{To: netip.MustParsePrefix("10.1.0.0/16"), Via: netip.MustParseAddr("10.99.2.9"), Dev: "br0", Type: Unicast},
			{To: netip.MustParsePrefix("fd10::/16"), Via: netip.MustParseAddr("fe80::1"), Dev: "tapa", Type: Unicast},
			{To: netip.MustParsePrefix("10.2.0.0/16"), Dev: "tun0", Type: Unicast},
			{To: netip.MustParsePrefix("10.4.0.1/32"), Type: Blackhole},
			{To: netip.MustParsePrefix("::/0"), Type: Unreachable},
		},
	}
	eq := cmp.Options{cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })}
	if diff := cmp.Diff(want, got, eq); diff != "" {
		t.Errorf("Parse(full), -want +got:\n%s", diff)
	}
}

func TestDefaults(t *testing.T) {
	c, err := Parse("x.yaml", []byte("version: 1\n"))
	if err != nil || c.Workers < 1 || c.Pool != DefaultPool {
		t.Errorf("Parse(version: 1) = %+v, %v; want a worker or more and %d bytes", c, err, DefaultPool)
	}
	tests := []struct {
		keys  string
		qdisc Qdisc
		cnt   int
	}{
		{"queues: 1", Qdisc{Root: qdisc.Spec{Kind: PfifoFast}}, 0},
		{"queues: 2", mqOf(PfifoFast), 4096},
		{"", mqOf(PfifoFast), 4096}, // queues = workers = 2
		{"queues: 2, napi: true", mqOf(PfifoFast), 0},
		{"queues: 2, qdisc: {kind: pfifo_fast}", Qdisc{Root: qdisc.Spec{Kind: PfifoFast}}, 4096},
		{"queues: 2, xps: {flow_table_cnt: 0}", mqOf(PfifoFast), 0},
		{"queues: 1, qdisc: {kind: mq, child: {kind: pfifo_fast}}", mqOf(PfifoFast), 0},
	}
	for _, tt := range tests {
		c, err := Parse("x.yaml", []byte(one(tt.keys)))
		if err != nil {
			t.Errorf("Parse(%s): %v", tt.keys, err)
			continue
		}
		if p := c.Ports[0]; p.Qdisc != tt.qdisc || p.XPS.FlowTableCnt != tt.cnt {
			t.Errorf("Parse(%s): qdisc %v, flow table %d; want %v, %d", tt.keys, p.Qdisc, p.XPS.FlowTableCnt, tt.qdisc, tt.cnt)
		}
	}
}

// Options of fq have tc's names and units; what is not given is the kernel's
// default for the port's MTU. A line has defaults too.
func TestFQAndLine(t *testing.T) {
	fq := func(mtu int, with func(c *qdisc.FQConfig)) qdisc.Spec {
		c := qdisc.DefaultFQ(mtu)
		with(&c)
		return qdisc.Spec{Kind: FQ, FQ: c}
	}
	for _, tt := range []struct {
		keys string
		want Qdisc
		line Line
	}{
		{"qdisc: {kind: fq}, mtu: 9000", Qdisc{Root: fq(9000, func(*qdisc.FQConfig) {})}, Line{}},
		{"qdisc: {quantum: 1514, kind: fq}, mtu: 9000", Qdisc{Root: fq(9000, func(c *qdisc.FQConfig) { c.Quantum = 1514 })}, Line{}},
		{"qdisc: {kind: fq, limit: 5, maxrate: 100mbit, pacing: False, orphan_mask: 0xffff, horizon_drop: false, ce_threshold: 5ms, timer_slack: 7}",
			Qdisc{Root: fq(1500, func(c *qdisc.FQConfig) {
				c.Limit, c.MaxRate, c.Pacing, c.OrphanMask, c.HorizonDrop, c.CEThreshold, c.TimerSlack = 5, 12_500_000, false, 0xffff, false, 5*time.Millisecond, 7
			})}, Line{}},
		{"qdisc: {kind: mq, child: {kind: fq, priomap: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2], weights: [16384, 16385, 16386]}}",
			Qdisc{Root: qdisc.Spec{Kind: MQ}, Child: fq(1500, func(c *qdisc.FQConfig) {
				c.Priomap, c.Weights = [16]uint8{15: 2}, [3]uint32{16384, 16385, 16386}
			})}, Line{}},
		{"line: {rate: 1gbit}", mqOf(PfifoFast), Line{Rate: 1e9, Ring: 256}},
		{"line: {rate: 12.5mbps, ring: 4, delay: 20ms, overhead: ethernet, shared: true}", mqOf(PfifoFast),
			Line{Rate: 100e6, Ring: 4, Delay: 20 * time.Millisecond, Overhead: 24, Shared: true}},
		{"line: {rate: 8000, overhead: 256}", mqOf(PfifoFast), Line{Rate: 8000, Ring: 256, Overhead: 256}},
	} {
		c, err := Parse("x.yaml", []byte(one(tt.keys)))
		if err != nil {
			t.Errorf("Parse(%s): %v", tt.keys, err)
			continue
		}
		if p := c.Ports[0]; p.Qdisc != tt.want || p.Line != tt.line {
			t.Errorf("Parse(%s): qdisc %+v, line %+v; want %+v, %+v", tt.keys, p.Qdisc, p.Line, tt.want, tt.line)
		}
	}
}

// What YAML makes of a name or an address without quotes is not our business.
func TestScalarsAsWritten(t *testing.T) {
	c, err := Parse("x.yaml", []byte("version: 1\nports: [{name: 010, netns: on}, {name: 1e3, netns: null1}, {name: \"x\", mac: 12:34:56:12:34:56, accept: []}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := []string{c.Ports[0].Name, c.Ports[0].NetNS, c.Ports[1].Name, c.Ports[2].Name, c.Ports[2].MAC.String()}
	if diff := cmp.Diff([]string{"010", "on", "1e3", "x", "12:34:56:12:34:56"}, got); diff != "" {
		t.Error(diff)
	}
	if (c.Ports[2].Accept != Accept{}) {
		t.Errorf("accept: [] = %+v, want nothing", c.Ports[2].Accept)
	}
}

func TestAnchors(t *testing.T) {
	c, err := Parse("x.yaml", []byte("version: 1\nports:\n- &p {name: a, mtu: 9000, queues: 3}\n- {<<: *p, name: b, queues: 1}\n- {<<: [*p], name: c, host: &h {up: false}}\n- {name: d, host: *h}\n"))
	if err != nil {
		t.Fatal(err)
	}
	b, d := c.Ports[1], c.Ports[3]
	if b.Name != "b" || b.MTU != 9000 || b.Queues != 1 || c.Ports[2].Queues != 3 || d.Host.Up {
		t.Errorf("merged: %+v, %+v", b, d)
	}
}

func TestMadeUpMAC(t *testing.T) {
	a, again, b := madeUpMAC("port", "", "tapa"), madeUpMAC("port", "", "tapa"), madeUpMAC("port", "", "tapb")
	if a != again || a == b {
		t.Errorf("made up for tapa %s, then %s, for tapb %s; want the same twice, then another", a, again, b)
	}
}

func TestWarnings(t *testing.T) {
	c, err := Parse("x.yaml", []byte("version: 1\nports:\n- {name: a}\n- {name: b, mtu: 9000}\n- {name: c}\n- {name: d, steering: random, queues: 2}\n- {name: e, steering: hash, queues: 1}\n- {name: f, steering: random, queues: 1}\n- {name: g, steering: queue, queues: 1}\n- {name: h, steering: queue, queues: 2}\nbridges:\n- {name: br0, ports: [b, c]}\n- {name: br1, ports: []}\n- {name: br2, ports: [d, e, f, g, h]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"x.yaml:3:3: port a has no addresses and is in no bridge: nothing is forwarded to or from it",
		"x.yaml:6:23: port d: steering random reorders the packets of every flow; take hash to keep flows together",
		"x.yaml:7:23: port e: with one queue steering hash has no choice; give it more queues or remove it",
		"x.yaml:8:23: port f: with one queue steering random has no choice; with more it reorders every flow",
		"x.yaml:9:23: port g: with one queue steering queue has no choice; give it more queues or remove it",
		"x.yaml:12:26: bridge br0: mtu 9000 of b and 1500 of c differ: a frame that is too big for its way out is dropped",
		"x.yaml:13:3: bridge br1 has no ports",
	}
	if diff := cmp.Diff(want, c.Warnings); diff != "" {
		t.Errorf("warnings, -want +got:\n%s", diff)
	}
}

func TestLinkLocalTwice(t *testing.T) {
	in := "version: 1\nports: [{name: a, addresses: [\"fe80::1/64\"]}, {name: b, addresses: [\"fe80::1/64\"]}]\n"
	if _, err := Parse("x.yaml", []byte(in)); err != nil {
		t.Errorf("Parse: %v, want fe80::/64 on two links accepted", err)
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.yaml")
	if _, err := Load(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Load of a missing file: %v, want ErrNotExist", err)
	}
	if err := os.WriteFile(path, []byte("version: 1\nx: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(path)
	var e *Error
	if !errors.As(err, &e) || e.File != path || e.Line != 2 || e.Col != 1 {
		t.Errorf("Load: %v, want an *Error at %s:2:1", err, path)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(full)
	f.Add(routed)
	for _, s := range []string{"", "a: *b", "<<: 1", "version: 1\nports: [&p {<<: *p}]", "? [a]: b", "ports: [{xps: {map: {<<: *x}}}]", "- - -", "\xff", "&a : *a", "!!x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		c, err := Parse("f", []byte(in))
		if (c == nil) == (err == nil) {
			t.Fatalf("Parse = %v, %v", c, err)
		}
		if err == nil {
			return
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if !strings.HasPrefix(line, "f:") {
				t.Errorf("message %q has no position", line)
			}
		}
	})
}

// The example in README.md is one that works.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(readme), "    version: 1\n")
	if !found {
		t.Fatal("README.md has no example")
	}
	text, _, _ = strings.Cut(text, "\n\n")
	c, err := Parse("README.md", []byte("    version: 1\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Ports) != 2 || len(c.Bridges) != 1 || len(c.Warnings) != 0 {
		t.Errorf("README.md: %d ports, %d bridges, warnings %q", len(c.Ports), len(c.Bridges), c.Warnings)
	}
}
