package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrRunning says that another router holds the name.
var ErrRunning = errors.New("a router with this name is running")

// Listen makes the control socket of a name, mode 0660. A socket that nobody
// answers on any more is replaced.
func Listen(name string) (net.Listener, error) {
	if name == "" || name != filepath.Base(name) {
		return nil, fmt.Errorf("api: name %q: want a plain file name", name)
	}
	dir, err := makeDir()
	if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	path := filepath.Join(dir, name+".sock")
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, fmt.Errorf("%w: %s; give another --name", ErrRunning, name)
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("api: stale socket: %w", err)
		}
	}
	old := unix.Umask(0o117) // from its first moment the socket is 0660
	defer unix.Umask(old)
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	return l, nil
}

// lockDir keeps other routers from making sockets. Without it two that start
// at once could each take the other's socket for stale: nobody answers
// between bind and listen. Any user can hold that lock, but a router has it
// for no more than a moment: after a second it goes on without.
func lockDir(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			break
		}
	}
	return func() { d.Close() }, nil
}

// Serve answers on l until ctx ends, then closes it. It asks nothing of r
// after it has returned.
func Serve(ctx context.Context, l net.Listener, r Router) error {
	g := &gate{next: handler(r)}
	srv := &http.Server{Handler: g, ReadHeaderTimeout: 5 * time.Second, ConnContext: peer}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		grace, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if srv.Shutdown(grace) != nil {
			srv.Close()
		}
	})
	err := srv.Serve(l)
	early := stop() // it was not ctx that ended it
	if early {
		srv.Close()
	} else {
		<-ended // srv.Serve does not wait for srv.Shutdown
	}
	g.shut()
	if early {
		return fmt.Errorf("api: %w", err)
	}
	return nil
}

// A gate lets requests through until it is shut.
type gate struct {
	next http.Handler

	mu     sync.RWMutex // held for reading by each request
	closed bool         // guarded by mu
}

func (g *gate) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.closed {
		reply(w, http.StatusServiceUnavailable, failure{"the router is ending"})
		return
	}
	g.next.ServeHTTP(w, req)
}

// shut waits for the requests inside and lets no more in.
func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

type peerKey struct{}

// peer notes who is at the other end (SO_PEERCRED).
func peer(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return ctx
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			ctx = context.WithValue(ctx, peerKey{}, cred)
		}
	})
	return ctx
}

// A Change is the body of a request that changes something.
type Change struct {
	Dev      string   `json:"dev"`
	Queue    int      `json:"queue,omitempty"`
	Workers  []int    `json:"workers,omitempty"`
	Buckets  int      `json:"flow_table_cnt,omitempty"`
	Mode     string   `json:"mode,omitempty"`
	Len      int      `json:"txqlen,omitempty"`
	Queues   int      `json:"queues,omitempty"`
	How      string   `json:"steering,omitempty"`
	GRO      bool     `json:"gro,omitempty"`
	Key      string   `json:"key,omitempty"`
	Value    uint64   `json:"value,omitempty"`
	Child    int      `json:"child,omitempty"`
	Kind     string   `json:"kind,omitempty"`
	Children string   `json:"children,omitempty"` // the kind of mq's
	Options  []string `json:"options,omitempty"`  // of the kind, in tc's words
	// Period of a hop, or the backlog of a load, in ns.
	Period time.Duration `json:"period,omitempty"`
}

// handler has one path for each thing to show and each to change.
func handler(r Router) http.Handler {
	mux := http.NewServeMux()
	show := map[string]func() any{
		"status": func() any { return r.Status() },
		"links":  func() any { return r.Links() },
		"qdiscs": func() any { return r.Qdiscs() },
		"lines":  func() any { return r.Lines() },
		"xps":    func() any { return r.XPS() },
		"bql":    func() any { return r.BQL() },
		"fdb":    func() any { return r.FDB() },
		"routes": func() any { return r.Routes() },
		"neighs": func() any { return r.Neighs() },
		"drops":  func() any { return r.Drops() },
		"memory": func() any { return r.Memory() },
	}
	for name, get := range show {
		mux.HandleFunc("GET /v1/"+name, func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, get()) })
	}
	change := map[string]func(c Change) error{
		"xps":          func(c Change) error { return r.SetXPS(c.Dev, c.Queue, c.Workers) },
		"flow_table":   func(c Change) error { return r.SetFlowTable(c.Dev, c.Buckets, c.Mode) },
		"hop":          func(c Change) error { return r.SetHop(c.Dev, c.Period) },
		"load":         func(c Change) error { return r.SetLoad(c.Dev, c.Queue, c.Period) },
		"txqlen":       func(c Change) error { return r.SetTxQueueLen(c.Dev, c.Len) },
		"gro":          func(c Change) error { return r.SetGRO(c.Dev, c.GRO) },
		"gso":          func(c Change) error { return r.SetGSO(c.Dev) },
		"queues":       func(c Change) error { return r.SetQueues(c.Dev, c.Queues) },
		"steering":     func(c Change) error { return r.SetSteering(c.Dev, c.How) },
		"bql":          func(c Change) error { return r.SetBQL(c.Dev, c.Queue, c.Key, c.Value) },
		"qdisc":        func(c Change) error { return r.ReplaceQdisc(c.Dev, c.Child, c.Kind, c.Children, c.Options) },
		"qdisc_change": func(c Change) error { return r.ChangeQdisc(c.Dev, c.Child, c.Kind, c.Options) },
	}
	for name, set := range change {
		mux.HandleFunc("POST /v1/"+name, func(w http.ResponseWriter, req *http.Request) {
			var c Change
			d := json.NewDecoder(http.MaxBytesReader(w, req.Body, 1<<16))
			d.DisallowUnknownFields()
			if err := d.Decode(&c); err != nil {
				reply(w, http.StatusBadRequest, failure{err.Error()})
				return
			}
			if err := set(c); err != nil {
				reply(w, http.StatusConflict, failure{err.Error()})
				return
			}
			cred, _ := req.Context().Value(peerKey{}).(*unix.Ucred)
			if cred == nil {
				cred = &unix.Ucred{}
			}
			slog.Info("changed", "what", name, "dev", c.Dev, "uid", cred.Uid, "pid", cred.Pid)
			reply(w, http.StatusOK, struct{}{})
		})
	}
	return mux
}

type failure struct {
	Error string `json:"error"`
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the peer is gone: nobody to tell
}
