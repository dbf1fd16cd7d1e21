package tc

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestParseRate(t *testing.T) {
	for s, want := range map[string]uint64{
		"8": 8, "8bit": 8, "1kbit": 1000, "100mbit": 100e6, "100Mbit": 100e6, "1gbit": 1e9, "2tbit": 2e12, "1.5mbit": 1500e3, ".5kbit": 500, "5.kbit": 5000,
		"1kibit": 1024, "1Mibit": 1 << 20, "1gibit": 1 << 30, "1tibit": 1 << 40,
		"1bps": 8, "1kbps": 8000, "1MBps": 8e6, "1gbps": 8e9, "1tbps": 8e12, "1KiBps": 8 << 10, "1mibps": 8 << 20, "1gibps": 8 << 30, "1tibps": 8 << 40,
		"1e3": 1000, "1e+3kbit": 1e6, "0": 0, "1.1mbit": 1100000,
	} {
		if got, err := ParseRate(s); err != nil || got != want {
			t.Errorf("ParseRate(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "mbit", "1mbitt", "-1mbit", "+1", " 1", "1 mbit", "1m", "1e", "e3", "0x10", "inf", "nan", "9e30", ".", "1..2", "50%", "1e999"} {
		if got, err := ParseRate(s); err == nil {
			t.Errorf("ParseRate(%q) = %d, want an error", s, got)
		}
	}
}

func TestParseTime(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"7": 7 * time.Microsecond, "40ms": 40 * time.Millisecond, "1.5s": 1500 * time.Millisecond, "2sec": 2 * time.Second, "2secs": 2 * time.Second,
		"3msec": 3 * time.Millisecond, "3msecs": 3 * time.Millisecond, "4us": 4 * time.Microsecond, "4usec": 4 * time.Microsecond, "4usecs": 4 * time.Microsecond,
		"5ns": 5, "5nsec": 5, "5nsecs": 5, "1MS": time.Millisecond, "0": 0, "4294.967295s": math.MaxUint32 * time.Microsecond, "4.29e+03s": 4290 * time.Second,
	} {
		if got, err := ParseTime(s); err != nil || got != want {
			t.Errorf("ParseTime(%q) = %v, %v, want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "s", "1m", "1h", "1m30s", "-1s", "9e10s", "1e30"} {
		if got, err := ParseTime(s); err == nil {
			t.Errorf("ParseTime(%q) = %v, want an error", s, got)
		}
	}
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]uint64{
		"1514": 1514, "3028b": 3028, "15k": 15360, "15kb": 15360, "15Kb": 15360, "1m": 1 << 20, "1mb": 1 << 20, "1g": 1 << 30, "1gb": 1 << 30,
		"1kbit": 128, "1mbit": 1 << 17, "1gbit": 1 << 27, "1.5k": 1536,
	} {
		if got, err := ParseSize(s); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "b", "1kib", "1t", "-1", "1e20g"} {
		if got, err := ParseSize(s); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", s, got)
		}
	}
}

func TestPrintUnits(t *testing.T) {
	for bits, want := range map[uint64]string{
		0: "0bit", 8: "8bit", 999: "999bit", 1000: "1Kbit", 1001: "1001bit", 550000: "550Kbit", 999999: "999999bit", 1234567: "1234Kbit", 1500000: "1500Kbit",
		100e6: "100Mbit", 1e9: "1Gbit", 2500e6: "2500Mbit", 400e9: "400Gbit", 5e12: "5Tbit", 34359738360: "34359Mbit",
	} {
		if got := Rate(bits); got != want {
			t.Errorf("Rate(%d) = %s, want %s", bits, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0ns", 999: "999ns", 1000: "1us", 8573: "8.57us", 10 * time.Microsecond: "10us", 40 * time.Millisecond: "40ms", 999 * time.Microsecond: "999us",
		1234567: "1.23ms", time.Second: "1s", 10 * time.Second: "10s", 100 * time.Millisecond: "100ms", 4294967295 * time.Microsecond: "4.29e+03s",
	} {
		if got := Time(d); got != want {
			t.Errorf("Time(%d) = %s, want %s", d, got, want)
		}
	}
}

// Below 1 Gb these are what the tc of iproute2 6.1 said of such limits of a bfifo.
func TestSize(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0b", 999: "999b", 1023: "1023b", 1024: "1Kb", 1030: "1Kb", 1039: "1Kb", 1040: "1040b", 1500: "1500b", 2032: "2032b",
		2033: "2Kb", 2063: "2Kb", 2064: "2064b", 3000: "3000b", 4090: "4Kb", 65540: "64Kb", 1047552: "1023Kb", 1<<20 - 16: "1048560b",
		1 << 20: "1Mb", 1<<20 + 1023: "1Mb", 1<<20 + 1024: "1025Kb", 1<<20 + 2000: "1050576b", 268435456: "256Mb",
		1 << 30: "1Gb", 1<<30 - 824: "1024Mb", 1<<30 + 824: "1Gb", 3 << 30: "3Gb",
	} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) = %s, want %s", n, got, want)
		}
	}
}

// What is printed can be read, and is what was printed but for the digits that
// tc leaves out.
func FuzzUnits(f *testing.F) {
	for _, n := range []uint64{0, 7, 999, 1000, 1040, 999999, 8573, 1234567, 1 << 20, 40e6, 34359738360, 1<<32 - 1} {
		f.Add(n, "1.5mbit")
	}
	f.Fuzz(func(t *testing.T, n uint64, s string) {
		_, _ = ParseRate(s)
		_, _ = ParseSize(s)
		if d, err := ParseTime(s); err == nil && d < 0 {
			t.Errorf("ParseTime(%q) = %d", s, d)
		}
		n %= 1 << 53
		near := func(what, printed string, got uint64, err error) {
			if off := math.Abs(float64(got) - float64(n)); err != nil || off > 0.016*float64(n) {
				t.Errorf("%s: %d is printed as %s and read as %d, %v", what, n, printed, got, err)
			}
			if strings.ContainsAny(printed, " -") {
				t.Errorf("%s: %d is printed as %q", what, n, printed)
			}
		}
		r := Rate(n)
		got, err := ParseRate(r)
		near("rate", r, got, err)
		z := Size(n)
		got, err = ParseSize(z)
		near("size", z, got, err)
		d := Time(time.Duration(n))
		dur, err := ParseTime(d)
		near("time", d, uint64(dur), err)
		if again := Rate(first(ParseRate(r))); again != r {
			t.Errorf("rate %d is printed as %s, then as %s", n, r, again)
		}
	})
}

func first(v uint64, _ error) uint64 { return v }
