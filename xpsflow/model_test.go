package xpsflow

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"taprouter/packet"
)

// A model is the slow oracle: all packets that were selected and have not
// ended, by flow.
type model struct {
	*Steer
	flows [8][]*packet.Packet
	apart bool // no two flows share a bucket of any table
}

// hash of a flow: the low bits tell flows apart in tables of 8 and more.
func (m *model) hash(flow int) uint32 { return uint32(flow)*0x2468_0001 | 1<<31 }

// sel selects n packets of a flow and checks their queue.
func (m *model) sel(t *rapid.T, worker, flow, n int) {
	stay := -1
	for _, p := range m.flows[flow] {
		if p.Slot != nil && int(p.TxQ) < m.Queues() {
			stay = int(p.TxQ)
		}
	}
	pkts := make([]*packet.Packet, n)
	for i := range pkts {
		pkts[i] = &packet.Packet{Hash: m.hash(flow)}
	}
	m.SelectBatch(worker, pkts)
	m.flows[flow] = append(m.flows[flow], pkts...)
	got, want := int(pkts[0].TxQ), m.Map().choose(worker, m.hash(flow), m.Queues())
	switch {
	case got >= m.Queues():
		t.Fatalf("flow %d: queue %d of %d", flow, got, m.Queues())
	case stay >= 0 && got != stay:
		t.Fatalf("flow %d went to queue %d with packets in flight on queue %d", flow, got, stay)
	case stay < 0 && m.apart && got != want:
		t.Fatalf("flow %d went to queue %d, free to go to %d", flow, got, want)
	case m.TableSize() > 0 && pkts[0].Slot == nil:
		t.Fatalf("flow %d is not counted", flow)
	}
}

// end ends the packets of all flows that gone picks.
func (m *model) end(gone func(p *packet.Packet) bool) {
	for f := range m.flows {
		m.flows[f] = slices.DeleteFunc(m.flows[f], func(p *packet.Packet) bool {
			if !gone(p) {
				return false
			}
			Complete(p)
			return true
		})
	}
}

// Under any sequence of packets, ends in any order, new maps, replaced tables
// and removed queues, a flow with packets in flight stays, one without goes
// where it wants, and the table counts what the oracle has.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{Steer: New(3, 4), apart: rapid.Bool().Draw(t, "apart")}
		sizes := []int{0, 1, 2, 4, 8, 64}
		if m.apart {
			sizes = []int{0, 8, 16, 64, 256}
		}
		if err := m.SetTable(8, Inflight); err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			switch rapid.IntRange(0, 11).Draw(t, "op") {
			case 0:
				if err := m.SetTable(rapid.SampledFrom(sizes).Draw(t, "size"), Inflight); err != nil && !errors.Is(err, ErrBusy) {
					t.Fatal(err)
				}
			case 1:
				q := rapid.IntRange(0, 3).Draw(t, "queue")
				xps, err := m.Map().With(q, rapid.SliceOfDistinct(rapid.IntRange(0, 2), rapid.ID).Draw(t, "workers"))
				if err != nil {
					t.Fatal(err)
				}
				m.SetMap(xps)
			case 2: // removed queues are purged, perhaps a bit later
				_ = m.SetQueues(rapid.IntRange(1, 4).Draw(t, "queues"))
				if rapid.Bool().Draw(t, "late purge") {
					m.sel(t, 0, rapid.IntRange(0, 7).Draw(t, "flow"), 1)
				}
				m.end(func(p *packet.Packet) bool { return int(p.TxQ) >= m.Queues() })
			case 3: // a whole queue: reset, device gone
				q := rapid.Uint16Range(0, 3).Draw(t, "reset")
				m.end(func(p *packet.Packet) bool { return p.TxQ == q })
			case 4, 5, 6: // any packet of a flow: sent, or dropped by an AQM
				f := rapid.IntRange(0, 7).Draw(t, "flow")
				if n := len(m.flows[f]); n > 0 {
					one := m.flows[f][rapid.IntRange(0, n-1).Draw(t, "which")]
					m.end(func(p *packet.Packet) bool { return p == one })
				}
			default:
				m.sel(t, rapid.IntRange(0, 2).Draw(t, "worker"), rapid.IntRange(0, 7).Draw(t, "flow"), rapid.IntRange(1, 3).Draw(t, "packets"))
			}
			counted := 0
			for _, f := range m.flows {
				for _, p := range f {
					if p.Slot != nil {
						counted++
					}
				}
			}
			if got := m.InFlight(); got != counted {
				t.Fatalf("%d in flight, want %d", got, counted)
			}
		}
		m.end(func(*packet.Packet) bool { return true })
		if n := m.InFlight(); n != 0 || !m.Settle() {
			t.Fatalf("%d in flight at the end, or an old table is left", n)
		}
	})
}
