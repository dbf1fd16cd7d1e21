package traffic

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	netstat = "TcpExt: SyncookiesSent TCPOFOQueue\nTcpExt: 0 12\nIpExt: InOctets\nIpExt: 99\n"
	snmp    = "Tcp: RtoAlgorithm MaxConn\nTcp: 1 -1\nUdp: InDatagrams RcvbufErrors\nUdp: 5 2\n"
	snmp6   = "Ip6InReceives                   \t41\nUdp6RcvbufErrors                \t3\n"
	dev     = "Inter-|   Receive  |  Transmit\n face |bytes packets\n" +
		"    lo:    3193      29    0    0    0     0          0         0     3193      30    0    0    0     0       0          0\n" +
		"  tapa:1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"
)

func TestParse(t *testing.T) {
	got := Counters{}
	parsePairs(got, []byte(netstat))
	parsePairs(got, []byte(snmp))
	parseLines(got, []byte(snmp6))
	parseDev(got, []byte(dev))
	want := Counters{
		"TcpExt.SyncookiesSent": 0, "TcpExt.TCPOFOQueue": 12, "IpExt.InOctets": 99,
		"Tcp.RtoAlgorithm": 1, "Udp.InDatagrams": 5, "Udp.RcvbufErrors": 2,
		"Ip6InReceives": 41, "Udp6RcvbufErrors": 3,
		"dev.lo.rx_bytes": 3193, "dev.lo.tx_bytes": 3193, "dev.lo.rx_packets": 29, "dev.lo.rx_errors": 0, "dev.lo.rx_dropped": 0,
		"dev.lo.tx_packets": 30, "dev.lo.tx_errors": 0, "dev.lo.tx_dropped": 0,
		"dev.tapa.rx_bytes": 1, "dev.tapa.tx_bytes": 9, "dev.tapa.rx_packets": 2, "dev.tapa.rx_errors": 3, "dev.tapa.rx_dropped": 4,
		"dev.tapa.tx_packets": 10, "dev.tapa.tx_errors": 11, "dev.tapa.tx_dropped": 12,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("counters (-want +got):\n%s", d)
	}
}

func TestSince(t *testing.T) {
	got := Counters{"a": 5, "b": 2, "new": 3}.Since(Counters{"a": 1, "b": 7, "gone": 1})
	if d := cmp.Diff(Counters{"a": 4, "b": 2, "new": 3}, got); d != "" {
		t.Errorf("Since (-want +got):\n%s", d)
	}
	if n := got.Sum("a", "new", "unknown"); n != 7 {
		t.Errorf("Sum = %d, want 7", n)
	}
}

func TestReadCounters(t *testing.T) {
	c, err := ReadCounters()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"TcpExt.TCPOFOQueue", "Udp.RcvbufErrors", "dev.lo.tx_dropped"} {
		if _, ok := c[k]; !ok {
			t.Errorf("this kernel has no %s", k)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{netstat, snmp, snmp6, dev, "", "a:\n", "a:\na:\n", ":\n\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		c := Counters{}
		parsePairs(c, b)
		parseLines(c, b)
		parseDev(c, b)
	})
}
