// Package peer (control plane) connects the sockets of socket ports to their
// peers and does so again when they are lost. It moves no frames: that is the
// workers', who get the sockets.
package peer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/control/config"
)

// A State is how far a port is with its peer.
type State string

const (
	Listening State = "listening" // for a peer to come
	Connected State = "connected"
	Down      State = "down" // and to be tried again
)

// A Port gets the sockets. Its methods are called by Run only.
type Port interface {
	// Connect takes over sockets to read from and to write to, which may be
	// one. They are non-blocking.
	Connect(rx, tx int) error
	// Disconnect closes them.
	Disconnect()
	// State is told what is to be seen, and why it is not Connected.
	State(s State, reason string)
}

// Delays between two connections. A peer that comes only to do wrong is kept
// waiting, as each connection costs the workers a pause.
const (
	firstDelay = 100 * time.Millisecond
	maxDelay   = 5 * time.Second
)

// A Peer is the other side of a socket port.
type Peer struct {
	conf   config.Socket
	sndbuf int // bytes of SO_SNDBUF, 0 = the system's
	source source
	lost   chan error
	delay  time.Duration
}

// A source gives connected sockets, one connection after the other.
type source interface {
	// next waits for the next connection until ctx ends.
	next(ctx context.Context) (rx, tx int, err error)
	// waits reports whether next waits for the peer to come.
	waits() bool
	close() error
}

// Open begins to listen, or takes the local address of datagrams, so that
// what is wrong with that is found at start. sndbuf is the send buffer of each
// connection in bytes, 0 for the system's.
func Open(conf config.Socket, sndbuf int) (*Peer, error) {
	p := &Peer{conf: conf, sndbuf: sndbuf, lost: make(chan error, 1), delay: firstDelay}
	var err error
	switch {
	case conf.Listen != "":
		p.source, err = listen(conf.Listen)
	case conf.Connect != "":
		p.source = dialer(conf.Connect)
	default:
		p.source, err = bindDgram(conf)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Close takes the addresses back. Run has returned.
func (p *Peer) Close() error { return p.source.close() }

// Lost is told why the port's connection is of no use any more, once for each
// connection. It does not block.
func (p *Peer) Lost(why error) {
	select {
	case p.lost <- why:
	default:
	}
}

// Run keeps port connected until ctx ends; the connection of then stays.
func (p *Peer) Run(ctx context.Context, port Port) {
	reason := ""
	for ctx.Err() == nil {
		if p.source.waits() {
			port.State(Listening, reason)
		}
		begun := time.Now()
		err := p.connect(ctx, port)
		if err == nil {
			begun = time.Now()
			port.State(Connected, "")
			select {
			case <-ctx.Done():
				return
			case err = <-p.lost:
			}
		}
		if ctx.Err() != nil {
			return
		}
		delay := p.next(time.Since(begun))
		reason = err.Error()
		port.State(Down, fmt.Sprintf("%s; again in %v", reason, delay))
		port.Disconnect()
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
}

// next gives the delay after a connection, or the failure to get one, that
// took a time: it doubles unless that was long.
func (p *Peer) next(took time.Duration) time.Duration {
	if took > maxDelay {
		p.delay = firstDelay
	}
	d := p.delay
	p.delay = min(2*d, maxDelay)
	return d
}

// connect gets a connection and gives it to the port.
func (p *Peer) connect(ctx context.Context, port Port) error {
	rx, tx, err := p.source.next(ctx)
	if err != nil {
		return err
	}
	if p.sndbuf > 0 {
		if err := unix.SetsockoptInt(tx, unix.SOL_SOCKET, unix.SO_SNDBUF, p.sndbuf); err != nil {
			return errors.Join(fmt.Errorf("send buffer of %d bytes: %w", p.sndbuf, err), closeBoth(rx, tx))
		}
	}
	return port.Connect(rx, tx)
}

func closeBoth(rx, tx int) error {
	err := unix.Close(rx)
	if tx != rx {
		err = errors.Join(err, unix.Close(tx))
	}
	return err
}
