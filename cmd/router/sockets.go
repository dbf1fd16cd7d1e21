package main

import (
	"errors"
	"fmt"

	"taprouter/control/peer"
	"taprouter/packet"
	"taprouter/tun"
)

// openSocket makes the queue of a socket port. It has no connection yet: the
// peer's Run gets it one.
func (p *hostPort) openSocket() (err error) {
	s := p.conf.Socket
	if s.Local != "" {
		if p.queue, err = tun.NewDgramQueue(); err != nil {
			return err
		}
	} else {
		p.queue = tun.NewStreamQueue()
	}
	p.link = linkState{Socket: peer.Down, MTU: p.conf.MTU}
	p.peer, err = peer.Open(s, p.conf.SndBuf)
	return err
}

// queues gives the queues of a port by index.
func (p *hostPort) queues() []*tun.Queue {
	if p.queue != nil {
		return []*tun.Queue{p.queue}
	}
	return p.device().Queues()
}

// close closes what of a port could be opened: its device, or its sockets.
func (p *hostPort) close() (err error) {
	if p.dev != nil {
		return p.dev.Close()
	}
	if p.peer != nil {
		err = p.peer.Close()
	}
	if p.queue != nil {
		err = errors.Join(err, p.queue.Close())
	}
	return err
}

// netdev gives the device of a port that has one.
func (p *hostPort) netdev() (*tun.Device, error) {
	if p.queue != nil {
		return nil, fmt.Errorf("%s is a socket port, which has one queue and no netdev", p.conf.Name)
	}
	return p.device(), nil
}

// A socketPort is what a peer.Peer does to a port.
type socketPort struct {
	r    *router
	port int
}

func (s *socketPort) Connect(rx, tx int) error { return s.r.dp.Connect(s.port, rx, tx) }

func (s *socketPort) Disconnect() { s.r.dp.Disconnect(s.port, packet.DropLinkDown) }

func (s *socketPort) State(state peer.State, reason string) {
	s.r.setState(s.port, linkState{Up: state == peer.Connected, Socket: state, Reason: reason, MTU: s.r.ports[s.port].conf.MTU})
}
