package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"taprouter/control/api"
	"taprouter/packet"
)

// fake is a router of two ports that notes what is changed.
type fake struct {
	api.Router // nil: what is not asked here
	changed    []string
}

func (f *fake) Links() []api.Link {
	return []api.Link{
		{Name: "tapa", Type: "tap", Backend: "native", OperState: "UP", MTU: 1500, Master: "br0", Queues: []api.Queue{{}, {Queue: 1}}},
		{Index: 1, Name: "tapb", Type: "tun", Backend: "water", OperState: "GONE", Reason: "the device was deleted", MTU: 1400, Queues: []api.Queue{{}}},
	}
}

func (f *fake) Qdiscs() []api.Qdisc {
	return []api.Qdisc{
		{Kind: "mq", Handle: "0:", Dev: "tapa", Root: true, Bytes: 90, Packets: 1},
		{Kind: "pfifo_fast", Handle: "0:", Dev: "tapa", Parent: ":1", Bands: 3, Priomap: []int{1, 2}, Bytes: 90, Packets: 1},
		{Kind: "pfifo_fast", Handle: "0:", Dev: "tapb", Root: true, RefCnt: 2, Bands: 3, Priomap: []int{1, 2}},
	}
}

func (f *fake) Lines() []api.Line {
	return []api.Line{{Dev: "tapb", Rate: 20e6, Ring: 256, Queues: []api.LineQueue{{}}}}
}

func (f *fake) FDB() []api.FDB {
	return []api.FDB{{MAC: "02:00:00:00:00:01", Dev: "tapa", Master: "br0"}, {MAC: "02:00:00:00:00:02", Dev: "tapc", Master: "br1"}}
}

func (f *fake) Routes() []api.Route { return []api.Route{} }

func (f *fake) Drops() []api.Drop {
	return []api.Drop{{Port: "tapa", Reason: "ttl", Text: "x", Packets: 3}, {Port: "tapb", Reason: "vlan", Text: "y", Packets: 1}}
}

func (f *fake) Status() api.Status {
	return api.Status{Version: "1", Workers: 2, IO: "readv", IOReason: "configured", Balanced: true}
}

func (f *fake) note(v ...any) error {
	s := fmt.Sprintf("%v", v)
	f.changed = append(f.changed, s[1:len(s)-1]) // without the brackets
	return nil
}

func (f *fake) SetXPS(dev string, q int, workers []int) error {
	if q > 1 {
		return errors.New("queue 9: tapa has 2, from 0")
	}
	return f.note("xps", dev, q, workers)
}
func (f *fake) SetFlowTable(dev string, n int, mode string) error {
	return f.note("table", dev, n, mode)
}
func (f *fake) SetTxQueueLen(dev string, n int) error { return f.note("len", dev, n) }
func (f *fake) SetQueues(dev string, n int) error     { return f.note("queues", dev, n) }
func (f *fake) SetSteering(dev, how string) error     { return f.note("steering", dev, how) }
func (f *fake) SetGRO(dev string, on bool) error      { return f.note("gro", dev, on) }
func (f *fake) SetGSO(dev string) error               { return f.note("gso", dev) }
func (f *fake) SetBQL(dev string, q int, key string, v uint64) error {
	return f.note("bql", dev, q, key, v)
}
func (f *fake) SetHop(dev string, d time.Duration) error { return f.note("hop", dev, d) }
func (f *fake) SetLoad(dev string, q int, d time.Duration) error {
	return f.note("load", dev, q, d)
}
func (f *fake) ReplaceQdisc(dev string, child int, kind, children string, options []string) error {
	return f.note("qdisc", dev, child, kind, children, options)
}
func (f *fake) ChangeQdisc(dev string, child int, kind string, options []string) error {
	return f.note("change", dev, child, kind, options)
}

// serve runs a fake router until the test ends and gives its name.
func serve(t *testing.T, r api.Router) string {
	t.Helper()
	name := fmt.Sprintf("cmdtest%d", os.Getpid())
	l, err := api.Listen(name)
	if errors.Is(err, os.ErrPermission) && os.Getenv("ROUTER_REQUIRE_NETNS") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- api.Serve(ctx, l, r) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return name
}

func TestShow(t *testing.T) {
	name := serve(t, &fake{})
	const a, b = "02:00:00:00:00:01 dev tapa master br0\n", "02:00:00:00:00:02 dev tapc master br1\n"
	const mqs = "qdisc mq 0: root \n Sent 90 bytes 1 pkt (dropped 0, overlimits 0 requeues 0) \n backlog 0b 0p requeues 0\n"
	for _, tt := range []struct{ args, want string }{
		{"qdisc", "qdisc mq 0: dev tapa root \nqdisc pfifo_fast 0: dev tapa parent :1 bands 3 priomap 1 2\nqdisc pfifo_fast 0: dev tapb root refcnt 2 bands 3 priomap 1 2\n"},
		{"qdisc dev tapb", "qdisc pfifo_fast 0: root refcnt 2 bands 3 priomap 1 2\n"},
		{"qdisc show -s dev tapa", mqs + "qdisc pfifo_fast 0: parent :1 bands 3 priomap 1 2\n" + strings.TrimPrefix(mqs, "qdisc mq 0: root \n")},
		{"-s qdisc list dev tapa", mqs + "qdisc pfifo_fast 0: parent :1 bands 3 priomap 1 2\n" + strings.TrimPrefix(mqs, "qdisc mq 0: root \n")},
		{"qdisc show -d dev tapb", "qdisc pfifo_fast 0: root refcnt 2 bands 3 priomap 1 2\n"},
		{"line show", "tapb: rate 20Mbit ring 256 delay 0ns overhead 0b each queue its own\n    queue 0 ring_used 0 stops 0\n"},
		{"line -s -j dev tapb", `[{"dev":"tapb","rate":20000000,"ring":256,"delay":0,"overhead":0,"shared":false,"held":0,"max_held":0,"overflow":0,"queues":[{"queue":0,"ring_used":0,"stops":0}]}]` + "\n"},
		{"line show dev tapa", ""},
		{"fdb show", a + b},
		{"fdb show dev br0", a},
		{"fdb show dev tapa", a},
		{"fdb show dev tapb -j", "[]\n"},
		{"route show --json", "[]\n"},
		{"route", ""},
		{"drops show dev tapb", "PORT  REASON  PACKETS  MEANING\ntapb  vlan    1        y\n"},
		{"drops -j dev tapb", `[{"port":"tapb","reason":"vlan","text":"y","packets":1}]` + "\n"},
		{"drops -j -p dev tapb", "[\n    {\n        \"port\": \"tapb\",\n        \"reason\": \"vlan\",\n        \"text\": \"y\",\n        \"packets\": 1\n    }\n]\n"},
		{"status", "router 1, pid 0, up 0 s, 2 workers\nio readv: configured\nreceived 0 + created 0 + injected 0 = sent 0 + queued 0 + parked 0 + punted 0 + dropped 0: adds up\n"},
	} {
		code, stdout, stderr := command(t, append(strings.Fields(tt.args), "--name", name)...)
		if code != 0 || stdout != tt.want || stderr != "" {
			t.Errorf("router %s: status %d, prints\n%q and %q, want\n%q", tt.args, code, stdout, stderr, tt.want)
		}
	}
}

// drops -a lists each reason once.
func TestAllDrops(t *testing.T) {
	name := serve(t, &fake{})
	var all []api.Drop
	_, stdout, _ := command(t, "drops", "show", "-a", "-j", "--name", name)
	if err := json.Unmarshal([]byte(stdout), &all); err != nil || len(all) != int(packet.NumReasons)-1 {
		t.Errorf("%d reasons, %v, want %d", len(all), err, packet.NumReasons-1)
	}
	seen := map[string]bool{}
	for _, d := range all {
		if seen[d.Reason] {
			t.Errorf("%s is there twice", d.Reason)
		}
		seen[d.Reason] = true
	}
}

func TestSet(t *testing.T) {
	f := &fake{}
	name := serve(t, f)
	for _, tt := range []struct{ args, want string }{
		{"xps set dev tapa queue 1 workers 0,2-3", "xps tapa 1 [0 2 3]"},
		{"xps set workers none queue 0 dev tapa", "xps tapa 0 []"},
		{"xps set dev tapa flow_table_cnt 64", "table tapa 64 "},
		{"xps set dev tapa flow_table_cnt 0 mode dql", "table tapa 0 dql"},
		{"link set dev tapb txqueuelen 10", "len tapb 10"},
		{"link set dev tapb queues 1", "queues tapb 1"},
		{"link set dev tapb steering hash", "steering tapb hash"},
		{"link set dev tapb gro off", "gro tapb false"},
		{"link set gro on dev tapb", "gro tapb true"},
		{"link set dev tapb gso on", "gso tapb"},
		{"bql set dev tapa queue 1 limit_max max", "bql tapa 1 limit_max 1879048192"},
		{"bql set dev tapa queue 1 hold_time 0", "bql tapa 1 hold_time 0"},
		{"xps set dev tapa hop 2ms", "hop tapa 2ms"},
		{"xps set dev tapa hop off", "hop tapa 0s"},
		{"qdisc replace dev tapa root mq", "qdisc tapa -1 mq  []"},
		{"qdisc replace dev tapa root mq child fq limit 5 nopacing", "qdisc tapa -1 mq fq [limit 5 nopacing]"},
		{"qdisc replace dev tapa parent :a pfifo_fast", "qdisc tapa 9 pfifo_fast  []"},
		{"qdisc replace dev tapa root fq", "qdisc tapa -1 fq  []"},
		{"qdisc replace dev tapa parent :2 fq maxrate 8mbit weights 16384 16384 16384", "qdisc tapa 1 fq  [maxrate 8mbit weights 16384 16384 16384]"},
		{"qdisc change dev tapa parent :1 fq maxrate unlimited", "change tapa 0 fq [maxrate unlimited]"},
		{"qdisc change dev tapa root fq horizon_cap nofastpath", "change tapa -1 fq [horizon_cap nofastpath]"},
		{"line load dev tapa queue 1 backlog 10ms", "load tapa 1 10ms"},
		{"line load dev tapa queue 1 backlog off", "load tapa 1 0s"},
	} {
		f.changed = nil
		code, stdout, stderr := command(t, append(strings.Fields(tt.args), "--name", name)...)
		if code != 0 || stdout+stderr != "" || !reflect.DeepEqual(f.changed, []string{tt.want}) {
			t.Errorf("router %s: status %d, %q, %q; it changed %q, want %q", tt.args, code, stdout, stderr, f.changed, tt.want)
		}
	}
	code, _, stderr := command(t, "qdisc", "change", "dev", "tapa", "root", "fq", "defrate", "1mbit", "limit", "5", "--name", name)
	if code != 0 || stderr != "warning: defrate is ignored: fq has it no more\n" {
		t.Errorf("an option that is no more: status %d, %q", code, stderr)
	}
	f.changed = nil
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"xps set dev tapa queue 9 workers 0", 2, "queue 9: tapa has 2"},
		{"xps set dev tapx queue 0 workers 0", 1, `there is no port "tapx"; there are tapa, tapb`},
		{"link show dev tapx", 1, `there is no port "tapx"; there are tapa, tapb`},
		{"xps set dev tapa mode dql", 1, "flow_table_cnt is missing"},
		{"xps set dev tapa queue 0 workers 1 mode dql", 1, `"queue": want dev, flow_table_cnt, mode`},
		{"xps set dev tapa dev tapb queue 0 workers 1", 1, "dev is given twice"},
		{"link set dev tapa txqueuelen 5 queues 2", 1, `"txqueuelen": want dev, queues`},
		{"link set dev tapa", 1, "txqueuelen is missing"},
		{"link set dev tapa steering rss", 1, `steering "rss": want kernel, random, hash or queue`},
		{"link set dev tapa steering", 1, "steering needs a value"},
		{"link set dev tapa gro yes", 1, `gro "yes": want on or off`},
		{"link set dev tapa gro on queues 2", 1, `"queues": want dev, gro`},
		{"link set dev tapa gso off", 1, "want on"},
		{"link set dev tapa steering hash queues 2", 1, `"steering": want dev, queues`},
		{"bql set dev tapa queue 0 limit 5", 1, `"limit": want`},
		{"xps set dev tapa hop 3", 1, "want a time"},
		{"bql set dev tapa queue 0 limit_min 5 limit_max 6", 1, "one setting at a time"},
		{"qdisc replace dev tapa root fq limit 0", 1, `limit: want 1 to 1048576, got "0"; usage: router qdisc replace`},
		{"qdisc replace dev tapa root fq lim 5", 1, `"lim" is no option of fq; there are limit,`},
		{"qdisc replace dev tapa root pfifo_fast limit 5", 1, `"limit 5": pfifo_fast has no options; fq has`},
		{"qdisc replace dev tapa root mq limit 5", 1, `mq: "limit 5": want child and its kind`},
		{"qdisc replace dev tapa root mq child pfifo_fast limit 5", 1, `pfifo_fast has no options`},
		{"qdisc change dev tapa root fq", 1, "at least one option"},
		{"qdisc change dev tapa root mq", 1, "fq and at least one option"},
		{"qdisc change dev tapa parent :1 fq maxrate 1furlong", 1, `maxrate: want 8bit to 34359Mbit, or 0 or unlimited for none, got "1furlong"; usage: router qdisc change`},
		{"line load dev tapa queue 0", 1, "backlog"},
	} {
		code, stdout, stderr := command(t, append(strings.Fields(tt.args), "--name", name)...)
		if code != tt.code || stdout != "" || !strings.HasPrefix(stderr, "Error: ") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, tt.says) {
			t.Errorf("router %s: status %d, want %d; prints %q and %q, want one line with %q", tt.args, code, tt.code, stdout, stderr, tt.says)
		}
	}
	if len(f.changed) > 0 {
		t.Errorf("what was refused changed %q", f.changed)
	}
}

// A second router of the same name is refused before it touches anything.
func TestSecondRouter(t *testing.T) {
	name := serve(t, &fake{})
	file := filepath.Join(t.TempDir(), "one.yaml")
	if err := os.WriteFile(file, []byte("version: 1\nports:\n  - {name: tapa, type: tap}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := command(t, "run", "-c", file, "--name", name)
	if code != 2 || stdout != "" || !strings.Contains(stderr, "Error: a router with this name is running") {
		t.Errorf("status %d, %q, %q", code, stdout, stderr)
	}
}

// What Tab offers: the words left, the ports of the running router, its queues.
func TestCompletion(t *testing.T) {
	name := serve(t, &fake{})
	for _, tt := range []struct{ args, want string }{
		{"link show", "dev"},
		{"link show dev", "tapa tapb"},
		{"link dev", "tapa tapb"},
		{"xps set dev tapa queue 0", "workers flow_table_cnt mode hop"},
		{"xps set dev tapa flow_table_cnt 5 mode", "inflight dql"},
		{"link set dev tapa", "txqueuelen queues steering gro gso"},
		{"link set dev tapa steering", "kernel random hash queue"},
		{"link set dev tapa gro", "on off"},
		{"bql set queue", ""},
		{"qdisc replace dev", "tapa tapb"},
		{"qdisc replace dev tapa", "root parent"},
		{"qdisc replace dev tapa parent", ":1 :2"},
		{"qdisc replace dev tapa root", "mq pfifo_fast fq"},
		{"qdisc replace dev tapa parent :1", "pfifo_fast fq"},
		{"qdisc replace dev tapa root mq", "child"},
		{"qdisc replace dev tapa root mq child", "pfifo_fast fq"},
		{"qdisc replace dev tapa root pfifo_fast", ""},
		{"qdisc change dev tapa parent :1", "fq"},
		{"qdisc change dev tapa parent :1 fq limit", ""},
		{"qdisc change dev tapa root fq limit 5 nopacing bands 3 weights 1 2 3 maxrate 0 flow_limit 5 quantum 5 initial_quantum 5 buckets 2 orphan_mask 1", "priomap low_rate_threshold refill_delay ce_threshold timer_slack horizon horizon_drop horizon_cap offload_horizon fastpath nofastpath"},
		{"line load dev tapa queue 0", "backlog"},
		{"check", "yaml yml"},
		{"run -c", "yaml yml"},
	} {
		args := append([]string{"__complete", "--name", name}, strings.Fields(tt.args)...)
		code, stdout, _ := command(t, append(args, "")...)
		lines := []string{}
		for line := range strings.Lines(stdout) {
			// Of a command with subcommands cobra names those as well.
			if word, _, sub := strings.Cut(strings.TrimSpace(line), "\t"); !sub && !strings.HasPrefix(word, ":4") && !strings.HasPrefix(word, ":8") {
				lines = append(lines, word)
			}
		}
		if got := strings.Join(lines, " "); code != 0 || got != tt.want {
			t.Errorf("Tab after %q: status %d, %q, want %q", tt.args, code, got, tt.want)
		}
	}
	if _, stdout, _ := command(t, "__complete", "--name", ""); !strings.Contains(stdout, name+"\n") {
		t.Errorf("--name offers %q, want %q among them", stdout, name)
	}
	for _, shell := range []string{"bash", "zsh"} {
		if code, stdout, _ := command(t, "completion", shell); code != 0 || !strings.Contains(stdout, "__complete") {
			t.Errorf("completion %s: status %d", shell, code)
		}
	}
}

// full is a writer with no room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestOutputFails(t *testing.T) {
	var errs strings.Builder
	if code := run(t.Context(), []string{"version"}, full{}, &errs); code == 0 || errs.String() != "Error: no space left on device\n" {
		t.Errorf("version on a full disk: status %d, %q", code, errs.String())
	}
	name := serve(t, &fake{})
	errs.Reset()
	if code := run(t.Context(), []string{"fdb", "--name", name}, full{}, &errs); code != 2 || errs.String() != "Error: no space left on device\n" {
		t.Errorf("fdb on a full disk: status %d, %q", code, errs.String())
	}
}

// All faults of a configuration: run names the first, check lists them.
func TestFaults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(file, []byte("version: 1\nports:\n  - {name: tapa, typ: tap}\n  - {name: tapb, type: tip}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := command(t, "run", "-c", file)
	if code != 1 || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "Error: "+file+":3:") || !strings.Contains(stderr, "router check "+file) {
		t.Errorf("run: status %d, %q", code, stderr)
	}
	if code, _, stderr = command(t, "check", file); code != 1 || strings.Count(stderr, "\n") < 2 || !strings.HasPrefix(stderr, file+":3:") {
		t.Errorf("check: status %d, %q", code, stderr)
	}
	if code, _, stderr = command(t, "check", "/no/such/file"); code != 1 || !strings.HasPrefix(stderr, "Error: ") {
		t.Errorf("check of nothing: status %d, %q", code, stderr)
	}
}

// Each object's help explains it and shows how.
func TestObjectHelp(t *testing.T) {
	for _, ob := range objects {
		_, stdout, _ := command(t, ob.name, "show", "--help")
		if !strings.Contains(stdout, "Exit status: ") || !strings.Contains(stdout, "  router "+ob.name+" ") {
			t.Errorf("router %s show --help teaches little:\n%s", ob.name, stdout)
		}
	}
}
