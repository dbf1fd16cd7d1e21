package traffic

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Ping says what SendPings does.
type Ping struct {
	To       string // address and port of an Echo
	Interval time.Duration
	Duration time.Duration
	TOS      int // of IPv4 probes (RFC 1349), 0 = none
}

// Pings are the round trips of a probe.
type Pings struct {
	Sent     int           `json:"sent"`
	Received int           `json:"received"`
	P50      time.Duration `json:"p50"`
	P99      time.Duration `json:"p99"`
	Max      time.Duration `json:"max"`
}

// pingGrace is how long the last echo is waited for.
const pingGrace = time.Second

// SendPings sends a small datagram at each interval, whether or not the one
// before came back, and measures the round trips.
func SendPings(ctx context.Context, cfg Ping) (Pings, error) {
	c, err := net.Dial("udp", cfg.To)
	if err != nil {
		return Pings{}, fmt.Errorf("traffic: ping: %w", err)
	}
	defer c.Close()
	if err := setTOS(c, cfg.TOS); err != nil {
		return Pings{}, fmt.Errorf("traffic: ping: %w", err)
	}
	var received atomic.Int64
	rtts := make(chan []time.Duration, 1)
	go func() { rtts <- collect(c, &received) }()
	n := emit(ctx, c, cfg)
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	for end := time.Now().Add(pingGrace); int(received.Load()) < n && time.Now().Before(end) && ctx.Err() == nil; {
		<-t.C
	}
	_ = c.SetReadDeadline(time.Unix(1, 0))
	got := <-rtts
	return NewPings(n, got), nil
}

// NewPings sums up the round trips of sent requests, which it sorts.
func NewPings(sent int, rtts []time.Duration) Pings {
	slices.Sort(rtts)
	return Pings{Sent: sent, Received: len(rtts), P50: Percentile(rtts, 50), P99: Percentile(rtts, 99), Max: Percentile(rtts, 100)}
}

func setTOS(c net.Conn, tos int) (err error) {
	if tos == 0 {
		return nil
	}
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, tos) })
	return errors.Join(cerr, err)
}

func emit(ctx context.Context, c net.Conn, cfg Ping) (n int) {
	t := time.NewTicker(cfg.Interval)
	defer t.Stop()
	end := time.Now().Add(cfg.Duration)
	var b [HeaderLen]byte
	for time.Now().Before(end) && ctx.Err() == nil {
		Seal(b[:], Header{Seq: uint64(n), Time: time.Now().UnixNano()})
		_, _ = c.Write(b[:]) // ECONNREFUSED of an earlier one, ENOBUFS: seen as not received
		n++
		<-t.C
	}
	return n
}

// collect gathers echoes until the read deadline has passed.
func collect(c net.Conn, received *atomic.Int64) (rtts []time.Duration) {
	var b [HeaderLen]byte
	for {
		n, err := c.Read(b[:])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return rtts
		}
		if h, oerr := Open(b[:n]); err == nil && oerr == nil {
			rtts = append(rtts, time.Duration(time.Now().UnixNano()-h.Time))
			received.Add(1)
		}
	}
}

// Percentile gives the value below or at which p per cent of sorted lie; 0
// of nothing.
func Percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	// Rounded up, but for what p/100 is off the decimal number.
	i := int(math.Ceil(float64(len(sorted))*p/100 - 1e-9))
	return sorted[max(i, 1)-1]
}

// An Echo sends every datagram back.
type Echo struct {
	conn *net.UDPConn
	done chan struct{}
}

// ListenEcho echoes on an address with port; port 0 takes a free one.
func ListenEcho(addr string) (*Echo, error) {
	c, err := listenUDP(addr)
	if err != nil {
		return nil, err
	}
	e := &Echo{conn: c, done: make(chan struct{})}
	go e.run()
	return e, nil
}

// Addr is where it listens.
func (e *Echo) Addr() string { return e.conn.LocalAddr().String() }

func (e *Echo) run() {
	defer close(e.done)
	buf := make([]byte, 1<<16)
	for {
		n, from, err := e.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		_, _ = e.conn.WriteToUDPAddrPort(buf[:n], from)
	}
}

// Close closes the socket and waits for the echoing to end.
func (e *Echo) Close() {
	_ = e.conn.Close()
	<-e.done
}

// Reach sends small datagrams to an Echo until one comes back: addresses,
// routes and neighbours are then in place at both ends.
func Reach(ctx context.Context, to string) error {
	last := context.DeadlineExceeded
	for {
		p, err := SendPings(ctx, Ping{To: to, Interval: 20 * time.Millisecond, Duration: 20 * time.Millisecond})
		if p.Received > 0 {
			return nil
		}
		if err != nil {
			last = err // an IPv6 address that is still tentative
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("traffic: no answer from %s: %w", to, last)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
