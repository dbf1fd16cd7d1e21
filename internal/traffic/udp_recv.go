package traffic

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// maxFlows bounds what a datagram can make a receiver allocate.
const maxFlows = 4096

// UDPReceived is what a UDPReceiver saw, in datagrams.
type UDPReceived struct {
	Packets    uint64        `json:"packets"` // each once
	Bytes      uint64        `json:"bytes"`   // payload, UDP headers not included
	Lost       uint64        `json:"lost"`
	Reordered  uint64        `json:"reordered"` // a lower number than one seen before, per flow
	Duplicates uint64        `json:"duplicates"`
	Corrupt    uint64        `json:"corrupt"` // wrong length or hash
	Flows      int           `json:"flows"`   // that sent anything
	Elapsed    time.Duration `json:"elapsed"` // first to last datagram
	DelayMax   time.Duration `json:"delay_max"`
}

// A UDPReceiver counts the datagrams of a SendUDP. Its methods may be called
// by any goroutine; Finish once.
type UDPReceiver struct {
	conn *net.UDPConn
	done chan struct{} // closed when the reader has gone

	packets, bytes atomic.Uint64 // progress, written by the reader only

	// The reader's until done is closed.
	flows       map[uint32]*Tracker
	first, last time.Time
	corrupt     uint64
	delayMax    time.Duration
}

// ListenUDP receives on an address with port; port 0 takes a free one.
func ListenUDP(addr string) (*UDPReceiver, error) {
	c, err := listenUDP(addr)
	if err != nil {
		return nil, err
	}
	r := &UDPReceiver{conn: c, done: make(chan struct{}), flows: map[uint32]*Tracker{}}
	go r.run()
	return r, nil
}

// socketBuffer is the receive buffer of our sockets, in bytes: enough for a
// reader that does not get a CPU for some 100 ms.
const socketBuffer = 16 << 20

func listenUDP(addr string) (*net.UDPConn, error) {
	pc, err := net.ListenPacket(network("udp", addr), addr)
	if err != nil {
		return nil, fmt.Errorf("traffic: listen udp: %w", err)
	}
	c := pc.(*net.UDPConn)
	raw, err := c.SyscallConn()
	if err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("traffic: listen udp: %w", err)
	}
	_ = raw.Control(func(fd uintptr) { // FORCE needs CAP_NET_ADMIN; without it rmem_max is the bound
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer)
		}
	})
	return c, nil
}

// Addr is where it listens.
func (r *UDPReceiver) Addr() string { return r.conn.LocalAddr().String() }

// Progress gives the datagrams and bytes so far.
func (r *UDPReceiver) Progress() (packets, bytes uint64) { return r.packets.Load(), r.bytes.Load() }

func (r *UDPReceiver) run() {
	defer close(r.done)
	buf := make([]byte, 1<<16)
	for {
		n, _, err := r.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return // closed
		}
		r.take(buf[:n], time.Now())
	}
}

func (r *UDPReceiver) take(b []byte, now time.Time) {
	h, err := Open(b)
	if errors.Is(err, ErrCorrupt) {
		r.corrupt++
		return
	}
	t := r.flows[h.Flow]
	if err != nil || t == nil && len(r.flows) == maxFlows {
		return
	}
	if t == nil {
		t = new(Tracker)
		r.flows[h.Flow] = t
	}
	if r.first.IsZero() {
		r.first = now
	}
	r.last = now
	r.delayMax = max(r.delayMax, time.Duration(now.UnixNano()-h.Time))
	t.Add(h.Seq)
	r.packets.Add(1)
	r.bytes.Add(uint64(len(b)))
}

// Finish waits until everything that was sent has come, or nothing came for
// the time of patience, closes the socket and adds up. sent is UDPSent.Flows.
func (r *UDPReceiver) Finish(sent []uint64, patience time.Duration) UDPReceived {
	var total uint64
	for _, n := range sent {
		total += n
	}
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	seen, at := r.packets.Load(), time.Now()
	for seen < total && time.Since(at) < patience {
		<-t.C
		if n := r.packets.Load(); n != seen {
			seen, at = n, time.Now()
		}
	}
	r.Close()
	return r.add(sent)
}

// add makes the sum; the reader has gone.
func (r *UDPReceiver) add(sent []uint64) UDPReceived {
	s := UDPReceived{
		Bytes: r.bytes.Load(), Corrupt: r.corrupt, Flows: len(r.flows),
		Elapsed: r.last.Sub(r.first), DelayMax: r.delayMax,
	}
	for _, t := range r.flows {
		s.Packets += t.Unique()
		s.Reordered += t.Reordered
		s.Duplicates += t.Duplicates
	}
	for i, n := range sent {
		if t := r.flows[uint32(i)]; t != nil {
			n -= min(n, t.Unique())
		}
		s.Lost += n
	}
	return s
}

// Close closes the socket and waits for the reader.
func (r *UDPReceiver) Close() {
	_ = r.conn.Close()
	<-r.done
}
