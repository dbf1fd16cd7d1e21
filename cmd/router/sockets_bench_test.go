package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/bql"
	"taprouter/qdisc"
)

// benchRouter is a router with two stream ports in a bridge, and the peers.
func benchRouter(tb testing.TB) (r *router, a, b net.Conn) {
	tb.Helper()
	dir := tb.TempDir()
	conf := fmt.Sprintf("version: 1\nworkers: 2\nports:\n"+
		"  - {name: a, type: socket, stream: {listen: %[1]s/a}}\n  - {name: b, type: socket, stream: {listen: %[1]s/b}}\nbridges: [{name: br0, ports: [a, b]}]\n", dir)
	r = sockets(tb, conf)
	a, b = dialUnix(tb, dir+"/a"), dialUnix(tb, dir+"/b")
	r.connected(tb, 0)
	r.connected(tb, 1)
	(&guest{tb, b, true, nil}).send(udp(1, 2, 9, 60)) // the bridge learns b
	(&guest{tb, a, true, nil}).recv(5 * time.Second)
	return r, a, b
}

func dialUnix(tb testing.TB, path string) net.Conn {
	tb.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return c
}

// blocking gives a connection's descriptor, made a blocking one: threads that
// wait in the kernel, like other processes, not goroutines.
func blocking(tb testing.TB, c net.Conn) int {
	tb.Helper()
	f, err := c.(*net.UnixConn).File()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { f.Close() })
	fd := int(f.Fd())
	if err := unix.SetNonblock(fd, false); err != nil {
		tb.Fatal(err)
	}
	return fd
}

// relay passes on what comes from one stream to another until it ends: frame
// by frame, or just bytes.
func relay(tb testing.TB, frames bool) (a, b int) {
	tb.Helper()
	var in, out [2]int
	for i := range in {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			tb.Fatal(err)
		}
		in[i], out[i] = fds[0], fds[1]
	}
	var wg sync.WaitGroup
	for i := range in {
		wg.Go(func() { copyStream(in[1-i], in[i], frames) })
	}
	tb.Cleanup(func() {
		unix.Close(out[0])
		unix.Close(out[1])
		wg.Wait()
	})
	return out[0], out[1]
}

func copyStream(dst, src int, frames bool) {
	defer unix.Shutdown(dst, unix.SHUT_RDWR)
	buf, had := make([]byte, 128<<10), 0
	for {
		n, err := unix.Read(src, buf[had:])
		if n <= 0 || err != nil {
			return
		}
		rest := buf[:had+n]
		for len(rest) > 0 {
			size := len(rest)
			if frames {
				if len(rest) < 4 {
					break
				}
				if size = 4 + int(binary.BigEndian.Uint32(rest)); len(rest) < size {
					break
				}
			}
			if _, err := unix.Write(dst, rest[:size]); err != nil {
				return
			}
			rest = rest[size:]
		}
		had = copy(buf, rest)
	}
}

// udp is a frame of a UDP flow of n bytes.
func udp(dst, src byte, port uint16, n int) []byte {
	f := ether(dst, src, n, "")
	f[12], f[13] = 8, 0
	ip := f[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(n-14))
	copy(ip[12:], []byte{10, 0, 0, src, 10, 0, 0, dst})
	binary.BigEndian.PutUint16(ip[20:], port)
	binary.BigEndian.PutUint16(ip[24:], uint16(n-34))
	return f
}

// window is how many frames are on their way at most, as with a transport
// that is clocked by what arrives: less than a queue holds.
const window = 700

// goodput sends frames from a to b for d, several with each write, and gives
// the bytes a second that arrive.
func goodput(tb testing.TB, a, b, size, burst int, d time.Duration) float64 {
	tb.Helper()
	var chunk []byte
	for range burst {
		f := udp(2, 1, 7, size)
		chunk = append(binary.BigEndian.AppendUint32(chunk, uint32(len(f))), f...)
	}
	var got, sent atomic.Int64
	var stop, last atomic.Bool
	var wg sync.WaitGroup
	late := time.AfterFunc(d+10*time.Second, func() { // something was lost: both ends fail
		_ = unix.Shutdown(a, unix.SHUT_RDWR)
		_ = unix.Shutdown(b, unix.SHUT_RDWR)
	})
	defer late.Stop()
	wg.Go(func() {
		for !last.Load() {
			for sent.Load()-got.Load() > window*int64(4+size) {
				_ = unix.Nanosleep(&unix.Timespec{Nsec: 20_000}, nil)
			}
			sent.Add(int64(len(chunk)))
			last.Store(stop.Load()) // before the write that wakes the reader
			if _, err := unix.Write(a, chunk); err != nil {
				tb.Error(err)
				return
			}
		}
	})
	wg.Go(func() {
		buf := make([]byte, 1<<18)
		for !last.Load() || got.Load() < sent.Load() {
			n, err := unix.Read(b, buf)
			if n <= 0 {
				tb.Errorf("%d bytes came of %d: %v", got.Load(), sent.Load(), err)
				return
			}
			got.Add(int64(n))
		}
	})
	time.Sleep(d / 4) // it gets going
	begun, had := time.Now(), got.Load()
	time.Sleep(d)
	rate := float64(got.Load()-had) / time.Since(begun).Seconds()
	stop.Store(true)
	wg.Wait()
	return rate
}

// BenchmarkSocketPorts compares two stream ports of a router with relays
// between the same sockets, in turn: x/relay is the median of the ratios of
// the rounds, to a relay that passes on frame by frame, and x/bytes that to one
// that does not even look for frames.
func BenchmarkSocketPorts(b *testing.B) {
	for _, size := range []int{1514, 64} {
		for _, burst := range []int{1, 16} { // QEMU writes one frame at a time
			b.Run(fmt.Sprintf("frame=%d/burst=%d", size, burst), func(b *testing.B) {
				_, ra, rb := benchRouter(b)
				var ends [3][2]int
				ends[0] = [2]int{blocking(b, ra), blocking(b, rb)}
				ends[1][0], ends[1][1] = relay(b, true)
				ends[2][0], ends[2][1] = relay(b, false)
				var frames, bytes, ours []float64
				for round := 0; b.Loop(); round++ {
					var rate [3]float64
					for i := range rate {
						k := (i + round) % len(rate)
						rate[k] = goodput(b, ends[k][0], ends[k][1], size, burst, 300*time.Millisecond)
					}
					ours = append(ours, rate[0])
					frames, bytes = append(frames, rate[0]/rate[1]), append(bytes, rate[0]/rate[2])
				}
				b.ReportMetric(median(frames), "x/relay")
				b.ReportMetric(slices.Min(frames), "min-x/relay")
				b.ReportMetric(slices.Max(frames), "max-x/relay")
				b.ReportMetric(median(bytes), "x/bytes")
				b.ReportMetric(median(ours)*8/1e6, "Mbit/s")
			})
		}
	}
}

func median(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }

// slowPeer sends more than the peer b reads, which is a fixed rate, and a probe
// of another flow every 5 ms. It gives the 99th percentile of the probes' time
// from one end to the other, and the bytes that b got a second.
func slowPeer(tb testing.TB, a, b net.Conn, rate float64, d time.Duration) (p99 time.Duration, goodput float64) {
	tb.Helper()
	bulk, probe := udp(2, 1, 7, 1514), udp(2, 1, 8, 64)
	stop := time.Now().Add(d)
	var wg sync.WaitGroup
	var mu sync.Mutex // of a
	g := &guest{tb, a, true, nil}
	wg.Go(func() { // 1.5 times what is read
		every := time.Duration(float64(len(bulk)*10) / (1.5 * rate) * 1e9)
		for next := time.Now(); next.Before(stop); next = next.Add(every) {
			time.Sleep(time.Until(next))
			mu.Lock()
			for range 10 {
				g.send(bulk)
			}
			mu.Unlock()
		}
	})
	wg.Go(func() {
		for time.Now().Before(stop) {
			time.Sleep(5 * time.Millisecond)
			mu.Lock()
			binary.BigEndian.PutUint64(probe[50:], uint64(time.Now().UnixNano()))
			g.send(probe)
			mu.Unlock()
		}
	})
	var took []time.Duration
	begun, bytes := time.Now(), 0
	buf := make([]byte, 1<<17)
	paced := &pacedReader{c: b, rate: rate, begun: begun}
	for settled := begun.Add(d / 3); time.Now().Before(stop); {
		if _, err := io.ReadFull(paced, buf[:4]); err != nil {
			tb.Fatal(err)
		}
		n := int(binary.BigEndian.Uint32(buf))
		if _, err := io.ReadFull(paced, buf[:n]); err != nil {
			tb.Fatal(err)
		}
		bytes += n
		if now := time.Now(); n == len(probe) && now.After(settled) {
			took = append(took, now.Sub(time.Unix(0, int64(binary.BigEndian.Uint64(buf[50:])))))
		}
	}
	took = slices.Sorted(slices.Values(took))
	wg.Wait()
	for _ = b.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); ; { // the rest
		if _, err := b.Read(buf); err != nil {
			break
		}
	}
	_ = b.SetReadDeadline(time.Time{})
	if len(took) < 10 {
		tb.Fatalf("%d probes came", len(took))
	}
	return took[len(took)*99/100], float64(bytes) / time.Since(begun).Seconds()
}

// A pacedReader reads at a fixed rate, in pieces of at most 4 KiB.
type pacedReader struct {
	c     net.Conn
	rate  float64 // bytes a second
	begun time.Time
	bytes int
	rest  []byte
}

func (p *pacedReader) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		time.Sleep(time.Until(p.begun.Add(time.Duration(float64(p.bytes) / p.rate * 1e9))))
		piece := make([]byte, 4096)
		n, err := p.c.Read(piece)
		if err != nil {
			return 0, err
		}
		p.bytes, p.rest = p.bytes+n, piece[:n]
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// slowRate is what the slow peer reads, in bytes a second: 50 Mbit/s.
const slowRate = 50e6 / 8

// fifoAndFQ has the peer of port b be slow behind a bare FIFO of 1000 packets
// (pfifo_fast, one band of which is used, with a limit that BQL never reaches)
// and then behind fq with BQL.
func fifoAndFQ(tb testing.TB, r *router, a, b net.Conn, d time.Duration) (p99 [2]time.Duration, goodput [2]float64) {
	tb.Helper()
	for i := range p99 {
		spec, low := qdisc.Spec{Kind: "pfifo_fast"}, uint64(bql.MaxLimit)
		if i == 1 {
			spec, low = qdisc.Spec{Kind: "fq", FQ: qdisc.DefaultFQ(1500)}, 0
		}
		if err := errors.Join(r.dp.SetBQL("b", 0, "limit_min", low), r.dp.ReplaceQdisc("b", -1, spec, qdisc.Spec{})); err != nil {
			tb.Fatal(err)
		}
		p99[i], goodput[i] = slowPeer(tb, a, b, slowRate, d)
	}
	return p99, goodput
}

// A slow peer costs another flow little with fq and BQL: a fifth of the time
// at most that it waits in a bare FIFO. What the peer gets a second is the same.
func TestSlowPeerLatency(t *testing.T) {
	r, a, b := benchRouter(t)
	p99, goodput := fifoAndFQ(t, r, a, b, 1500*time.Millisecond)
	t.Logf("p99 %v behind the FIFO, %v behind fq; %.1f and %.1f Mbit/s", p99[0], p99[1], goodput[0]*8/1e6, goodput[1]*8/1e6)
	if p99[1] > p99[0]/5 {
		t.Errorf("the 99th percentile is %v behind fq, more than a fifth of the FIFO's %v", p99[1], p99[0])
	}
	if goodput[1] < 0.9*goodput[0] {
		t.Errorf("the peer got %.0f bytes a second behind fq, %.0f behind the FIFO", goodput[1], goodput[0])
	}
}

// BenchmarkSlowPeer measures the same for longer.
func BenchmarkSlowPeer(b *testing.B) {
	r, pa, pb := benchRouter(b)
	var fifo, fq, ratios, goodputs []float64
	for b.Loop() {
		p99, got := fifoAndFQ(b, r, pa, pb, 3*time.Second)
		fifo, fq = append(fifo, p99[0].Seconds()*1e3), append(fq, p99[1].Seconds()*1e3)
		ratios, goodputs = append(ratios, fq[len(fq)-1]/fifo[len(fifo)-1]), append(goodputs, got[1]/got[0])
	}
	b.ReportMetric(median(fifo), "ms-p99-fifo")
	b.ReportMetric(median(fq), "ms-p99-fq")
	b.ReportMetric(median(ratios), "x-p99")
	b.ReportMetric(slices.Max(ratios), "max-x-p99")
	b.ReportMetric(median(goodputs), "x-goodput")
}
