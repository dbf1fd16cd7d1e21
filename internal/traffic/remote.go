package traffic

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// ErrAgentGone is what calls give when the agent has ended.
var ErrAgentGone = errors.New("traffic: the agent has ended")

// A Remote is the other side of an agent's stdin and stdout. Its methods may
// be called by any goroutine.
type Remote struct {
	mu      sync.Mutex
	in      io.WriteCloser             // guarded by mu
	pending map[int]chan<- remoteReply // guarded by mu; nil when the agent has gone
	id      int                        // guarded by mu: the last one used

	done chan struct{} // closed when the reader has gone
}

type remoteReply struct {
	ID     int
	Error  string
	Result json.RawMessage
}

// NewRemote talks to an agent that reads in and writes out.
func NewRemote(in io.WriteCloser, out io.Reader) *Remote {
	r := &Remote{in: in, pending: map[int]chan<- remoteReply{}, done: make(chan struct{})}
	go r.read(out)
	return r
}

// Close ends the agent by closing its stdin and waits until it has closed its
// stdout.
func (r *Remote) Close() {
	r.mu.Lock()
	_ = r.in.Close()
	r.mu.Unlock()
	<-r.done
}

func (r *Remote) read(out io.Reader) {
	defer close(r.done)
	s := bufio.NewScanner(out)
	s.Buffer(nil, 4<<20)
	for s.Scan() {
		var a remoteReply
		if json.Unmarshal(s.Bytes(), &a) != nil {
			continue // not ours: a line that somebody else wrote to stdout
		}
		r.mu.Lock()
		if c := r.pending[a.ID]; c != nil {
			c <- a // there is room for one
			delete(r.pending, a.ID)
		}
		r.mu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.pending {
		close(c)
	}
	r.pending = nil
}

// Call asks for an operation and waits for its result, decoded into result
// unless that is nil. The other methods are calls of the agent's own ones.
func (r *Remote) Call(ctx context.Context, op string, arg, result any) error {
	b, err := json.Marshal(arg)
	if err != nil {
		return fmt.Errorf("traffic: %s: %w", op, err)
	}
	c, id, err := r.send(op, b)
	if err != nil {
		return err
	}
	select {
	case a, ok := <-c:
		switch {
		case !ok:
			return ErrAgentGone
		case a.Error != "":
			return errors.New(a.Error)
		case result == nil:
			return nil
		}
		return json.Unmarshal(a.Result, result)
	case <-ctx.Done():
		r.mu.Lock()
		delete(r.pending, id)
		r.mu.Unlock()
		return ctx.Err()
	}
}

func (r *Remote) send(op string, arg json.RawMessage) (<-chan remoteReply, int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending == nil {
		return nil, 0, ErrAgentGone
	}
	r.id++
	line, err := json.Marshal(request{ID: r.id, Op: op, Arg: arg})
	if err != nil {
		return nil, 0, err
	}
	c := make(chan remoteReply, 1)
	r.pending[r.id] = c
	if _, err := r.in.Write(append(line, '\n')); err != nil {
		delete(r.pending, r.id)
		return nil, 0, ErrAgentGone
	}
	return c, r.id, nil
}

// A Receiver is a UDPReceiver, TCPReceiver, Echo or RRServer in the agent.
type Receiver struct {
	r      *Remote
	handle int
	Addr   string // where it listens
}

// Listen starts a receiver of a kind on an address with port.
func (r *Remote) Listen(ctx context.Context, kind, addr string) (*Receiver, error) {
	var got listenResult
	if err := r.Call(ctx, opListen, listenArg{Kind: kind, Addr: addr}, &got); err != nil {
		return nil, err
	}
	return &Receiver{r: r, handle: got.Handle, Addr: got.Addr}, nil
}

// Progress gives the datagrams and bytes so far.
func (v *Receiver) Progress(ctx context.Context) (packets, bytes uint64, err error) {
	var p progressResult
	err = v.r.Call(ctx, opProgress, finishArg{Handle: v.handle}, &p)
	return p.Packets, p.Bytes, err
}

// Finish ends the receiver; sent and patience are UDPReceiver.Finish's.
func (v *Receiver) Finish(ctx context.Context, sent []uint64, patience time.Duration) (got Received, err error) {
	err = v.r.Call(ctx, opFinish, finishArg{Handle: v.handle, Sent: sent, Patience: patience}, &got)
	return got, err
}

// SendUDP is the function of the same name, in the agent.
func (r *Remote) SendUDP(ctx context.Context, cfg UDPSend) (s UDPSent, err error) {
	err = r.Call(ctx, opUDP, cfg, &s)
	return s, err
}

// SendTCP is the function of the same name, in the agent.
func (r *Remote) SendTCP(ctx context.Context, cfg TCPSend) (s TCPSent, err error) {
	err = r.Call(ctx, opTCP, cfg, &s)
	return s, err
}

// SendPings is the function of the same name, in the agent.
func (r *Remote) SendPings(ctx context.Context, cfg Ping) (p Pings, err error) {
	err = r.Call(ctx, opPing, cfg, &p)
	return p, err
}

// SendRR is the function of the same name, in the agent.
func (r *Remote) SendRR(ctx context.Context, cfg RR) (s RRs, err error) {
	err = r.Call(ctx, opRR, cfg, &s)
	return s, err
}

// SendFlood is the function of the same name, in the agent.
func (r *Remote) SendFlood(ctx context.Context, cfg Flood) (f Flooded, err error) {
	err = r.Call(ctx, opFlood, cfg, &f)
	return f, err
}

// Reach is the function of the same name, in the agent.
func (r *Remote) Reach(ctx context.Context, to string, timeout time.Duration) error {
	return r.Call(ctx, opReach, reachArg{To: to, Timeout: timeout}, nil)
}

// Counters is ReadCounters in the agent's namespace.
func (r *Remote) Counters(ctx context.Context) (c Counters, err error) {
	err = r.Call(ctx, opCounters, nil, &c)
	return c, err
}
