package tc

import (
	"fmt"
	"strings"
	"time"

	"taprouter/qdisc"
)

// FQStats are the statistics of fq with the keys of `tc -j -s qdisc show`;
// what is 0 and may be left out there is left out. One key differs: tc prints
// "throttled" twice, first for flows that wait now, which is throttled_flows here.
type FQStats struct {
	Flows           int    `json:"flows"`
	Inactive        int    `json:"inactive"`
	ThrottledFlows  int    `json:"throttled_flows"`
	Band0Pkts       int    `json:"band0_pkts"`
	Band1Pkts       int    `json:"band1_pkts"`
	Band2Pkts       int    `json:"band2_pkts"`
	NextPacketDelay int64  `json:"next_packet_delay,omitempty"` // ns
	GC              uint64 `json:"gc"`
	Highprio        uint64 `json:"highprio"` // 0 since the kernel's 6.7
	Fastpath        uint64 `json:"fastpath,omitempty"`
	Throttled       uint64 `json:"throttled"`         // how often a flow was
	Latency         uint64 `json:"latency,omitempty"` // ns
	CEMark          uint64 `json:"ce_mark,omitempty"`
	FlowsPlimit     uint64 `json:"flows_plimit,omitempty"`
	PktsTooLong     uint64 `json:"pkts_too_long,omitempty"`
	AllocErrors     uint64 `json:"alloc_errors,omitempty"` // none here
	HorizonDrops    uint64 `json:"horizon_drops,omitempty"`
	HorizonCaps     uint64 `json:"horizon_caps,omitempty"`
	Band0Drops      uint64 `json:"band0_drops,omitempty"`
	Band1Drops      uint64 `json:"band1_drops,omitempty"`
	Band2Drops      uint64 `json:"band2_drops,omitempty"`
}

// NewFQStats gives the counters of an fq whose next packet leaves after delay,
// 0 if none waits for its time.
func NewFQStats(s *qdisc.FQStats, delay time.Duration) *FQStats {
	return &FQStats{
		Flows: s.Flows, Inactive: s.InactiveFlows, ThrottledFlows: s.ThrottledFlows,
		Band0Pkts: s.BandPackets[0], Band1Pkts: s.BandPackets[1], Band2Pkts: s.BandPackets[2],
		NextPacketDelay: int64(delay),
		GC:              s.GCFlows, Fastpath: s.FastpathPackets, Throttled: s.Throttled, Latency: s.Latency,
		CEMark: s.CEMark, FlowsPlimit: s.FlowsPlimit, PktsTooLong: s.PktsTooLong,
		HorizonDrops: s.HorizonDrops, HorizonCaps: s.HorizonCaps,
		Band0Drops: s.BandDrops[0], Band1Drops: s.BandDrops[1], Band2Drops: s.BandDrops[2],
	}
}

// PrintFQStats gives the lines that tc -s prints after the common two.
func PrintFQStats(s *FQStats) string {
	var b strings.Builder
	some := func(name string, n uint64) {
		if n != 0 {
			fmt.Fprintf(&b, " %s %d", name, n)
		}
	}
	fmt.Fprintf(&b, "  flows %d (inactive %d throttled %d) band0_pkts %d band1_pkts %d band2_pkts %d",
		s.Flows, s.Inactive, s.ThrottledFlows, s.Band0Pkts, s.Band1Pkts, s.Band2Pkts)
	if s.NextPacketDelay > 0 {
		fmt.Fprintf(&b, " next_packet_delay %s", Time(time.Duration(s.NextPacketDelay)))
	}
	fmt.Fprintf(&b, "\n  gc %d highprio %d", s.GC, s.Highprio)
	some("fastpath", s.Fastpath)
	fmt.Fprintf(&b, " throttled %d", s.Throttled)
	if s.Latency > 0 {
		fmt.Fprintf(&b, " latency %s", Time(time.Duration(s.Latency)))
	}
	some("ce_mark", s.CEMark)
	some("flows_plimit", s.FlowsPlimit)
	b.WriteByte('\n')
	before := b.Len()
	some("pkts_too_long", s.PktsTooLong)
	some("alloc_errors", s.AllocErrors)
	some("horizon_drops", s.HorizonDrops)
	some(" horizon_caps", s.HorizonCaps) // tc has two spaces there
	some("band0_drops", s.Band0Drops)
	some("band1_drops", s.Band1Drops)
	some("band2_drops", s.Band2Drops)
	if b.Len() > before {
		b.WriteByte('\n')
	}
	return b.String()
}
