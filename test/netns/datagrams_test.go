package netns

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// B07: large datagrams, which travel as fragments, arrive whole and in order,
// alone and beside TCP.
func TestLargeDatagrams(t *testing.T) {
	for _, top := range topologies {
		t.Run(top.name, func(t *testing.T) {
			m := newMatrixNet(t, everything(top.name == "l3", 1500, 1500))
			for family, name := range matrixFamilies {
				for _, size := range []int{8000, 60000} {
					for _, withTCP := range []bool{false, true} {
						what := fmt.Sprintf("1000 datagrams of %d over %s, TCP %v", size, name, withTCP)
						took, streams, err := m.large(family, size, withTCP)
						if err != nil {
							t.Errorf("%s: %v", what, err)
						}
						t.Logf("%s: %v, %d streams of 1 MB", what, took, streams)
					}
				}
			}
			m.r.balanced()
		})
	}
}

// large sends 1000 datagrams, of which a few are on their way at a time: what
// is lost, is lost by a fault and not for want of room. Beside TCP, one
// megabyte after the other goes both ways until they are through.
func (m *matrixNet) large(family, size int, withTCP bool) (took time.Duration, streams int, err error) {
	const count, window = 1000, 4
	from, to := m.hosts[0], m.hosts[1]
	var done atomic.Bool
	beside := make(chan error, 1)
	go func() {
		var err error
		for err == nil && withTCP && !done.Load() {
			err = m.tcp(from, to, 1-family)
			streams++
		}
		beside <- err
	}()
	begin := time.Now()
	err = m.datagrams(from.udp[family], to.udp[family], size, count, window)
	took = time.Since(begin)
	done.Store(true)
	if tcp := <-beside; tcp != nil {
		err = fmt.Errorf("TCP beside: %w, and %v", tcp, err)
	}
	return took, streams, err
}

func (m *matrixNet) datagrams(from, to *net.UDPConn, size, count, window int) error {
	datagram := func(b []byte, i int) []byte { // each has bytes of its own
		b = binary.BigEndian.AppendUint32(b[:0], uint32(i))
		return append(b, matrixData[i*977:i*977+size-4]...)
	}
	out, want, buf := make([]byte, 0, size), make([]byte, 0, size), make([]byte, 1<<16)
	for i := range count + window {
		if i < count {
			if _, err := from.WriteTo(datagram(out, i), to.LocalAddr()); err != nil {
				return err
			}
		}
		if i < window {
			continue
		}
		_ = to.SetReadDeadline(time.Now().Add(10 * time.Second))
		n, err := to.Read(buf)
		if err != nil {
			return fmt.Errorf("datagram %d: %w", i-window, err)
		}
		if want = datagram(want, i-window); !bytes.Equal(buf[:n], want) {
			return fmt.Errorf("instead of datagram %d of %d bytes came one of %d, number %d", i-window, size, n, binary.BigEndian.Uint32(buf))
		}
	}
	return nil
}
