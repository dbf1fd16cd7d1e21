package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taprouter/control/tc"
	"taprouter/qdisc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a router of fixed answers that notes what is changed.
type fake struct{ changed []any }

func (f *fake) Status() Status {
	return Status{Version: "1", Workers: 2, IO: "uring", IOReason: "configured", Coalesce: 150, Rests: 7, BusyPoll: 50, Polls: 9, PollsFound: 8, Balance: true, Moves: 3, Totals: Totals{Received: 5, Created: 1, Sent: 4, Dropped: 2}, Balanced: true}
}

func (f *fake) Links() []Link {
	return []Link{{Index: 0, Name: "tapa", Type: "tap", Backend: "native", OperState: "UP", MTU: 1500, TxQueueLen: 1000, MAC: "02:00:00:00:00:fe", HostMAC: "02:00:00:00:00:01", NetNS: "ns1",
		Addresses: []string{"10.0.0.254/24", "fd00::fe/64"}, VnetHdr: true, Offloads: []string{"csum", "tso4"}, Accept: []string{"csum"}, Software: []string{"tso", "uso"},
		Segments: 7, Checksums: 8, Dropped: 9, KernelDrop: 10, GRO: true, GROTrains: 12, GROMerged: 13, GROBadCsum: 14, GSORefused: 11, GSOOff: []string{"tcp4", "udp"}, QueuesUsed: 1, Steering: "hash", Queues: []Queue{{Queue: 0, RxPackets: 1, RxBytes: 2, TxPackets: 3, TxBytes: 4, TxStops: 5}}}}
}

func (f *fake) Qdiscs() []Qdisc {
	child := Qdisc{Kind: "pfifo_fast", Handle: "0:", Dev: "tapa", Parent: ":1", Bands: 3, Priomap: []int{1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}, Bytes: 1000, Packets: 10, Drops: 1, Requeues: 2, Backlog: 2048, Qlen: 3}
	root := child
	root.Kind, root.Parent, root.Root, root.Bands, root.Priomap = "mq", "", true, 0, nil
	single := child
	single.Dev, single.Parent, single.Root, single.RefCnt = "tapb", "", true, 2
	fq := single
	cfg := tc.FQConfig(qdisc.DefaultFQ(1500))
	fq.Kind, fq.Dev, fq.Bands, fq.Priomap, fq.Options = "fq", "tapc", 0, nil, &cfg
	fq.FQStats = &tc.FQStats{Flows: 3, Inactive: 2, Fastpath: 9, Band1Drops: 4}
	return []Qdisc{root, child, single, fq}
}

func (f *fake) Lines() []Line {
	return []Line{
		{Dev: "tapa", Rate: 1e9, Ring: 256, Delay: 20_000_000, Overhead: 24, Shared: true, Held: 2048, MaxHeld: 1 << 20, Overflow: 3,
			Queues: []LineQueue{{0, 5, 1}, {1, 0, 0}}},
		{Dev: "tapb", Rate: 8000, Ring: 1, Queues: []LineQueue{{}}},
	}
}

func (f *fake) XPS() []XPS {
	return []XPS{{Dev: "tapa", Queues: []XPSQueue{{0, []int{0, 2}}, {1, []int{}}}, Buckets: 4096, Mode: "inflight", Moves: 1, Refused: 2, InFlight: 3}}
}
func (f *fake) BQL() []BQL {
	return []BQL{{Dev: "tapa", Queue: 1, Limit: 65536, LimitMax: 524288, HoldTime: 1000, Inflight: 5, EnqueueOps: 6, CompletedOps: 7}}
}
func (f *fake) FDB() []FDB {
	return []FDB{{MAC: "02:00:00:00:00:01", Dev: "tapa", Master: "br0", Age: 12.3}, {MAC: "02:00:00:00:00:02", Dev: "tapb", Master: "br0", Static: true}}
}
func (f *fake) Routes() []Route {
	return []Route{{Dst: "default", Gateway: "10.0.0.1", Dev: "tapa", Protocol: "static"}, {Type: "blackhole", Dst: "10.9.0.0/16", Protocol: "static"}}
}
func (f *fake) Neighs() []Neigh {
	return []Neigh{{Dst: "10.0.0.1", Dev: "tapa", LLAddr: "02:00:00:00:00:01", State: "REACHABLE"}, {Dst: "10.0.0.2", Dev: "tapa", State: "FAILED"}}
}
func (f *fake) Drops() []Drop {
	return []Drop{{Port: "tapa", Reason: "ttl", Text: "TTL or hop limit exceeded", Packets: 3}, {Reason: "shutdown", Text: "x", Packets: 1}}
}

func (f *fake) Memory() Memory {
	return Memory{
		Buffers: []BufferKind{{"head", 2048, 100, 1, 2, []int{3, 4}, 5, 85}, {"tail", 65536, 16, 0, 0, []int{1, 0}, 0, 15}},
		Kinds:   []MemoryKind{{"packet", 128, 100, 15}}, Huge: "auto", Hugetlb: 2 << 20, THP: 4096,
		GoHeap: 3 << 20, GoTotal: 5 << 20, GoLimit: 64 << 20, RSS: 20 << 20, MaxRSS: 21 << 20, Program: 10 << 20, Bound: 65 << 20,
	}
}

func (f *fake) note(v ...any) error {
	f.changed = append(f.changed, v)
	if v[0] == "bad" {
		return errors.New("there is no port \"bad\"")
	}
	return nil
}
func (f *fake) SetXPS(dev string, q int, w []int) error { return f.note(dev, "xps", q, w) }
func (f *fake) SetFlowTable(dev string, n int, mode string) error {
	return f.note(dev, "table", n, mode)
}
func (f *fake) SetTxQueueLen(dev string, n int) error { return f.note(dev, "len", n) }
func (f *fake) SetQueues(dev string, n int) error     { return f.note(dev, "queues", n) }
func (f *fake) SetSteering(dev, how string) error     { return f.note(dev, "steering", how) }
func (f *fake) SetGRO(dev string, on bool) error      { return f.note(dev, "gro", on) }
func (f *fake) SetGSO(dev string) error               { return f.note(dev, "gso") }
func (f *fake) SetBQL(dev string, q int, key string, v uint64) error {
	return f.note(dev, "bql", q, key, v)
}
func (f *fake) SetHop(dev string, d time.Duration) error { return f.note(dev, "hop", d) }
func (f *fake) SetLoad(dev string, q int, d time.Duration) error {
	return f.note(dev, "load", q, d)
}
func (f *fake) ReplaceQdisc(dev string, child int, kind, children string, options []string) error {
	return f.note(dev, "qdisc", child, kind, children, options)
}
func (f *fake) ChangeQdisc(dev string, child int, kind string, options []string) error {
	return f.note(dev, "change", child, kind, options)
}

// serve runs a socket for the test and gives its client.
func serve(t *testing.T, r Router) (*Client, string) {
	t.Helper()
	name := fmt.Sprintf("apitest%d", os.Getpid())
	l, err := Listen(name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, r) }()
	c := Dial(name)
	t.Cleanup(func() {
		c.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if _, err := os.Stat(SocketPath(name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is left behind: %v", err)
		}
	})
	return c, name
}

func TestRoundTrip(t *testing.T) {
	f := &fake{}
	c, name := serve(t, f)
	ctx := t.Context()
	for what, want := range map[string]any{
		"status": f.Status(), "links": f.Links(), "qdiscs": f.Qdiscs(), "lines": f.Lines(), "xps": f.XPS(), "bql": f.BQL(), "fdb": f.FDB(),
		"routes": f.Routes(), "neighs": f.Neighs(), "drops": f.Drops(), "memory": f.Memory(),
	} {
		got := reflect.New(reflect.TypeOf(want))
		if err := c.Get(ctx, what, got.Interface()); err != nil {
			t.Errorf("get %s: %v", what, err)
		}
		a, _ := json.Marshal(got.Interface())
		b, _ := json.Marshal(want)
		if !bytes.Equal(a, b) {
			t.Errorf("%s came as %s, want %s", what, a, b)
		}
	}
	changes := map[string]Change{
		"xps": {Dev: "a", Queue: 1, Workers: []int{0, 1}}, "flow_table": {Dev: "a", Buckets: 64, Mode: "dql"}, "txqlen": {Dev: "a", Len: 10},
		"queues": {Dev: "a", Queues: 3}, "steering": {Dev: "a", How: "hash"}, "gro": {Dev: "a", GRO: true}, "gso": {Dev: "a"}, "bql": {Dev: "a", Key: "limit_max", Value: 9}, "qdisc": {Dev: "a", Child: -1, Kind: "mq"},
		"qdisc_change": {Dev: "a", Child: 1, Kind: "fq", Options: []string{"limit", "5"}},
		"hop":          {Dev: "a", Period: time.Millisecond}, "load": {Dev: "a", Queue: 1, Period: time.Second},
	}
	for what, change := range changes {
		if err := c.Set(ctx, what, change); err != nil {
			t.Errorf("set %s: %v", what, err)
		}
	}
	if len(f.changed) != len(changes) {
		t.Errorf("%d changes arrived of %d: %v", len(f.changed), len(changes), f.changed)
	}
	if err := c.Set(ctx, "txqlen", Change{Dev: "bad"}); err == nil || err.Error() != `there is no port "bad"` {
		t.Errorf("a refused change: %v", err)
	}
	if err := c.Get(ctx, "nothing", &struct{}{}); err == nil {
		t.Error("an unknown path was answered")
	}
	resp, err := c.http.Post("http://router/v1/xps", "application/json", strings.NewReader(`{"devv":1}`))
	if err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("an unknown field: %v, %v", resp, err)
	}
	resp.Body.Close()
	info, err := os.Stat(SocketPath(name))
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket's mode is %v, %v, want 0660", info.Mode().Perm(), err)
	}
}

// A name has one holder; a socket that nobody serves any more is replaced.
func TestOneHolder(t *testing.T) {
	_, name := serve(t, &fake{})
	if _, err := Listen(name); !errors.Is(err, ErrRunning) {
		t.Errorf("a second holder: %v, want ErrRunning", err)
	}
	stale := name + "-stale"
	l, err := Listen(stale)
	if err != nil {
		t.Fatal(err)
	}
	l.(interface{ SetUnlinkOnClose(bool) }).SetUnlinkOnClose(false) // as after kill -9
	l.Close()
	if l, err = Listen(stale); err != nil {
		t.Fatalf("a stale socket: %v", err)
	}
	l.Close()
	for _, bad := range []string{"", "a/b", "../x"} {
		if _, err := Listen(bad); err == nil {
			t.Errorf("name %q was accepted", bad)
		}
	}
}

func TestNobodyThere(t *testing.T) {
	c := Dial("no-such-router")
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := c.Get(ctx, "status", &Status{}); err == nil || !strings.Contains(err.Error(), `no router named "no-such-router" is running`) {
		t.Errorf("without a router: %v", err)
	}
}

const fqLine = "limit 10000p flow_limit 100p buckets 1024 orphan_mask 1023 bands 3 priomap 1 2 2 2 1 2 0 0 1 1 1 1 1 1 1 1 " +
	"weights 589824 196608 65536 quantum 3028b initial_quantum 15140b low_rate_threshold 550Kbit refill_delay 40ms timer_slack 10us " +
	"horizon 10s horizon_drop offload_horizon 0us "

// The JSON of an fq is flat, as tc's is, with its options in an object; other
// kinds have neither.
func TestFQJSON(t *testing.T) {
	q := (&fake{}).Qdiscs()
	b, err := json.Marshal(q[3])
	for _, part := range []string{`"options":{"limit":10000,`, `"qlen":3,"flows":3,"inactive":2,`, `"fastpath":9,"throttled":0,"band1_drops":4}`} {
		if err != nil || !strings.Contains(string(b), part) {
			t.Errorf("%s, %v, want %s in it", b, err, part)
		}
	}
	if b, _ := json.Marshal(q[2]); strings.Contains(string(b), "flows") || strings.Contains(string(b), "options") {
		t.Errorf("pfifo_fast: %s", b)
	}
}

// The texts people see, byte for byte; the qdiscs' are tc's own.
func TestTexts(t *testing.T) {
	f := &fake{}
	for _, tt := range []struct {
		name, want string
		print      func(b *bytes.Buffer)
	}{
		{"qdisc show", "qdisc mq 0: dev tapa root \n" +
			"qdisc pfifo_fast 0: dev tapa parent :1 bands 3 priomap 1 2 2 2 1 2 0 0 1 1 1 1 1 1 1 1\n" +
			"qdisc pfifo_fast 0: dev tapb root refcnt 2 bands 3 priomap 1 2 2 2 1 2 0 0 1 1 1 1 1 1 1 1\n" +
			"qdisc fq 0: dev tapc root refcnt 2 " + fqLine + "\n",
			func(b *bytes.Buffer) { PrintQdiscs(b, f.Qdiscs(), false, true) }},
		{"qdisc show -s dev tapa", "qdisc mq 0: root \n" +
			" Sent 1000 bytes 10 pkt (dropped 1, overlimits 0 requeues 2) \n backlog 2Kb 3p requeues 2\n",
			func(b *bytes.Buffer) { PrintQdiscs(b, f.Qdiscs()[:1], true, false) }},
		{"qdisc show -s dev tapc", "qdisc fq 0: root refcnt 2 " + fqLine + "\n" +
			" Sent 1000 bytes 10 pkt (dropped 1, overlimits 0 requeues 2) \n backlog 2Kb 3p requeues 2\n" +
			"  flows 3 (inactive 2 throttled 0) band0_pkts 0 band1_pkts 0 band2_pkts 0\n  gc 0 highprio 0 fastpath 9 throttled 0\n band1_drops 4\n",
			func(b *bytes.Buffer) { PrintQdiscs(b, f.Qdiscs()[3:], true, false) }},
		{"line show", "tapa: rate 1Gbit ring 256 delay 20ms overhead 24b shared\n    queue 0 ring_used 5 stops 1\n    queue 1 ring_used 0 stops 0\n" +
			"tapb: rate 8Kbit ring 1 delay 0ns overhead 0b each queue its own\n    queue 0 ring_used 0 stops 0\n",
			func(b *bytes.Buffer) { PrintLines(b, f.Lines(), false) }},
		{"line show -s dev tapa", "tapa: rate 1Gbit ring 256 delay 20ms overhead 24b shared\n    queue 0 ring_used 5 stops 1\n    queue 1 ring_used 0 stops 0\n    held 2Kb of 1Mb overflow 3\n",
			func(b *bytes.Buffer) { PrintLines(b, f.Lines()[:1], true) }},
		{"link show", "0: tapa: <TAP> mtu 1500 qlen 1000 queues 1 state UP steering hash netns ns1\n" +
			"    link/ether 02:00:00:00:00:fe host 02:00:00:00:00:01\n    inet 10.0.0.254/24\n    inet6 fd00::fe/64\n" +
			"    offloads from the kernel: csum,tso4; to it: csum; in software: tso,uso; gro on\n    superpackets that the device refuses, sent in segments: tcp4,udp\n",
			func(b *bytes.Buffer) { PrintLinks(b, f.Links(), false) }},
		{"link show, steering kernel", "3: tapb: <TUN> mtu 0 qlen 0 queues 0 state DOWN backend water\n    offloads from the kernel: none; to it: none; in software: none; gro off\n",
			func(b *bytes.Buffer) {
				PrintLinks(b, []Link{{Index: 3, Name: "tapb", Type: "tun", Backend: "water", OperState: "DOWN", Steering: "kernel"}}, false)
			}},
		{"link show, in a kernel bridge", "3: tapb: <TAP> mtu 0 qlen 0 queues 0 state UP host-bridge br-vm0\n    problem: vm1 in bridge br-vm0 is set down: ip link set vm1 up\n" +
			"    offloads from the kernel: none; to it: none; in software: none; gro off\n",
			func(b *bytes.Buffer) {
				PrintLinks(b, []Link{{
					Index: 3, Name: "tapb", Type: "tap", Backend: "native", OperState: "UP", Steering: "kernel", HostBridge: "br-vm0",
					Problems: []string{"vm1 in bridge br-vm0 is set down: ip link set vm1 up"},
				}}, false)
			}},
		{"xps show -s", "tapa: flow_table_cnt 4096 mode inflight\n    queue 0 workers 0,2\n    queue 1 workers none\n    moves 1 refused 2 collisions 0 in_flight 3 reordered 0\n",
			func(b *bytes.Buffer) { PrintXPS(b, f.XPS(), true) }},
		{"bql show", "tapa queue 1: limit 65536 limit_min 0 limit_max 524288 hold_time 1000 inflight 5\n",
			func(b *bytes.Buffer) { PrintBQL(b, f.BQL(), false) }},
		{"fdb show -s", "02:00:00:00:00:01 dev tapa master br0 used 12\n02:00:00:00:00:02 dev tapb master br0 static\n",
			func(b *bytes.Buffer) { PrintFDB(b, f.FDB(), true) }},
		{"route show", "default via 10.0.0.1 dev tapa proto static\nblackhole 10.9.0.0/16 proto static\n",
			func(b *bytes.Buffer) { PrintRoutes(b, f.Routes()) }},
		{"neigh show", "10.0.0.1 dev tapa lladdr 02:00:00:00:00:01 REACHABLE\n10.0.0.2 dev tapa FAILED\n",
			func(b *bytes.Buffer) { PrintNeighs(b, f.Neighs()) }},
		{"drops show", "PORT  REASON    PACKETS  MEANING\ntapa  ttl       3        TTL or hop limit exceeded\n-     shutdown  1        x\n",
			func(b *bytes.Buffer) { PrintDrops(b, f.Drops()) }},
		{"status", "router 1, pid 0, up 0 s, 2 workers\nio uring: configured\ncoalesce up to 150us: 7 rests\nbusy poll up to 50us: 9 polls, 8 found frames\nbalance: 3 moves of an rx queue to an idle worker\nreceived 5 + created 1 + injected 0 = sent 4 + queued 0 + parked 0 + punted 0 + dropped 2: adds up\n",
			func(b *bytes.Buffer) { PrintStatus(b, f.Status()) }},
		{"memory show", "  buffers  size  most   bytes  in use  free  untouched  control  worker 0  worker 1\n" +
			"     head   2Kb   100   200Kb       1     2         85        5         3         4\n" +
			"     tail  64Kb    16   1.0Mb       0     0         15        0         1         0\n" +
			"   tables  size  most   bytes  in use\n" +
			"   packet  128b   100  12800b      15\n" +
			"huge pages auto: 2.0Mb reserved, 4Kb made by the kernel\n" +
			"go: heap 3.0Mb, total 5.0Mb, limit 64.0Mb\n" +
			"resident 20.0Mb, at most 21.0Mb, of that the program 10.0Mb; bound 65.0Mb and the program\n",
			func(b *bytes.Buffer) { PrintMemory(b, f.Memory()) }},
	} {
		var b bytes.Buffer
		tt.print(&b)
		if b.String() != tt.want {
			t.Errorf("%s prints\n%q, want\n%q", tt.name, b.String(), tt.want)
		}
	}
}
