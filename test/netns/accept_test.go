package netns

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"taprouter/internal/traffic"
)

// B03: a port whose reader takes no offloads, or that has no vnet header,
// works beside one that has everything: all four directions transfer, and
// what arrives is whole, no longer than the MTU, and right.
func TestOffloadsDoneInSoftware(t *testing.T) {
	for _, kind := range []string{"accept: []", "vnet_hdr: false"} {
		for i, top := range topologies {
			if i == 0 && kind != "accept: []" {
				continue // without a vnet header, one topology is enough
			}
			t.Run(top.name+"/"+kind, func(t *testing.T) {
				n := newNet(t)
				r := n.router(plainB(top.conf, kind))
				n.ping("a", top.b4)
				n.ping("a", top.b6)
				// What is sniffed must be what came in: no GRO.
				n.must("b", "ethtool -K @dev:b gro off")
				sniff := n.sniff("b")
				for _, addr := range []string{top.b4, top.b6} {
					for _, args := range []string{amount() + " -P 2", amount() + " -P 2 -R", "-u -b 100M -l 8000 -n 4M"} {
						if res := n.iperf("a", "b", addr, args); res.End.Received.Bytes+res.End.Sum.Bytes < 1<<20 {
							t.Errorf("%s %s: nothing passed", addr, args)
						}
					}
				}
				e := n.ends(r)
				u := e.udp(t.Context(), "a", "b", top.b6, traffic.UDPSend{Flows: 2, PPS: 100, Burst: 1, Size: 20000, Count: 40, Duration: 5 * time.Second})
				u.check(t, "large datagrams")
				seen, long, wrong := sniff()
				t.Logf("%d frames sniffed, %d too long, %d with a wrong checksum", seen, long, wrong)
				if seen < 100 || long > 0 || wrong > 0 {
					t.Errorf("of %d frames %d were longer than the MTU and %d had a wrong checksum", seen, long, wrong)
				}
				if lines := strings.Count(r.log.String(), "offloads in software"); lines != 1 || !strings.Contains(r.log.String(), fmt.Sprintf("port=%s offloads=csum,tso,uso", n.dev("b"))) {
					t.Errorf("the log names %d ports that fall back, want b alone\n%s", lines, r.log)
				}
				l := r.link("@dev:b")
				if l.Segments == 0 || len(l.Software) != 3 || len(r.link("@dev:a").Software) != 0 {
					t.Errorf("the port shows %d software segments, software %v", l.Segments, l.Software)
				}
			})
		}
	}
}

// plainB is a topology whose port b takes no offloads.
func plainB(conf, kind string) string {
	if strings.Contains(conf, "{name: @dev:b,") {
		return strings.ReplaceAll(conf, "{name: @dev:b,", "{name: @dev:b, "+kind+",")
	}
	return strings.ReplaceAll(conf, "- name: @dev:b\n", "- name: @dev:b\n    "+kind+"\n")
}

// sniff reads what comes in at host k until it is stopped, and tells how many
// frames there were, how many of them longer than 1500 bytes of packet, and
// how many with a wrong IPv4 header, TCP, UDP or ICMPv6 checksum.
func (n *Net) sniff(k string) (stop func() (seen, long, wrong int)) {
	n.t.Helper()
	s := n.raw(k)
	addr := s.addr
	addr.Protocol = unix.ETH_P_ALL << 8 // in network byte order
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20); err != nil {
		n.t.Fatal(err)
	}
	if err := unix.Bind(s.fd, &addr); err != nil {
		n.t.Fatal(err)
	}
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000}); err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var seen, long, wrong int
	wg.Go(func() {
		buf := make([]byte, 1<<17)
		for ctx.Err() == nil {
			size, from, err := unix.Recvfrom(s.fd, buf, 0)
			ll, ok := from.(*unix.SockaddrLinklayer)
			if err != nil || !ok || ll.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			seen++
			if size > 1514 {
				long++
			}
			if !checksumsRight(buf[:size]) {
				wrong++
			}
		}
	})
	n.t.Cleanup(cancel)
	return func() (int, int, int) {
		cancel()
		wg.Wait()
		return seen, long, wrong
	}
}

// checksumsRight verifies an Ethernet frame with IPv4 or IPv6; fragments and
// others have only what they have verified.
func checksumsRight(f []byte) bool {
	if len(f) < 34 {
		return true
	}
	ip := f[14:]
	switch binary.BigEndian.Uint16(f[12:]) {
	case 0x0800:
		ihl, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
		if total > len(ip) || checksum.Checksum(ip[:ihl], 0) != 0xffff {
			return false
		}
		if binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 {
			return true
		}
		return l4Right(ip[9], ip[12:20], ip[ihl:total])
	case 0x86dd:
		if len(ip) < 40 || 40+int(binary.BigEndian.Uint16(ip[4:])) > len(ip) {
			return false
		}
		return l4Right(ip[6], ip[8:40], ip[40:40+int(binary.BigEndian.Uint16(ip[4:]))])
	}
	return true
}

func l4Right(proto byte, addrs, l4 []byte) bool {
	switch proto {
	case 6, 17, 58:
	default:
		return true
	}
	if proto == 17 && len(l4) >= 8 && l4[6] == 0 && l4[7] == 0 {
		return len(addrs) == 8 // no checksum: only with IPv4
	}
	sum := checksum.Checksum(addrs, uint16(proto))
	return checksum.Checksum(l4, checksum.Combine(sum, uint16(len(l4)))) == 0xffff
}
