package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// RR says what SendRR does: request/response, as netperf's TCP_RR and UDP_RR.
type RR struct {
	To       string // address and port of an RRServer
	UDP      bool
	Size     int // bytes of a request and of its response, 0 = 1; with UDP 8 at least
	Conns    int // each with one transaction under way
	Duration time.Duration
}

// RRs are the transactions that were completed, and their round trips.
type RRs struct {
	Transactions uint64        `json:"transactions"`
	Lost         uint64        `json:"lost"` // UDP: no response within rrPatience
	Elapsed      time.Duration `json:"elapsed"`
	P50          time.Duration `json:"p50"`
	P99          time.Duration `json:"p99"`
	P999         time.Duration `json:"p999"`
}

// rrPatience is how long a response over UDP is waited for.
const rrPatience = 200 * time.Millisecond

// SendRR sends a request on each connection and waits for the response, again
// and again.
func SendRR(ctx context.Context, cfg RR) (RRs, error) {
	size, proto := max(cfg.Size, 1), "tcp"
	if cfg.UDP {
		proto = "udp"
	}
	if cfg.Conns < 1 || cfg.UDP && size < 8 {
		return RRs{}, fmt.Errorf("traffic: rr: impossible parameters %+v", cfg)
	}
	var wg sync.WaitGroup
	conns, errs := make([]*rrConn, cfg.Conns), make([]error, cfg.Conns)
	start := time.Now()
	end := start.Add(cfg.Duration)
	for i := range conns {
		s, err := dialBlocking(ctx, proto, cfg.To)
		if err != nil {
			return RRs{}, fmt.Errorf("traffic: rr: %w", err)
		}
		defer s.close()
		conns[i] = &rrConn{s: s, udp: cfg.UDP, out: make([]byte, size), in: make([]byte, size)}
	}
	for i, c := range conns {
		wg.Go(func() { errs[i] = c.run(ctx, end) })
	}
	wg.Wait()
	sum := RRs{Elapsed: time.Since(start)}
	var rtts []time.Duration
	for _, c := range conns {
		sum.Lost += c.lost
		rtts = append(rtts, c.rtts...)
	}
	slices.Sort(rtts)
	sum.Transactions = uint64(len(rtts))
	sum.P50, sum.P99, sum.P999 = Percentile(rtts, 50), Percentile(rtts, 99), Percentile(rtts, 99.9)
	if err := errors.Join(errs...); err != nil {
		return sum, fmt.Errorf("traffic: rr: %w", err)
	}
	return sum, ctx.Err()
}

func dialBlocking(ctx context.Context, proto, to string) (blocking, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, proto, to)
	if err != nil {
		return blocking{}, err
	}
	if proto == "udp" {
		return newBlocking(c.(*net.UDPConn), rrPatience)
	}
	return newBlocking(c.(*net.TCPConn), tcpGrace)
}

// An rrConn is one connection of a SendRR.
type rrConn struct {
	s       blocking
	udp     bool
	out, in []byte
	seq     uint64 // of the request, in its first bytes if it is long enough
	rtts    []time.Duration
	lost    uint64
}

func (c *rrConn) run(ctx context.Context, end time.Time) error {
	now := time.Now()
	for now.Before(end) && ctx.Err() == nil {
		c.seq++
		if len(c.out) >= 8 {
			binary.BigEndian.PutUint64(c.out, c.seq)
		}
		err := c.transact()
		then := now
		now = time.Now()
		switch {
		case err == nil:
			c.rtts = append(c.rtts, now.Sub(then))
		case c.udp:
			c.lost++
		default:
			return err
		}
	}
	return nil
}

func (c *rrConn) transact() error {
	if _, err := c.s.Write(c.out); err != nil {
		return err
	}
	if !c.udp {
		_, err := io.ReadFull(c.s, c.in)
		return err
	}
	for { // what is not the response to this request is a late one
		n, err := c.s.Read(c.in)
		if err != nil {
			return err
		}
		if n == len(c.out) && binary.BigEndian.Uint64(c.in) == c.seq {
			return nil
		}
	}
}

// An RRServer sends back what it gets, over TCP and over UDP.
type RRServer struct {
	l     net.Listener
	udp   blocking
	mu    sync.Mutex
	conns []blocking  // guarded by mu
	ended atomic.Bool // set with mu held
	wg    sync.WaitGroup
}

// rrCheck is how often a server that waits for datagrams looks whether it has ended.
const rrCheck = 50 * time.Millisecond

// ListenRR answers on an address with port, the same of TCP and UDP; port 0
// takes a free one.
func ListenRR(addr string) (*RRServer, error) {
	l, err := net.Listen(network("tcp", addr), addr)
	if err != nil {
		return nil, err
	}
	s := &RRServer{l: l}
	pc, err := net.ListenPacket(network("udp", l.Addr().String()), l.Addr().String())
	if err == nil {
		s.udp, err = newBlocking(pc.(*net.UDPConn), rrCheck)
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	s.wg.Go(s.accept)
	s.wg.Go(s.echo)
	return s, nil
}

// Addr is where it listens.
func (s *RRServer) Addr() string { return s.l.Addr().String() }

func (s *RRServer) accept() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		b, err := newBlocking(c.(*net.TCPConn), time.Hour)
		if err != nil {
			continue
		}
		s.mu.Lock()
		if s.ended.Load() {
			b.shut()
		}
		s.conns = append(s.conns, b)
		s.mu.Unlock()
		s.wg.Go(func() {
			var buf [1 << 16]byte
			for {
				n, err := b.Read(buf[:])
				if err == nil {
					_, err = b.Write(buf[:n])
				}
				if err != nil {
					return
				}
			}
		})
	}
}

// echo answers datagrams.
func (s *RRServer) echo() {
	var buf [1 << 16]byte
	for !s.ended.Load() {
		n, from, err := unix.Recvfrom(s.udp.fd, buf[:], 0)
		if err == nil {
			_ = unix.Sendto(s.udp.fd, buf[:n], 0, from)
		}
	}
}

// Close ends all connections.
func (s *RRServer) Close() {
	_ = s.l.Close()
	s.mu.Lock()
	s.ended.Store(true)
	for _, c := range s.conns {
		c.shut()
	}
	s.mu.Unlock()
	s.wg.Wait()
	for _, c := range append(s.conns, s.udp) {
		c.close()
	}
}
