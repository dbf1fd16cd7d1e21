package netns

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"taprouter/internal/traffic"
)

// A vnetHdr is what precedes a frame on a socket with PACKET_VNET_HDR.
type vnetHdr struct {
	flags, kind                            byte
	hdrLen, gsoSize, csumStart, csumOffset uint16
}

func (h vnetHdr) before(frame []byte) []byte {
	b := []byte{h.flags, h.kind}
	for _, v := range []uint16{h.hdrLen, h.gsoSize, h.csumStart, h.csumOffset} {
		b = binary.NativeEndian.AppendUint16(b, v)
	}
	return append(b, frame...)
}

// B15: superpackets and partial checksums whose virtio header is wrong. The
// kernel refuses what is plainly impossible; what it lets pass reaches the
// router, or a port that takes no offloads, and must not harm either.
func TestMalformedOffloads(t *testing.T) {
	for _, kind := range []string{"accept: [csum, tso, uso]", "accept: []"} {
		for _, top := range topologies {
			t.Run(top.name+"/"+kind, func(t *testing.T) {
				n := newNet(t)
				r := n.router(plainB(top.conf, kind))
				n.ping("a", top.b4)
				n.ping("a", top.b6)
				e := n.ends(r)
				done := make(chan udpRun, 1)
				go func() {
					done <- e.udp(t.Context(), "b", "a", top.a4, traffic.UDPSend{Flows: 4, PPS: 1000, Size: 100, Duration: 1200 * time.Millisecond})
				}()
				sent, refused := n.sendOffloads(r, top)
				u := <-done
				u.check(t, "flows beside")
				if u.Lost != 0 {
					t.Errorf("flows beside: %d lost", u.Lost)
				}
				t.Logf("%d frames passed the kernel, %d did not; drops %v", sent, refused, r.drops())
				if sent < 300 {
					t.Errorf("only %d frames passed the kernel", sent)
				}
				r.balanced()
				n.ping("a", top.b4)
				n.ping("a", top.b6)
			})
		}
	}
}

// sendOffloads sends them from host a to b, and counts those that the kernel
// took and those that it refused.
func (n *Net) sendOffloads(r *Router, top topology) (sent, refused int) {
	n.t.Helper()
	s := n.raw("a")
	if err := unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		n.t.Fatal(err)
	}
	dst, src := mac(r.link("@dev:a").MAC), mac(r.link("@dev:a").HostMAC)
	if top.name == "l2" {
		dst = mac(r.link("@dev:b").HostMAC)
	}
	frames := offloadFrames(dst, src, top)
	send := func(h vnetHdr, f []byte) {
		if s.send(h.before(f)) {
			sent++
			if sent%8 == 0 {
				time.Sleep(2 * time.Millisecond) // the pace: load is not what is tested
			}
		} else {
			refused++
		}
	}
	const needsCsum, ecn = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, unix.VIRTIO_NET_HDR_GSO_ECN
	kinds := []byte{unix.VIRTIO_NET_HDR_GSO_NONE, unix.VIRTIO_NET_HDR_GSO_TCPV4, unix.VIRTIO_NET_HDR_GSO_UDP, unix.VIRTIO_NET_HDR_GSO_TCPV6, unix.VIRTIO_NET_HDR_GSO_UDP_L4, 7}
	for _, f := range frames {
		for _, k := range kinds {
			for _, size := range []uint16{0, 1, 7, 536, 1448, 1472, 9000, 65535} {
				for _, hdr := range []uint16{0, 14, f.l4, f.l4 + 20, 1500, 65535} {
					if size < 500 && len(f.b) > 3000 {
						continue // thousands of segments a frame: load, not malformed
					}
					send(vnetHdr{needsCsum, k, hdr, size, f.l4, f.csum}, f.b)
				}
			}
			send(vnetHdr{needsCsum, k | ecn, f.l4 + 20, 1000, f.l4, f.csum}, f.b)
			send(vnetHdr{0, k, f.l4 + 20, 1000, 0, 0}, f.b)
		}
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 1500 {
		f := frames[rng.IntN(len(frames))]
		b := append([]byte(nil), f.b[:min(len(f.b), 64+rng.IntN(4000))]...)
		for range rng.IntN(3) {
			b[12+rng.IntN(50)] = byte(rng.Uint32())
		}
		h := vnetHdr{needsCsum, kinds[rng.IntN(5)], uint16(rng.IntN(100)), uint16(400 + rng.IntN(2000)), f.l4, f.csum}
		switch rng.IntN(3) {
		case 0:
			h.csumStart, h.csumOffset = uint16(rng.IntN(len(b))), uint16(rng.IntN(40))
		case 1:
			h.flags = byte(rng.IntN(4))
		}
		send(h, b)
	}
	return sent, refused
}

// An offloadFrame is a whole frame, with the places a virtio header names.
type offloadFrame struct {
	b        []byte
	l4, csum uint16
}

func offloadFrames(dst, src []byte, top topology) (all []offloadFrame) {
	for _, size := range []int{100, 2900, 20000} {
		tcp := make([]byte, size) // a reset, which nobody answers: answers would fill b's ring
		copy(tcp, []byte{0x9c, 0x40, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x14, 0xff, 0xff})
		udp := make([]byte, size)
		copy(udp, []byte{0x9c, 0x40, 0x82, 0x9a})
		binary.BigEndian.PutUint16(udp[4:], uint16(size))
		bad := append([]byte{}, tcp...)
		bad[12] = 0xf0 // a header of 60 bytes
		short := append([]byte{}, tcp...)
		short[12] = 0x10 // and of 4
		for _, l4 := range []struct {
			proto byte
			csum  uint16
			b     []byte
		}{{6, 16, tcp}, {17, 6, udp}, {6, 16, bad}, {6, 16, short}} {
			all = append(all,
				offloadFrame{frame(dst, src, 0x0800, living(expiring4(l4.proto, 0, l4.b), top)), 34, l4.csum},
				offloadFrame{frame(dst, src, 0x86dd, living(expiring6(l4.proto, l4.b), top)), 54, l4.csum})
		}
	}
	return all
}

// living gives a packet between hosts of the routed topology a TTL to reach
// b, and in the bridged one the hosts' addresses there.
func living(b []byte, top topology) []byte {
	if b[0] == 0x45 {
		b[8] = 64
		if top.name == "l2" {
			b[14], b[15], b[18], b[19] = 0, 1, 0, 2
		}
		b[10], b[11] = 0, 0
		binary.BigEndian.PutUint16(b[10:], ^checksum.Checksum(b[:20], 0))
		return b
	}
	b[7] = 64
	if top.name == "l2" {
		b[11], b[27], b[39] = 0, 0, 2
	}
	return b
}
