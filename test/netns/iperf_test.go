package netns

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// An iperfResult is what the tests read of iperf3's JSON.
type iperfResult struct {
	Error string `json:"error"`
	End   struct {
		Received struct {
			BitsPerSecond float64 `json:"bits_per_second"`
			Bytes         float64 `json:"bytes"`
		} `json:"sum_received"`
		Sent struct {
			Retransmits int `json:"retransmits"`
		} `json:"sum_sent"`
		Sum struct {
			Packets     int     `json:"packets"`
			LostPackets int     `json:"lost_packets"`
			Bytes       float64 `json:"bytes"`
		} `json:"sum"`
	} `json:"end"`
}

// iperf runs a server in namespace to and a client in namespace from.
func (n *Net) iperf(from, to, addr, args string) (res iperfResult) {
	n.t.Helper()
	const port = 5201
	server := exec.Command("ip", "netns", "exec", n.ns(to), "iperf3", "-s", "-1", "-p", fmt.Sprint(port), "--forceflush")
	out := &syncBuffer{}
	server.Stdout, server.Stderr = out, out
	if err := server.Start(); err != nil {
		n.t.Fatal(err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	until(n.t, 10*time.Second, "the iperf3 server listens", func() bool { return strings.Contains(out.String(), "listening") })
	text, err := n.exec(from, fmt.Sprintf("iperf3 -J -p %d -c %s %s", port, addr, args))
	_, text, _ = strings.Cut(text, "{") // warnings come first
	if jerr := json.Unmarshal([]byte("{"+text), &res); jerr != nil {
		n.t.Fatalf("iperf3 %s %s: %v, %v\n%s", addr, args, err, jerr, text)
	}
	if err != nil || res.Error != "" {
		n.t.Fatalf("iperf3 %s %s: %v %s", addr, args, err, res.Error)
	}
	return res
}

// amount is how much a TCP test of iperf3 transfers: by bytes, not by time,
// which takes a fraction of a second.
func amount() string {
	switch {
	case full:
		return "-t 10"
	case raceEnabled: // software offloads take ten times as long
		return "-n 20M"
	}
	return "-n 100M"
}

// TCP passes both ways, with one stream and with eight.
func TestTCP(t *testing.T) {
	eachBackend(t, func(t *testing.T, top topology, n *Net, r *Router) {
		for _, addr := range []string{top.b4, top.b6} {
			for _, args := range []string{"-P 1", "-P 8", "-P 1 -R", "-P 8 -R"} {
				res := n.iperf("a", "b", addr, top.amount()+" "+args)
				if res.End.Received.Bytes < 1<<20 {
					t.Errorf("%s %s: %.0f bytes", addr, args, res.End.Received.Bytes)
				}
				t.Logf("%s %s: %.0f Mbit/s, %d retransmits", addr, args, res.End.Received.BitsPerSecond/1e6, res.End.Sent.Retransmits)
			}
		}
	})
}

// TCP and large UDP writes pass when one side, or the other, sends without
// offloads.
func TestMixedOffloads(t *testing.T) {
	eachBackend(t, func(t *testing.T, top topology, n *Net, r *Router) {
		for _, off := range []string{"a", "b"} {
			n.must(off, "ethtool -K @dev:"+off+" tx off sg off tso off gso off gro off")
			for _, addr := range []string{top.b4, top.b6} {
				for _, args := range []string{top.amount(), top.amount() + " -R", "-u -b 200M -l 8000 -n 8M"} {
					if res := n.iperf("a", "b", addr, args); res.End.Received.Bytes+res.End.Sum.Bytes < 1<<20 {
						t.Errorf("offloads off at %s: %s %s: nothing passed", off, addr, args)
					}
				}
			}
			n.must(off, "ethtool -K @dev:"+off+" tx on sg on tso on gso on gro on")
		}
	})
}
