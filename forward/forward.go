// Package forward (data path) decides where each packet goes and rewrites it
// on the way: bridging (l2.go), routing (l3.go, output.go), ICMP errors
// (icmp.go), IPv4 fragmentation (fragment.go) and waiting for neighbours
// (park.go).
package forward

import (
	"net/netip"

	"taprouter/fib"
	"taprouter/offload"
	"taprouter/packet"
)

// NoIface is the index of no L3 interface.
const NoIface = 0xffff

// A Port is what forwarding knows of a port.
type Port struct {
	Name   string
	Up     bool
	Tun    bool // frames have no Ethernet header
	MTU    int  // bytes of network packet
	Bridge int  // index of its bridge, -1 if none
	Routed bool // it is the L3 interface with its own index
}

// A Bridge forwards between its ports by MAC address.
type Bridge struct {
	Name  string
	Ports []uint16
	FDB   *fib.FDB
	Iface uint16 // its L3 interface if it has router addresses, else NoIface
}

// An Iface is an L3 interface: a routed port, or a bridge with addresses.
type Iface struct {
	Name   string
	Port   uint16 // NoPort for a bridge
	Bridge int    // -1 for a port
	Tun    bool
	MAC    uint64
	MTU    int
	Addrs  []netip.Prefix // ours, with the prefix of the link; link-local included
}

// A Snapshot is all that forwarding goes by. It is immutable; workers load it
// once a batch. Interface i < len(Ports) is port i, the others are bridges.
// Port and bridge numbers in it must exist. Every address of ours needs a
// Local route, but link-local ones, which count on their own interface only.
type Snapshot struct {
	Ports   []Port
	Bridges []Bridge
	Ifaces  []Iface
	Routes  *fib.Table
	Neigh   *fib.Neighbours
}

// ifaceOf gives the L3 interface of what comes in by a port; NoIface if there
// is none.
func (s *Snapshot) ifaceOf(port uint16) uint16 {
	if int(port) >= len(s.Ports) {
		return NoIface
	}
	i := port
	if b := s.Ports[port].Bridge; uint(b) < uint(len(s.Bridges)) {
		i = s.Bridges[b].Iface
	}
	if int(i) >= len(s.Ifaces) {
		return NoIface
	}
	return i
}

// IsRaw reports whether frames of this L3 interface have no Ethernet header.
func (s *Snapshot) IsRaw(iface uint16) bool { return int(iface) < len(s.Ifaces) && s.Ifaces[iface].Tun }

// A Resolve asks for the MAC address of a neighbour.
type Resolve struct {
	Iface uint16
	Addr  netip.Addr
}

// An Output is what became of a batch.
type Output struct {
	Tx    packet.List // Out is set and the frame is complete
	Drops packet.List // Drop is set
	Punts packet.List // for the router itself; Out is the L3 interface

	Resolves int // requests for neighbours in Resolve; more than fit are asked for again later
	Resolve  [32]Resolve
}

func (o *Output) drop(p *packet.Packet, why packet.Reason) {
	p.Drop = why
	o.Drops.Push(p)
}

// resolve notes a request; false if there is no room for it.
func (o *Output) resolve(iface uint16, addr netip.Addr) bool {
	if o.Resolves == len(o.Resolve) {
		return false
	}
	o.Resolve[o.Resolves] = Resolve{iface, addr}
	o.Resolves++
	return true
}

// A Forwarder is one worker's forwarding: what it keeps between batches. It
// is not safe for concurrent use.
type Forwarder struct {
	cache *packet.Cache
	limit limiter
	park  park
	seg   offload.Segmenter

	// Created counts wire packets that forwarding made: flood copies,
	// fragments beyond the first, ICMP errors. So
	// received + injected + Created = Tx + Drops + Punts + Parked.
	Created uint64
	// NoBuffer counts the copies and errors that were not made because the
	// pool was empty. They are in no list and not in Created.
	NoBuffer uint64

	snap *Snapshot  // of hop and near
	hop  hop        // the last route looked up
	near *fib.Neigh // the last neighbour found
}

// New makes a Forwarder that takes its packets from cache.
func New(cache *packet.Cache) *Forwarder { return &Forwarder{cache: cache} }

// Forward decides every packet of pkts, which classify has seen, and takes
// ownership of all. out is added to, in the order of pkts.
func (f *Forwarder) Forward(s *Snapshot, pkts []*packet.Packet, now int64, out *Output) {
	f.use(s)
	if f.park.used > 0 && now-f.park.looked >= askAgain {
		f.Retry(s, now, out)
	}
	var l2 l2Memory
	for _, p := range pkts {
		switch {
		case p.Drop != 0:
			out.Drops.Push(p)
		case int(p.In) >= len(s.Ports):
			out.drop(p, packet.DropLinkDown)
		case uint(s.Ports[p.In].Bridge) < uint(len(s.Bridges)):
			f.bridge(s, p, now, out, &l2)
		case s.Ports[p.In].Routed && int(p.In) < len(s.Ifaces):
			f.routed(s, p, now, out)
		default: // a port that is in no bridge and has no address
			out.drop(p, packet.DropNotForUs)
		}
	}
}

// use makes s the snapshot that what f remembers belongs to.
func (f *Forwarder) use(s *Snapshot) {
	if f.snap != s {
		f.snap, f.hop, f.near = s, hop{}, nil
	}
}

// clone copies p for one more way out; nil if there is no buffer.
func (f *Forwarder) clone(p *packet.Packet) *packet.Packet {
	q := f.cache.Clone(p)
	if q == nil {
		f.NoBuffer += uint64(p.Segs)
		return nil
	}
	f.Created += uint64(q.Segs)
	return q
}

// Inject sends a frame of the router's own out of an L3 interface: complete
// with its Ethernet header, or without one on a TUN.
func (f *Forwarder) Inject(s *Snapshot, iface uint16, p *packet.Packet, now int64, out *Output) {
	f.use(s)
	switch {
	case p.Drop != 0:
		out.Drops.Push(p)
	case int(iface) >= len(s.Ifaces):
		out.drop(p, packet.DropLinkDown)
	case s.Ifaces[iface].Tun != (p.Flags&packet.Raw != 0):
		out.drop(p, packet.DropTxInval)
	case p.Flags&packet.Raw == 0 && p.HeadLength() < 14:
		out.drop(p, packet.DropTruncated)
	default:
		f.emit(s, &s.Ifaces[iface], p, out)
	}
}

// emit gives a complete frame to the port or bridge behind an interface.
func (f *Forwarder) emit(s *Snapshot, i *Iface, p *packet.Packet, out *Output) {
	if i.Bridge < 0 {
		f.send(s, i.Port, p, out)
		return
	}
	br := &s.Bridges[i.Bridge]
	dst := fib.MAC(p.Bytes())
	if port, ok := s.lookup(br, i.Bridge, dst); ok {
		f.send(s, port, p, out)
		return
	}
	f.flood(s, br, packet.NoPort, p, out)
}

// Purge drops everything that waits.
func (f *Forwarder) Purge(out *Output, why packet.Reason) { f.park.purge(out, why) }

// Parked counts the wire packets that wait for neighbours.
func (f *Forwarder) Parked() int { return f.park.segs }
