package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// TCPSend says what SendTCP sends.
type TCPSend struct {
	To       string        // address and port of a TCPReceiver
	Flows    int           // connections
	Duration time.Duration // of sending
	Bytes    int64         // a connection ends after so many; 0: no such end
}

// TCPSent is what was sent, with the kernel's own counters (struct tcp_info).
type TCPSent struct {
	Bytes       uint64        `json:"bytes"`
	Segments    uint64        `json:"segments"` // with data, retransmitted ones included
	Retransmits uint64        `json:"retransmits"`
	ReordSeen   uint64        `json:"reord_seen"` // times that the sender saw its segments overtake each other
	DSACKDups   uint64        `json:"dsack_dups"` // retransmitted for nothing
	Elapsed     time.Duration `json:"elapsed"`
}

// tcpGrace is how long a connection may take to deliver what is buffered
// when its time is over.
const tcpGrace = 10 * time.Second

// SendTCP sends the pattern over each connection as fast as it goes, then
// waits until the receiver has everything.
func SendTCP(ctx context.Context, cfg TCPSend) (TCPSent, error) {
	if cfg.Flows < 1 {
		return TCPSent{}, fmt.Errorf("traffic: send tcp: impossible parameters %+v", cfg)
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, cfg.Duration+tcpGrace)
	defer cancel()
	var wg sync.WaitGroup
	results := make([]TCPSent, cfg.Flows)
	errs := make([]error, cfg.Flows)
	for i := range cfg.Flows {
		wg.Go(func() { results[i], errs[i] = sendConn(ctx, cfg, start.Add(cfg.Duration)) })
	}
	wg.Wait()
	sum := TCPSent{Elapsed: time.Since(start)}
	for _, r := range results {
		sum.Bytes += r.Bytes
		sum.Segments += r.Segments
		sum.Retransmits += r.Retransmits
		sum.ReordSeen += r.ReordSeen
		sum.DSACKDups += r.DSACKDups
	}
	if err := errors.Join(errs...); err != nil {
		return sum, fmt.Errorf("traffic: send tcp: %w", err)
	}
	return sum, nil
}

func sendConn(ctx context.Context, cfg TCPSend, end time.Time) (TCPSent, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", cfg.To)
	if err != nil {
		return TCPSent{}, err
	}
	c := nc.(*net.TCPConn)
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	n, err := pump(c, cfg.Bytes, end)
	if err == nil {
		err = finish(c)
	}
	s, ierr := info(c)
	s.Bytes = uint64(n)
	if err == nil {
		err = ierr
	}
	return s, err
}

// pump writes the pattern over and over until end or limit.
func pump(c *net.TCPConn, limit int64, end time.Time) (n int64, err error) {
	for time.Now().Before(end) && (limit == 0 || n < limit) {
		at := n % period
		b := pattern[at : at+period]
		if limit > 0 {
			b = b[:min(int64(len(b)), limit-n)]
		}
		var m int
		m, err = c.Write(b)
		n += int64(m)
		if err != nil {
			break
		}
	}
	return n, err
}

// finish says that this was all and waits for the other end to close, which
// it does when it has read everything.
func finish(c *net.TCPConn) error {
	if err := c.CloseWrite(); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, c)
	return err
}

func info(c *net.TCPConn) (TCPSent, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return TCPSent{}, err
	}
	var ti *unix.TCPInfo
	var gerr error
	if err := raw.Control(func(fd uintptr) {
		ti, gerr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); err != nil {
		return TCPSent{}, err
	}
	if gerr != nil {
		return TCPSent{}, gerr
	}
	return TCPSent{
		Segments: uint64(ti.Data_segs_out), Retransmits: uint64(ti.Total_retrans),
		ReordSeen: uint64(ti.Reord_seen), DSACKDups: uint64(ti.Dsack_dups),
	}, nil
}
