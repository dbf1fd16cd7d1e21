package packet

// A Reason says why a packet ended other than by being sent. The zero value
// means that it was sent (or consumed).
type Reason uint8

// The reasons for a drop, in the order in which a packet could meet them.
const (
	NotDropped Reason = iota
	DropNoBuffer
	DropTruncated
	DropVnet
	DropMalformed
	DropIPChecksum
	DropVLAN
	DropReserved
	DropNotForUs
	DropProtocol
	DropNoBridgePort
	DropSamePort
	DropTTL
	DropMartian
	DropNoRoute
	DropBlackhole
	DropNeighFailed
	DropNeighQueue
	DropTooBig
	DropFragmented
	DropPuntFull
	DropLinkDown
	DropQdisc
	DropFQLimit
	DropFQFlowLimit
	DropFQHorizon
	DropDelay
	DropGraft
	DropPurge
	DropNoQueue
	DropOffload
	DropTxInval
	DropTxError
	DropDeviceGone
	DropShutdown
	NumReasons
)

var reasons = [NumReasons]struct{ name, text string }{
	NotDropped:       {"none", "not dropped"},
	DropNoBuffer:     {"no_buffer", "no free packet buffer, or the tx queue holds its share of the pool"},
	DropTruncated:    {"truncated", "the frame is shorter than its link header"},
	DropVnet:         {"vnet_header", "the virtio-net header contradicts the frame"},
	DropMalformed:    {"malformed", "a network header is cut short or contradicts itself"},
	DropIPChecksum:   {"ip_checksum", "wrong IPv4 header checksum"},
	DropVLAN:         {"vlan", "a tagged frame on a routed port"},
	DropReserved:     {"reserved_mac", "destination 01:80:c2:00:00:0x is never forwarded (IEEE 802.1D 7.12.6)"},
	DropNotForUs:     {"not_for_us", "the destination MAC of a routed port's frame is not ours"},
	DropProtocol:     {"protocol", "no handler for this ethertype or protocol"},
	DropNoBridgePort: {"no_bridge_port", "flooded, but the bridge has no other port that is up"},
	DropSamePort:     {"same_port", "the destination was learned on the ingress port"},
	DropTTL:          {"ttl", "TTL or hop limit exceeded"},
	DropMartian:      {"martian", "source or destination address is not allowed on the wire"},
	DropNoRoute:      {"no_route", "no route to the destination"},
	DropBlackhole:    {"blackhole", "the route says to discard"},
	DropNeighFailed:  {"neigh_failed", "the neighbour did not answer"},
	DropNeighQueue:   {"neigh_queue", "too many packets wait for the neighbour"},
	DropTooBig:       {"too_big", "larger than the egress MTU and not to be fragmented"},
	DropFragmented:   {"fragment", "could not be fragmented"},
	DropPuntFull:     {"punt_full", "the ring to the control plane is full"},
	DropLinkDown:     {"link_down", "the egress port is down"},
	DropQdisc:        {"qdisc_full", "refused by the queueing discipline"},
	DropFQLimit:      {"fq_limit", "fq: the band holds limit packets"},
	DropFQFlowLimit:  {"fq_flow_limit", "fq: the flow holds flow_limit packets"},
	DropFQHorizon:    {"fq_horizon", "fq: the packet's departure time is beyond the horizon"},
	DropDelay:        {"delay_full", "the line's delay holds its share of the pool"},
	DropGraft:        {"graft", "refused by the new queueing discipline at a graft"},
	DropPurge:        {"purge", "in a queue that was reset"},
	DropNoQueue:      {"no_queue", "the tx queue does not exist any more"},
	DropOffload:      {"offload", "software checksum or segmentation failed"},
	DropTxInval:      {"tx_einval", "the device refused the frame (EINVAL)"},
	DropTxError:      {"tx_error", "the device failed to take the frame (EIO and others)"},
	DropDeviceGone:   {"device_gone", "the device was removed"},
	DropShutdown:     {"shutdown", "still queued when the router ended"},
}

// String is the reason's name, the value of the metric label "reason".
func (r Reason) String() string { return reasons[r].name }

// Text explains the reason in a sentence.
func (r Reason) Text() string { return reasons[r].text }
