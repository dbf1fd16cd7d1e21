// Package gro (data path) merges packets of one flow that lie in one batch
// into a superpacket, so that every later stage, and the write, is paid once
// for all of them. Payload is chained, not copied, and cutting the superpacket
// gives the same packets again. What may be merged is what Linux merges
// (dev_gro_receive, inet_gro_receive, ipv6_gro_receive, tcp_gro_receive,
// udp_gro_receive), less FIN.
package gro

import "taprouter/packet"

const (
	// maxTrains is the largest number of flows of one batch that can have a
	// train; packets of more flows stay as they are.
	maxTrains = 256
	// places is a power of two. At most half of them are taken, so that every
	// probe ends.
	places = 2 * maxTrains
)

// Stats count what Merge did. They belong to whoever hands them to it.
type Stats struct {
	Trains  uint64 // superpackets made
	Merged  uint64 // packets that went into one behind its first
	BadCsum uint64 // packets that would have been merged but for a wrong checksum
}

// A Merger is a worker's; it is not safe for concurrent use. Nothing stays in
// it from one batch to the next. The zero value is ready.
type Merger struct {
	last   *train // of the packet before, nil if it had none
	n      int    // trains in use
	used   [maxTrains]uint16
	trains [places]train // by flow hash, open addressing
}

// Merge takes a batch of one rx queue that classify has seen and gives what is
// left of it, in the same slice. A superpacket has the place of its first
// packet. The packets of a flow keep their order: one that cannot be merged
// ends the train of its flow, and a fragment, which does not tell its flow,
// ends all trains. A packet that nothing was merged with is as it was.
func (m *Merger) Merge(pkts []*packet.Packet, st *Stats) []*packet.Packet {
	if len(pkts) < 2 {
		return pkts
	}
	n := 0
	for _, p := range pkts {
		if !m.merge(p, st) {
			pkts[n] = p
			n++
		}
	}
	m.closeAll(st)
	return pkts[:n]
}

// merge reports whether p went into a train behind its first packet.
func (m *Merger) merge(p *packet.Packet, st *Stats) bool {
	if p.Flags&packet.Fragment != 0 {
		m.closeAll(st)
		return false
	}
	if p.Proto != protoTCP && p.Proto != protoUDP {
		return false
	}
	t := m.find(p.Hash)
	if t == nil {
		return false
	}
	var s segment
	if !s.parse(p) {
		t.close(st)
		return false
	}
	if t.head != nil && t.fits(p, &s) {
		switch {
		case !t.verified && !verify(t.head): // p may begin another train
			st.BadCsum++
		case !verify(p):
			st.BadCsum++
			t.close(st)
			return false
		default:
			t.add(p, &s, st)
			return true
		}
	}
	t.close(st)
	t.open(p, &s)
	return false
}

// find gives the place of the flow hash h, a fresh one if the batch has none
// yet; nil if there is no room for one more. Flows that share a hash share a
// place, and end each other's trains.
func (m *Merger) find(h uint32) *train {
	if t := m.last; t != nil && t.hash == h {
		return t
	}
	for i := h; ; i++ {
		t := &m.trains[i%places]
		if !t.taken {
			if m.n == maxTrains {
				return nil
			}
			t.taken, t.hash = true, h
			m.used[m.n] = uint16(i % places)
			m.n++
		} else if t.hash != h {
			continue
		}
		m.last = t
		return t
	}
}

// closeAll ends every train and empties the table.
func (m *Merger) closeAll(st *Stats) {
	for _, i := range m.used[:m.n] {
		m.trains[i].close(st)
		m.trains[i].taken = false
	}
	m.n, m.last = 0, nil
}
