package traffic

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"
)

func testFlood() Flood {
	return Flood{
		Dev: "lo", Src: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Dst: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		From: netip.MustParseAddr("10.0.0.1"), To: netip.MustParseAddr("10.0.0.2"), Port: 9, Flows: 3, Duration: 50 * time.Millisecond,
	}
}

// Another library's parser finds in a frame what was asked for, and the
// checksums that it would have made.
func TestFloodFrame(t *testing.T) {
	for i := range 1000 { // so many ports, so many checksums
		b := testFlood().frame(floodPort + uint16(i))
		p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
		udp, ok := p.TransportLayer().(*layers.UDP)
		ip, _ := p.NetworkLayer().(*layers.IPv4)
		if !ok || p.ErrorLayer() != nil || int(udp.SrcPort) != floodPort+i || udp.DstPort != 9 || len(udp.Payload) != FloodPayload || len(b) != FloodFrame {
			t.Fatalf("frame %d is %v", i, p)
		}
		again := gopacket.NewSerializeBuffer()
		_ = udp.SetNetworkLayerForChecksum(ip)
		if err := gopacket.SerializePacket(again, gopacket.SerializeOptions{ComputeChecksums: true}, p); err != nil || string(again.Bytes()) != string(b) {
			t.Fatalf("frame %d is %x, want %x, %v", i, b, again.Bytes(), err)
		}
	}
}

func TestFlood(t *testing.T) {
	before, err := ReadCounters()
	if err != nil {
		t.Fatal(err)
	}
	for _, pps := range []int{0, 2000} {
		cfg := testFlood()
		cfg.PPS = pps
		got, err := SendFlood(deadline(t), cfg)
		if errors.Is(err, unix.EPERM) && os.Getenv("ROUTER_REQUIRE_NETNS") == "" {
			t.Skip("needs CAP_NET_RAW")
		}
		most := uint64(float64(pps)*got.Elapsed.Seconds()) + floodBurst
		if err != nil || got.Offered == 0 || got.Refused != 0 || pps > 0 && got.Offered > most {
			t.Errorf("at %d: %+v, %v, want at most %d", pps, got, err, most)
		}
		after, err := ReadCounters()
		if err != nil {
			t.Fatal(err)
		}
		if n := after.Since(before)["dev.lo.tx_packets"]; n < got.Offered {
			t.Errorf("at %d: %d frames offered, the device has sent %d", pps, got.Offered, n)
		}
		before = after
	}
}

func TestFloodRefused(t *testing.T) {
	for name, change := range map[string]func(*Flood){
		"no flow":        func(f *Flood) { f.Flows = 0 },
		"too many flows": func(f *Flood) { f.Flows = floodFlows + 1 },
		"rate":           func(f *Flood) { f.PPS = -1 },
		"no MAC":         func(f *Flood) { f.Dst = nil },
		"IPv6":           func(f *Flood) { f.To = netip.MustParseAddr("fd00::1") },
		"no device":      func(f *Flood) { f.Dev = "no-such-dev" },
	} {
		cfg := testFlood()
		change(&cfg)
		if got, err := SendFlood(deadline(t), cfg); err == nil {
			t.Errorf("%s: %+v and no error", name, got)
		}
	}
}
