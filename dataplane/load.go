package dataplane

import (
	"encoding/binary"
	"fmt"
	"time"

	"taprouter/packet"
)

// A load keeps a tx queue that has a line busy with frames that nobody reads,
// so that whatever else is sent there has to wait: cross traffic, for tests.
type load struct {
	t     *TxQueue
	bytes int64 // to be kept in qdisc and ring, 0 = off
	timer timer
}

const (
	loadTick  = 500_000 // ns
	loadFrame = 1514    // bytes
	// loadEtherType is one for local experiments (IEEE 802, 0x88b5): a kernel
	// has no handler for it.
	loadEtherType = 0x88b5
)

// SetLoad keeps packets of backlog's worth of line time waiting in tx queue q
// of a port that has a line; 0 ends it. On a shared line a queue's worth is its
// part when all are busy.
func (dp *Dataplane) SetLoad(dev string, q int, backlog time.Duration) error {
	p, err := dp.port(dev)
	if err != nil {
		return err
	}
	switch {
	case q < 0 || q >= len(p.tx):
		return fmt.Errorf("queue %d: %s has %d, from 0", q, dev, len(p.tx))
	case p.tx[q].line == nil:
		return fmt.Errorf("%s has no line: only behind one can packets be made to wait", dev)
	case backlog < 0 || backlog > time.Second:
		return fmt.Errorf("backlog %v: want 0 to 1s", backlog)
	}
	return dp.quiesce(func() error {
		t := p.tx[q]
		if t.load == nil {
			t.load = &load{t: t}
			t.load.timer.init(t.home, func() { t.load.fill(t.home) })
		}
		l := t.line
		t.load.bytes = l.cfg.Rate / 8 * int64(backlog) / int64(time.Second) / int64(len(l.queues))
		t.load.timer.request(dp.control, dp.control.now)
		return nil
	})
}

// fill sends what is missing. It runs on the queue's home worker.
func (l *load) fill(w *Worker) {
	if l.bytes == 0 {
		return
	}
	q := l.t.qdisc.Load()
	var list packet.List
	waiting := int64(q.Held() / packet.HeadLen * loadFrame) // about, if there is other traffic
	for have := waiting + int64(l.t.dql.Stats().Inflight); have < l.bytes; have += loadFrame {
		p := w.cache.Get()
		if p == nil {
			break
		}
		b := p.Buffer()[packet.Headroom : packet.Headroom+loadFrame]
		clear(b)
		b[0], b[6] = 2, 2
		binary.BigEndian.PutUint16(b[12:], loadEtherType)
		p.SetFrame(packet.Headroom, packet.Headroom+loadFrame)
		p.Out, p.TxQ, p.WireLen, p.Flags = uint16(l.t.port.Index), uint16(l.t.index), loadFrame, packet.Local
		w.counters.injected++
		list.Push(p)
	}
	q.Xmit(&w.cpu, &list)
	w.arm(&l.timer, w.now+loadTick)
}
