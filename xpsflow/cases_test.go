package xpsflow

import (
	"testing"

	"taprouter/packet"
)

// What separates the schemes: in each case packet 1 goes to queue 0 from
// worker 0, packet 2 comes from worker 1, which prefers queue 1.
func TestCases(t *testing.T) {
	for _, tt := range []struct {
		name string
		play func(p *port)
		// The outcome by mode: the queue of packet 2, what was sent.
		inflight, dql outcome
	}{
		{"1 waits in the qdisc", func(p *port) {
			p.queues[0].shut = true
			p.send(0, 1)
			p.send(1, 2)
		}, outcome{0, " 1 2"}, outcome{1, " 2 1"}},

		{"1 waits in the NIC", func(p *port) {
			p.queues[0].held = true
			p.send(0, 1)
			p.send(1, 2)
		}, outcome{0, " 1 2"}, outcome{1, " 2 1"}}, // the number dql stores excludes the packet itself

		{"1 waits in the NIC, another before it", func(p *port) {
			p.queues[0].held = true
			p.enqueue(0, &packet.Packet{Hash: 1})
			p.send(0, 1)
			p.send(1, 2)
		}, outcome{0, " 1 2"}, outcome{0, " 1 2"}}, // the one case that dql is made for

		{"1 was sent", func(p *port) {
			p.send(0, 1)
			p.send(1, 2)
		}, outcome{1, " 1 2"}, outcome{1, " 1 2"}},

		{"1 was dropped by a full qdisc", func(p *port) {
			p.queues[0].limit = 0
			p.send(0, 1)
			p.send(1, 2)
		}, outcome{1, " 2"}, outcome{1, " 2"}},

		{"1 is bulk, control packets pass it", func(p *port) {
			p.queues[0].busy = true
			p.enqueue(0, &packet.Packet{Hash: flowHash, Stamp: 1, Priority: 2})
			for range 10 {
				p.enqueue(0, &packet.Packet{Hash: 1})
			}
			p.enqueue(1, &packet.Packet{Hash: flowHash, Stamp: 2, Priority: 2})
		}, outcome{0, " 1 2"}, outcome{1, " 2 1"}}, // counting completions is not enough

		{"1 was purged", func(p *port) {
			p.queues[0].shut = true
			p.send(0, 1)
			p.purge(0)
			p.send(1, 2)
		}, outcome{1, " 2"}, outcome{1, " 2"}},

		{"the table is replaced by a larger one", resize(1024), outcome{0, " 1 2"}, outcome{1, " 2 1"}},
		{"the table is replaced by a smaller one", resize(1), outcome{0, " 1 2"}, outcome{1, " 2 1"}},
		{"the table is replaced three times", resize(1, 1024, 8), outcome{0, " 1 2"}, outcome{1, " 2 1"}},
		{"the table is turned off", resize(0), outcome{0, " 1 2"}, outcome{1, " 2 1"}},
		{"the table is turned off and on", resize(0, 64), outcome{0, " 1 2"}, outcome{1, " 2 1"}},

		{"the queue is removed", func(p *port) {
			p.queues[0].shut, p.queues[1].shut = true, true
			p.send(1, 1) // to queue 1, which goes
			if err := p.SetQueues(1); err != nil {
				p.t.Fatal(err)
			}
			p.send(1, 2)
			p.purge(1)
		}, outcome{0, " 2"}, outcome{0, " 2"}},
	} {
		for mode, want := range map[Mode]outcome{Inflight: tt.inflight, DQL: tt.dql} {
			t.Run(mode.String()+"/"+tt.name, func(t *testing.T) {
				p := newPort(t, mode)
				tt.play(p)
				got := outcome{queue: p.queueOf(2)}
				p.open()
				if got.sent = p.order(); got != want {
					t.Errorf("got %+v, want %+v", got, want)
				}
				p.empty()
			})
		}
	}
}

// Whatever ends the packets, every bucket of every table is back at zero.
func TestEndsLeakNothing(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(p *port)
	}{
		{"sent", (*port).open},
		{"flushed", func(p *port) { p.purge(0); p.purge(1) }},
		{"one device queue lost", func(p *port) { p.purge(1); p.open() }},
		{"sent, then shut down", func(p *port) { p.queues[0].shut = false; p.run(); p.purge(0); p.purge(1) }},
	} {
		p := newPort(t, Inflight)
		first := p.conf.Load().table
		for i := range p.queues {
			p.queues[i].limit, p.queues[i].shut, p.queues[i].held = 50, true, true
		}
		for i := range 200 { // half of them overflow
			p.enqueue(i%2, &packet.Packet{Hash: uint32(i % 90)})
			if i == 50 {
				_ = p.SetTable(8, Inflight)
			}
		}
		second := p.conf.Load().table
		tt.end(p)
		for _, table := range []*table{first, second} {
			for i := range table.buckets {
				if w := table.buckets[i].word.Load(); inflight(w) != 0 {
					t.Errorf("%s: bucket %d of %d is %#x", tt.name, i, len(table.buckets), w)
				}
			}
		}
		p.empty()
	}
}

type outcome struct {
	queue int
	sent  string
}

// queueOf finds the queue that packet seq went to; -1 if it is nowhere.
func (p *port) queueOf(seq int64) int {
	for i := range p.queues {
		q := &p.queues[i]
		for _, b := range append(q.bands[:], q.nic, p.sent) {
			for _, pkt := range b {
				if pkt.Hash == flowHash && pkt.Stamp == seq {
					return int(pkt.TxQ)
				}
			}
		}
	}
	return -1
}

// resize plays a replacement of the table while packet 1 is in the NIC and
// another packet before it, so that both modes would have kept the queue.
func resize(sizes ...int) func(p *port) {
	return func(p *port) {
		p.queues[0].held = true
		p.enqueue(0, &packet.Packet{Hash: 1})
		p.send(0, 1)
		for _, n := range sizes {
			if err := p.SetTable(n, p.Mode()); err != nil {
				p.t.Fatal(err)
			}
		}
		p.send(1, 2)
	}
}
