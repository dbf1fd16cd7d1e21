package dataplane

import "time"

// A moderation lets frames gather before a worker reads again. At a high rate
// one longer sleep in place of a wake-up every few frames costs senders and
// worker less, and more packets of a flow meet in a batch. It does for a
// worker what adaptive interrupt moderation does for a NIC: ethtool's
// rx-usecs with adaptive-rx, the kernel's net_dim.
//
// Senders that wait for answers only become slower by it. So resting is
// tried: of some windows every other one has no rests, and if clearly more
// frames came in those, there are none until the next trial.
type moderation struct {
	longest int64 // rest, ns; 0: none ever

	rate   int64    // of the last window, frames a second
	on     bool     // rests in this window
	window int      // number of this one, from the first of the trial
	came   [2]int64 // the rates of the trial's windows, summed up: without rests, with rests

	frames int64 // read in this window
	began  int64 // when it did, batch clock

	rests uint64 // read in a pause
}

// MaxCoalesce bounds Config.Coalesce. While a worker rests it also sends
// nothing that waits for room, and the collector waits for it.
const MaxCoalesce = time.Millisecond

const (
	// moderateFrom is the rate from which rests are tried, in frames a second:
	// below it one would gather only a few.
	moderateFrom = 100_000
	// gather is how many frames a rest is to gather, if it may last so long.
	gather = 128

	windowLen    = 2_000_000 // ns, at least: several rests
	trialWindows = 8         // more are fewer wrong results, on a machine where windows differ by half
	holdWindows  = 64        // for which the result holds
)

// rest is called by a worker that has nothing more to read. It gives how long
// to wait before it looks again, in ns.
func (m *moderation) rest(now int64) int64 {
	if m.longest == 0 {
		return 0
	}
	if took := now - m.began; took >= windowLen {
		m.next(m.frames * int64(time.Second) / took)
		m.frames, m.began = 0, now
	}
	if !m.on {
		return 0
	}
	m.rests++
	return min(gather*int64(time.Second)/m.rate, m.longest)
}

// next begins a window after one in which frames came at this rate.
func (m *moderation) next(rate int64) {
	m.rate = max(rate, 1)
	trial := m.window < trialWindows
	switch {
	case trial && m.on: // if few came, that may be the rests' doing
		m.came[1] += rate
	case rate < moderateFrom:
		m.on, m.window, m.came = false, 0, [2]int64{}
		return
	case trial:
		m.came[0] += rate
	}
	m.window++
	switch {
	case m.window < trialWindows:
		m.on = !m.on
	case m.window == trialWindows:
		m.on = 5*m.came[1] >= 4*m.came[0]
	case m.window == trialWindows+holdWindows:
		m.on, m.window, m.came = false, 0, [2]int64{}
	}
}
