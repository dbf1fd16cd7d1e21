package tc

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"taprouter/qdisc"
)

const defaults = "limit 10000p flow_limit 100p buckets 1024 orphan_mask 1023 bands 3 priomap 1 2 2 2 1 2 0 0 1 1 1 1 1 1 1 1 " +
	"weights 589824 196608 65536 quantum 3028b initial_quantum 15140b low_rate_threshold 550Kbit refill_delay 40ms timer_slack 10us " +
	"horizon 10s horizon_drop offload_horizon 0us "

// The options line is tc's, byte for byte.
func TestPrintFQ(t *testing.T) {
	cfg := qdisc.DefaultFQ(1500)
	if got := PrintFQ(&cfg); got != defaults {
		t.Errorf("the defaults print as\n%q, want\n%q", got, defaults)
	}
	cfg.Limit, cfg.Pacing, cfg.MaxRate, cfg.LowRateThreshold, cfg.CEThreshold, cfg.HorizonDrop = 5, false, 1_000_000, 0, 4*time.Millisecond, false
	cfg.Priomap, cfg.Weights, cfg.Quantum, cfg.TimerSlack = [16]uint8{15: 2}, [qdisc.Bands]uint32{16384, 16385, 16386}, 1<<20, 0
	want := "limit 5p flow_limit 100p buckets 1024 orphan_mask 1023 nopacing bands 3 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 2 " +
		"weights 16384 16385 16386 quantum 1Mb initial_quantum 15140b maxrate 8Mbit refill_delay 40ms ce_threshold 4ms timer_slack 0ns " +
		"horizon 10s horizon_cap offload_horizon 0us "
	if got := PrintFQ(&cfg); got != want {
		t.Errorf("prints as\n%q, want\n%q", got, want)
	}
}

func TestPrintFQStats(t *testing.T) {
	s := FQStats{Flows: 122, Inactive: 122, Fastpath: 659990, Throttled: 27762, Latency: 8570}
	want := "  flows 122 (inactive 122 throttled 0) band0_pkts 0 band1_pkts 0 band2_pkts 0\n" +
		"  gc 0 highprio 0 fastpath 659990 throttled 27762 latency 8.57us\n"
	if got := PrintFQStats(&s); got != want {
		t.Errorf("prints as\n%q, want\n%q", got, want)
	}
	all := NewFQStats(&qdisc.FQStats{
		Flows: 1, InactiveFlows: 2, ThrottledFlows: 3, BandPackets: [3]int{4, 5, 6}, GCFlows: 8, FastpathPackets: 9, Throttled: 10, Latency: 11,
		CEMark: 12, FlowsPlimit: 13, PktsTooLong: 14, HorizonDrops: 15, HorizonCaps: 16, BandDrops: [3]uint64{17, 18, 19},
	}, 7*time.Millisecond)
	want = "  flows 1 (inactive 2 throttled 3) band0_pkts 4 band1_pkts 5 band2_pkts 6 next_packet_delay 7ms\n" +
		"  gc 8 highprio 0 fastpath 9 throttled 10 latency 11ns ce_mark 12 flows_plimit 13\n" +
		" pkts_too_long 14 horizon_drops 15  horizon_caps 16 band0_drops 17 band1_drops 18 band2_drops 19\n"
	if got := PrintFQStats(all); got != want {
		t.Errorf("prints as\n%q, want\n%q", got, want)
	}
	j, err := json.Marshal(all)
	const keys = `{"flows":1,"inactive":2,"throttled_flows":3,"band0_pkts":4,"band1_pkts":5,"band2_pkts":6,"next_packet_delay":7000000,"gc":8,"highprio":0,` +
		`"fastpath":9,"throttled":10,"latency":11,"ce_mark":12,"flows_plimit":13,"pkts_too_long":14,"horizon_drops":15,"horizon_caps":16,` +
		`"band0_drops":17,"band1_drops":18,"band2_drops":19}`
	if err != nil || string(j) != keys {
		t.Errorf("JSON %s, %v, want %s", j, err, keys)
	}
}

func TestFQOptions(t *testing.T) {
	def := qdisc.DefaultFQ(1500)
	for _, tt := range []struct {
		words string
		with  func(c *qdisc.FQConfig)
	}{
		{"", func(*qdisc.FQConfig) {}},
		{defaults, func(*qdisc.FQConfig) {}},
		{"limit 1 flow_limit 1048576", func(c *qdisc.FQConfig) { c.Limit, c.FlowLimit = 1, 1<<20 }},
		{"buckets 2 orphan_mask 0xffff", func(c *qdisc.FQConfig) { c.Buckets, c.OrphanMask = 2, 0xffff }},
		{"orphan_mask 4294967295 buckets 262144", func(c *qdisc.FQConfig) { c.Buckets, c.OrphanMask = 1<<18, math.MaxUint32 }},
		{"quantum 1 initial_quantum 0", func(c *qdisc.FQConfig) { c.Quantum, c.InitialQuantum = 1, 0 }},
		{"quantum 1mb initial_quantum 15k", func(c *qdisc.FQConfig) { c.Quantum, c.InitialQuantum = 1<<20, 15<<10 }},
		{"maxrate 100mbit", func(c *qdisc.FQConfig) { c.MaxRate = 12_500_000 }},
		{"maxrate 8", func(c *qdisc.FQConfig) { c.MaxRate = 1 }},
		{"maxrate 0", func(*qdisc.FQConfig) {}},
		{"maxrate unlimited", func(*qdisc.FQConfig) {}},
		{"maxrate 4294967295bps", func(*qdisc.FQConfig) {}}, // ~0 in netlink
		{"nofastpath", func(c *qdisc.FQConfig) { c.NoFastPath = true }},
		{"fastpath", func(*qdisc.FQConfig) {}},
		{"nopacing", func(c *qdisc.FQConfig) { c.Pacing = false }},
		{"pacing horizon_drop", func(*qdisc.FQConfig) {}},
		{"horizon_cap horizon 2ms", func(c *qdisc.FQConfig) { c.HorizonDrop, c.Horizon = false, 2*time.Millisecond }},
		{"refill_delay 5 ce_threshold 1.5ms timer_slack 7", func(c *qdisc.FQConfig) {
			c.RefillDelay, c.CEThreshold, c.TimerSlack = 5*time.Microsecond, 1500*time.Microsecond, 7
		}},
		{"ce_threshold 0 timer_slack 7us", func(c *qdisc.FQConfig) { c.CEThreshold, c.TimerSlack = 0, 7*time.Microsecond }},
		{"ce_threshold 4294967295", func(*qdisc.FQConfig) {}},
		{"ce_threshold off", func(*qdisc.FQConfig) {}},
		{"low_rate_threshold 0", func(c *qdisc.FQConfig) { c.LowRateThreshold = 0 }},
		{"bands 3 priomap 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 weights 16384 16384 2147483647 offload_horizon 0", func(c *qdisc.FQConfig) {
			c.Priomap, c.Weights = [16]uint8{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0}, [3]uint32{16384, 16384, math.MaxInt32}
		}},
	} {
		got, want := def, def
		tt.with(&want)
		if warn, err := FQOptions(&got, strings.Fields(tt.words)); err != nil || warn != nil || got != want {
			t.Errorf("%s: %+v, %q, %v, want %+v", tt.words, got, warn, err, want)
		}
	}
	got := def
	if warn, err := FQOptions(&got, strings.Fields("defrate 1mbit limit 7 clock 3")); err != nil || len(warn) != 2 || got.Limit != 7 {
		t.Errorf("options that are no more: %q, %v", warn, err)
	}
}

// A change keeps what it does not name, with every bit.
func TestChangeKeeps(t *testing.T) {
	got := qdisc.DefaultFQ(9000)
	got.Horizon, got.RefillDelay, got.MaxRate = 123456789, 54321, 1234567
	want := got
	want.Limit = 9
	if _, err := FQOptions(&got, []string{"limit", "9"}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

func TestFQRefused(t *testing.T) {
	for _, tt := range []struct{ words, says string }{
		{"lim 5", `"lim" is no option of fq; there are limit, flow_limit`},
		{"limit", "limit needs a value: 1 to 1048576"},
		{"limit 0", `limit: want 1 to 1048576, got "0"`},
		{"limit 1048577", `limit: want 1 to 1048576, got "1048577"`},
		{"limit 010", `limit: want 1 to 1048576, got "010"`},
		{"limit ten", `limit: want 1 to 1048576, got "ten"`},
		{"limit 1 limit 2", "limit is given twice"},
		{"pacing nopacing", "nopacing is given twice"},
		{"flow_limit -1", `flow_limit: want 1 to 1048576, got "-1"`},
		{"quantum 0", `quantum: want 1 to 1048576, got "0"`},
		{"quantum 2mb", `quantum: want 1 to 1048576, got "2mb"`},
		{"initial_quantum 2gb", `initial_quantum: want 0 to 2147483647, got "2gb"`},
		{"maxrate 5furlong", `maxrate: want 8bit to 34359Mbit, or 0 or unlimited for none, got "5furlong"`},
		{"maxrate 4bit", `got "4bit"`},
		{"maxrate 40gbit", `got "40gbit"`},
		{"buckets 1000", `buckets: want 2 to 262144, a power of two, got "1000"`},
		{"buckets 1", `got "1"`},
		{"orphan_mask 4294967296", `orphan_mask: want 0 to 4294967295, got "4294967296"`},
		{"low_rate_threshold 1tbit", `low_rate_threshold: want 0bit to 34359Mbit, got "1tbit"`},
		{"refill_delay 2h", `refill_delay: want 0us to 4294967295us, got "2h"`},
		{"horizon 4295s", `horizon: want 0us to 4294967295us, got "4295s"`},
		{"timer_slack 5s", `timer_slack: want 0ns to 4294967295ns, got "5s"`},
		{"ce_threshold never", `ce_threshold: want 0us to 4294967295us, or off, got "never"`},
		{"bands 2", `bands: want 3, got "2"`},
		{"priomap 0 1 2", "priomap: want 0 to 2 for each of 16 priorities, 16 values, got 3"},
		{"priomap 0 1 2 3 0 0 0 0 0 0 0 0 0 0 0 0", `priomap: want 0 to 2 for each of 16 priorities, got "3"`},
		{"weights 16384 16384 16383", `weights: want 16384 to 2147483647 bytes for each of 3 bands, got "16383"`},
		{"weights 16384 16384", "3 values, got 2"},
		{"offload_horizon 5ms", `offload_horizon: want 0us: there is no device here that paces, got "5ms"`},
		{"defrate", "defrate needs a value"},
	} {
		cfg := qdisc.DefaultFQ(1500)
		_, err := FQOptions(&cfg, strings.Fields("flow_limit 77 "+tt.words))
		if strings.HasPrefix(tt.words, "flow_limit") {
			_, err = FQOptions(&cfg, strings.Fields(tt.words))
		}
		if err == nil || !strings.Contains(err.Error(), tt.says) || cfg != qdisc.DefaultFQ(1500) {
			t.Errorf("%s: %v, want %q and nothing changed", tt.words, err, tt.says)
		}
	}
}

// The ranges here are those of the qdisc.
func TestRanges(t *testing.T) {
	for i := range FQ {
		o := &FQ[i]
		if o.Flag || o.lo == o.hi {
			continue
		}
		check := func(v uint64) error {
			cfg := qdisc.DefaultFQ(1500)
			o.set(&cfg, o.N-1, v)
			return cfg.Check()
		}
		if err := check(o.lo); err != nil {
			t.Errorf("%s %d, the least: %v", o.Name, o.lo, err)
		}
		if err := check(o.hi); err != nil {
			t.Errorf("%s %d, the most: %v", o.Name, o.hi, err)
		}
		if o.Name == "orphan_mask" || o.unset == noValue { // any 32 bits, or none beyond
			continue
		}
		if o.lo > 0 && check(o.lo-1) == nil {
			t.Errorf("the qdisc takes %s %d, which is refused here", o.Name, o.lo-1)
		}
		if check(o.hi+1) == nil {
			t.Errorf("the qdisc takes %s %d, which is refused here", o.Name, o.hi+1)
		}
	}
}

func TestFQJSON(t *testing.T) {
	cfg := qdisc.DefaultFQ(1500)
	const want = `{"limit":10000,"flow_limit":100,"buckets":1024,"orphan_mask":1023,"bands":3,"priomap":[1,2,2,2,1,2,0,0,1,1,1,1,1,1,1,1],` +
		`"weights":[589824,196608,65536],"quantum":3028,"initial_quantum":15140,"low_rate_threshold":68750,"refill_delay":40000,"timer_slack":10000,` +
		`"horizon":10000000,"horizon_drop":null,"offload_horizon":0}`
	got, err := json.Marshal((*FQConfig)(&cfg))
	if err != nil || string(got) != want {
		t.Errorf("JSON %s, %v, want %s", got, err, want)
	}
	other := cfg
	other.NoFastPath = true
	other.Pacing, other.HorizonDrop, other.MaxRate, other.CEThreshold, other.LowRateThreshold = false, false, 5, time.Millisecond, 0
	for _, c := range []qdisc.FQConfig{cfg, other} {
		b, err := json.Marshal((*FQConfig)(&c))
		if err != nil {
			t.Fatal(err)
		}
		var back FQConfig
		if err := json.Unmarshal(b, &back); err != nil || qdisc.FQConfig(back) != c {
			t.Errorf("%s came back as %+v, %v, want %+v", b, back, err, c)
		}
	}
	for _, bad := range []string{`[]`, `{"limit":"x"}`, `{"limit":-1}`, `{"priomap":[1]}`, `{"weights":7}`} {
		if err := json.Unmarshal([]byte(bad), new(FQConfig)); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}

// Every option can be given in words, and every word is one.
func TestWords(t *testing.T) {
	for _, w := range Words() {
		cfg := qdisc.DefaultFQ(1500)
		i := slices.IndexFunc(FQ, func(o Option) bool { return o.Name == w || o.off == w })
		words := []string{w}
		for k := 0; k < FQ[i].N && !FQ[i].Flag; k++ {
			words = append(words, strconv.FormatUint(max(FQ[i].lo, min(FQ[i].hi, 2)), 10))
		}
		if _, err := FQOptions(&cfg, words); err != nil && w != "maxrate" {
			t.Errorf("%v: %v", words, err)
		}
	}
}

// Whatever is typed gives options that the qdisc takes, and that print as what
// gives them again.
func FuzzFQOptions(f *testing.F) {
	f.Add(defaults)
	for _, s := range []string{"maxrate 8mbit nopacing", "ce_threshold 5ms horizon_cap", "limit", "priomap 1", "quantum 1e3k", "timer_slack 1.5us weights 20000 20000 1e5"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		cfg := qdisc.DefaultFQ(1500)
		if _, err := FQOptions(&cfg, strings.Fields(s)); err != nil {
			return
		}
		if err := cfg.Check(); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		if cfg.InitialQuantum > math.MaxInt32-1024 {
			return // it prints as 2Gb, one byte too many
		}
		line := PrintFQ(&cfg)
		again := qdisc.DefaultFQ(1500)
		again.LowRateThreshold = 0 // which is not printed
		if _, err := FQOptions(&again, strings.Fields(line)); err != nil {
			t.Fatalf("%q prints as %q, which is refused: %v", s, line, err)
		}
		b, err := json.Marshal((*FQConfig)(&cfg))
		if err != nil {
			t.Fatal(err)
		}
		var back FQConfig
		if err := json.Unmarshal(b, &back); err != nil || qdisc.FQConfig(back) != cfg {
			t.Errorf("%q: %s came back as %+v, %v", s, b, back, err)
		}
	})
}
