package dataplane

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/gro"
	"taprouter/packet"
)

// workerCounters are a worker's own counters, in wire packets. The plain
// fields are the worker's; publish makes them visible once a turn.
type workerCounters struct {
	punted, injected uint64
	drops            []([packet.NumReasons]uint64) // by port; the last one for no port
	dropped          bool                          // since the last publish
	unmade           uint64                        // of forward's NoBuffer, what drops has already

	pub struct {
		_                                 [64]byte
		punted, injected, created, parked atomic.Uint64
		drops                             []([packet.NumReasons]atomic.Uint64)
	}
}

func (c *workerCounters) init(ports int) {
	c.drops = make([]([packet.NumReasons]uint64), ports+1)
	c.pub.drops = make([]([packet.NumReasons]atomic.Uint64), ports+1)
}

// drop counts p under the port that it was to leave by, or else the one that
// it came in by. What segmentation has sent already is not dropped.
func (c *workerCounters) drop(p *packet.Packet) {
	port := int(p.Out)
	if p.Out == packet.NoPort {
		port = int(p.In)
	}
	if port >= len(c.drops)-1 {
		port = len(c.drops) - 1
	}
	c.drops[port][p.Drop] += uint64(p.Segs - p.SegNext)
	c.dropped = true
}

func (c *workerCounters) publish(w *Worker) {
	c.pub.punted.Store(c.punted)
	c.pub.injected.Store(c.injected)
	// A copy that could not be made counts as made and dropped.
	c.pub.created.Store(w.fwd.Created + w.fwd.NoBuffer)
	if n := w.fwd.NoBuffer - c.unmade; n > 0 {
		c.drops[len(c.drops)-1][packet.DropNoBuffer] += n
		c.unmade += n
		c.dropped = true
	}
	c.pub.parked.Store(uint64(w.fwd.Parked()))
	if !c.dropped {
		return
	}
	c.dropped = false
	for port := range c.drops {
		for r := range c.drops[port] {
			c.pub.drops[port][r].Store(c.drops[port][r])
		}
	}
}

// Totals are the terms of the conservation of packets, in wire packets:
// Received + Created + Injected = Sent + Queued + Parked + Punted + Dropped
// at any moment at which the workers are quiet.
type Totals struct {
	Received uint64 `json:"received"` // read from devices
	Created  uint64 `json:"created"`  // flood copies, fragments, ICMP errors
	Injected uint64 `json:"injected"` // sent by the control plane: ARP, ND, echo replies
	Sent     uint64 `json:"sent"`     // written to devices
	Queued   uint64 `json:"queued"`   // in queueing disciplines, tx rings and on lines
	Parked   uint64 `json:"parked"`   // waiting for a neighbour
	Punted   uint64 `json:"punted"`   // consumed by the control plane
	Dropped  uint64 `json:"dropped"`  // for any reason
}

// Balanced reports whether nothing was lost or made up.
func (t Totals) Balanced() bool {
	return t.Received+t.Created+t.Injected == t.Sent+t.Queued+t.Parked+t.Punted+t.Dropped
}

// Totals adds up the counters while the workers are held between batches, so
// that the terms belong together.
func (dp *Dataplane) Totals() Totals {
	var t Totals
	_ = dp.quiesce(func() error {
		t = dp.totals()
		return nil
	})
	return t
}

func (dp *Dataplane) totals() Totals {
	var t Totals
	for _, w := range append([]*Worker{dp.control}, dp.workers...) {
		p := &w.counters.pub
		t.Punted += p.punted.Load()
		t.Injected += p.injected.Load()
		t.Created += p.created.Load()
		t.Parked += p.parked.Load()
		for port := range p.drops {
			for r := range p.drops[port] {
				t.Dropped += p.drops[port][r].Load()
			}
		}
	}
	for _, p := range dp.ports {
		for _, rx := range p.rx {
			t.Received += rx.packets
		}
		for _, l := range p.lines {
			t.Queued += l.segments()
		}
		for i, x := range p.tx {
			t.Sent += x.packets
			if i == 0 || p.root.mq != nil {
				t.Queued += p.root.children[i].Stats().QueuedSegs
			}
		}
	}
	return t
}

// WorkerStats say what a worker has cost so far.
type WorkerStats struct {
	CPU     time.Duration // of its thread
	Actions uint64        // runs of scheduled qdiscs (net_tx_action)
	Rests   uint64        // times that it let frames gather
	Polls   uint64        // times that it looked for frames before it slept
	Found   uint64        // and there were some
}

// WorkerStats gives those of each worker, while the workers are held.
func (dp *Dataplane) WorkerStats() (all []WorkerStats) {
	_ = dp.quiesce(func() error {
		for _, w := range dp.workers {
			st := WorkerStats{Actions: w.cpu.Actions, Rests: w.mod.rests, Polls: w.mod.polls, Found: w.mod.found}
			var ts unix.Timespec
			// The clock of another thread of ours: CPUCLOCK_SCHED of its id.
			if tid := w.tid.Load(); tid != 0 && unix.ClockGettime(^tid<<3|6, &ts) == nil {
				st.CPU = time.Duration(ts.Nano())
			}
			all = append(all, st)
		}
		return nil
	})
	return all
}

// Drops gives the dropped wire packets of a port by reason; port len(Ports())
// stands for those that belong to no port.
func (dp *Dataplane) Drops(port int) [packet.NumReasons]uint64 {
	var sum [packet.NumReasons]uint64
	for _, w := range append([]*Worker{dp.control}, dp.workers...) {
		for r := range sum {
			sum[r] += w.counters.pub.drops[port][r].Load()
		}
	}
	return sum
}

// QueueStats are the counters of one queue of a port, in wire packets and
// frame bytes.
type QueueStats struct {
	RxPackets, RxBytes, TxPackets, TxBytes uint64
	DriverStops                            uint64 // refused for want of room
	Segmented, Checksummed                 uint64 // done in software
	GSORefused                             uint64 // superpackets that the device refused
	Stopped                                bool
	GRO                                    gro.Stats
}

// QueueStats gives the counters of each queue, at one moment.
func (p *Port) QueueStats() (all []QueueStats) {
	_ = p.dp.quiesce(func() error {
		for i, rx := range p.rx {
			tx := p.tx[i]
			all = append(all, QueueStats{
				RxPackets: rx.packets, RxBytes: rx.bytes, TxPackets: tx.packets, TxBytes: tx.bytes,
				DriverStops: tx.driverStops, Segmented: tx.segmented, Checksummed: tx.csummed, GSORefused: tx.gsoRefused, Stopped: tx.Stopped(), GRO: rx.merged,
			})
		}
		return nil
	})
	return all
}
