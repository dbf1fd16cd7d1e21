package netns

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
)

// B10: a packet whose TTL ends at the router is answered with time exceeded,
// unless it is an ICMP error, or a fragment that is not the first, or was
// sent to all.
func TestNoErrorsAboutErrors(t *testing.T) {
	n := newNet(t)
	r := n.router(routed)
	n.ping("a", "10.99.2.1")
	n.ping("a", "fd99:2::1")
	e := n.ends(r)
	s := n.raw("a")
	port := r.link("@dev:a")
	src, dst := mac(port.HostMAC), mac(port.MAC)
	udp := make([]byte, 28)
	binary.BigEndian.PutUint16(udp[0:], 40000)
	binary.BigEndian.PutUint16(udp[2:], 33434)
	binary.BigEndian.PutUint16(udp[4:], 28)
	for _, tt := range []struct {
		name  string
		frame []byte
		want  bool // an answer
	}{
		{"IPv4 UDP", frame(dst, src, 0x0800, expiring4(17, 0, udp)), true},
		{"IPv4 first fragment", frame(dst, src, 0x0800, expiring4(17, 0x2000, udp)), true},
		{"IPv4 later fragment", frame(dst, src, 0x0800, expiring4(17, 3, udp)), false},
		{"IPv4 last fragment but one", frame(dst, src, 0x0800, expiring4(17, 0x2003, udp)), false},
		{"IPv4 echo request", frame(dst, src, 0x0800, expiring4(1, 0, icmp4(8))), true},
		{"IPv4 unreachable", frame(dst, src, 0x0800, expiring4(1, 0, icmp4(3))), false},
		{"IPv4 time exceeded", frame(dst, src, 0x0800, expiring4(1, 0, icmp4(11))), false},
		{"IPv4 to a broadcast MAC", frame(mac("ff:ff:ff:ff:ff:ff"), src, 0x0800, expiring4(17, 0, udp)), false},
		{"IPv6 UDP", frame(dst, src, 0x86dd, expiring6(17, udp)), true},
		{"IPv6 echo request", frame(dst, src, 0x86dd, expiring6(58, icmp6(128))), true},
		{"IPv6 unreachable", frame(dst, src, 0x86dd, expiring6(58, icmp6(1))), false},
		{"IPv6 time exceeded", frame(dst, src, 0x86dd, expiring6(58, icmp6(3))), false},
		{"IPv6 to a multicast MAC", frame(mac("33:33:00:00:00:01"), src, 0x86dd, expiring6(17, udp)), false},
	} {
		answers := func() uint64 {
			c, err := e.at["a"].Counters(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return c.Sum("IcmpMsg.InType11", "Icmp6InTimeExcds")
		}
		before, dropped := answers(), r.drops()["ttl"]
		if !s.send(tt.frame) {
			t.Fatalf("%s: the kernel refused the frame", tt.name)
		}
		if tt.want {
			until(t, 5*time.Second, tt.name+": an answer", func() bool { return answers() > before })
		} else { // it was looked at, and a ping went the same way after it
			if !strings.HasSuffix(tt.name, "MAC") {
				until(t, 5*time.Second, tt.name+": the drop is counted", func() bool { return r.drops()["ttl"] > dropped })
			}
			n.ping("a", "10.99.1.254")
		}
		want := uint64(0)
		if tt.want {
			want = 1
		}
		if got := answers() - before; got != want {
			t.Errorf("%s: %d answers, want %d", tt.name, got, want)
		}
	}
}

func frame(dst, src []byte, etherType uint16, packet []byte) []byte {
	b := append(append([]byte{}, dst...), src...)
	return append(binary.BigEndian.AppendUint16(b, etherType), packet...)
}

// expiring4 is a packet from a to b with TTL 1.
func expiring4(proto byte, fragment uint16, payload []byte) []byte {
	b := []byte{0x45, 0, 0, 0, 0, 7, 0, 0, 1, proto, 0, 0, 10, 99, 1, 1, 10, 99, 2, 1}
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(payload)))
	binary.BigEndian.PutUint16(b[6:], fragment)
	binary.BigEndian.PutUint16(b[10:], ^checksum.Checksum(b, 0))
	return append(b, payload...)
}

// expiring6 is a packet from a to b with hop limit 1; ICMPv6 gets its checksum.
func expiring6(next byte, payload []byte) []byte {
	b := make([]byte, 40)
	b[0], b[6], b[7] = 0x60, next, 1
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	copy(b[8:], []byte{0xfd, 0x99, 0, 1, 15: 1})
	copy(b[24:], []byte{0xfd, 0x99, 0, 2, 15: 1})
	l4 := append([]byte{}, payload...)
	if next == 58 {
		sum := checksum.Checksum(b[8:40], uint16(next))
		binary.BigEndian.PutUint16(l4[2:], ^checksum.Checksum(l4, checksum.Combine(sum, uint16(len(l4)))))
	}
	return append(b, l4...)
}

// icmp4 is a message of a type, an error with a packet inside.
func icmp4(kind byte) []byte {
	b := make([]byte, 36)
	b[0] = kind
	copy(b[8:], expiring4(17, 0, make([]byte, 8)))
	binary.BigEndian.PutUint16(b[2:], ^checksum.Checksum(b, 0))
	return b
}

func icmp6(kind byte) []byte {
	b := make([]byte, 56)
	b[0] = kind
	copy(b[8:], expiring6(17, make([]byte, 8)))
	return b
}
