package tun_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/packet"
	"taprouter/tun"
)

var backends = []tun.Config{
	{Mode: tun.TAP, Backend: tun.Native},
	{Mode: tun.TAP, Backend: tun.Water},
	{Mode: tun.TUN, Backend: tun.Native},
	{Mode: tun.TUN, Backend: tun.Water},
	{Mode: tun.TUN, Backend: tun.Wireguard},
}

// eachBackend runs f on a device of each kind, with a vnet header if that can be.
func eachBackend(t *testing.T, queues int, f func(t *testing.T, h *host, cfg tun.Config)) {
	for _, cfg := range backends {
		t.Run(cfg.Mode.String()+" "+cfg.Backend.String(), func(t *testing.T) {
			cfg.Queues, cfg.VnetHdr = queues, cfg.Backend != tun.Water
			f(t, newHostBy(t, func(h *host) error { return h.openAs(cfg) }), cfg)
		})
	}
}

func TestBackendNames(t *testing.T) {
	for _, b := range []tun.Backend{tun.Native, tun.Water, tun.Wireguard} {
		if got, err := tun.ParseBackend(b.String()); got != b || err != nil {
			t.Errorf("ParseBackend(%q) = %v, %v", b, got, err)
		}
	}
	if _, err := tun.ParseBackend("vde"); err == nil {
		t.Error("vde was accepted")
	}
	if _, err := tun.Open(tun.Config{Name: "x", Mode: tun.TAP, Backend: tun.Wireguard, Queues: 1}); err == nil {
		t.Error("wireguard opened a TAP")
	}
}

// readAll reads a queue until it is empty, which must not take the time of a wait.
func readAll(t testing.TB, r *tun.Reader, q *tun.Queue) []*packet.Packet {
	t.Helper()
	var all []*packet.Packet
	for {
		var b packet.Batch
		errno := r.ReadBatch(q, &b, packet.MaxBatch)
		all = append(all, b.Slice()...)
		if errno == unix.EAGAIN {
			return all
		}
		if errno != 0 {
			t.Fatalf("ReadBatch: %v", errno)
		}
	}
}

// What the kernel sends is read whole, on every queue, and a queue without
// frames says so at once.
func TestBackendReads(t *testing.T) {
	eachBackend(t, 2, func(t *testing.T, h *host, cfg tun.Config) {
		c := cache(t)
		r := tun.NewReader(c)
		defer r.Close()
		to := unix.SockaddrLinklayer{Ifindex: h.ifindex}
		for _, shape := range shapes[:4] {
			shape.tun = cfg.Mode == tun.TUN
			seen := map[int]int{}
			for port := range uint16(64) {
				shape.sport, shape.dport = 1000+port, 2000
				want := shape.frame(t, byte(port))
				to.Protocol = protocolOf(cfg.Mode, want)
				if err := unix.Sendto(h.fd, want, 0, &to); err != nil {
					t.Fatal(err)
				}
				for q, n := range h.find(r, c, want) {
					seen[q] += n
				}
			}
			if seen[0] == 0 || seen[1] == 0 || seen[0]+seen[1] != 64 {
				t.Errorf("%v: 64 flows came by queue as %v", shape, seen)
			}
		}
	})
}

// find reads until a frame has come, and tells how often on which queue.
func (h *host) find(r *tun.Reader, c *packet.Cache, want []byte) map[int]int {
	h.t.Helper()
	came := map[int]int{}
	for end := time.Now().Add(5 * time.Second); len(came) == 0 && time.Now().Before(end); {
		for i, q := range h.dev.Queues() {
			for _, p := range readAll(h.t, r, q) {
				got := make([]byte, p.Len())
				if p.CopyOut(got, 0); bytes.Equal(got, want) {
					came[i]++
				}
				if raw := p.Flags&packet.Raw != 0; raw != (h.dev.Mode == tun.TUN) {
					h.t.Errorf("Raw is %v on a %v", raw, h.dev.Mode)
				}
				c.Put(p)
			}
		}
	}
	return came
}

// What is written, small, large or in pieces, reaches the kernel in order;
// into a device that is down it fails, each packet once.
func TestBackendWrites(t *testing.T) {
	eachBackend(t, 1, func(t *testing.T, h *host, cfg tun.Config) {
		c := cache(t)
		q := h.dev.Queues()[0]
		w := &tun.Writer{}
		h.sniff()
		var b packet.Batch
		var want [][]byte
		flow := flow{tun: cfg.Mode == tun.TUN, udp: true, src: "10.0.0.9", dst: "10.0.0.8", sport: 5, dport: 6}
		for n := range byte(40) { // not one flow: a library may merge one
			flow.sport += 7
			f := flow.frame(t, n)
			want = append(want, f)
			p := c.Get()
			if n%2 == 0 || !p.Set(f) {
				tail := c.GetTail() // the second half in a tail
				half := len(f) / 2
				p.Set(f[:half])
				p.SetTail(tail, 0, copy(tail.B, f[half:]))
			}
			b.Add(p)
		}
		if n, errno := w.WriteBatch(q, b.Slice()); n != b.N || errno != 0 {
			t.Fatalf("WriteBatch = %d, %v, want %d", n, errno, b.N)
		}
		last := flow.frame(t, 99)
		if errno := w.WriteSegment(q, packet.Vnet{}, last[:20], [][]byte{last[20:25], last[25:]}); errno != 0 {
			t.Fatalf("WriteSegment: %v", errno)
		}
		for i, f := range append(want, last) {
			if got := h.next(); !bytes.Equal(got, f) {
				t.Fatalf("frame %d: the kernel got %x, want %x", i, got, f)
			}
		}
		if err := h.setFlags(0); err != nil {
			t.Fatal(err)
		}
		failed := 0
		for rest := b.Slice(); len(rest) > 0; rest = rest[1:] {
			n, errno := w.WriteBatch(q, rest)
			if n != 0 || errno != unix.EIO {
				t.Fatalf("WriteBatch to a device that is down = %d, %v, want EIO", n, errno)
			}
			failed++
		}
		if failed != b.N {
			t.Errorf("%d of %d packets failed", failed, b.N)
		}
		if n, errno := w.WriteBatch(q, b.Slice()[:1]); n != 0 || errno != unix.EIO {
			t.Errorf("a batch after a failed one = %d, %v, want EIO", n, errno)
		}
		for _, p := range b.Slice() {
			c.Put(p)
		}
	})
}

// The device is as we want it, whatever the library does to it and whatever a
// persistent one was before.
func TestBackendDevice(t *testing.T) {
	eachBackend(t, 2, func(t *testing.T, h *host, cfg tun.Config) {
		for i, q := range h.dev.Queues() {
			if flags, err := unix.FcntlInt(uintptr(q.FD()), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("queue %d: descriptor flags %#x, %v: a child would keep it", i, flags, err)
			}
			if flags, err := unix.FcntlInt(uintptr(q.FD()), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
				t.Errorf("queue %d: file flags %#x, %v: it would block", i, flags, err)
			}
		}
		if got := h.dev.Offloads&tun.OffCsum != 0; got != cfg.VnetHdr {
			t.Errorf("offloads %v, vnet header %v", h.dev.Offloads, cfg.VnetHdr)
		}
		if cfg.Backend == tun.Wireguard && h.dev.Offloads&tun.OffTSOECN != 0 {
			t.Error("wireguard gets superpackets with ECN, which it does not know")
		}
	})
	t.Run("held with a vnet header", func(t *testing.T) {
		newHostBy(t, func(h *host) error {
			if err := h.openAs(tun.Config{Mode: tun.TAP, Queues: 2, VnetHdr: true}); err != nil {
				return err
			}
			if d, err := tun.Open(tun.Config{Name: "steer0", Mode: tun.TAP, Backend: tun.Water, Queues: 2}); !errors.Is(err, unix.EBUSY) {
				t.Errorf("water joined a device with a virtio-net header: %v, %v", d, err)
			}
			return nil
		})
	})
	t.Run("persistent, taken over", func(t *testing.T) {
		newHostBy(t, func(h *host) error {
			for _, b := range []tun.Backend{tun.Native, tun.Water, tun.Wireguard, tun.Water} {
				if h.dev != nil {
					if err := errors.Join(unix.Close(h.fd), h.dev.Close()); err != nil {
						return err
					}
				}
				if err := h.openAs(tun.Config{Mode: tun.TUN, Backend: b, Queues: 1, VnetHdr: true, Persist: true}); err != nil {
					return err
				}
				fd := h.dev.Queues()[0].FD()
				if size, err := unix.IoctlGetInt(fd, unix.TUNGETVNETHDRSZ); err != nil || b == tun.Wireguard && size != 10 {
					t.Errorf("%v: header of %d bytes, %v", b, size, err)
				}
				if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, 12); err != nil { // as another program might leave it
					return err
				}
			}
			return nil
		})
	})
}

// Reading and writing plain frames allocates nothing here nor in the library.
func TestBackendAllocatesNothing(t *testing.T) {
	eachBackend(t, 1, func(t *testing.T, h *host, cfg tun.Config) {
		c := cache(t)
		q := h.dev.Queues()[0]
		r, w := tun.NewReader(c), &tun.Writer{}
		defer r.Close()
		flow := flow{tun: cfg.Mode == tun.TUN, udp: true, src: "10.0.0.9", dst: "10.0.0.8", sport: 5, dport: 6}
		f := flow.frame(t, 1)
		to := unix.SockaddrLinklayer{Ifindex: h.ifindex, Protocol: protocolOf(cfg.Mode, f)}
		var b packet.Batch
		sendto := testing.AllocsPerRun(100, func() { _ = unix.Sendto(h.fd, f, 0, &to) })
		for _, p := range readAll(t, r, q) {
			c.Put(p)
		}
		if allocs := testing.AllocsPerRun(100, func() {
			if err := unix.Sendto(h.fd, f, 0, &to); err != nil {
				t.Fatal(err)
			}
			b.N = 0
			r.ReadBatch(q, &b, packet.MaxBatch)
			w.WriteBatch(q, b.Slice())
			for _, p := range b.Slice() {
				c.Put(p)
			}
		}); allocs > sendto {
			t.Errorf("a batch read and written allocates %v times", allocs-sendto)
		}
	})
}

// sniff makes the packet socket see what the device gives to the kernel.
func (h *host) sniff() {
	h.t.Helper()
	const all = unix.ETH_P_ALL << 8 // in network byte order
	if err := unix.Bind(h.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: h.ifindex}); err != nil {
		h.t.Fatal(err)
	}
	if err := unix.SetNonblock(h.fd, true); err != nil {
		h.t.Fatal(err)
	}
}

// next gives the next frame from 10.0.0.9 to 10.0.0.8 that the kernel got.
func (h *host) next() []byte {
	h.t.Helper()
	buf := make([]byte, 4096)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		n, from, err := unix.Recvfrom(h.fd, buf, 0)
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		if ok && ll.Pkttype != unix.PACKET_OUTGOING && bytes.Contains(buf[:n], []byte{10, 0, 0, 9, 10, 0, 0, 8}) {
			return append([]byte(nil), buf[:n]...)
		}
	}
	h.t.Fatal("nothing came")
	return nil
}
