package traffic

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

// loopbacks are the addresses to listen on; without IPv6 there is only one.
func loopbacks(t *testing.T) []string {
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Logf("no IPv6 here: %v", err)
		return []string{"127.0.0.1:0"}
	}
	_ = l.Close()
	return []string{"127.0.0.1:0", "[::1]:0"}
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestOpen(t *testing.T) {
	sealed := func(n int, spoil ...int) []byte {
		b := make([]byte, n)
		copy(b[HeaderLen:], pattern)
		Seal(b, Header{Flow: 7, Seq: 9, Time: 11})
		for _, i := range spoil {
			b[i] ^= 1
		}
		return b
	}
	tests := []struct {
		name string
		b    []byte
		err  error
	}{
		{"shortest", sealed(HeaderLen), nil},
		{"longest", sealed(MaxDatagram), nil},
		{"empty", nil, ErrForeign},
		{"too short", sealed(HeaderLen)[:31], ErrForeign},
		{"other magic", sealed(100, 0), ErrForeign},
		{"cut short", sealed(100)[:99], ErrCorrupt},
		{"flow changed", sealed(100, 7), ErrCorrupt},
		{"hash changed", sealed(100, 28), ErrCorrupt},
		{"payload changed", sealed(100, 99), ErrCorrupt},
	}
	for _, tt := range tests {
		h, err := Open(tt.b)
		if !errors.Is(err, tt.err) {
			t.Errorf("%s: Open: %v, want %v", tt.name, err, tt.err)
		}
		if want := (Header{Flow: 7, Seq: 9, Time: 11}); err == nil && h != want {
			t.Errorf("%s: Open = %+v, want %+v", tt.name, h, want)
		}
	}
}

func FuzzOpen(f *testing.F) {
	b := make([]byte, 64)
	Seal(b, Header{Flow: 1})
	f.Add(b)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := Open(b)
		if err != nil {
			return
		}
		again := append([]byte(nil), b...)
		Seal(again, h)
		if string(again) != string(b) {
			t.Errorf("Seal(Open(%x)) = %x", b, again)
		}
	})
}

func TestUDP(t *testing.T) {
	tests := []struct {
		name         string
		flows, size  int
		count, burst int
	}{
		{"smallest", 1, HeaderLen, 300, 1},
		{"eight flows", 8, 1200, 800, 0},
		{"8 kB", 3, 8 << 10, 100, 2},
		{"60 kB", 2, 60 << 10, 50, 1},
		{"largest", 1, MaxDatagram, 10, 1},
	}
	for _, addr := range loopbacks(t) {
		for _, tt := range tests {
			t.Run(tt.name+" to "+addr, func(t *testing.T) {
				r, err := ListenUDP(addr)
				if err != nil {
					t.Fatal(err)
				}
				sent, err := SendUDP(deadline(t), UDPSend{
					To: r.Addr(), Flows: tt.flows, PPS: 20000, Size: tt.size,
					Burst: tt.burst, Duration: 10 * time.Second, Count: tt.count,
				})
				if err != nil {
					t.Fatal(err)
				}
				got := r.Finish(sent.Flows, 5*time.Second)
				want := UDPReceived{
					Packets: uint64(tt.count), Bytes: uint64(tt.count * tt.size), Flows: tt.flows,
					Elapsed: got.Elapsed, DelayMax: got.DelayMax,
				}
				if got != want {
					t.Errorf("received %+v, want %+v", got, want)
				}
			})
		}
	}
}

// relay gives a socket whose datagrams go to r as f wants them.
func relay(t *testing.T, r *UDPReceiver, f func(n int, b []byte, send func([]byte))) string {
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	to := r.conn.LocalAddr().(*net.UDPAddr)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1<<16)
		for n := 0; ; n++ {
			m, _, err := c.ReadFromUDP(buf)
			if err != nil {
				return
			}
			f(n, buf[:m], func(b []byte) { _, _ = c.WriteToUDP(b, to) })
		}
	}()
	t.Cleanup(func() { _ = c.Close(); <-done })
	return c.LocalAddr().String()
}

// A path that loses, doubles, swaps and spoils is seen as such.
func TestUDPBadPath(t *testing.T) {
	r, err := ListenUDP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var held []byte
	to := relay(t, r, func(n int, b []byte, send func([]byte)) {
		switch n {
		case 3: // lost
		case 5: // twice
			send(b)
			send(b)
		case 7: // behind the next one
			held = append([]byte(nil), b...)
		case 8:
			send(b)
			send(held)
		case 10: // spoilt
			b[40] ^= 1
			send(b)
			send([]byte("something else"))
		default:
			send(b)
		}
	})
	sent, err := SendUDP(deadline(t), UDPSend{To: to, Flows: 1, PPS: 5000, Size: 100, Duration: 10 * time.Second, Count: 20})
	if err != nil {
		t.Fatal(err)
	}
	got := r.Finish(sent.Flows, 300*time.Millisecond)
	want := UDPReceived{
		Packets: 18, Bytes: 1900, Lost: 2, Reordered: 1, Duplicates: 1, Corrupt: 1, Flows: 1,
		Elapsed: got.Elapsed, DelayMax: got.DelayMax,
	}
	if got != want {
		t.Errorf("received %+v, want %+v", got, want)
	}
}

func TestPacer(t *testing.T) {
	count := func(p pacer, step time.Duration) (n int) {
		for now := time.Duration(0); now < 2*time.Second; now += step {
			n += p.due(now)
		}
		return n
	}
	tests := []struct {
		name     string
		lo, hi   int
		step     time.Duration
		min, max int
	}{
		{"fixed", 1000, 0, time.Millisecond, 1990, 2000},
		{"rising", 10000, 40000, time.Millisecond, 50000, 80000},
		{"falls behind", 10000, 40000, 20 * time.Millisecond, 4900, 5100}, // 5 ms' worth each 20 ms
	}
	for _, tt := range tests {
		if n := count(newPacer(tt.lo, tt.hi), tt.step); n < tt.min || n > tt.max {
			t.Errorf("%s: %d sent in 2 s, want %d to %d", tt.name, n, tt.min, tt.max)
		}
	}
}

func TestTCP(t *testing.T) {
	for _, addr := range loopbacks(t) {
		for _, flows := range []int{1, 8} {
			r, err := ListenTCP(addr)
			if err != nil {
				t.Fatal(err)
			}
			sent, err := SendTCP(deadline(t), TCPSend{To: r.Addr(), Flows: flows, Duration: 10 * time.Second, Bytes: 1 << 20})
			if err != nil {
				t.Error(err)
			}
			got := r.Finish()
			want := TCPReceived{Bytes: uint64(flows) << 20, Conns: flows, Elapsed: got.Elapsed}
			if got != want || sent.Bytes != got.Bytes || sent.Segments == 0 {
				t.Errorf("%d flows: sent %+v, received %+v, want %+v", flows, sent, got, want)
			}
		}
	}
}

// Discarded is only what need not be checked.
func TestDiscard(t *testing.T) {
	for _, listen := range []func(string) (*TCPReceiver, error){ListenTCP, ListenDiscard} {
		r, err := listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", r.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Write(make([]byte, 100)) // not the pattern
		if err == nil {
			err = finish(c.(*net.TCPConn))
		}
		if got := r.Finish(); err != nil || got.Bytes != 100 || (got.Corrupt == 0) != r.discard {
			t.Errorf("discard %t: received %+v, %v", r.discard, got, err)
		}
	}
}

// The time ends a stream, and a receiver that does not read does not hold up
// a sender whose context ends.
func TestTCPEnds(t *testing.T) {
	r, err := ListenTCP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sent, err := SendTCP(deadline(t), TCPSend{To: r.Addr(), Flows: 2, Duration: 50 * time.Millisecond})
	if got := r.Finish(); err != nil || got.Bytes != sent.Bytes || sent.Bytes == 0 || got.Corrupt != 0 {
		t.Errorf("sent %+v, %v; received %+v", sent, err, got)
	}
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := SendTCP(ctx, TCPSend{To: deaf.Addr().String(), Flows: 1, Duration: time.Minute}); err == nil {
		t.Error("SendTCP to a receiver that does not read: no error")
	}
}

func TestPings(t *testing.T) {
	for _, addr := range loopbacks(t) {
		e, err := ListenEcho(addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := Reach(deadline(t), e.Addr()); err != nil {
			t.Error(err)
		}
		p, err := SendPings(deadline(t), Ping{To: e.Addr(), Interval: time.Millisecond, Duration: 30 * time.Millisecond})
		e.Close()
		if err != nil || p.Sent == 0 || p.Received != p.Sent || p.P50 <= 0 || p.P99 < p.P50 || p.Max < p.P99 {
			t.Errorf("%s: %+v, %v", addr, p, err)
		}
	}
}

func TestReachNobody(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := Reach(ctx, "127.0.0.1:1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Reach: %v, want %v", err, context.DeadlineExceeded)
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	tests := []struct {
		of   []time.Duration
		p    float64
		want time.Duration
	}{
		{nil, 50, 0}, {hundred, 50, 50}, {hundred, 99, 99}, {hundred, 100, 100}, {hundred, 0, 1},
		{hundred[:1], 50, 1}, {hundred[:3], 50, 2}, {hundred[:3], 99, 3},
		{hundred, 98.9, 99}, {hundred, 99.9, 100}, {hundred[:10], 70, 7},
	}
	for _, tt := range tests {
		if got := Percentile(tt.of, tt.p); got != tt.want {
			t.Errorf("Percentile(%d values, %v) = %d, want %d", len(tt.of), tt.p, got, tt.want)
		}
	}
}
