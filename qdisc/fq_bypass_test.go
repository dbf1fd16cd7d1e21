//go:build !explore

package qdisc

import "testing"

// A packet that meets an empty fq passes it only if it would have taken its
// fast path; fq counts it either way.
func TestFQBypass(t *testing.T) {
	const at = 5000
	for _, tt := range []struct {
		name     string
		change   func(*FQConfig)
		txTime   int64
		stopped  bool
		fastpath uint64
		flows    int
		sent     int
	}{
		{name: "passes", fastpath: 3, sent: 3},
		{name: "no fast path", change: func(c *FQConfig) { c.NoFastPath = true }, flows: 3, sent: 3},
		{name: "a rate", change: func(c *FQConfig) { c.MaxRate = 1e9 }, flows: 3, sent: 3},
		{name: "a departure time", txTime: at + 1, flows: 3},
		{name: "over the horizon", txTime: at + 1, flows: 0, change: func(c *FQConfig) { c.Horizon, c.HorizonDrop = 0, true }},
		{name: "stopped", stopped: true, fastpath: 3},
	} {
		b := newBed(t, 1, 1)
		cfg := DefaultFQ(1500)
		if tt.change != nil {
			tt.change(&cfg)
		}
		f := NewFQ(cfg)
		q, c := b.qdisc(f), b.cpus[0]
		c.Now = at
		if tt.stopped {
			b.out[0].xoff.StopDriver()
		}
		l := b.pkts(1, 3, 0, 0)
		for p := l.Front(); p != nil; p = p.Next {
			p.TxTime = tt.txTime
		}
		q.Xmit(c, l)
		st, qs := f.Stats(), q.Stats()
		if st.FastpathPackets != tt.fastpath || st.Flows != tt.flows || len(b.out[0].sent) != tt.sent || qs.Requeues != 0 {
			t.Errorf("%s: %d took the fast path, %d flows, %d sent, %d requeued; want %d, %d, %d, 0",
				tt.name, st.FastpathPackets, st.Flows, len(b.out[0].sent), qs.Requeues, tt.fastpath, tt.flows, tt.sent)
		}
		if held := 3 - tt.sent - c.Drops.Len(); f.Len() != held || int(qs.Qlen) != held {
			t.Errorf("%s: fq has %d, qlen %d, want %d", tt.name, f.Len(), qs.Qlen, held)
		}
	}
}

// What DQL does not let pass takes the fast path behind it.
func TestFQBypassIsCutByDQL(t *testing.T) {
	b := newBed(t, 1, 1)
	b.out[0].avail = 250
	f := NewFQ(DefaultFQ(1500))
	q := b.qdisc(f)
	q.Xmit(b.cpus[0], b.pkts(1, 10, 0, 0))
	b.wantOrder(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	if st := f.Stats(); st.FastpathPackets != 10 || st.Flows != 0 || b.out[0].sends != 4 {
		t.Errorf("%d took the fast path of 10, %d flows, %d sends: want 4", st.FastpathPackets, st.Flows, b.out[0].sends)
	}
}
