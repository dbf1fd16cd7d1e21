// Package api (control plane) is the router's control socket: JSON over HTTP
// on a unix socket, the client for it, and how answers are printed in the
// words of ip, tc and bridge.
package api

import (
	"time"

	"taprouter/control/tc"
)

// A Router answers what the socket asks. Methods may be called concurrently.
type Router interface {
	Status() Status
	Links() []Link
	Qdiscs() []Qdisc
	Lines() []Line
	XPS() []XPS
	BQL() []BQL
	FDB() []FDB
	Routes() []Route
	Neighs() []Neigh
	Drops() []Drop
	Memory() Memory

	SetXPS(dev string, queue int, workers []int) error
	SetFlowTable(dev string, buckets int, mode string) error
	// SetHop makes the queue that flows prefer move on every period, 0 = not.
	SetHop(dev string, period time.Duration) error
	// SetLoad keeps a tx queue that has a line busy with so much, 0 = not.
	SetLoad(dev string, queue int, backlog time.Duration) error
	SetTxQueueLen(dev string, n int) error
	// SetSteering sets how the kernel chooses the queue towards us: kernel, random, hash or queue.
	SetSteering(dev string, how string) error
	// SetGSO sends the shapes of superpackets again that the device refused.
	SetGSO(dev string) error
	// SetGRO says whether what a port reads is merged.
	SetGRO(dev string, on bool) error
	// SetQueues sets how many of the queues that a port was opened with are used.
	SetQueues(dev string, n int) error
	SetBQL(dev string, queue int, key string, value uint64) error
	// ReplaceQdisc grafts at the root (child < 0) or at mq's child number child.
	// Children is the kind of mq's, if not the default; options are tc's words
	// for an fq, mq's children included.
	ReplaceQdisc(dev string, child int, kind, children string, options []string) error
	// ChangeQdisc changes options of the qdisc of this kind at the root (child
	// < 0) or of mq's child number child; the others stay as they are.
	ChangeQdisc(dev string, child int, kind string, options []string) error
}

// Status is the router as a whole.
type Status struct {
	Version    string  `json:"version"`
	Pid        int     `json:"pid"`
	Uptime     float64 `json:"uptime_s"`
	Workers    int     `json:"workers"`
	IO         string  `json:"io"`               // how batches of system calls are made: uring or readv
	IOReason   string  `json:"io_reason"`        // why so
	Coalesce   int     `json:"coalesce_us"`      // longest time for which workers let frames gather
	Rests      uint64  `json:"rests"`            // times they did
	BusyPoll   int     `json:"busy_poll_us"`     // longest time for which workers look for frames before they sleep
	Polls      uint64  `json:"busy_polls"`       // times they did
	PollsFound uint64  `json:"busy_polls_found"` // and there were some
	Balance    bool    `json:"balance"`          // workers without work read queues of others
	Moves      uint64  `json:"moves"`            // queues that they took over because more came so
	Totals     Totals  `json:"totals"`
	Balanced   bool    `json:"balanced"`
	InFlight   int     `json:"flow_table_in_flight"` // packets that flow tables count
}

// Totals are the terms of the conservation of packets, in wire packets.
type Totals struct {
	Received uint64 `json:"received"`
	Created  uint64 `json:"created"`
	Injected uint64 `json:"injected"`
	Sent     uint64 `json:"sent"`
	Queued   uint64 `json:"queued"`
	Parked   uint64 `json:"parked"`
	Punted   uint64 `json:"punted"`
	Dropped  uint64 `json:"dropped"`
}

// A Link is a port.
type Link struct {
	Index       int      `json:"ifindex"` // the router's own numbering
	Name        string   `json:"ifname"`
	Type        string   `json:"type"`
	Backend     string   `json:"backend"`   // what reads and writes the device: native, water or wireguard
	OperState   string   `json:"operstate"` // UP, DOWN or GONE
	Reason      string   `json:"reason,omitempty"`
	Socket      string   `json:"socket,omitempty"`       // of a socket port: how it reaches its peer
	SocketState string   `json:"socket_state,omitempty"` // listening, connected, or down and to be tried again
	MTU         int      `json:"mtu"`
	TxQueueLen  int      `json:"txqlen"`
	MAC         string   `json:"address,omitempty"`      // ours
	HostMAC     string   `json:"host_address,omitempty"` // the netdev's
	NetNS       string   `json:"netns,omitempty"`
	Master      string   `json:"master,omitempty"`      // our bridge
	HostBridge  string   `json:"host_bridge,omitempty"` // the kernel's, which the netdev joins
	Problems    []string `json:"problems,omitempty"`    // what keeps frames from passing between the port and that
	Addresses   []string `json:"addr_info"`
	VnetHdr     bool     `json:"vnet_hdr"`
	Offloads    []string `json:"offloads"` // what the kernel granted: it may send us such frames
	Accept      []string `json:"accept"`   // what the reader takes from us
	Software    []string `json:"software"` // what is done in software at egress
	Segments    uint64   `json:"software_segments"`
	Checksums   uint64   `json:"software_checksums"`
	GRO         bool     `json:"gro"`               // what the port reads is merged
	GROTrains   uint64   `json:"gro_superpackets"`  // made of packets that were read
	GROMerged   uint64   `json:"gro_merged"`        // packets that went into one behind its first
	GROBadCsum  uint64   `json:"gro_bad_checksum"`  // not merged, as their checksum is wrong
	GSORefused  uint64   `json:"gso_refused"`       // superpackets that the device refused (EINVAL) and that went out in segments
	GSOOff      []string `json:"gso_off"`           // shapes refused so often that they are segmented at once: tcp4, tcp6, udp
	Dropped     uint64   `json:"dropped"`           // by the router, at or for this port
	KernelDrop  uint64   `json:"kernel_tx_dropped"` // by the TAP, before we could read
	QueuesUsed  int      `json:"queues_used"`       // the first so many of Queues
	Steering    string   `json:"steering"`          // how the kernel chooses the queue towards us: kernel, random, hash or queue
	Queues      []Queue  `json:"queues"`
}

// A Queue is one rx and tx queue of a link, in wire packets and frame bytes.
type Queue struct {
	Queue     int    `json:"queue"`
	RxWorker  int    `json:"rx_worker"`
	RxPackets uint64 `json:"rx_packets"`
	RxBytes   uint64 `json:"rx_bytes"`
	TxPackets uint64 `json:"tx_packets"`
	TxBytes   uint64 `json:"tx_bytes"`
	TxStops   uint64 `json:"tx_stops"` // the device had no room
	Stopped   bool   `json:"stopped"`
}

// A Qdisc is a queueing discipline, with the counters of tc.
type Qdisc struct {
	Kind       string       `json:"kind"`
	Handle     string       `json:"handle"`
	Dev        string       `json:"dev"`
	Root       bool         `json:"root,omitempty"`
	Parent     string       `json:"parent,omitempty"`
	RefCnt     int          `json:"refcnt,omitempty"`
	Bands      int          `json:"bands,omitempty"`
	Priomap    []int        `json:"priomap,omitempty"`
	Options    *tc.FQConfig `json:"options,omitempty"` // of fq
	Bytes      uint64       `json:"bytes"`
	Packets    uint64       `json:"packets"`
	Drops      uint64       `json:"drops"`
	Overlimits uint64       `json:"overlimits"`
	Requeues   uint64       `json:"requeues"`
	Backlog    uint64       `json:"backlog"`
	Qlen       uint64       `json:"qlen"`
	*tc.FQStats
}

// A Line is the wire that a port imitates.
type Line struct {
	Dev      string      `json:"dev"`
	Rate     int64       `json:"rate"`     // bit/s
	Ring     int         `json:"ring"`     // descriptors of each queue
	Delay    int64       `json:"delay"`    // ns
	Overhead int         `json:"overhead"` // bytes a packet
	Shared   bool        `json:"shared"`
	Held     int         `json:"held"` // bytes of memory of packets that are delayed
	MaxHeld  int         `json:"max_held"`
	Overflow uint64      `json:"overflow"` // wire packets dropped for want of that
	Queues   []LineQueue `json:"queues"`
}

// A LineQueue is the ring of a tx queue.
type LineQueue struct {
	Queue int    `json:"queue"`
	Used  int    `json:"ring_used"`
	Stops uint64 `json:"stops"` // the ring was full
}

// An XPS is the choice of tx queue of a port.
type XPS struct {
	Dev     string     `json:"dev"`
	Queues  []XPSQueue `json:"queues"`
	Buckets int        `json:"flow_table_cnt"`
	Mode    string     `json:"mode"`
	Moves   uint64     `json:"moves"`
	Refused uint64     `json:"refused"`
	// Collisions are packets that met another flow's in their bucket.
	Collisions uint64 `json:"collisions"`
	InFlight   int    `json:"in_flight"`
	// Reordered are wire packets that were handed to the device after a later
	// one of their flow and priority.
	Reordered uint64 `json:"reordered"`
}

// An XPSQueue names the workers that prefer a queue.
type XPSQueue struct {
	Queue   int   `json:"queue"`
	Workers []int `json:"workers"`
}

// A BQL is the byte queue limit of a tx queue, as in sysfs.
type BQL struct {
	Dev          string `json:"dev"`
	Queue        int    `json:"queue"`
	Limit        uint32 `json:"limit"`
	LimitMin     uint32 `json:"limit_min"`
	LimitMax     uint32 `json:"limit_max"`
	HoldTime     uint32 `json:"hold_time"` // ms
	Inflight     uint32 `json:"inflight"`
	EnqueueOps   uint32 `json:"num_enqueue_ops"`
	CompletedOps uint32 `json:"num_completed_ops"`
	StallThrs    uint32 `json:"stall_thrs"` // ms
	StallCnt     uint32 `json:"stall_cnt"`
	StallMax     uint32 `json:"stall_max"` // jiffies of 4 ms
}

// An FDB is an entry of a bridge's MAC table.
type FDB struct {
	MAC    string  `json:"mac"`
	Dev    string  `json:"ifname"`
	Master string  `json:"master"`
	Age    float64 `json:"age_s"`
	Static bool    `json:"static,omitempty"`
}

// A Route is an entry of the FIB.
type Route struct {
	Type     string `json:"type,omitempty"` // empty: unicast
	Dst      string `json:"dst"`
	Gateway  string `json:"gateway,omitempty"`
	Dev      string `json:"dev,omitempty"`
	Protocol string `json:"protocol"`
}

// A Neigh is a neighbour.
type Neigh struct {
	Dst    string `json:"dst"`
	Dev    string `json:"dev"`
	LLAddr string `json:"lladdr,omitempty"`
	State  string `json:"state"`
}

// A Drop is a number of packets that were dropped for a reason.
type Drop struct {
	Port    string `json:"port"` // empty: no port
	Reason  string `json:"reason"`
	Text    string `json:"text"`
	Packets uint64 `json:"packets"`
}
