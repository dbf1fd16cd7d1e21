package netns

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"taprouter/internal/traffic"
)

// Hosts without offloads send frame by frame: what lies together is merged and
// comes whole and in order, and counts as the frames that it was.
func TestGRO(t *testing.T) {
	each(t, func(t *testing.T, top topology, n *Net, r *Router) {
		for _, k := range []string{"a", "b"} {
			n.must(k, "ethtool -K @dev:"+k+" tx off sg off tso off gso off")
		}
		e := n.ends(r)
		for _, leg := range [][3]string{{"a", "b", top.b4}, {"a", "b", top.b6}, {"b", "a", top.a4}, {"b", "a", top.a6}} {
			what := leg[0] + " to " + leg[2]
			before := r.link("@dev:" + leg[0])
			if got, want := e.bulk(leg[0], leg[1], leg[2], 20<<20), uint64(20<<20); got.Bytes != want || got.Corrupt != 0 {
				t.Errorf("TCP %s: %d bytes of %d came, %d reads differ", what, got.Bytes, want, got.Corrupt)
			}
			tcp := r.link("@dev:" + leg[0])
			u := e.udp(t.Context(), leg[0], leg[1], leg[2], traffic.UDPSend{Flows: 3, PPS: 40000, Size: 100, Burst: 16, Duration: time.Second})
			u.check(t, "UDP "+what)
			udp := r.link("@dev:" + leg[0])
			t.Logf("%s: TCP %d merged into %d, UDP %d into %d", what, tcp.GROMerged-before.GROMerged, tcp.GROTrains-before.GROTrains, udp.GROMerged-tcp.GROMerged, udp.GROTrains-tcp.GROTrains)
			if tcp.GROMerged < before.GROMerged+1000 || udp.GROMerged < tcp.GROMerged+1000 || udp.GROBadCsum != 0 {
				t.Errorf("%s: hardly anything was merged, or a checksum was wrong: %d by TCP, %d by UDP, %d wrong", what, tcp.GROMerged-before.GROMerged, udp.GROMerged-tcp.GROMerged, udp.GROBadCsum)
			}
		}
		for _, k := range []string{"a", "b"} {
			if c := r.reordered(k); c != 0 {
				t.Errorf("%d packets to %s reordered", c, k)
			}
			n.readAll(r, k)
		}
		r.mustDo("link", "set", "dev", n.dev("a"), "gro", "off")
		before := r.link("@dev:a")
		e.bulk("a", "b", top.b4, 5<<20)
		if l := r.link("@dev:a"); l.GRO || l.GROMerged != before.GROMerged {
			t.Errorf("gro off: it is %v, %d packets merged", l.GRO, l.GROMerged-before.GROMerged)
		}
		r.balanced()
	})
}

// bulk sends so many bytes over one connection.
func (e *Ends) bulk(from, to, addr string, bytes int64) traffic.TCPReceived {
	t := e.net.t
	t.Helper()
	if strings.Contains(addr, ":") {
		addr = "[" + addr + "]"
	}
	rx, err := e.at[to].Listen(t.Context(), traffic.KindTCP, addr+":0")
	if err != nil {
		t.Fatal(err)
	}
	ofo, before := e.ofo(t.Context(), to), e.losses(t.Context())
	if _, err := e.at[from].SendTCP(t.Context(), traffic.TCPSend{To: rx.Addr, Flows: 1, Bytes: bytes, Duration: 30 * time.Second}); err != nil {
		t.Error(err)
	}
	got, err := rx.Finish(t.Context(), nil, 5*time.Second)
	if err != nil {
		t.Error(err)
	}
	ofo = e.ofo(t.Context(), to) - ofo
	if lost := e.lost(t.Context(), before); ofo > 0 && total(lost) == 0 {
		t.Errorf("%s to %s: %d segments were out of order though none was lost", from, addr, ofo)
	}
	return got.TCP
}

// readAll compares what the kernel has given to port k with what was read.
func (n *Net) readAll(r *Router, k string) {
	n.t.Helper()
	until(n.t, 5*time.Second, "all frames that the kernel sent by "+k+" are counted", func() bool {
		sent, err := strconv.ParseUint(strings.TrimSpace(n.must(k, "cat /sys/class/net/@dev:"+k+"/statistics/tx_packets")), 10, 64)
		var read uint64
		for _, q := range r.link("@dev:" + k).Queues {
			read += q.RxPackets
		}
		return err == nil && read == sent
	})
}

// Datagrams without a checksum stay what they are; the same with one are
// merged.
func TestGROWithoutChecksum(t *testing.T) {
	n := newNet(t)
	r := n.router(bridged)
	n.ping("a", "10.99.0.2")
	s := n.raw("a")
	dst, src := mac(n.hostMAC("b")), mac(n.hostMAC("a"))
	burst := func(sum bool, id int) (merged, read uint64) {
		before := r.link("@dev:a")
		for k := range 500 {
			s.send(udpFrame(dst, src, uint16(id+k), sum))
		}
		n.readAll(r, "a")
		after := r.link("@dev:a")
		for i := range after.Queues {
			read += after.Queues[i].RxPackets - before.Queues[i].RxPackets
		}
		return after.GROMerged - before.GROMerged, read
	}
	var with uint64
	for id := 0; with == 0 && id < 50_000; id += 500 { // that two are read together is a matter of time
		with, _ = burst(true, id)
		without, read := burst(false, id)
		if without != 0 || read < 500 {
			t.Fatalf("%d of %d datagrams without a checksum were merged", without, read)
		}
	}
	if with == 0 {
		t.Error("no datagram with a checksum was merged either")
	}
	if l := r.link("@dev:a"); l.GROBadCsum != 0 {
		t.Errorf("%d wrong checksums", l.GROBadCsum)
	}
}

// udpFrame is a datagram to nobody's port with this IPv4 id.
func udpFrame(dst, src []byte, id uint16, sum bool) []byte {
	ip := make([]byte, 20+8+64)
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	binary.BigEndian.PutUint16(ip[4:], id)
	copy(ip[12:], []byte{10, 99, 0, 1, 10, 99, 0, 2})
	binary.BigEndian.PutUint16(ip[10:], ^checksum.Checksum(ip[:20], 0))
	copy(ip[20:], []byte{0x30, 0, 0, 9, 0, 72})
	copy(ip[28:], fmt.Sprint(id))
	if sum {
		binary.BigEndian.PutUint16(ip[26:], ^checksum.Checksum(ip[20:], checksum.Checksum(ip[12:20], 17+72)))
	}
	return frame(dst, src, 0x0800, ip)
}

// hostMAC is the address of the netdev of port k.
func (n *Net) hostMAC(k string) string {
	return strings.TrimSpace(n.must(k, "cat /sys/class/net/@dev:"+k+"/address"))
}
