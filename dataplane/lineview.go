package dataplane

// Line gives the line behind the port's tx queues; its Rate is 0 if there is
// none.
func (p *Port) Line() LineConfig {
	if len(p.lines) == 0 {
		return LineConfig{}
	}
	return p.lines[0].cfg
}

// A LineView is what waits on a port's lines at one moment.
type LineView struct {
	Queues  []LineQueue // by tx queue
	Held    int         // bytes of pool memory that delayed packets hold
	MaxHeld int         // more is dropped as delay_full
}

// A LineQueue is the ring of one tx queue.
type LineQueue struct {
	Used  int    // descriptors in use
	Stops uint64 // how often the queue stopped because the ring was full
}

// LineView gives what waits on the port's lines.
func (p *Port) LineView() (v LineView) {
	_ = p.dp.quiesce(func() error {
		for _, l := range p.lines {
			v.Held += l.held
			v.MaxHeld += l.share
			for _, t := range l.queues {
				v.Queues = append(v.Queues, LineQueue{t.ring.used(), t.driverStops})
			}
		}
		return nil
	})
	return v
}
