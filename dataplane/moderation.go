package dataplane

import "time"

// A moderation says how a worker waits that has nothing more to read: asleep,
// until the kernel wakes it for the next frame, or in one of two other ways.
//
// At a high rate it may rest before, so that frames gather: one longer sleep
// in place of a wake-up every few frames costs senders and worker less, and
// more packets of a flow meet in a batch. That does for a worker what adaptive
// interrupt moderation does for a NIC: ethtool's rx-usecs with adaptive-rx,
// the kernel's net_dim.
//
// At a lower one it may poll before: look again at once, for a moment, so that
// neither the next frame nor its sender pays for the wake-up. That is
// net.core.busy_poll.
//
// Which is better is tried, as senders that wait for answers become slower by
// rests and quicker by polls, and to others polls only cost: of some windows
// every other one is without, and what came in both is compared.
type moderation struct {
	longest int64 // rest, ns; 0: none ever
	poll    int64 // ns; 0: never

	rate   int64    // of the last window, frames a second
	way    way      // in this window
	other  way      // that sleeping is compared with, asleep: none
	window int      // number of this one, from the first of the trial
	until  int      // the one with which the next trial begins
	kept   int64    // the rate when the last one ended
	came   [2]int64 // in the trial's windows, bytes a second summed up: asleep, the other way

	frames, bytes int64 // read in this window
	hits, misses  int64 // polls in it that found something, and the others
	began         int64 // when it did, batch clock

	rests, polls, found uint64 // read in a pause
}

// A way of waiting.
type way uint8

const (
	asleep way = iota
	resting
	polling
)

// MaxCoalesce bounds Config.Coalesce. While a worker rests it also sends
// nothing that waits for room, and the collector waits for it.
const MaxCoalesce = time.Millisecond

// MaxBusyPoll bounds Config.BusyPoll. Beyond it a wake-up hardly matters.
const MaxBusyPoll = time.Millisecond

const (
	// moderateFrom is the rate from which rests are tried, in frames a second:
	// below it one would gather only a few.
	moderateFrom = 100_000
	// pollFrom is that for polls: below it the next frame is too far away.
	pollFrom = 10_000
	// gather is how many frames a rest is to gather, if it may last so long.
	gather = 128

	windowLen = 2_000_000 // ns, at least: several rests
)

// trials are how a way is tried. More windows are fewer wrong results, on a
// machine where windows differ by half.
var trials = [...]struct {
	windows    int
	hold, vain int   // windows for which the result is good, for it and against it
	num, den   int64 // pays if den times what came is num times what came asleep
}{
	resting: {windows: 8, hold: 64, vain: 64, num: 4, den: 5},
	polling: {windows: 8, hold: 2000, vain: 200, num: 23, den: 20},
}

// how is called by a worker that has nothing more to read. It gives the way to
// wait until it looks again.
func (m *moderation) how(now int64) way {
	if m.longest == 0 && m.poll == 0 {
		return asleep
	}
	if took := now - m.began; took >= windowLen {
		second := int64(time.Second)
		m.next(m.frames*second/took, m.bytes*second/took)
		m.frames, m.bytes, m.hits, m.misses, m.began = 0, 0, 0, 0, now
	}
	return m.way
}

// rest gives how long to rest, in ns.
func (m *moderation) rest() int64 {
	m.rests++
	return min(gather*int64(time.Second)/m.rate, m.longest)
}

// polled notes whether a poll found something.
func (m *moderation) polled(found bool) {
	m.polls++
	if found {
		m.found++
		m.hits++
	} else {
		m.misses++
	}
}

// next begins a window after one in which so many frames and bytes came a
// second.
func (m *moderation) next(rate, came int64) {
	m.rate = max(rate, 1)
	if m.changed(rate) {
		m.other = m.worth(rate)
		m.restart()
		return
	}
	if m.other == asleep {
		return
	}
	t := &trials[m.other]
	if m.window < t.windows {
		m.came[min(m.way, 1)] += came
	}
	m.window++
	switch {
	case m.way == polling && m.misses > m.hits: // what comes next is too far away
		m.keep(asleep, t.vain)
	case m.window < t.windows:
		m.way = m.other - m.way
	case m.window > t.windows:
		if m.window >= m.until {
			m.restart()
		}
	case t.den*m.came[1] >= t.num*m.came[0]:
		m.keep(m.other, t.hold)
	default:
		m.keep(asleep, t.vain)
	}
}

// keep ends the trial.
func (m *moderation) keep(w way, windows int) {
	m.way, m.window = w, trials[m.other].windows
	m.until, m.kept = m.window+windows, m.rate
}

func (m *moderation) restart() { m.way, m.window, m.came = asleep, 0, [2]int64{} }

// changed reports whether the traffic is no longer what the trial was for. In
// the trial's windows with the other way that may be the way's own doing.
func (m *moderation) changed(rate int64) bool {
	switch {
	case m.way != asleep && m.window < trials[m.other].windows:
		return false
	case m.way == polling:
		return rate > 2*m.kept
	}
	return m.worth(rate) != m.other
}

// worth gives what is worth a trial at this rate. One that goes on does not
// end because the rate swings a little.
func (m *moderation) worth(rate int64) way {
	from := [...]int64{resting: moderateFrom, polling: pollFrom}
	from[m.other] /= 2
	switch {
	case m.longest > 0 && rate >= from[resting]:
		return resting
	case m.poll > 0 && rate >= from[polling]:
		return polling
	}
	return asleep
}
