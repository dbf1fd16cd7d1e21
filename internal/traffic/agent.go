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

// A request is one line to an agent; the reply, with the same ID, is one line
// back. Replies come when they are ready, in any order.
type request struct {
	ID  int             `json:"id"`
	Op  string          `json:"op"`
	Arg json.RawMessage `json:"arg,omitempty"`
}

type reply struct {
	ID     int    `json:"id"`
	Error  string `json:"error,omitempty"`
	Result any    `json:"result,omitempty"`
}

// The operations of an agent: what Remote's methods ask for.
const (
	opListen   = "listen"
	opProgress = "progress"
	opFinish   = "finish"
	opUDP      = "udp"
	opTCP      = "tcp"
	opPing     = "ping"
	opRR       = "rr"
	opFlood    = "flood"
	opReach    = "reach"
	opCounters = "counters"
)

// Kinds of receivers.
const (
	KindUDP     = "udp"
	KindTCP     = "tcp"
	KindDiscard = "discard"
	KindEcho    = "echo"
	KindRR      = "rr"
)

type listenArg struct{ Kind, Addr string }

type listenResult struct {
	Handle int
	Addr   string
}

type finishArg struct {
	Handle   int
	Sent     []uint64
	Patience time.Duration
}

type progressResult struct{ Packets, Bytes uint64 }

type reachArg struct {
	To      string
	Timeout time.Duration
}

// Received is what Finish reports: the fields of the receiver's kind.
type Received struct {
	UDP UDPReceived `json:"udp,omitzero"`
	TCP TCPReceived `json:"tcp,omitzero"`
}

// A Handler carries out one operation; its result is sent back as JSON.
type Handler func(ctx context.Context, arg json.RawMessage) (any, error)

// Handle makes a Handler of a function that takes its argument decoded.
func Handle[A, R any](f func(context.Context, A) (R, error)) Handler {
	return func(ctx context.Context, raw json.RawMessage) (any, error) {
		var arg A
		if err := json.Unmarshal(raw, &arg); err != nil {
			return nil, err
		}
		return f(ctx, arg)
	}
}

// Serve carries out the requests that it reads from in until its end, then
// stops what is still going on and returns. The agent process that a Remote
// talks to does nothing else. more are operations beside those of Remote's
// methods, asked for by Call.
func Serve(in io.Reader, out io.Writer, more map[string]Handler) error {
	ctx, cancel := context.WithCancel(context.Background())
	a := agent{enc: json.NewEncoder(out), receivers: map[int]any{}, more: more}
	var wg sync.WaitGroup
	defer a.close()
	defer wg.Wait()
	defer cancel()
	s := bufio.NewScanner(in)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		var r request
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			return fmt.Errorf("traffic: agent: %w", err)
		}
		wg.Go(func() {
			result, err := a.do(ctx, r)
			a.reply(r.ID, result, err)
		})
	}
	return s.Err()
}

type agent struct {
	more map[string]Handler

	mu        sync.Mutex
	enc       *json.Encoder // guarded by mu
	receivers map[int]any   // guarded by mu: *UDPReceiver, *TCPReceiver, *Echo or *RRServer
	handle    int           // guarded by mu: the last one given out
}

func (a *agent) reply(id int, result any, err error) {
	r := reply{ID: id, Result: result}
	if err != nil {
		r = reply{ID: id, Error: err.Error()}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	_ = a.enc.Encode(r) // nobody reads any more: stdin ends too
}

func (a *agent) close() {
	for _, r := range a.receivers {
		r.(interface{ Close() }).Close()
	}
}

func (a *agent) do(ctx context.Context, r request) (any, error) {
	switch r.Op {
	case opListen:
		return with(r, a.listen)
	case opProgress:
		return with(r, a.progress)
	case opFinish:
		return with(r, a.finish)
	case opUDP:
		return with(r, func(cfg UDPSend) (UDPSent, error) { return SendUDP(ctx, cfg) })
	case opTCP:
		return with(r, func(cfg TCPSend) (TCPSent, error) { return SendTCP(ctx, cfg) })
	case opPing:
		return with(r, func(cfg Ping) (Pings, error) { return SendPings(ctx, cfg) })
	case opRR:
		return with(r, func(cfg RR) (RRs, error) { return SendRR(ctx, cfg) })
	case opFlood:
		return with(r, func(cfg Flood) (Flooded, error) { return SendFlood(ctx, cfg) })
	case opReach:
		return with(r, func(arg reachArg) (any, error) {
			ctx, cancel := context.WithTimeout(ctx, arg.Timeout)
			defer cancel()
			return nil, Reach(ctx, arg.To)
		})
	case opCounters:
		return ReadCounters()
	}
	if f := a.more[r.Op]; f != nil {
		return f(ctx, r.Arg)
	}
	return nil, fmt.Errorf("traffic: agent: no operation %q", r.Op)
}

// with calls f with the request's argument.
func with[A, R any](r request, f func(A) (R, error)) (any, error) {
	var arg A
	if err := json.Unmarshal(r.Arg, &arg); err != nil {
		return nil, fmt.Errorf("traffic: agent: %s: %w", r.Op, err)
	}
	return f(arg)
}

func (a *agent) listen(arg listenArg) (listenResult, error) {
	var r interface{ Addr() string }
	var err error
	switch arg.Kind {
	case KindUDP:
		r, err = ListenUDP(arg.Addr)
	case KindTCP:
		r, err = ListenTCP(arg.Addr)
	case KindDiscard:
		r, err = ListenDiscard(arg.Addr)
	case KindEcho:
		r, err = ListenEcho(arg.Addr)
	case KindRR:
		r, err = ListenRR(arg.Addr)
	default:
		err = fmt.Errorf("traffic: agent: no kind of receiver %q", arg.Kind)
	}
	if err != nil {
		return listenResult{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handle++
	a.receivers[a.handle] = r
	return listenResult{Handle: a.handle, Addr: r.Addr()}, nil
}

var errHandle = errors.New("traffic: agent: no such receiver")

func (a *agent) progress(arg finishArg) (p progressResult, err error) {
	a.mu.Lock()
	r, ok := a.receivers[arg.Handle].(interface{ Progress() (uint64, uint64) })
	a.mu.Unlock()
	if !ok {
		return p, errHandle
	}
	p.Packets, p.Bytes = r.Progress()
	return p, nil
}

func (a *agent) finish(arg finishArg) (got Received, err error) {
	a.mu.Lock()
	r := a.receivers[arg.Handle]
	delete(a.receivers, arg.Handle)
	a.mu.Unlock()
	switch r := r.(type) {
	case *UDPReceiver:
		got.UDP = r.Finish(arg.Sent, arg.Patience)
	case *TCPReceiver:
		got.TCP = r.Finish()
	case *Echo:
		r.Close()
	case *RRServer:
		r.Close()
	default:
		err = errHandle
	}
	return got, err
}
