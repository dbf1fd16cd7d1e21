package xpsflow

import (
	"fmt"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"taprouter/packet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A port is a Steer with simulated queues behind it: a qdisc of three bands,
// then a NIC, each with a gate. Nothing moves but by run.
//
//	Select ─▶ [ band 0, 1, 2 ] ─shut?─▶ [ nic ] ─held?─▶ sent
type port struct {
	*Steer
	t      *testing.T
	queues []simQueue
	sent   []*packet.Packet
}

type simQueue struct {
	bands      [3][]*packet.Packet
	limit      int // packets in the qdisc
	shut, held bool
	busy       bool // band 0 always has more: bands 1 and 2 wait
	nic        []*packet.Packet
	enq, done  atomic.Uint64 // high halves move where BQL's would: at the NIC
}

// newPort has two queues and two workers, each of which prefers its own.
func newPort(t *testing.T, mode Mode) *port {
	p := &port{Steer: New(2, 2), t: t, queues: make([]simQueue, 2)}
	for i := range p.queues {
		p.queues[i].limit = 100
		p.SetCounters(i, &p.queues[i].enq, &p.queues[i].done)
	}
	if err := p.SetTable(64, mode); err != nil {
		t.Fatal(err)
	}
	return p
}

const flowHash = 0x12345678

// send sends packet number seq of the flow from a worker. Like the others,
// it gives the packet.
func (p *port) send(worker int, seq int64) *packet.Packet {
	return p.enqueue(worker, &packet.Packet{Hash: flowHash, Stamp: seq})
}

func (p *port) enqueue(worker int, pkt *packet.Packet) *packet.Packet {
	p.SelectBatch(worker, []*packet.Packet{pkt})
	q := &p.queues[pkt.TxQ]
	if len(q.bands[0])+len(q.bands[1])+len(q.bands[2]) >= q.limit {
		pkt.Drop = packet.DropQdisc
		Complete(pkt)
		return pkt
	}
	q.bands[pkt.Priority] = append(q.bands[pkt.Priority], pkt)
	p.run()
	return pkt
}

// run moves what the gates let pass.
func (p *port) run() {
	for i := range p.queues {
		q := &p.queues[i]
		for b := 0; b < len(q.bands) && !q.shut && !(q.busy && b > 0); b++ {
			q.nic = append(q.nic, q.bands[b]...)
			q.enq.Add(uint64(len(q.bands[b])) << 32)
			q.bands[b] = nil
		}
		if q.held {
			continue
		}
		p.sent = append(p.sent, q.nic...)
		q.done.Add(uint64(len(q.nic)) << 32)
		CompleteBatch(q.nic)
		q.nic = nil
	}
}

// open lets everything run.
func (p *port) open() {
	for i := range p.queues {
		q := &p.queues[i]
		q.shut, q.held, q.busy = false, false, false
	}
	p.run()
}

// purge drops what queue i holds.
func (p *port) purge(i int) {
	var l packet.List
	for _, b := range append(p.queues[i].bands[:], p.queues[i].nic) {
		for _, pkt := range b {
			pkt.Drop = packet.DropPurge
			l.Push(pkt)
		}
	}
	CompleteList(&l)
	p.queues[i].bands, p.queues[i].nic = [3][]*packet.Packet{}, nil
}

// order gives the flow's packets as they were sent, e.g. "1 2".
func (p *port) order() string {
	s := ""
	for _, pkt := range p.sent {
		if pkt.Hash == flowHash {
			s += fmt.Sprintf(" %d", pkt.Stamp)
		}
	}
	return s
}

// empty fails the test if any bucket counts a packet.
func (p *port) empty() {
	p.t.Helper()
	if n := p.InFlight(); n != 0 {
		p.t.Errorf("%d packets in flight at the end", n)
	}
	if !p.Settle() {
		p.t.Error("replaced tables are left")
	}
}
