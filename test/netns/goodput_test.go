package netns

import (
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"
)

// goodput is what one TCP stream of so many bytes reached from host a to b,
// in Mbit/s.
func (m *matrixNet) goodput(bytes int64) float64 {
	m.t.Helper()
	from, to := m.hosts[0], m.hosts[1]
	var c net.Conn
	if err := from.ns.Do(func() (err error) {
		c, err = net.DialTimeout("tcp4", to.listener[0].Addr().String(), 5*time.Second)
		return err
	}); err != nil {
		m.t.Fatal(err)
	}
	defer c.Close()
	d, err := to.listener[0].Accept()
	if err != nil {
		m.t.Fatal(err)
	}
	defer d.Close()
	begin := time.Now()
	_ = c.SetDeadline(begin.Add(30 * time.Second))
	_ = d.SetDeadline(begin.Add(30 * time.Second))
	go func() {
		for left := bytes; left > 0; left -= int64(len(matrixData)) {
			if _, err := c.Write(matrixData[:min(left, int64(len(matrixData)))]); err != nil {
				break
			}
		}
	}()
	if n, err := io.CopyN(io.Discard, d, bytes); err != nil {
		m.t.Fatalf("after %d of %d bytes: %v", n, bytes, err)
	}
	return float64(bytes) * 8 / time.Since(begin).Seconds() / 1e6
}

// atLeast measures two rates in turn and wants the median of the second to be
// at least a share of the first's. Noise is answered with more rounds, as long
// as that may help.
func atLeast(t *testing.T, what string, share float64, first, second func() float64) {
	t.Helper()
	var a, b []float64
	for len(a) < 5 || len(a) < 30 && median(b) < share*median(a) {
		a = append(a, first())
		b = append(b, second())
	}
	t.Logf("%s: %.0f beside %.0f, ratio %.2f in %d rounds", what, median(b), median(a), median(b)/median(a), len(a))
	if median(b) < share*median(a) {
		t.Errorf("%s: ratio %.2f, want %.2f; %.0f beside %.0f", what, median(b)/median(a), share, b, a)
	}
}

func median(xs []float64) float64 {
	xs = slices.Sorted(slices.Values(xs))
	return (xs[len(xs)/2] + xs[(len(xs)-1)/2]) / 2
}

// B04: TCP is as fast when the MTU of the way out is smaller, and nothing is
// dropped for it.
func TestGoodputOverSmallerMTU(t *testing.T) {
	same := newMatrixNet(t, everything(true, 1500, 1500))
	for _, mtu := range [][2]int{{1500, 1450}, {1500, 1280}, {9000, 1450}, {9000, 1280}} {
		m := newMatrixNet(t, everything(true, mtu[0], mtu[1]))
		what := fmt.Sprintf("MTU %d to %d", mtu[0], mtu[1])
		atLeast(t, what, 0.8, func() float64 { return same.goodput(32 << 20) }, func() float64 { return m.goodput(32 << 20) })
		if n := m.r.drops()["too_big"]; n > 0 {
			t.Errorf("%s: %d dropped as too big", what, n)
		}
	}
}
