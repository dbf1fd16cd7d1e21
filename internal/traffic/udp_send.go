package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// UDPSend says what SendUDP sends.
type UDPSend struct {
	To       string        // address and port of a UDPReceiver
	Flows    int           // sockets, each a flow of its own
	PPS      int           // datagrams a second, all flows together
	MaxPPS   int           // go up to this while the sender keeps up; 0: PPS is fixed
	Size     int           // payload in bytes, HeaderLen to MaxDatagram
	Burst    int           // datagrams of a flow in a row; 0: 4
	Duration time.Duration // the end, whatever was sent
	Count    int           // the end after so many datagrams; 0: no such end
}

// UDPSent is what was sent.
type UDPSent struct {
	Flows   []uint64      `json:"flows"` // datagrams by flow, numbered from 0
	Packets uint64        `json:"packets"`
	Errors  uint64        `json:"errors"` // refused by our own kernel; not counted as sent
	Elapsed time.Duration `json:"elapsed"`
	PPS     float64       `json:"pps"` // the rate that was reached
}

// tick is how often the pacer looks what is due.
const tick = time.Millisecond

// SendUDP sends numbered datagrams until the duration or the count is over
// or ctx is done.
func SendUDP(ctx context.Context, cfg UDPSend) (UDPSent, error) {
	if cfg.Flows < 1 || cfg.PPS < 1 || cfg.Size < HeaderLen || cfg.Size > MaxDatagram {
		return UDPSent{}, fmt.Errorf("traffic: send udp: impossible parameters %+v", cfg)
	}
	s := udpSender{cfg: cfg, buf: make([]byte, cfg.Size), sent: UDPSent{Flows: make([]uint64, cfg.Flows)}}
	copy(s.buf[HeaderLen:], pattern)
	defer s.close()
	for range cfg.Flows {
		c, err := net.Dial("udp", cfg.To)
		if err != nil {
			return UDPSent{}, fmt.Errorf("traffic: send udp: %w", err)
		}
		s.conns = append(s.conns, c.(*net.UDPConn))
	}
	err := s.run(ctx)
	return s.sent, err
}

type udpSender struct {
	cfg   UDPSend
	conns []*net.UDPConn
	buf   []byte
	flow  int // whose turn it is
	sent  UDPSent
}

func (s *udpSender) close() {
	for _, c := range s.conns {
		_ = c.Close()
	}
}

// run is the pacer: each tick sends what is due. A sender that cannot keep up
// does not make up for it later, which would be a burst.
func (s *udpSender) run(ctx context.Context) error {
	p := newPacer(s.cfg.PPS, s.cfg.MaxPPS)
	t := time.NewTicker(tick)
	defer t.Stop()
	start := time.Now()
	for ctx.Err() == nil {
		now := time.Since(start)
		if now >= s.cfg.Duration {
			break
		}
		n := p.due(now)
		if s.cfg.Count > 0 {
			n = min(n, s.cfg.Count-int(s.sent.Packets))
		}
		if err := s.send(n); err != nil {
			return err
		}
		if s.cfg.Count > 0 && int(s.sent.Packets+s.sent.Errors) >= s.cfg.Count {
			break
		}
		<-t.C
	}
	s.sent.Elapsed = time.Since(start)
	s.sent.PPS = float64(s.sent.Packets) / s.sent.Elapsed.Seconds()
	return nil
}

// send sends n datagrams, flow by flow in short bursts.
func (s *udpSender) send(n int) error {
	burst := s.cfg.Burst
	if burst == 0 {
		burst = 4
	}
	for n > 0 {
		for range min(burst, n) {
			if err := s.one(s.flow); err != nil {
				return err
			}
		}
		n -= burst
		s.flow = (s.flow + 1) % len(s.conns)
	}
	return nil
}

func (s *udpSender) one(flow int) error {
	Seal(s.buf, Header{Flow: uint32(flow), Seq: s.sent.Flows[flow], Time: time.Now().UnixNano()})
	_, err := s.conns[flow].Write(s.buf)
	switch {
	case err == nil:
		s.sent.Flows[flow]++
		s.sent.Packets++
	case errors.Is(err, syscall.ENOBUFS), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrDeadlineExceeded):
		s.sent.Errors++
	default:
		return fmt.Errorf("traffic: send udp: %w", err)
	}
	return nil
}

// A pacer says how many datagrams are due. It starts at a rate and, while the
// sender keeps up, goes up to another one in small steps; where the sender
// falls behind it goes back.
type pacer struct {
	min, max, rate float64 // datagrams a second
	last, step     time.Duration
	credit         float64
	behind         bool // since the last step
}

const (
	pacerStep = 50 * time.Millisecond
	pacerLag  = 5 * time.Millisecond // at most so much is made up for
)

func newPacer(lo, hi int) pacer {
	return pacer{min: float64(lo), max: float64(max(lo, hi)), rate: float64(lo)}
}

// due gives the number of datagrams to be sent at now, the time since start.
func (p *pacer) due(now time.Duration) int {
	d := now - p.last
	p.last = now
	if d > pacerLag {
		d, p.behind = pacerLag, true
	}
	if now-p.step >= pacerStep {
		if p.behind {
			p.rate = max(p.min, p.rate*0.8)
		} else {
			p.rate = min(p.max, p.rate*1.1)
		}
		p.step, p.behind = now, false
	}
	p.credit += p.rate * d.Seconds()
	n := int(p.credit)
	p.credit -= float64(n)
	return n
}
