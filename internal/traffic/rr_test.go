package traffic

import (
	"testing"
	"time"
)

func TestRR(t *testing.T) {
	s, err := ListenRR("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, err := SendRR(t.Context(), RR{To: s.Addr(), Conns: 3, Duration: 50 * time.Millisecond})
	if err != nil || got.Transactions < 3 || got.Elapsed < 50*time.Millisecond {
		t.Errorf("%+v, %v", got, err)
	}
	s.Close()
	if _, err := SendRR(t.Context(), RR{To: s.Addr(), Conns: 1, Duration: time.Millisecond}); err == nil {
		t.Error("no error without a server")
	}
}
