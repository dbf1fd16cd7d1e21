package traffic

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// RR says what SendRR does: TCP request/response, as netperf's TCP_RR.
type RR struct {
	To       string // address and port of an RRServer
	Conns    int    // each with one transaction under way
	Duration time.Duration
}

// RRs are the transactions that were completed.
type RRs struct {
	Transactions uint64        `json:"transactions"`
	Elapsed      time.Duration `json:"elapsed"`
}

// SendRR sends one byte on each connection and waits for one, again and again.
func SendRR(ctx context.Context, cfg RR) (RRs, error) {
	if cfg.Conns < 1 {
		return RRs{}, fmt.Errorf("traffic: rr: impossible parameters %+v", cfg)
	}
	var d net.Dialer
	var n atomic.Uint64
	var wg sync.WaitGroup
	errs := make(chan error, cfg.Conns)
	start := time.Now()
	end := start.Add(cfg.Duration)
	for range cfg.Conns {
		c, err := d.DialContext(ctx, "tcp", cfg.To)
		if err != nil {
			return RRs{}, fmt.Errorf("traffic: rr: %w", err)
		}
		defer c.Close()
		_ = c.SetDeadline(end.Add(tcpGrace))
		wg.Go(func() {
			var b [1]byte
			for time.Now().Before(end) && ctx.Err() == nil {
				if _, err := c.Write(b[:]); err != nil {
					errs <- err
					return
				}
				if _, err := io.ReadFull(c, b[:]); err != nil {
					errs <- err
					return
				}
				n.Add(1)
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return RRs{}, fmt.Errorf("traffic: rr: %w", err)
	default:
		return RRs{n.Load(), time.Since(start)}, ctx.Err()
	}
}

// An RRServer answers each byte with a byte.
type RRServer struct {
	l     net.Listener
	mu    sync.Mutex
	conns []net.Conn // guarded by mu
	ended bool       // guarded by mu
	wg    sync.WaitGroup
}

// ListenRR answers on an address with port; port 0 takes a free one.
func ListenRR(addr string) (*RRServer, error) {
	l, err := net.Listen(network("tcp", addr), addr)
	if err != nil {
		return nil, err
	}
	s := &RRServer{l: l}
	s.wg.Go(s.accept)
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
		s.mu.Lock()
		if s.ended {
			_ = c.Close()
		}
		s.conns = append(s.conns, c)
		s.mu.Unlock()
		s.wg.Go(func() { _, _ = io.Copy(c, struct{ io.Reader }{c}) })
	}
}

// Close ends all connections.
func (s *RRServer) Close() {
	_ = s.l.Close()
	s.mu.Lock()
	s.ended = true
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}
