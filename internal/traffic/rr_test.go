package traffic

import (
	"net"
	"testing"
	"time"
)

func TestRR(t *testing.T) {
	s, err := ListenRR("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, cfg := range []RR{
		{To: s.Addr(), Conns: 3}, {To: s.Addr(), Conns: 1, Size: 1400},
		{To: s.Addr(), Conns: 2, UDP: true, Size: 64},
	} {
		cfg.Duration = 50 * time.Millisecond
		got, err := SendRR(t.Context(), cfg)
		if err != nil || got.Transactions < uint64(cfg.Conns) || got.Lost != 0 || got.Elapsed < cfg.Duration {
			t.Errorf("%+v: %+v, %v", cfg, got, err)
		}
		if got.P50 <= 0 || got.P99 < got.P50 || got.P999 < got.P99 || got.P999 > got.Elapsed {
			t.Errorf("%+v: percentiles of %+v", cfg, got)
		}
	}
	s.Close()
	for _, cfg := range []RR{{To: s.Addr(), Conns: 1, Duration: time.Millisecond}, {To: s.Addr(), Conns: 1, UDP: true, Size: 7}, {To: s.Addr()}} {
		if got, err := SendRR(t.Context(), cfg); err == nil {
			t.Errorf("%+v: %+v and no error", cfg, got)
		}
	}
}

// A datagram that does not come back is lost, and one that comes late is not
// taken for the next.
func TestRRLost(t *testing.T) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	go func() { // answers each second request, that and the one before
		var last, b [64]byte
		for n := 1; ; n++ {
			_, from, err := pc.ReadFrom(b[:])
			if err != nil {
				return
			}
			if n%2 == 0 {
				_, _ = pc.WriteTo(last[:], from)
				_, _ = pc.WriteTo(b[:], from)
			}
			last = b
		}
	}()
	got, err := SendRR(t.Context(), RR{To: pc.LocalAddr().String(), UDP: true, Size: 64, Conns: 1, Duration: 3 * rrPatience})
	if err != nil || got.Lost < 1 || got.Transactions < 1 || got.Transactions > got.Lost {
		t.Errorf("%+v, %v; want a response to every second request", got, err)
	}
}
