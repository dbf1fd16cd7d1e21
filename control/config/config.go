// Package config (control plane) implements the configuration file: reading,
// checking and filling in defaults. A file is taken as a whole or refused as a
// whole, and a refusal names every fault with file, line and column and says
// what would be right.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"taprouter/qdisc"
)

// A Config is a checked configuration with every default filled in. Nothing
// in it is shared with anything else; treat it as immutable.
type Config struct {
	Workers  int           // 1..MaxWorkers
	IO       string        // how batches of system calls are made: IOAuto, IOUring or IOReadv
	Coalesce time.Duration // longest time for which workers let frames gather, 0..MaxCoalesce
	BusyPoll time.Duration // longest time for which workers look for frames before they sleep, 0..MaxBusyPoll
	Balance  bool          // a worker without work reads a queue of one with too much
	Pool     int64         // bytes of packet memory
	Huge     string        // HugeAuto, HugeOn or HugeOff: whether that lies in huge pages
	Ports    []Port
	Bridges  []Bridge
	Routes   []Route
	Warnings []string // "file:line:col: …": accepted, but hardly meant so
}

// Limits and defaults that others need to know.
const (
	MaxWorkers        = 256
	MaxQueues         = 256 // MAX_TAP_QUEUES
	MinMTU            = 68  // RFC 791
	MaxMTU            = 65521
	DefaultMTU        = 1500
	DefaultTxQueueLen = 1000
	// DefaultHostTxQueueLen is more than the kernel's 1000, as batches are read
	// ahead of being written: TCP without offloads lost 20000 frames a GB there.
	// Longer rings, once full, no longer fit a cache and are read more slowly.
	DefaultHostTxQueueLen = 3000
	DefaultFlowTable      = 4096
	DefaultPool           = 128 << 20
	DefaultCoalesce       = 150 * time.Microsecond
	MaxCoalesce           = time.Millisecond      // as the data path's
	DefaultBusyPoll       = 50 * time.Microsecond // as net.core.busy_poll's documentation has it
	MaxBusyPoll           = time.Millisecond      // as the data path's
	DefaultAgeingTime     = 300 * time.Second
	DefaultFDBMax         = 4096
)

// Ranges and defaults of a line; the data path has the same.
const (
	MinLineRate      = 8_000           // bit/s
	MaxLineRate      = 400_000_000_000 // bit/s
	MaxLineRing      = 1 << 15
	DefaultLineRing  = 256
	MaxLineDelay     = 10 * time.Second
	MaxLineOverhead  = 256 // bytes
	EthernetOverhead = 24  // bytes: preamble, FCS and gap
)

// Kinds of ports, backends, flow table modes, kinds of pages, steerings, qdiscs and routes, as the file spells them.
const (
	TAP        = "tap"
	TUN        = "tun"
	SocketType = "socket"

	Native    = "native"
	Water     = "water"
	Wireguard = "wireguard"

	Inflight = "inflight"
	DQL      = "dql"

	IOAuto  = "auto"
	IOUring = "uring"
	IOReadv = "readv"

	HugeAuto = "auto"
	HugeOn   = "on"
	HugeOff  = "off"

	SteerKernel = "kernel"
	SteerRandom = "random"
	SteerHash   = "hash"
	SteerQueue  = "queue"

	MQ        = "mq"
	PfifoFast = "pfifo_fast"
	FQ        = "fq"

	Unicast     = "unicast"
	Blackhole   = "blackhole"
	Unreachable = "unreachable"
)

// A Port is one TUN or TAP device, or a socket.
type Port struct {
	Name       string // of the netdev
	Type       string // TAP, TUN or SocketType
	Socket     Socket // of a SocketType
	Backend    string // what reads and writes the device: Native, Water or Wireguard
	Queues     int
	NetNS      string // the netdev goes there; empty: it stays where we are
	Create     bool   // make NetNS if it is missing
	Persist    bool   // the netdev outlives us
	MTU        int
	TxQueueLen int // packets of one band of one queue's ring
	MAC        MAC // our own on the port; zero for a TUN
	Addresses  []netip.Prefix
	Host       Host
	VnetHdr    bool
	Accept     Accept
	GRO        bool // merge what the port reads
	SndBuf     int  // bytes of TUNSETSNDBUF, 0 = unlimited; of a socket's SO_SNDBUF, 0 = the system's
	NAPI       bool
	// Backpressure asks that the kernel stop its senders when it holds
	// TxQueueLen frames for us, where it else drops: IFF_BACKPRESSURE.
	Backpressure bool
	Qdisc        Qdisc
	Line         Line
	XPS          XPS
	Steering     string // how the kernel chooses the queue towards us: SteerKernel, SteerRandom, SteerHash or SteerQueue

	Bridge string // the bridge that lists this port, if any
}

// A Socket is how a port reaches the process that is its other side. An
// address is an absolute path, or host:port on the loopback; those of
// datagrams are paths. A stream has Listen or Connect, datagrams have Local
// and Remote.
type Socket struct{ Listen, Connect, Local, Remote string }

// String writes s as it is configured.
func (s Socket) String() string {
	switch {
	case s.Listen != "":
		return "stream listen " + s.Listen
	case s.Connect != "":
		return "stream connect " + s.Connect
	case s.Local != "":
		return "dgram local " + s.Local + " remote " + s.Remote
	}
	return ""
}

// A Host is the kernel's side of a port.
type Host struct {
	Addresses []netip.Prefix
	Routes    []HostRoute
	MAC       MAC    // zero: the kernel makes one up
	Bridge    string // kernel bridge to join
	Create    bool   // make Bridge if it is missing
	Up        bool
	// TxQueueLen is how many frames the kernel holds for each of our queues
	// until we read them.
	TxQueueLen int
}

// A HostRoute is a route of the kernel through the port's netdev. Without Via
// the destination is on the link.
type HostRoute struct {
	To  netip.Prefix
	Via netip.Addr
}

// Accept says which offloads the reader behind a port takes from us.
type Accept struct{ Csum, TSO, USO bool }

// A Qdisc is the root qdisc of a port. Child is what each of mq's children is
// and has no kind without mq.
type Qdisc struct{ Root, Child qdisc.Spec }

// A Line is the wire that a port imitates behind its tx queues.
type Line struct {
	Rate     int64         // bit/s, 0 = no line
	Ring     int           // descriptors of a tx queue's ring
	Delay    time.Duration // from the end of a packet on the line to its delivery
	Overhead int           // bytes that each packet takes on the line besides its frame
	Shared   bool          // one line for all tx queues, served in turn; or else one each
}

// XPS says how a port's tx queues are chosen.
type XPS struct {
	FlowTableCnt int     // buckets, 0 = no flow table
	Mode         string  // Inflight or DQL
	Map          [][]int // workers that prefer each queue; nil: worker i prefers queue i mod n
}

// A Bridge is one of ours, not the kernel's.
type Bridge struct {
	Name       string
	Ports      []string
	AgeingTime time.Duration
	FDBMax     int // entries
	MAC        MAC // the router's own on the bridge
	MTU        int // of the router's own packets
	Addresses  []netip.Prefix
}

// A Route is a static route of the router.
type Route struct {
	To   netip.Prefix
	Via  netip.Addr // invalid: Dev's link, or nothing for a Blackhole or Unreachable
	Dev  string     // port or bridge; filled in from Via where it can be told
	Type string     // Unicast, Blackhole or Unreachable
}

// A MAC is an Ethernet address. The zero MAC stands for none.
type MAC [6]byte

// String writes m with colons.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// IsZero reports whether m stands for none.
func (m MAC) IsZero() bool { return m == MAC{} }

// maxFile is how large a file may be, in bytes: a guard against a wrong path.
const maxFile = 4 << 20

// Load reads and checks the file at path.
func Load(path string) (*Config, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Size() > maxFile {
		return nil, fmt.Errorf("%s: %d bytes is too large for a configuration", path, st.Size())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Parse checks the configuration in data; name stands for it in messages.
// The error joins one *Error for each fault, in the order of the file.
func Parse(name string, data []byte) (*Config, error) {
	d := newDecoder(name)
	c := &Config{}
	if d.parse(data, document(c)) {
		d.fill(c)
		d.check(c)
	}
	if len(d.errs) > 0 {
		return nil, errors.Join(sorted(d.errs)...)
	}
	for _, w := range sorted(d.warns) {
		c.Warnings = append(c.Warnings, w.Error())
	}
	return c, nil
}
