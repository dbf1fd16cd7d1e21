package tun_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/packet"
	"taprouter/tun"
	"taprouter/tun/tuntest"
)

func cache(t testing.TB) *packet.Cache {
	pool, err := packet.NewPool(packet.Memory{Heads: 2 * packet.MaxBatch, SmallTails: 2 * packet.MaxBatch / 5, Tails: 2 * packet.MaxBatch / 5})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool.NewCache()
}

// frame is a vnet header with these flags and n random bytes behind it.
func frame(rng *rand.Rand, vnet, n int) []byte {
	b := make([]byte, vnet+n)
	for i := range b[vnet:] {
		b[vnet+i] = byte(rng.Uint32())
	}
	if vnet != 0 {
		copy(b, []byte{packet.NeedsCsum, packet.GSOTCPv4, 54, 0, 0xb4, 5, 34, 0, 16, 0})
	}
	return b
}

// A packet put together from frames is written as one frame.
func TestWriteMerged(t *testing.T) {
	c := cache(t)
	out, dst := tuntest.Pair(t, tuntest.VnetLen)
	rng := rand.New(rand.NewPCG(3, 4))
	var whole *packet.Packet
	var want []byte
	for i := range packet.MaxBatch {
		n := 100
		if i%5 == 4 {
			n = packet.HeadLen // the rest goes to a tail
		}
		f := frame(rng, 0, n)
		p := c.Get()
		p.Set(f[:min(n, 1000)])
		if n > 1000 {
			b := c.GetTail()
			p.SetTail(b, 0, copy(b.B, f[1000:]))
		}
		if whole == nil {
			whole, want = p, f
			continue
		}
		whole.Append(p, 54)
		want = append(want, f[54:]...)
	}
	if n, errno := new(tun.Writer).WriteBatch(out, []*packet.Packet{whole}); n != 1 || errno != 0 {
		t.Fatalf("WriteBatch = %d, %v", n, errno)
	}
	if got := dst.Recv(time.Second); !bytes.Equal(got[tuntest.VnetLen:], want) {
		t.Errorf("%d bytes were written, which are not the %d of the frame", len(got), len(want))
	}
	c.Put(whole)
}

// What is read is written again byte for byte, with and without a vnet
// header, at every size around the end of a head.
func TestReadWriteSameBytes(t *testing.T) {
	const head = packet.HeadLen - packet.Headroom
	rng := rand.New(rand.NewPCG(1, 2))
	for _, vnet := range []int{0, tuntest.VnetLen} {
		c := cache(t)
		in, src := tuntest.Pair(t, vnet)
		out, dst := tuntest.Pair(t, vnet)
		r, w := tun.NewReader(c), &tun.Writer{}
		for _, n := range []int{14, 60, 1514, head - 1, head, head + 1, 9000, head + packet.SmallTailLen, head + packet.SmallTailLen + 1, 65535 + 14} {
			want := frame(rng, vnet, n)
			src.Send(want)
			var b packet.Batch
			if errno := r.ReadBatch(in, &b, packet.MaxBatch); errno != unix.EAGAIN || b.N != 1 {
				t.Fatalf("ReadBatch(%d bytes) = %d packets, %v, want 1, EAGAIN", n, b.N, errno)
			}
			p := b.Pkts[0]
			if p.Len() != n || p.HasTail() != (n > head) {
				t.Errorf("%d bytes: Len = %d, HasTail = %v", n, p.Len(), p.HasTail())
			}
			held := packet.HeadLen
			switch {
			case n > head+packet.SmallTailLen:
				held += packet.TailLen
			case n > head:
				held += packet.SmallTailLen
			}
			if p.Memory() != held {
				t.Errorf("%d bytes hold %d, want %d", n, p.Memory(), held)
			}
			if vnet != 0 && p.Vnet != (packet.Vnet{Flags: 1, GSOType: 1, HdrLen: 54, GSOSize: 1460, CsumStart: 34, CsumOffset: 16}) {
				t.Errorf("vnet header = %+v", p.Vnet)
			}
			if n, errno := w.WriteBatch(out, b.Slice()); n != 1 || errno != 0 {
				t.Fatalf("WriteBatch = %d, %v", n, errno)
			}
			if got := dst.Recv(time.Second); !bytes.Equal(got, want) {
				t.Errorf("%d bytes, vnet %d: what was written differs from what was read", n, vnet)
			}
			c.Put(p)
		}
		r.Close()
	}
}

func TestReadBatchLimits(t *testing.T) {
	c := cache(t)
	q, peer := tuntest.Pair(t, 0)
	r := tun.NewReader(c)
	for range 10 {
		peer.Send(make([]byte, 100))
	}
	var b packet.Batch
	if errno := r.ReadBatch(q, &b, 4); errno != 0 || b.N != 4 {
		t.Errorf("ReadBatch(limit 4) = %d, %v, want 4, 0", b.N, errno)
	}
	if errno := r.ReadBatch(q, &b, packet.MaxBatch); errno != unix.EAGAIN || b.N != 10 {
		t.Errorf("second ReadBatch = %d in all, %v, want 10, EAGAIN", b.N, errno)
	}
}

// Where every batch brings one frame, reading ends without a look for a
// second. When more begins to come, the poller tells of it until it was read,
// and soon a batch is everything again.
func TestReadGuess(t *testing.T) {
	c := cache(t)
	q, peer := tuntest.Pair(t, 0)
	p, err := tun.NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Watch(q, 7); err != nil {
		t.Fatal(err)
	}
	r := tun.NewReader(c)
	sent, came := 0, 0
	send := func(n int) {
		for range n {
			peer.Send([]byte{byte(sent)})
			sent++
		}
	}
	read := func() (n int) {
		var b packet.Batch
		if errno := r.ReadBatch(q, &b, packet.MaxBatch); errno != unix.EAGAIN {
			t.Fatalf("ReadBatch = %v, want EAGAIN", errno)
		}
		for _, p := range b.Slice() {
			if got := p.Bytes()[0]; got != byte(came) {
				t.Fatalf("got frame %d, want %d", got, byte(came))
			}
			came++
			c.Put(p)
		}
		return b.N
	}
	for range 100 {
		send(1)
		if n := read(); n != 1 {
			t.Fatalf("ReadBatch = %d frames, want 1", n)
		}
	}
	guesses := 0
	for ; came == sent && guesses == 0 || came < sent; guesses++ {
		send(2)
		read()
		if ev, _, _ := p.Wait(0, true); (len(ev) == 1) != (came < sent) {
			t.Fatalf("%d frames are left, and Wait = %v", sent-came, ev)
		}
		if guesses > 20 {
			t.Fatalf("%d batches of two frames, and still %d are left", guesses, sent-came)
		}
	}
	if guesses < 2 {
		t.Error("the first batch with a second frame gave both: nothing was guessed")
	}
}

// A reader whose other side is gone gets an error, not an endless row of
// empty frames.
func TestReadEndOfFile(t *testing.T) {
	c := cache(t)
	for _, vnet := range []int{0, tuntest.VnetLen} {
		q, peer := tuntest.Pair(t, vnet)
		if err := unix.Shutdown(peer.FD, unix.SHUT_RDWR); err != nil {
			t.Fatal(err)
		}
		var b packet.Batch
		if errno := tun.NewReader(c).ReadBatch(q, &b, packet.MaxBatch); errno != unix.EBADFD || b.N != 0 {
			t.Errorf("ReadBatch at the end = %d packets, %v, want 0, EBADFD", b.N, errno)
		}
	}
}

func TestNoBuffers(t *testing.T) {
	c := cache(t)
	q, peer := tuntest.Pair(t, 0)
	peer.Send(make([]byte, 64))
	var held []*packet.Packet
	for p := c.Get(); p != nil; p = c.Get() {
		held = append(held, p)
	}
	var b packet.Batch
	r := tun.NewReader(c)
	if errno := r.ReadBatch(q, &b, 8); errno != unix.ENOBUFS || b.N != 0 {
		t.Errorf("ReadBatch without buffers = %d, %v, want 0, ENOBUFS", b.N, errno)
	}
	c.Put(held[0]) // the frame is still there
	if errno := r.ReadBatch(q, &b, 1); errno != 0 || b.N != 1 {
		t.Errorf("ReadBatch with one buffer = %d, %v, want 1, 0", b.N, errno)
	}
}

func TestWriteStopsAtRefusal(t *testing.T) {
	c := cache(t)
	q, peer := tuntest.Pair(t, 0)
	if err := unix.SetsockoptInt(q.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF, 4096); err != nil {
		t.Fatal(err)
	}
	var b packet.Batch
	for i := range packet.MaxBatch {
		p := c.Get()
		p.Set(bytes.Repeat([]byte{byte(i)}, 1000))
		b.Add(p)
	}
	w := &tun.Writer{}
	n, errno := w.WriteBatch(q, b.Slice())
	if errno != unix.EAGAIN || n == 0 || n == b.N {
		t.Fatalf("WriteBatch into a small buffer = %d, %v, want some and EAGAIN", n, errno)
	}
	for i := range n {
		if got := peer.Recv(time.Second); len(got) == 0 || got[0] != byte(i) {
			t.Fatalf("frame %d: got %d bytes", i, len(got))
		}
	}
	if k, errno := w.WriteBatch(q, b.Slice()[n:n+1]); k != 1 || errno != 0 {
		t.Errorf("WriteBatch after the peer read = %d, %v, want 1, 0", k, errno)
	}
}

func TestBatchAllocatesNothing(t *testing.T) {
	c := cache(t)
	q, peer := tuntest.Pair(t, tuntest.VnetLen)
	out, sink := tuntest.Pair(t, tuntest.VnetLen)
	r, w := tun.NewReader(c), &tun.Writer{}
	f := make([]byte, 10+1514)
	drain := make([]byte, 4096)
	var b packet.Batch
	allocs := testing.AllocsPerRun(100, func() {
		peer.Send(f)
		b.N = 0
		r.ReadBatch(q, &b, packet.MaxBatch)
		w.WriteBatch(out, b.Slice())
		for _, p := range b.Slice() {
			c.Put(p)
		}
		_, _ = unix.Read(sink.FD, drain)
	})
	if allocs != 0 {
		t.Errorf("a batch read and written allocates %v times, want 0", allocs)
	}
}

func TestPoller(t *testing.T) {
	p, err := tun.NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	q, peer := tuntest.Pair(t, 0)
	if err := p.Watch(q, 7); err != nil {
		t.Fatal(err)
	}
	for _, raw := range []bool{true, false} {
		if ev, woken, err := p.Wait(0, raw); len(ev) != 0 || woken || err != nil {
			t.Errorf("raw=%v: idle Wait = %v, %v, %v", raw, ev, woken, err)
		}
		p.Wake()
		if ev, woken, err := p.Wait(int64(time.Second), raw); len(ev) != 0 || !woken || err != nil {
			t.Errorf("raw=%v: Wait after Wake = %v, %v, %v", raw, ev, woken, err)
		}
	}
	peer.Send([]byte("x"))
	for range 2 { // level triggered: it is reported until it was read
		ev, _, err := p.Wait(int64(time.Second), true)
		if err != nil || len(ev) != 1 || ev[0].Token != 7 || ev[0].Bits&tun.Readable == 0 {
			t.Fatalf("Wait = %v, %v, want token 7 readable", ev, err)
		}
	}
	p.Unwatch(q)
	if ev, _, _ := p.Wait(0, true); len(ev) != 0 {
		t.Errorf("Wait after Unwatch = %v", ev)
	}
	for range 2 { // once for each call
		if err := p.WatchWritable(q, 9); err != nil {
			t.Fatal(err)
		}
		if ev, _, _ := p.Wait(int64(time.Second), false); len(ev) != 1 || ev[0].Token != 9 || ev[0].Bits&tun.Writable == 0 {
			t.Errorf("Wait = %v, want token 9 writable", ev)
		}
		if ev, _, _ := p.Wait(0, false); len(ev) != 0 {
			t.Errorf("a second event %v from one WatchWritable", ev)
		}
	}
}

// A rest ends when its time is over, not when a queue is readable, and at a Wake.
func TestPollerRest(t *testing.T) {
	p, err := tun.NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	q, peer := tuntest.Pair(t, 0)
	defer q.Close()
	if err := p.Watch(q, 1); err != nil {
		t.Fatal(err)
	}
	peer.Send([]byte("frame"))
	// The runtime may end one rest early; a readable queue would end them all.
	const short = 5 * time.Millisecond
	full := 0
	for range 10 {
		begun := time.Now()
		p.Rest(int64(short))
		if time.Since(begun) >= short {
			full++
		}
	}
	if full == 0 {
		t.Errorf("no rest of 10 took its %v", short)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Rest(int64(time.Hour))
	}()
	p.Wake()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("Wake does not end a rest")
	}
}
