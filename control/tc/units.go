// Package tc (control plane) knows the words and units of tc(8): rates, times
// and sizes, and the options and statistics of fq as tc reads and prints them.
package tc

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

type suffix struct {
	name  string
	scale float64
}

// In bits and in bytes a second, by thousands and by 1024.
var rateSuffixes = []suffix{
	{"", 1}, {"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"tbit", 1e12},
	{"kibit", 1 << 10}, {"mibit", 1 << 20}, {"gibit", 1 << 30}, {"tibit", 1 << 40},
	{"bps", 8}, {"kbps", 8e3}, {"mbps", 8e6}, {"gbps", 8e9}, {"tbps", 8e12},
	{"kibps", 8 << 10}, {"mibps", 8 << 20}, {"gibps", 8 << 30}, {"tibps", 8 << 40},
}

var timeSuffixes = []suffix{
	{"", 1e3}, {"s", 1e9}, {"sec", 1e9}, {"secs", 1e9}, {"ms", 1e6}, {"msec", 1e6}, {"msecs", 1e6},
	{"us", 1e3}, {"usec", 1e3}, {"usecs", 1e3}, {"ns", 1}, {"nsec", 1}, {"nsecs", 1},
}

var sizeSuffixes = []suffix{
	{"", 1}, {"b", 1}, {"k", 1 << 10}, {"kb", 1 << 10}, {"m", 1 << 20}, {"mb", 1 << 20}, {"g", 1 << 30}, {"gb", 1 << 30},
	{"kbit", 1 << 7}, {"mbit", 1 << 17}, {"gbit", 1 << 27},
}

// ParseRate reads a rate and gives bit/s: 100mbit, 12.5mbps (bytes), 1gibit;
// a bare number is bit/s.
func ParseRate(s string) (uint64, error) {
	v, ok := parse(s, rateSuffixes)
	if !ok {
		return 0, errors.New("want a rate such as 100mbit or 1gbit")
	}
	return v, nil
}

// ParseTime reads a time: 40ms, 10us, 1.5s; a bare number is µs.
func ParseTime(s string) (time.Duration, error) {
	v, ok := parse(s, timeSuffixes)
	if !ok {
		return 0, errors.New("want a time such as 40ms or 10us")
	}
	return time.Duration(v), nil
}

// ParseSize reads a number of bytes: 1514, 3028b, 15k, 1mb; by 1024.
func ParseSize(s string) (uint64, error) {
	v, ok := parse(s, sizeSuffixes)
	if !ok {
		return 0, errors.New("want a size such as 3028b or 15k")
	}
	return v, nil
}

// parse reads a decimal number that is not negative, and a suffix in any case.
// It gives at most MaxInt64.
func parse(s string, suffixes []suffix) (uint64, bool) {
	n := numberLen(s)
	v, err := strconv.ParseFloat(s[:n], 64)
	if err != nil {
		return 0, false
	}
	for _, u := range suffixes {
		if strings.EqualFold(u.name, s[n:]) {
			v = math.Round(v * u.scale)
			return uint64(v), v < 1<<63
		}
	}
	return 0, false
}

// numberLen is how much of s is a number: digits, a point, an exponent.
func numberLen(s string) int {
	digits := func(i int) int {
		for i < len(s) && s[i] >= '0' && s[i] <= '9' {
			i++
		}
		return i
	}
	n := digits(0)
	if n < len(s) && s[n] == '.' {
		n = digits(n + 1)
	}
	if n == 0 || n == len(s) || s[n]|0x20 != 'e' {
		return n
	}
	e := n + 1
	if e < len(s) && (s[e] == '+' || s[e] == '-') {
		e++
	}
	if end := digits(e); end > e {
		return end
	}
	return n
}

// Rate prints a rate in bit/s as tc does: 100Mbit. What would need more than
// three digits after the point of a larger unit is printed in a smaller one.
func Rate(bits uint64) string {
	unit := 0
	for unit < len(rateUnits)-1 && bits >= 1000 && (bits%1000 == 0 || bits >= 1e6) {
		bits /= 1000
		unit++
	}
	return strconv.FormatUint(bits, 10) + rateUnits[unit]
}

var rateUnits = [...]string{"bit", "Kbit", "Mbit", "Gbit", "Tbit"}

// Time prints a time as tc does, to three digits: 40ms, 8.57us.
func Time(d time.Duration) string {
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.3gs", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.3gms", float64(d)/1e6)
	case d >= time.Microsecond:
		return fmt.Sprintf("%.3gus", float64(d)/1e3)
	}
	return fmt.Sprintf("%dns", d)
}

// usecs prints whole µs.
func usecs(n uint64) string {
	if n == 0 {
		return "0us"
	}
	return Time(time.Duration(n) * time.Microsecond)
}

// Size prints a number of bytes as tc does: what is close to a whole number of
// a unit is printed as that number.
func Size(n uint64) string {
	for _, u := range []struct {
		unit, slack uint64
		name        string
	}{{1 << 30, 1024, "Gb"}, {1 << 20, 1024, "Mb"}, {1 << 10, 16, "Kb"}} {
		whole := (n + u.unit/2) / u.unit
		if off := int64(n - whole*u.unit); n >= u.unit && max(off, -off) < int64(u.slack) {
			return fmt.Sprintf("%g%s", float64(whole), u.name)
		}
	}
	return fmt.Sprintf("%db", n)
}
