package netns

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/control/hostnet"
)

// A rawSocket sends frames out of a device as they are.
type rawSocket struct {
	fd   int
	addr unix.SockaddrLinklayer
}

// raw opens one in namespace k on its device k.
func (n *Net) raw(k string) *rawSocket {
	n.t.Helper()
	ns, _, err := hostnet.Ensure(n.ns(k), false)
	if err != nil {
		n.t.Fatal(err)
	}
	defer ns.Close()
	s := &rawSocket{}
	err = ns.Do(func() (err error) {
		dev, err := net.InterfaceByName(n.dev(k))
		if err != nil {
			return err
		}
		s.addr = unix.SockaddrLinklayer{Ifindex: dev.Index, Halen: 6}
		s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { unix.Close(s.fd) })
	return s
}

// send reports whether the kernel took the frame; it refuses some itself.
func (s *rawSocket) send(frame []byte) bool {
	for {
		err := unix.Sendto(s.fd, frame, 0, &s.addr)
		if err != unix.ENOBUFS && err != unix.EAGAIN {
			return err == nil
		}
		time.Sleep(100 * time.Microsecond) // the ring is full: the only wait here
	}
}

func mac(s string) []byte {
	m, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

// The frames of B15, each complete; the test sends every truncation too.
func malformedFrames(dst, src []byte) [][]byte {
	eth := func(et uint16, payload ...[]byte) []byte {
		b := append(append([]byte{}, dst...), src...)
		b = binary.BigEndian.AppendUint16(b, et)
		for _, p := range payload {
			b = append(b, p...)
		}
		return b
	}
	ip4 := func(verIHL byte, total int, proto byte, l4 []byte) []byte {
		b := make([]byte, 20)
		b[0], b[8], b[9] = verIHL, 64, proto
		binary.BigEndian.PutUint16(b[2:], uint16(total))
		copy(b[12:], []byte{10, 99, 1, 1, 10, 99, 2, 1})
		var sum uint32
		for i := 0; i < 20; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		binary.BigEndian.PutUint16(b[10:], ^uint16(sum+sum>>16))
		return append(b, l4...)
	}
	ip6 := func(next byte, payload []byte) []byte {
		b := make([]byte, 40)
		b[0], b[6], b[7] = 0x60, next, 255
		binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
		b[8], b[9], b[11], b[23] = 0xfd, 0x99, 1, 1
		b[24], b[25], b[27], b[39] = 0xfd, 0x99, 2, 1
		return append(b, payload...)
	}
	l4 := make([]byte, 40)
	for i := range l4 {
		l4[i] = byte(i + 1)
	}
	arp := []byte{0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 99, 1, 77, 0, 0, 0, 0, 0, 0, 10, 99, 1, 254}
	ns := make([]byte, 32)
	ns[0], ns[24], ns[25] = 135, 1, 0 // an option of length 0
	var chain []byte                  // 255 extension headers
	for range 254 {
		chain = append(chain, 60, 0, 0, 0, 0, 0, 0, 0)
	}
	chain = append(chain, 17, 0, 0, 0, 0, 0, 0, 0)
	all := [][]byte{
		eth(0x0806, arp), eth(0x0800, ip4(0x45, 60, 17, l4)), eth(0x0800, ip4(0x45, 60, 6, l4)), eth(0x0800, ip4(0x45, 60, 1, l4)),
		eth(0x0800, ip4(0x44, 60, 17, l4)), eth(0x0800, ip4(0x4f, 60, 17, l4)), eth(0x0800, ip4(0x4f, 40, 17, l4)), eth(0x0800, ip4(0x45, 0, 17, l4)),
		eth(0x0800, ip4(0x45, 9000, 17, l4)), eth(0x0800, ip4(0x65, 60, 17, l4)), eth(0x86dd, ip6(17, l4)), eth(0x86dd, ip6(6, l4)),
		eth(0x86dd, ip6(58, ns)), eth(0x86dd, ip6(0, chain)), eth(0x86dd, ip6(60, []byte{17, 255, 0, 0, 0, 0, 0, 0})),
		eth(0x86dd, ip6(43, []byte{43, 31, 0, 0, 0, 0, 0, 0})), eth(0x86dd, ip6(44, []byte{17, 0, 0, 1, 0, 0, 0, 1})),
		eth(0x86dd, ip6(44, []byte{44, 0, 255, 255, 0, 0, 0, 1})), eth(0x86dd, ip6(51, []byte{6, 255, 0, 0, 0, 0, 0, 0})),
		eth(0x8100, []byte{0, 5, 8, 0}, ip4(0x45, 60, 17, l4)), eth(0x88a8, []byte{0, 5, 0x81, 0, 0, 6, 0x86, 0xdd}, ip6(17, l4)),
	}
	var tags []byte
	for range 20 {
		tags = append(tags, 0, 1, 0x81, 0)
	}
	return append(all, eth(0x8100, tags), eth(0x8847, []byte{0, 0, 0, 0}), eth(0x8864, []byte{0x11, 0, 0, 1, 0, 9, 0, 0x21}))
}

// B15: no frame, however broken, ends the router, holds it up or disturbs
// others; each one that is dropped is dropped for a reason.
func TestMalformedFrames(t *testing.T) {
	each(t, func(t *testing.T, top topology, n *Net, r *Router) {
		s := n.raw("a")
		port := r.link("@dev:a")
		src, dst := mac(port.HostMAC), mac(port.MAC)
		if top.name == "l2" {
			dst = mac(r.link("@dev:b").HostMAC)
		}
		stop := make(chan struct{})
		other := make(chan string, 1)
		go func() {
			out, err := n.exec("b", "ping -i 0.05 -c 60 "+top.a4)
			if err != nil {
				out += err.Error()
			}
			other <- out
			close(stop)
		}()
		before := r.drops()
		sent := 0
		send := func(f []byte) {
			if !s.send(f) {
				return
			}
			if sent++; sent%16 == 0 {
				time.Sleep(2 * time.Millisecond) // the pace: the ping's answers share the TAP's ring of 1000, and load is not what is tested
			}
		}
		for _, target := range [][]byte{dst, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, {0x33, 0x33, 0, 0, 0, 1}} {
			for _, f := range malformedFrames(target, src) {
				for cut := 14; cut <= len(f); cut++ {
					if len(f) > 200 && cut < len(f) && cut%7 != 0 {
						continue // the long ones: every seventh place
					}
					send(f[:cut])
				}
			}
		}
		rng := rand.New(rand.NewPCG(1, 2))
		for range 3000 { // and noise that begins like the real thing
			f := append([]byte(nil), malformedFrames(dst, src)[rng.IntN(12)]...)
			for range 1 + rng.IntN(4) {
				f[12+rng.IntN(len(f)-12)] = byte(rng.Uint32())
			}
			send(f)
		}
		if sent < 3000 {
			t.Fatalf("only %d frames could be sent", sent)
		}
		if out := <-other; !strings.Contains(out, " 0% packet loss") {
			t.Errorf("other traffic was disturbed:\n%s", out)
		}
		<-stop
		r.balanced()
		after := r.drops()
		if top.name == "l3" {
			if after["malformed"] == before["malformed"] || after["vlan"] == before["vlan"] {
				t.Errorf("drops do not tell what was wrong: %v", after)
			}
		}
		t.Logf("%d frames; drops: %v", sent, after)
		n.ping("a", top.b4)
	})
}
