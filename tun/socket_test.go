package tun_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"taprouter/packet"
	"taprouter/tun"
	"taprouter/tun/tuntest"
)

// maxFrame is the largest frame: packet, Ethernet header, two VLAN tags.
const maxFrame = 65535 + 14 + 8

// stream makes a connected stream queue and its peer.
func stream(t testing.TB) (*tun.Queue, *tuntest.StreamPeer) {
	t.Helper()
	q := tun.NewStreamQueue()
	fd, peer := tuntest.StreamPair(t)
	if err := q.Connect(fd, fd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	return q, peer
}

// framed puts frames in the stream's form.
func framed(frames ...[]byte) []byte {
	var b []byte
	for _, f := range frames {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(f))), f...)
	}
	return b
}

// parseSlowly is what the peer has said, by the letter of the protocol: the
// frames, and how it ended.
func parseSlowly(b []byte) (frames [][]byte, end unix.Errno) {
	for len(b) >= 4 {
		n := binary.BigEndian.Uint32(b)
		if n > maxFrame {
			return frames, unix.EPROTO
		}
		if len(b)-4 < int(n) {
			break
		}
		frames = append(frames, b[4:4+n])
		b = b[4+n:]
	}
	if len(b) > 0 {
		return frames, unix.EBADMSG
	}
	return frames, unix.ESHUTDOWN
}

// readFrames reads q until there is nothing, or an error.
func readFrames(t testing.TB, r *tun.Reader, q *tun.Queue, c *packet.Cache) (frames [][]byte, errno unix.Errno) {
	t.Helper()
	for errno == 0 {
		var b packet.Batch
		errno = r.ReadBatch(q, &b, packet.MaxBatch)
		for _, p := range b.Slice() {
			f := make([]byte, p.Len())
			p.CopyOut(f, 0)
			frames = append(frames, f)
			c.Put(p)
		}
	}
	return frames, errno
}

// Whatever a peer sends in whatever pieces is taken as the slow parser takes it.
func FuzzStreamRead(f *testing.F) {
	f.Add(framed([]byte("a frame"), nil, bytes.Repeat([]byte{1}, 1514)), uint16(3))
	f.Add(framed(make([]byte, maxFrame)), uint16(1000))
	f.Add([]byte{0, 1, 0, 0x16}, uint16(1))             // maxFrame + 1
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1}, uint16(2)) // would be negative
	f.Add(append(framed([]byte("x")), 0, 0, 0), uint16(5))
	f.Add(bytes.Repeat([]byte{0}, 4*700), uint16(2800)) // a flood of nothing
	c := cache(f)
	f.Fuzz(func(t *testing.T, sent []byte, piece uint16) {
		q, peer := stream(t)
		r := tun.NewReader(c)
		defer r.Close()
		var got [][]byte
		errno := unix.EAGAIN
		for rest := sent; len(rest) > 0 && errno == unix.EAGAIN; {
			n := min(int(piece)+1, len(rest))
			n = peer.Write(rest[:n])
			rest = rest[n:]
			for range 2 { // a read that took all that there was says EAGAIN once more
				var frames [][]byte
				frames, errno = readFrames(t, r, q, c)
				got = append(got, frames...)
			}
		}
		want, end := parseSlowly(sent)
		if errno == unix.EAGAIN {
			peer.Close()
			var frames [][]byte
			frames, errno = readFrames(t, r, q, c)
			got = append(got, frames...)
		}
		if len(got) != len(want) || errno != end {
			t.Fatalf("%d frames, %v, want %d, %v", len(got), errno, len(want), end)
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("frame %d is %x, want %x", i, got[i], want[i])
			}
		}
	})
}

// Packets and segments of all sizes, written into a socket that takes a few
// bytes now and then, reach the peer once each and in order; a packet that is
// refused and then dropped is the only one that may or may not.
func TestStreamPartialWrites(t *testing.T) {
	c := cache(t)
	rapid.Check(t, func(t *rapid.T) {
		q := tun.NewStreamQueue()
		defer q.Close()
		fd, peer := tuntest.StreamPair(t)
		defer peer.Close()
		peer.SetSendBuffer(fd, 4096)
		if err := q.Connect(fd, fd); err != nil {
			t.Fatal(err)
		}
		w := &tun.Writer{}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		var want, got []byte
		refused, dropped := 0, 0
		for i := range rapid.IntRange(1, 60).Draw(t, "writes") {
			var frames [][]byte
			for k := range rapid.IntRange(1, 4).Draw(t, "batch") {
				f := make([]byte, rapid.SampledFrom([]int{14, 60, 1514, 1984, 1985, 9000, 65535, maxFrame}).Draw(t, "size"))
				f[0], f[1], f[13] = byte(i), byte(k), byte(rng.Uint32())
				frames = append(frames, f)
			}
			drop := rapid.IntRange(0, 9).Draw(t, "drop") == 0
			if rapid.Bool().Draw(t, "segments") {
				hdr, from := frames[0][:14], len(frames[0])/2
				payload := [][]byte{frames[0][14:max(14, from)], frames[0][max(14, from):]}
				for w.WriteSegment(q, packet.Vnet{}, hdr, payload) == unix.EAGAIN {
					refused++
					got = peer.Read(got, rapid.IntRange(1, 100_000).Draw(t, "read"))
				}
				want = append(want, framed(frames[0])...)
				continue
			}
			b := batchOf(c, frames)
			for rest := b.Slice(); len(rest) > 0; {
				n, errno := w.WriteBatch(q, rest)
				want = append(want, framed(frames[:n]...)...)
				rest, frames = rest[n:], frames[n:]
				if len(rest) == 0 {
					break
				}
				if errno != unix.EAGAIN {
					t.Fatalf("WriteBatch: %v", errno)
				}
				refused++
				if drop {
					before := len(want)
					got = peer.Drain(got)
					if len(got) > before { // it was sent in part and will be to its end
						want = append(want, framed(frames[0])...)
					}
					rest, frames, drop = rest[1:], frames[1:], false
					dropped++
				}
				got = peer.Read(got, rapid.IntRange(1, 100_000).Draw(t, "read"))
			}
			for _, p := range b.Slice() {
				c.Put(p)
			}
		}
		last := frameOf(60)
		for w.WriteSegment(q, packet.Vnet{}, last, nil) == unix.EAGAIN {
			got = peer.Read(got, 1<<16)
		}
		want = append(want, framed(last)...)
		if got = peer.Drain(got); !bytes.Equal(got, want) {
			t.Fatalf("the peer got %d bytes, want %d; %d refusals, %d dropped", len(got), len(want), refused, dropped)
		}
	})
}

func frameOf(n int) []byte { return bytes.Repeat([]byte{0xaa}, n) }

// batchOf makes a batch of frames, whose packets the caller ends.
func batchOf(c *packet.Cache, frames [][]byte) (b packet.Batch) {
	const head = packet.HeadLen - packet.Headroom
	for _, f := range frames {
		p := c.Get()
		p.Set(f[:min(len(f), head)])
		if len(f) > head {
			tail := c.GetTail()
			p.SetTail(tail, 0, copy(tail.B, f[head:]))
		}
		b.Add(p)
	}
	return b
}

// Each way in which a connection ends has its words, and is told once.
func TestStreamEnds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		do    func(p *tuntest.StreamPeer)
		errno unix.Errno
		want  string
	}{
		{"closed", func(p *tuntest.StreamPeer) { p.Close() }, unix.ESHUTDOWN, "the peer closed the connection"},
		{"closed in a frame", func(p *tuntest.StreamPeer) { p.Write(framed([]byte("frame"))[:6]); p.Close() }, unix.EBADMSG, "the peer closed the connection in the middle of a frame"},
		{"closed in a length", func(p *tuntest.StreamPeer) { p.Write([]byte{0, 0}); p.Close() }, unix.EBADMSG, "the peer closed the connection in the middle of a frame"},
		{"too long", func(p *tuntest.StreamPeer) { p.Write([]byte{0, 1, 0, 0x16}) }, unix.EPROTO, "the peer announced a frame of more than 65557 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := cache(t)
			q, peer := stream(t)
			r := tun.NewReader(c)
			defer r.Close()
			peer.Write(framed([]byte("the last frame")))
			tt.do(peer)
			frames, errno := readFrames(t, r, q, c)
			if errno == unix.EAGAIN {
				_, errno = readFrames(t, r, q, c)
			}
			if len(frames) != 1 || errno != tt.errno {
				t.Fatalf("%d frames, %v, want 1, %v", len(frames), errno, tt.errno)
			}
			err := q.Fail(errno)
			var closed *tun.ClosedError
			if !errors.As(err, &closed) || err.Error() != tt.want {
				t.Errorf("Fail = %v, want %s", err, tt.want)
			}
			if err := q.Fail(errno); err != nil {
				t.Errorf("Fail a second time = %v", err)
			}
		})
	}
}

// A connection does not inherit what the last one left: neither half a frame
// that was read nor half a frame that was to be written.
func TestStreamReconnect(t *testing.T) {
	c := cache(t)
	q := tun.NewStreamQueue()
	defer q.Close()
	r, w := tun.NewReader(c), &tun.Writer{}
	defer r.Close()
	if q.Connected() || q.Fail(unix.EPIPE) != nil {
		t.Error("a queue that was never connected has a connection to lose")
	}
	big := batchOf(c, [][]byte{frameOf(maxFrame)})
	defer c.Put(big.Pkts[0])
	for i := range 3 {
		fd, peer := tuntest.StreamPair(t)
		peer.SetSendBuffer(fd, 4096)
		if err := q.Connect(fd, fd); err != nil {
			t.Fatal(err)
		}
		last := frameOf(14 + i)
		if errno := w.WriteSegment(q, packet.Vnet{}, last, nil); errno != 0 {
			t.Fatalf("connection %d: %v", i, errno)
		}
		peer.Write(framed(last))
		frames, _ := readFrames(t, r, q, c)
		if got := peer.Drain(nil); !bytes.Equal(got, framed(last)) || len(frames) != 1 || !bytes.Equal(frames[0], last) {
			t.Errorf("connection %d: the peer got %x, we %x", i, got, frames)
		}
		if n, errno := w.WriteBatch(q, big.Slice()); n != 0 || errno != unix.EAGAIN { // in part
			t.Fatalf("WriteBatch of a large frame = %d, %v", n, errno)
		}
		peer.Write(framed(last)[:9])
		readFrames(t, r, q, c)
		q.Disconnect()
		peer.Close()
	}
}

// A peer on TCP that waits for an acknowledgement before it sends its next
// small frame (RFC 896) gets it with our read, and not when the kernel's delay
// is over.
func TestStreamAcknowledges(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	ours, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	f, err := ours.(*net.TCPConn).File() // a duplicate, non-blocking as it is
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(f.Fd()))
	err = errors.Join(err, peer.(*net.TCPConn).SetNoDelay(false), unix.SetNonblock(fd, true), f.Close(), ours.Close())
	if err != nil {
		t.Fatal(err)
	}
	q := tun.NewStreamQueue()
	defer q.Close()
	if err := q.Connect(fd, fd); err != nil {
		t.Fatal(err)
	}
	c := cache(t)
	r, w := tun.NewReader(c), &tun.Writer{}
	defer r.Close()
	const rounds = 50
	atOnce := 0
	for range rounds {
		w.WriteSegment(q, packet.Vnet{}, frameOf(60), nil) // with answers the kernel delays acknowledgements
		_, _ = peer.Read(make([]byte, 1<<16))
		for range 2 {
			if _, err := peer.Write(framed(frameOf(60))); err != nil {
				t.Fatal(err)
			}
		}
		n := 0
		for reads := 1; n < 2; reads++ {
			frames, _ := readFrames(t, r, q, c)
			if n += len(frames); n == 2 && reads <= 3 {
				atOnce++
			}
		}
	}
	if atOnce < rounds*9/10 {
		t.Errorf("the second of two frames was there at once in %d of %d rounds", atOnce, rounds)
	}
}

// dgram makes a connected datagram queue, and the sockets of a peer that sends
// to it and receives from it. QEMU has one for both and does not connect it.
func dgram(t testing.TB) (q *tun.Queue, from, to *tuntest.Peer) {
	t.Helper()
	q, err := tun.NewDgramQueue()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	dir := t.TempDir()
	us, them := &unix.SockaddrUnix{Name: filepath.Join(dir, "us")}, &unix.SockaddrUnix{Name: filepath.Join(dir, "them")}
	var fds [4]int // our two, the peer's two
	for i := range fds {
		if fds[i], err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
	}
	err = errors.Join(unix.Bind(fds[0], us), unix.Bind(fds[2], them), unix.Connect(fds[1], them), unix.Connect(fds[3], us), q.Connect(fds[0], fds[1]))
	if err != nil {
		t.Fatal(err)
	}
	return q, tuntest.NewPeer(t, fds[3]), tuntest.NewPeer(t, fds[2])
}

// Datagrams of all sizes pass both ways, a full peer refuses in order, and
// a peer that is gone is an error.
func TestDgram(t *testing.T) {
	c := cache(t)
	q, from, peer := dgram(t)
	r, w := tun.NewReader(c), &tun.Writer{}
	defer r.Close()
	for _, n := range []int{14, 60, 1514, 1984, 1985, 9000, maxFrame} {
		f := frameOf(n)
		from.Send(f)
		frames, errno := readFrames(t, r, q, c)
		if len(frames) != 1 || errno != unix.EAGAIN || !bytes.Equal(frames[0], f) {
			t.Fatalf("%d bytes: %d frames came, %v", n, len(frames), errno)
		}
		b := batchOf(c, frames)
		if n, errno := w.WriteBatch(q, b.Slice()); n != 1 || errno != 0 {
			t.Fatalf("WriteBatch = %d, %v", n, errno)
		}
		if got := peer.Recv(0); !bytes.Equal(got, f) {
			t.Errorf("%d bytes: %d went out", n, len(got))
		}
		if errno := w.WriteSegment(q, packet.Vnet{}, f[:14], [][]byte{f[14:]}); errno != 0 {
			t.Fatalf("WriteSegment: %v", errno)
		}
		if got := peer.Recv(0); !bytes.Equal(got, f) {
			t.Errorf("a segment of %d bytes: %d went out", n, len(got))
		}
		c.Put(b.Pkts[0])
	}
	from.Send(frameOf(maxFrame + 1))
	from.Send([]byte("next"))
	frames, _ := readFrames(t, r, q, c)
	if len(frames) != 2 || len(frames[0]) != 0 || string(frames[1]) != "next" {
		t.Errorf("a datagram longer than a frame, and another: %d, %q", len(frames), frames)
	}
	var all [][]byte
	for i := range packet.MaxBatch {
		all = append(all, bytes.Repeat([]byte{byte(i)}, 60))
	}
	b := batchOf(c, all)
	n, errno := w.WriteBatch(q, b.Slice())
	if n == 0 || n == b.N || errno != unix.EAGAIN {
		t.Fatalf("WriteBatch to a peer that does not read = %d, %v", n, errno)
	}
	for i := range n {
		if got := peer.Recv(0); len(got) != 60 || got[0] != byte(i) {
			t.Fatalf("frame %d: %x", i, got)
		}
	}
	if k, errno := w.WriteBatch(q, b.Slice()[n:n+1]); k != 1 || errno != 0 {
		t.Errorf("WriteBatch after the peer read = %d, %v", k, errno)
	}
	peer.Close()
	if n, errno := w.WriteBatch(q, b.Slice()); n != 0 || errno != unix.ECONNREFUSED {
		t.Errorf("WriteBatch to a peer that is gone = %d, %v", n, errno)
	}
	for _, p := range b.Slice() {
		c.Put(p)
	}
}

func TestSocketsAllocateNothing(t *testing.T) {
	c := cache(t)
	r, w := tun.NewReader(c), &tun.Writer{}
	defer r.Close()
	q, peer := stream(t)
	d, from, to := dgram(t)
	f, drain := frameOf(1514), make([]byte, 1<<17)
	sent, payload := framed(f, f, f), [][]byte{f[54:]}
	for _, tt := range []struct {
		name string
		q    *tun.Queue
		send func()
		fd   int
	}{
		{"stream", q, func() { peer.Write(sent) }, peer.FD},
		{"dgram", d, func() { from.Send(f); from.Send(f) }, to.FD},
	} {
		var b packet.Batch
		allocs := testing.AllocsPerRun(100, func() {
			tt.send()
			b.N = 0
			for r.ReadBatch(tt.q, &b, packet.MaxBatch) != unix.EAGAIN || b.N == 0 {
			}
			w.WriteBatch(tt.q, b.Slice())
			w.WriteSegment(tt.q, packet.Vnet{}, f[:54], payload)
			for _, p := range b.Slice() {
				c.Put(p)
			}
			for {
				if _, err := unix.Read(tt.fd, drain); err != nil {
					break
				}
			}
		})
		if allocs != 0 {
			t.Errorf("%s: a batch read and written allocates %v times", tt.name, allocs)
		}
	}
}

// What one call costs for a batch: one write and the read of it.
func BenchmarkSocket(b *testing.B) {
	for _, n := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("kind=stream/batch=%d", n), func(b *testing.B) {
			c := cache(b)
			q, peer := stream(b)
			w := &tun.Writer{}
			var frames [][]byte
			for range n {
				frames = append(frames, frameOf(1514))
			}
			batch, drain := batchOf(c, frames), make([]byte, 1<<17)
			b.ReportAllocs()
			for b.Loop() {
				if k, errno := w.WriteBatch(q, batch.Slice()); k != n {
					b.Fatal(k, errno)
				}
				_, _ = unix.Read(peer.FD, drain)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/pkt")
		})
	}
}
