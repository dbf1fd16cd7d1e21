package netns

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/control/hostnet"
	"taprouter/offload/offloadtest"
	"taprouter/packet"
)

// A matrixHost is one end of the matrix: sockets in its namespace, by family.
type matrixHost struct {
	k           string
	mtu         int
	takes, sent offloads
	addr        [2]string
	ns          *hostnet.NS
	listener    [2]net.Listener
	udp         [2]*net.UDPConn
	icmp        [2]*net.IPConn
	wire        *vnetSocket
	mac         []byte
	seen        seen
	prepared    bool    // sent is what the kernel does
	learned     [2]bool // the other's smaller MTU
	turn        int
}

// seen is what came in at a host, by what was not complete.
type seen struct{ frames, partial, tcp, udp int }

// check says whether offloads were used as they can be: what the test means
// to vary does vary. GRO may make superpackets of what was not sent as such.
func (s seen) check(traffic string, sent, takes offloads, gro bool) error {
	unlike := func(n int, want bool) bool { return n == 0 && want || n > 0 && !want && !gro }
	switch {
	case s.frames == 0:
		return errors.New("no frame was seen")
	case traffic != "icmp" && unlike(s.partial, sent.csum && takes.csum):
		return fmt.Errorf("%d partial checksums of %d frames", s.partial, s.frames)
	case traffic == "tcp" && unlike(s.tcp, sent.tso && takes.tso), traffic == "udp" && unlike(s.udp, sent.uso && takes.uso):
		return fmt.Errorf("%d TCP and %d UDP superpackets of %d frames", s.tcp, s.udp, s.frames)
	}
	return nil
}

// sniff looks at all frames that came in since the last time, and gives them
// to f too.
func (h *matrixHost) sniff(f func(offloadtest.Frame)) error {
	for {
		frame, ok, err := h.wire.recv()
		if err != nil || !ok {
			if n := h.wire.lost(); n > 0 {
				err = fmt.Errorf("%d frames not seen", n)
			}
			return err
		}
		if err := judge(frame, h.takes, h.mtu); err != nil {
			return fmt.Errorf("%w: vnet %+v, %d bytes %x", err, frame.Vnet, len(frame.B), frame.B[:min(80, len(frame.B))])
		}
		h.seen.frames++
		if frame.Vnet.Flags&packet.NeedsCsum != 0 {
			h.seen.partial++
		}
		switch frame.Vnet.GSOType &^ packet.GSOECN {
		case packet.GSOTCPv4, packet.GSOTCPv6:
			h.seen.tcp++
		case packet.GSOUDPL4:
			h.seen.udp++
		}
		if f != nil {
			f(frame)
		}
	}
}

var matrixNetworks = [2]struct{ tcp, udp, icmp string }{{"tcp4", "udp4", "ip4:icmp"}, {"tcp6", "udp6", "ip6:ipv6-icmp"}}

// host opens the sockets of host k.
func (m *matrixNet) host(k string, addr [2]string, mtu int, takes offloads) *matrixHost {
	m.t.Helper()
	h := &matrixHost{k: k, addr: addr, mtu: mtu, takes: takes, wire: m.vnet(k)}
	h.mac = mac(m.r.link("@dev:" + k).HostMAC)
	var err error
	if h.ns, _, err = hostnet.Ensure(m.ns(k), false); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { h.ns.Close() })
	for family, network := range matrixNetworks {
		open := func() (err error) {
			if h.listener[family], err = net.Listen(network.tcp, net.JoinHostPort(addr[family], "0")); err != nil {
				return err
			}
			udp, err := net.ListenPacket(network.udp, net.JoinHostPort(addr[family], "0"))
			if err != nil {
				return err
			}
			h.udp[family] = udp.(*net.UDPConn)
			icmp, err := net.ListenPacket(network.icmp, addr[family])
			if err != nil {
				return err
			}
			h.icmp[family] = icmp.(*net.IPConn)
			return h.options(family)
		}
		// The addresses may be there a moment after the router answers.
		until(m.t, 5*time.Second, "sockets of "+k, func() bool {
			err = h.ns.Do(open)
			return !errors.Is(err, unix.EADDRNOTAVAIL)
		})
		if err != nil {
			m.t.Fatal(err)
		}
		m.t.Cleanup(func() {
			h.listener[family].Close()
			h.udp[family].Close()
			h.icmp[family].Close()
		})
	}
	return h
}

// options: UDP over IPv4 may be cut on its way, whatever MTU was learned, and
// of ICMP only echo replies are of interest.
func (h *matrixHost) options(family int) error {
	udp, err := h.udp[family].SyscallConn()
	if err != nil {
		return err
	}
	icmp, err := h.icmp[family].SyscallConn()
	if err != nil {
		return err
	}
	var opt error
	set := func(c syscall.RawConn, f func(fd int) error) {
		opt = errors.Join(opt, c.Control(func(fd uintptr) { opt = errors.Join(opt, f(int(fd))) }))
	}
	for _, c := range []syscall.RawConn{udp, icmp} {
		set(c, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) })
	}
	if family == 0 {
		set(udp, func(fd int) error {
			return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_OMIT)
		})
		const icmpFilter = 1 // ICMP_FILTER
		set(icmp, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_RAW, icmpFilter, ^1) })
		return opt
	}
	filter := &unix.ICMPv6Filter{}
	for i := range filter.Data {
		filter.Data[i] = ^uint32(0)
	}
	filter.Data[129/32] &^= 1 << (129 % 32)
	set(icmp, func(fd int) error {
		return unix.SetsockoptICMPv6Filter(fd, unix.SOL_ICMPV6, unix.ICMPV6_FILTER, filter)
	})
	return opt
}

// setSent sets what the kernel of host h sends to the router.
func (m *matrixNet) setSent(h *matrixHost, sent offloads, plain bool) {
	m.t.Helper()
	if plain || h.prepared && h.sent == sent {
		h.sent = sent
		return
	}
	onOff := map[bool]string{true: "on", false: "off"}
	m.must(h.k, fmt.Sprintf("ethtool -K @dev:%s tx %s sg on tso %s tx-udp-segmentation %s", h.k, onOff[sent.csum], onOff[sent.tso], onOff[sent.uso]))
	h.sent, h.prepared = sent, true
}

var matrixData = func() []byte {
	b := make([]byte, 1<<20)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}()

// some gives n bytes that differ from those of the call before.
func (h *matrixHost) some(n int) []byte {
	h.turn++
	at := h.turn * 4099 % (len(matrixData) - 1<<16)
	return matrixData[at : at+n]
}

// tcp sends a megabyte each way over one connection.
func (m *matrixNet) tcp(from, to *matrixHost, family int) error {
	var c net.Conn
	if err := from.ns.Do(func() (err error) {
		c, err = net.DialTimeout(matrixNetworks[family].tcp, to.listener[family].Addr().String(), 5*time.Second)
		return err
	}); err != nil {
		return err
	}
	defer c.Close()
	d, err := to.listener[family].Accept()
	if err != nil {
		return err
	}
	defer d.Close()
	errs := make(chan error)
	deadline := time.Now().Add(20 * time.Second)
	for _, end := range []net.Conn{c, d} {
		_ = end.SetDeadline(deadline)
		go func() {
			_, err := end.Write(matrixData)
			errs <- errors.Join(err, end.(*net.TCPConn).CloseWrite())
		}()
		go func() {
			got, err := io.ReadAll(end)
			if err == nil && !bytes.Equal(got, matrixData) {
				err = fmt.Errorf("%d bytes came, which are not the %d that were sent", len(got), len(matrixData))
			}
			errs <- err
		}()
	}
	return errors.Join(<-errs, <-errs, <-errs, <-errs)
}

// packets gives the sizes of the IP packets in which n bytes behind the IP
// header leave a host.
func (h *matrixHost) packets(family, n int) (sizes []int) {
	hdr := 20 + 20*family
	if hdr+n <= h.mtu {
		return []int{hdr + n}
	}
	hdr += 8 * family // the fragment header
	for room := (h.mtu - hdr) &^ 7; n > 0; n -= room {
		sizes = append(sizes, hdr+min(n, room))
	}
	return sizes
}

// tooLong counts the packets of n bytes that a bridge must drop on their way.
func (m *matrixNet) tooLong(from, to *matrixHost, family, n int) (count int) {
	for _, size := range from.packets(family, n) {
		if size > to.mtu && !m.routed {
			count++
		}
	}
	return count
}

// patience gives how long to wait for n bytes behind the IP header, attempt by
// attempt: what must not be cut and is the first to be too long on a route is
// lost, and its sender told.
func (m *matrixNet) patience(from, to *matrixHost, family, n int) []time.Duration {
	if from.learned[family] || !m.routed || slices.Max(from.packets(family, n)) <= to.mtu {
		return []time.Duration{5 * time.Second}
	}
	from.learned[family] = true
	return []time.Duration{100 * time.Millisecond, 2 * time.Second, 5 * time.Second}
}

var udpSizes = []int{1, 2, 3, 64, 1000, 1402, 1422, 1423, 1452, 1472, 1473, 2001, 8000, 8972, 20000, 60000}

// udp sends datagrams of all sizes, and many at once for the kernel to cut.
func (m *matrixNet) udp(from, to *matrixHost, family int) error {
	for _, size := range udpSizes {
		want := from.some(size)
		send := func() error {
			_, err := from.udp[family].WriteTo(want, to.udp[family].LocalAddr())
			return err
		}
		if n := m.tooLong(from, to, family, 8+size); n > 0 {
			if err := m.dropped(n, send); err != nil {
				return fmt.Errorf("%d bytes: %w", size, err)
			}
			continue
		}
		if err := m.arrives(from, to, family, [][]byte{want}, send); err != nil {
			return fmt.Errorf("%d bytes: %w", size, err)
		}
	}
	for _, g := range []struct{ size, count int }{{1, 64}, {1000, 60}, {1382, 40}, {1410, 30}, {1452 - 8, 20}, {8000, 8}} {
		if 28+20*family+g.size > from.mtu {
			continue
		}
		if err := m.udpBurst(from, to, family, g.size, g.count); err != nil {
			return fmt.Errorf("%d times %d bytes at once: %w", g.count, g.size, err)
		}
	}
	return nil
}

// udpBurst sends datagrams of one size with one call (UDP_SEGMENT).
func (m *matrixNet) udpBurst(from, to *matrixHost, family, size, count int) error {
	all := from.some(size * count)
	control := make([]byte, unix.CmsgSpace(2))
	binary.NativeEndian.PutUint64(control, uint64(unix.CmsgLen(2)))
	binary.NativeEndian.PutUint32(control[8:], unix.SOL_UDP)
	binary.NativeEndian.PutUint32(control[12:], unix.UDP_SEGMENT)
	binary.NativeEndian.PutUint16(control[16:], uint16(size))
	send := func() error {
		_, _, err := from.udp[family].WriteMsgUDP(all, control, to.udp[family].LocalAddr().(*net.UDPAddr))
		return err
	}
	if 28+20*family+size > to.mtu {
		switch {
		case !m.routed:
			return m.dropped(count, send)
		case family == 1: // the sender is told, and then refuses to send such
			for range 50 {
				if err := send(); err != nil {
					if errors.Is(err, unix.EMSGSIZE) || errors.Is(err, unix.EINVAL) { // EINVAL: before Linux 6.15
						return nil
					}
					return err
				}
				time.Sleep(10 * time.Millisecond)
			}
			return errors.New("the sender has not learned the MTU")
		}
	}
	var want [][]byte
	for i := range count {
		want = append(want, all[i*size:(i+1)*size])
	}
	return m.arrives(from, to, family, want, send)
}

// arrives sends until all datagrams have come, in order.
func (m *matrixNet) arrives(from, to *matrixHost, family int, want [][]byte, send func() error) error {
	buf := make([]byte, 1<<16)
	waits := []time.Duration{5 * time.Second}
	if family == 1 {
		waits = m.patience(from, to, family, 8+len(want[0]))
	}
	for _, wait := range waits {
		if err := send(); err != nil {
			return err
		}
		_ = to.udp[family].SetReadDeadline(time.Now().Add(wait))
		for i := 0; ; i++ {
			if i == len(want) {
				return nil
			}
			n, err := to.udp[family].Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil || !bytes.Equal(buf[:n], want[i]) {
				return fmt.Errorf("datagram %d of %d bytes is not the one that was sent: %d bytes, %v", i, len(want[i]), n, err)
			}
		}
	}
	return errors.New("nothing came, or not all")
}

// echo pings with all sizes; a host answers with the same bytes.
func (m *matrixNet) echo(from, to *matrixHost, family int) error {
	dst, err := net.ResolveIPAddr("ip", to.addr[family])
	if err != nil {
		return err
	}
	for seq, size := range []int{1, 56, 1001, 1372, 1402, 1422, 1423, 1472, 1473, 8000, 20000, 60000} {
		msg := append([]byte{8, 0, 0, 0, 0x12, 0x34, 0, byte(seq)}, from.some(size)...)
		if family == 1 {
			msg[0] = 128 // the kernel computes its checksum
		} else {
			binary.BigEndian.PutUint16(msg[2:], ^offloadtest.Sum(msg))
		}
		send := func() error {
			_, err := from.icmp[family].WriteTo(msg, dst)
			return err
		}
		there, back := m.tooLong(from, to, family, len(msg)), m.tooLong(to, from, family, len(msg))
		if there > 0 {
			err = m.dropped(there, send)
		} else if back > 0 {
			err = m.dropped(back, send)
		} else {
			err = m.answered(from, to, family, msg, send)
		}
		if err != nil {
			return fmt.Errorf("%d bytes: %w", size, err)
		}
	}
	return nil
}

func (m *matrixNet) answered(from, to *matrixHost, family int, msg []byte, send func() error) error {
	buf := make([]byte, 1<<16)
	for _, wait := range append(m.patience(from, to, family, len(msg)), m.patience(to, from, family, len(msg))...) {
		if err := send(); err != nil {
			return err
		}
		_ = from.icmp[family].SetReadDeadline(time.Now().Add(wait))
		for {
			n, _, err := from.icmp[family].ReadFrom(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return err
			}
			if bytes.Equal(buf[4:n], msg[4:]) {
				return nil
			}
			if n > 8 && bytes.Equal(buf[4:8], msg[4:8]) {
				return errors.New("the answer has other bytes")
			}
		}
	}
	return errors.New("no answer")
}
