package traffic

import (
	"bytes"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// TCPReceived is what a TCPReceiver saw.
type TCPReceived struct {
	Bytes   uint64        `json:"bytes"`
	Conns   int           `json:"conns"`
	Corrupt uint64        `json:"corrupt"` // reads that differ from what was sent
	Elapsed time.Duration `json:"elapsed"` // first to last byte
}

// A TCPReceiver takes the connections of a SendTCP and checks every byte, unless
// it is to discard them. Its
// methods may be called by any goroutine; Finish once.
type TCPReceiver struct {
	l       net.Listener
	discard bool           // check nothing
	wg      sync.WaitGroup // the acceptor and the readers

	bytes, corrupt atomic.Uint64

	mu          sync.Mutex
	conns       []net.Conn // guarded by mu
	closed      bool       // guarded by mu
	first, last time.Time  // guarded by mu
}

// ListenTCP listens on an address with port; port 0 takes a free one.
func ListenTCP(addr string) (*TCPReceiver, error) { return listenTCP(addr, false) }

// ListenDiscard is ListenTCP without the checks, which are a tenth of what the
// hosts have to do, for who measures how fast it goes.
func ListenDiscard(addr string) (*TCPReceiver, error) { return listenTCP(addr, true) }

func listenTCP(addr string, discard bool) (*TCPReceiver, error) {
	l, err := net.Listen(network("tcp", addr), addr)
	if err != nil {
		return nil, fmt.Errorf("traffic: listen tcp: %w", err)
	}
	r := &TCPReceiver{l: l, discard: discard}
	r.wg.Go(r.accept)
	return r, nil
}

// Addr is where it listens.
func (r *TCPReceiver) Addr() string { return r.l.Addr().String() }

// Progress gives the bytes so far; the first result is always 0, a stream
// has no packets.
func (r *TCPReceiver) Progress() (packets, bytes uint64) { return 0, r.bytes.Load() }

func (r *TCPReceiver) accept() {
	for {
		c, err := r.l.Accept()
		if err != nil {
			return // closed
		}
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			_ = c.Close()
			return
		}
		r.conns = append(r.conns, c)
		r.wg.Go(func() { r.read(c) })
		r.mu.Unlock()
	}
}

// read takes a connection to its end and closes it, which tells the sender
// that everything has come.
func (r *TCPReceiver) read(c net.Conn) {
	defer c.Close()
	buf := make([]byte, period)
	at := 0 // in the pattern
	var first, last time.Time
	for {
		n, err := c.Read(buf)
		if n > 0 {
			last = time.Now()
			if first.IsZero() {
				first = last
			}
			if !r.discard && !bytes.Equal(buf[:n], pattern[at:at+n]) {
				r.corrupt.Add(1)
			}
			at = (at + n) % period
			r.bytes.Add(uint64(n))
		}
		if err != nil {
			break
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.first.IsZero() || !first.IsZero() && first.Before(r.first) {
		r.first = first
	}
	if last.After(r.last) {
		r.last = last
	}
}

// Finish ends the receiver and adds up. SendTCP has returned, so everything
// that was sent is here; what is still open is cut off.
func (r *TCPReceiver) Finish() TCPReceived {
	r.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	return TCPReceived{
		Bytes: r.bytes.Load(), Conns: len(r.conns), Corrupt: r.corrupt.Load(),
		Elapsed: r.last.Sub(r.first),
	}
}

// Close ends the receiver and waits for its goroutines.
func (r *TCPReceiver) Close() {
	_ = r.l.Close()
	r.mu.Lock()
	r.closed = true
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}
