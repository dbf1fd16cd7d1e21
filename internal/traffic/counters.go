package traffic

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Counters are counters of the kernel for a network namespace, by name:
//
//	TcpExt.TCPOFOQueue      /proc/net/netstat
//	Udp.RcvbufErrors        /proc/net/snmp
//	Udp6RcvbufErrors        /proc/net/snmp6
//	dev.NAME.tx_dropped     /proc/net/dev
type Counters map[string]uint64

// ReadCounters reads the counters of the calling thread's namespace. A file
// that does not exist (no IPv6) counts for nothing.
func ReadCounters() (Counters, error) {
	c := Counters{}
	for _, f := range []struct {
		name  string
		parse func(Counters, []byte)
	}{
		{"netstat", parsePairs}, {"snmp", parsePairs}, {"snmp6", parseLines}, {"dev", parseDev},
	} {
		// thread-self: the thread's namespace, not that of the first thread.
		b, err := os.ReadFile("/proc/thread-self/net/" + f.name)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("traffic: counters: %w", err)
		}
		f.parse(c, b)
	}
	return c, nil
}

// Since gives what was added after before. A counter that went back (a device
// that was made anew) starts from 0.
func (c Counters) Since(before Counters) Counters {
	d := make(Counters, len(c))
	for k, v := range c {
		if b := before[k]; b <= v {
			v -= b
		}
		d[k] = v
	}
	return d
}

// Sum adds up the counters with these names.
func (c Counters) Sum(names ...string) (n uint64) {
	for _, k := range names {
		n += c[k]
	}
	return n
}

// parsePairs reads lines that come in twos, names and values:
//
//	TcpExt: SyncookiesSent SyncookiesRecv
//	TcpExt: 0 0
func parsePairs(c Counters, b []byte) {
	s := bufio.NewScanner(bytes.NewReader(b))
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		names := strings.Fields(s.Text())
		if !s.Scan() {
			return
		}
		values := strings.Fields(s.Text())
		if len(names) == 0 || len(values) != len(names) || values[0] != names[0] {
			continue
		}
		prefix := strings.TrimSuffix(names[0], ":") + "."
		for i := 1; i < len(names); i++ {
			c.set(prefix+names[i], values[i])
		}
	}
}

// parseLines reads a name and a value a line.
func parseLines(c Counters, b []byte) {
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 {
			c.set(f[0], f[1])
		}
	}
}

// parseDev reads the table of interfaces, 8 columns of reception and 8 of
// transmission.
func parseDev(c Counters, b []byte) {
	columns := map[int]string{0: "rx_bytes", 1: "rx_packets", 2: "rx_errors", 3: "rx_dropped", 8: "tx_bytes", 9: "tx_packets", 10: "tx_errors", 11: "tx_dropped"}
	for line := range strings.Lines(string(b)) {
		name, rest, ok := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if !ok || len(f) != 16 {
			continue
		}
		for i, column := range columns {
			c.set("dev."+strings.TrimSpace(name)+"."+column, f[i])
		}
	}
}

// set takes a value that is a number; -1 and the like are settings, not
// counters.
func (c Counters) set(name, value string) {
	if v, err := strconv.ParseUint(value, 10, 64); err == nil {
		c[name] = v
	}
}
