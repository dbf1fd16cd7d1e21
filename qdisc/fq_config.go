package qdisc

import (
	"fmt"
	"math"
	"math/bits"
	"time"
)

// An FQConfig holds the parameters of fq, under their names in tc-fq(8).
type FQConfig struct {
	Limit            int           // packets of one band
	FlowLimit        int           // packets of one flow
	Quantum          uint32        // bytes of credit that a flow gets in each round
	InitialQuantum   uint32        // bytes of credit of a new flow
	MaxRate          uint64        // bytes/s of one flow, 0 = unlimited
	Pacing           bool          // off: departure times are kept, rates are not
	Buckets          int           // of the flow table, a power of two
	RefillDelay      time.Duration // idle time after which a flow's credit is made good
	OrphanMask       uint32        // bits of the flow hash that tell flows apart
	LowRateThreshold uint64        // bytes/s: below, a flow is paced packet by packet
	CEThreshold      time.Duration // waiting time above which ECT packets are marked, < 0 = off
	TimerSlack       time.Duration // by which a departure may be late to coalesce timers
	Horizon          time.Duration // how far ahead a departure time may lie
	NoFastPath       bool          // every packet goes through its flow; ours, to compare with
	HorizonDrop      bool          // what lies beyond is dropped, or else cut to the horizon
	Priomap          [16]uint8     // band by the low four bits of the priority
	Weights          [Bands]uint32 // bytes a band may send in each round
}

// Fixed quantities of fq (net/sched/sch_fq.c).
const (
	fqFlowAge    = 3 * time.Second // after which a flow without packets is collected
	fqFastPath   = 8               // packets that may wait on the fast path
	fqMinWeight  = 16384
	fqMaxQuantum = 1 << 20
	fqMaxBuckets = 1 << 18
	fqMaxLimit   = 1 << 20
)

// DefaultFQ gives the kernel's defaults for a device with this MTU.
func DefaultFQ(mtu int) FQConfig {
	frame := uint32(mtu) + 14 // dev->hard_header_len
	return FQConfig{
		Limit: 10000, FlowLimit: 100,
		Quantum: min(2*frame, fqMaxQuantum), InitialQuantum: 10 * frame,
		Pacing: true, Buckets: 1024,
		RefillDelay: 40 * time.Millisecond,
		OrphanMask:  1023, LowRateThreshold: 550_000 / 8,
		CEThreshold: -1, TimerSlack: 10 * time.Microsecond,
		Horizon: 10 * time.Second, HorizonDrop: true,
		Priomap: Priomap, Weights: [Bands]uint32{589824, 196608, 65536},
	}
}

// Check says which parameter is out of its range.
func (c *FQConfig) Check() error {
	const micro = math.MaxUint32 * time.Microsecond
	for _, p := range []struct {
		name      string
		v, lo, hi int64
	}{
		{"limit", int64(c.Limit), 1, fqMaxLimit},
		{"flow_limit", int64(c.FlowLimit), 1, fqMaxLimit},
		{"quantum", int64(c.Quantum), 1, fqMaxQuantum},
		{"initial_quantum", int64(c.InitialQuantum), 0, math.MaxInt32},
		{"maxrate", int64(c.MaxRate), 0, math.MaxUint32},
		{"buckets", int64(c.Buckets), 2, fqMaxBuckets},
		{"refill_delay", int64(c.RefillDelay), 0, int64(micro)},
		{"low_rate_threshold", int64(c.LowRateThreshold), 0, math.MaxUint32},
		{"ce_threshold", int64(c.CEThreshold), -1, int64(micro)},
		{"timer_slack", int64(c.TimerSlack), 0, math.MaxUint32},
		{"horizon", int64(c.Horizon), 0, int64(micro)},
		{"weights", int64(min(c.Weights[0], c.Weights[1], c.Weights[2])), fqMinWeight, math.MaxInt32},
		{"weights", int64(max(c.Weights[0], c.Weights[1], c.Weights[2])), fqMinWeight, math.MaxInt32},
	} {
		if p.v < p.lo || p.v > p.hi {
			return fmt.Errorf("fq: %s %d: want %d to %d", p.name, p.v, p.lo, p.hi)
		}
	}
	if bits.OnesCount(uint(c.Buckets)) != 1 {
		return fmt.Errorf("fq: buckets %d: want a power of two from 2 to %d", c.Buckets, fqMaxBuckets)
	}
	for prio, band := range c.Priomap {
		if band >= Bands {
			return fmt.Errorf("fq: priomap: band %d of priority %d: want 0 to %d", band, prio, Bands-1)
		}
	}
	return nil
}
