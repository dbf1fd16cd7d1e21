package tc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"taprouter/qdisc"
)

// An Option is a parameter of fq under its name in tc. The table of them is
// what words, configurations, JSON and the options line are read and made from.
type Option struct {
	Name string
	N    int  // values that it takes
	Flag bool // its one value is true or false; in words it is name or off
	off  string

	unit   *unit
	lo, hi uint64
	unset  uint64 // a value that is not printed: none, or what a flag is
	why    string // added to the range
	get    func(c *qdisc.FQConfig, i int) uint64
	set    func(c *qdisc.FQConfig, i int, v uint64)
}

// always is for options of which every value is printed.
const always = math.MaxUint64

const noValue = math.MaxUint32 // of rates and times, in netlink

// FQ are the options of fq in the order in which tc prints them.
var FQ = []Option{
	number("limit", packets, 1, 1<<20, func(c *qdisc.FQConfig) *int { return &c.Limit }),
	number("flow_limit", packets, 1, 1<<20, func(c *qdisc.FQConfig) *int { return &c.FlowLimit }),
	number("buckets", count, 2, 1<<18, func(c *qdisc.FQConfig) *int { return &c.Buckets }).because(", a power of two"),
	number("orphan_mask", count, 0, math.MaxUint32, func(c *qdisc.FQConfig) *uint32 { return &c.OrphanMask }),
	flag("pacing", "nopacing", func(c *qdisc.FQConfig) *bool { return &c.Pacing }).silent(1),
	fixed("bands", count, qdisc.Bands, ""),
	{Name: "priomap", N: 16, unit: count, hi: qdisc.Bands - 1, unset: always, why: " for each of 16 priorities",
		get: func(c *qdisc.FQConfig, i int) uint64 { return uint64(c.Priomap[i]) },
		set: func(c *qdisc.FQConfig, i int, v uint64) { c.Priomap[i] = uint8(v) }},
	{Name: "weights", N: qdisc.Bands, unit: count, lo: 16384, hi: math.MaxInt32, unset: always, why: " bytes for each of 3 bands",
		get: func(c *qdisc.FQConfig, i int) uint64 { return uint64(c.Weights[i]) },
		set: func(c *qdisc.FQConfig, i int, v uint64) { c.Weights[i] = uint32(v) }},
	number("quantum", size, 1, 1<<20, func(c *qdisc.FQConfig) *uint32 { return &c.Quantum }),
	number("initial_quantum", size, 0, math.MaxInt32, func(c *qdisc.FQConfig) *uint32 { return &c.InitialQuantum }),
	{Name: "maxrate", N: 1, unit: rate, lo: 1, hi: noValue, unset: noValue, why: ", or 0 or unlimited for none",
		get: func(c *qdisc.FQConfig, _ int) uint64 { return orNone(c.MaxRate != 0, c.MaxRate) },
		set: func(c *qdisc.FQConfig, _ int, v uint64) { c.MaxRate = v % noValue }},
	number("low_rate_threshold", rate, 0, noValue, func(c *qdisc.FQConfig) *uint64 { return &c.LowRateThreshold }).silent(0),
	duration("refill_delay", usec, time.Microsecond, func(c *qdisc.FQConfig) *time.Duration { return &c.RefillDelay }),
	{Name: "ce_threshold", N: 1, unit: usec, hi: noValue, unset: noValue, why: ", or off",
		get: func(c *qdisc.FQConfig, _ int) uint64 {
			return orNone(c.CEThreshold >= 0, uint64(c.CEThreshold/time.Microsecond))
		},
		set: func(c *qdisc.FQConfig, _ int, v uint64) {
			if c.CEThreshold = time.Duration(v) * time.Microsecond; v == noValue {
				c.CEThreshold = -1
			}
		}},
	duration("timer_slack", nsec, time.Nanosecond, func(c *qdisc.FQConfig) *time.Duration { return &c.TimerSlack }),
	duration("horizon", usec, time.Microsecond, func(c *qdisc.FQConfig) *time.Duration { return &c.Horizon }),
	flag("horizon_drop", "horizon_cap", func(c *qdisc.FQConfig) *bool { return &c.HorizonDrop }),
	fixed("offload_horizon", usec, 0, ": there is no device here that paces"),
	// Not tc's: to compare with.
	flag("fastpath", "nofastpath", func(c *qdisc.FQConfig) *bool { return &c.NoFastPath }).inverse().silent(1),
}

// ignored are options that the kernel has given up; each has one value.
var ignored = []string{"clock", "defrate"}

func number[T int | uint32 | uint64](name string, u *unit, lo, hi uint64, field func(c *qdisc.FQConfig) *T) Option {
	return Option{Name: name, N: 1, unit: u, lo: lo, hi: hi, unset: always,
		get: func(c *qdisc.FQConfig, _ int) uint64 { return uint64(*field(c)) },
		set: func(c *qdisc.FQConfig, _ int, v uint64) { *field(c) = T(v) }}
}

func duration(name string, u *unit, of time.Duration, field func(c *qdisc.FQConfig) *time.Duration) Option {
	return Option{Name: name, N: 1, unit: u, hi: noValue, unset: always,
		get: func(c *qdisc.FQConfig, _ int) uint64 { return uint64(*field(c) / of) },
		set: func(c *qdisc.FQConfig, _ int, v uint64) { *field(c) = time.Duration(v) * of }}
}

func flag(name, off string, field func(c *qdisc.FQConfig) *bool) Option {
	return Option{Name: name, N: 1, Flag: true, off: off, unset: always,
		get: func(c *qdisc.FQConfig, _ int) uint64 { return bit(*field(c)) },
		set: func(c *qdisc.FQConfig, _ int, v uint64) { *field(c) = v == 1 }}
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// fixed is an option of the kernel that can have one value here.
func fixed(name string, u *unit, v uint64, why string) Option {
	return Option{Name: name, N: 1, unit: u, lo: v, hi: v, unset: always, why: why,
		get: func(*qdisc.FQConfig, int) uint64 { return v }, set: func(*qdisc.FQConfig, int, uint64) {}}
}

func (o Option) because(why string) Option { o.why = why; return o }
func (o Option) silent(v uint64) Option    { o.unset = v; return o }

// inverse is for a flag whose field says the opposite.
func (o Option) inverse() Option {
	get, set := o.get, o.set
	o.get = func(c *qdisc.FQConfig, i int) uint64 { return 1 - get(c, i) }
	o.set = func(c *qdisc.FQConfig, i int, v uint64) { set(c, i, 1-v) }
	return o
}

func orNone(some bool, v uint64) uint64 {
	if some {
		return v
	}
	return noValue
}

// A unit is how the values of an option are read and printed. They are
// numbers in the unit of netlink and JSON.
type unit struct {
	parse func(s string) (uint64, bool)
	print func(v uint64) string // in tc's options line
	limit func(v uint64) string // in a range
}

func plain(v uint64) string { return strconv.FormatUint(v, 10) }

var (
	count   = &unit{parseCount, plain, plain}
	packets = &unit{
		func(s string) (uint64, bool) { return parseCount(strings.TrimSuffix(s, "p")) },
		func(v uint64) string { return plain(v) + "p" }, plain,
	}
	size = &unit{ // bytes
		func(s string) (uint64, bool) { return parse(s, sizeSuffixes) },
		Size, plain,
	}
	rate = &unit{ // bytes/s
		func(s string) (uint64, bool) { v, ok := parse(s, rateSuffixes); return v / 8, ok },
		func(v uint64) string { return Rate(8 * v) }, func(v uint64) string { return Rate(8 * v) },
	}
	usec = &unit{
		func(s string) (uint64, bool) { v, ok := parse(s, timeSuffixes); return v / 1000, ok },
		usecs, func(v uint64) string { return plain(v) + "us" },
	}
	nsec = &unit{ // a bare number is ns here, as in tc
		func(s string) (uint64, bool) {
			if v, ok := parseCount(s); ok {
				return v, true
			}
			return parse(s, timeSuffixes)
		},
		func(v uint64) string { return Time(time.Duration(v)) }, func(v uint64) string { return plain(v) + "ns" },
	}
)

// parseCount reads a number, 1023 or 0x3ff. One that begins with 0 would be
// octal to tc and is refused.
func parseCount(s string) (uint64, bool) {
	if hex, ok := strings.CutPrefix(strings.ToLower(s), "0x"); ok {
		v, err := strconv.ParseUint(hex, 16, 64)
		return v, err == nil
	}
	v, err := strconv.ParseUint(s, 10, 64)
	return v, err == nil && (s[0] != '0' || s == "0")
}

// Set puts values, N of them, in c. The error says what would be right, without
// the option's name.
func (o *Option) Set(c *qdisc.FQConfig, values ...string) error {
	if len(values) != o.N {
		return fmt.Errorf("want %s, %d values, got %d", o.limits(), o.N, len(values))
	}
	next := *c
	for i, s := range values {
		v, ok := o.value(s)
		if !ok {
			return fmt.Errorf("want %s, got %q", o.limits(), s)
		}
		o.set(&next, i, v)
	}
	*c = next
	return nil
}

func (o *Option) value(s string) (uint64, bool) {
	switch {
	case o.Flag:
		return bit(s == "true"), s == "true" || s == "false"
	case o.Name == "maxrate" && (s == "unlimited" || s == "0"), o.Name == "ce_threshold" && s == "off":
		return o.unset, true
	}
	v, ok := o.unit.parse(s)
	if o.Name == "buckets" && v&(v-1) != 0 {
		ok = false
	}
	return v, ok && v >= o.lo && v <= o.hi
}

func (o *Option) limits() string {
	switch {
	case o.Flag:
		return "true or false"
	case o.lo == o.hi:
		return o.unit.limit(o.lo) + o.why
	}
	return o.unit.limit(o.lo) + " to " + o.unit.limit(o.hi) + o.why
}

// FQOptions changes cfg by options of fq in the words of tc: limit 100 nopacing
// maxrate 8mbit priomap P0 … P15. Warnings are of words that have no effect.
// After an error cfg is as it was.
func FQOptions(cfg *qdisc.FQConfig, words []string) (warnings []string, err error) {
	next := *cfg
	seen := map[string]bool{}
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		if slices.Contains(ignored, word) {
			if len(words) == 0 {
				return nil, fmt.Errorf("%s needs a value", word)
			}
			words = words[1:]
			warnings = append(warnings, word+" is ignored: fq has it no more")
			continue
		}
		o, values, err := find(word, words)
		if err != nil {
			return nil, err
		}
		if seen[o.Name] {
			return nil, fmt.Errorf("%s is given twice", word)
		}
		seen[o.Name] = true
		if err := o.Set(&next, values...); err != nil {
			return nil, fmt.Errorf("%s: %w", word, err)
		}
		if !o.Flag {
			words = words[len(values):]
		}
	}
	if err := next.Check(); err != nil {
		return nil, err
	}
	*cfg = next
	return warnings, nil
}

// find gives the option of a word, and its values from the words after it.
func find(word string, after []string) (o *Option, values []string, err error) {
	for i := range FQ {
		o := &FQ[i]
		switch {
		case o.Flag && (word == o.Name || word == o.off):
			return o, []string{strconv.FormatBool(word == o.Name)}, nil
		case o.Name == word && len(after) == 0:
			return nil, nil, fmt.Errorf("%s needs a value: %s", word, o.limits())
		case o.Name == word:
			return o, after[:min(o.N, len(after))], nil
		}
	}
	return nil, nil, fmt.Errorf("%q is no option of fq; there are %s", word, strings.Join(Words(), ", "))
}

// Words are the words that FQOptions knows.
func Words() (all []string) {
	for _, o := range FQ {
		all = append(all, o.Name)
		if o.Flag {
			all = append(all, o.off)
		}
	}
	return all
}

// Next are the words that may follow these: options that are not there yet,
// or nothing if a value is due.
func Next(words []string) (next []string) {
	next = Words()
	for len(words) > 0 {
		i := slices.IndexFunc(FQ, func(o Option) bool { return o.Name == words[0] || o.Flag && o.off == words[0] })
		if i < 0 {
			return nil
		}
		o := &FQ[i]
		next = slices.DeleteFunc(next, func(w string) bool { return w == o.Name || o.Flag && w == o.off })
		if words = words[1:]; o.Flag {
			continue
		}
		if len(words) < o.N {
			return nil
		}
		words = words[o.N:]
	}
	return next
}

// PrintFQ gives the options as tc prints them, each followed by a space.
func PrintFQ(cfg *qdisc.FQConfig) string {
	var b strings.Builder
	for i := range FQ {
		o := &FQ[i]
		v := o.get(cfg, 0)
		switch {
		case v == o.unset:
		case o.Flag && v == 1:
			b.WriteString(o.Name + " ")
		case o.Flag:
			b.WriteString(o.off + " ")
		default:
			b.WriteString(o.Name + " ")
			for i := range o.N {
				b.WriteString(o.unit.print(o.get(cfg, i)) + " ")
			}
		}
	}
	return b.String()
}

// An FQConfig is a configuration that becomes JSON with the keys and units of
// `tc -j qdisc show`: bytes/s, bytes, µs, timer_slack in ns.
type FQConfig qdisc.FQConfig

// String gives the options as tc prints them, each followed by a space.
func (c *FQConfig) String() string { return PrintFQ((*qdisc.FQConfig)(c)) }

// MarshalJSON writes the options in tc's order.
func (c *FQConfig) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	comma := byte('{')
	for i := range FQ {
		o := &FQ[i]
		key, value := o.json((*qdisc.FQConfig)(c))
		if key == "" {
			continue
		}
		b.WriteByte(comma)
		fmt.Fprintf(&b, "%q:%s", key, value)
		comma = ','
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// json gives an option's key, "" if it is left out, and its value.
func (o *Option) json(c *qdisc.FQConfig) (key, value string) {
	v := o.get(c, 0)
	switch {
	case v == o.unset:
		return "", ""
	case o.Flag && o.unset == 1:
		return o.Name, "false"
	case o.Flag && v == 1:
		return o.Name, "null"
	case o.Flag:
		return o.off, "null"
	case o.N == 1:
		return o.Name, plain(v)
	}
	all := make([]string, o.N)
	for i := range all {
		all[i] = plain(o.get(c, i))
	}
	return o.Name, "[" + strings.Join(all, ",") + "]"
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (c *FQConfig) UnmarshalJSON(b []byte) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(b, &keys); err != nil {
		return err
	}
	next := qdisc.FQConfig{}
	for i := range FQ {
		o := &FQ[i]
		v, there := keys[o.Name]
		switch {
		case o.Flag && o.unset == 1: // false, or left out
			o.set(&next, 0, bit(string(v) != "false"))
		case o.Flag: // null under its name, or under off
			o.set(&next, 0, bit(there))
		case there && o.N == 1:
			var n uint64
			if err := json.Unmarshal(v, &n); err != nil {
				return fmt.Errorf("%s: %w", o.Name, err)
			}
			o.set(&next, 0, n)
		case there:
			var all []uint64
			if err := json.Unmarshal(v, &all); err != nil || len(all) != o.N {
				return fmt.Errorf("%s: want %d numbers, got %s", o.Name, o.N, v)
			}
			for i, n := range all {
				o.set(&next, i, n)
			}
		case o.unset != always:
			o.set(&next, 0, o.unset)
		}
	}
	*c = FQConfig(next)
	return nil
}
