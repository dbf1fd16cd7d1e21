package dataplane

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A source says how many frames are there to be read, given the time and how
// many have been read so far.
type source func(now, read int64) int64

// stream sends at a steady rate, whatever happens to its frames.
func stream(rate int64) source {
	return func(now, read int64) int64 { return now*rate/int64(time.Second) - read }
}

// moderated runs a worker for a while against src: it reads what is there,
// which takes it 1 us a frame, and 5 us after it has found nothing it wakes up
// again, or after its rest, or when its poll finds something. It gives the rate and the frames read at once.
func moderated(m *moderation, src source, d time.Duration) (rate, batch int64) {
	var now, read, turns int64
	for now < int64(d) {
		if n := src(now, read); n > 0 {
			read += n
			m.frames += n
			m.bytes += n
			turns++
			now += n * 1000
			continue
		}
		switch m.how(now) {
		case resting:
			now += m.rest()
		case polling:
			end := now + m.poll
			for now < end && src(now, read) == 0 {
				now += 1000
			}
			m.polled(now < end)
			if now < end {
				continue
			}
			fallthrough
		default:
			now += 5000
		}
	}
	return read * int64(time.Second) / int64(d), read / max(turns, 1)
}

func TestModerationOfAStream(t *testing.T) {
	for _, c := range []struct {
		rate  int64
		rests bool
	}{{50_000, false}, {95_000, false}, {200_000, true}, {400_000, true}, {800_000, true}} {
		plain, few := moderated(&moderation{}, stream(c.rate), time.Second)
		m := &moderation{longest: 150_000}
		rate, batch := moderated(m, stream(c.rate), time.Second)
		if (m.rests > 0) != c.rests {
			t.Errorf("%d frames a second: %d rests", c.rate, m.rests)
		}
		if rate < plain*99/100 {
			t.Errorf("%d frames a second: %d were read, %d without rests", c.rate, rate, plain)
		}
		if c.rests && batch < 4*few {
			t.Errorf("%d frames a second: %d are read at once, %d without rests", c.rate, batch, few)
		}
	}
}

// A window of frames is on its way, and the next one is sent 20 us after the
// last was read: to rest is to slow it down.
func TestModerationOfAWindow(t *testing.T) {
	closed := func(size int64) source {
		var sent, at int64 // in all, and the last of it when
		return func(now, read int64) int64 {
			if read == sent {
				sent, at = sent+size, now+20_000
			}
			if now < at {
				return 0
			}
			return sent - read
		}
	}
	for _, size := range []int64{4, 16, 32} {
		plain, _ := moderated(&moderation{}, closed(size), time.Second)
		rate, _ := moderated(&moderation{longest: 150_000}, closed(size), time.Second)
		if rate < plain*9/10 {
			t.Errorf("window of %d: %d frames a second, %d without rests", size, rate, plain)
		}
	}
}

// The trial has to tell the two apart though windows differ by half.
func TestModerationInNoise(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	wrong := func(without, with int64) (n int) {
		for range 200 {
			m := &moderation{longest: 150_000}
			m.next(without, 0)
			for m.window < trials[resting].windows {
				rate := without
				if m.way == resting {
					rate = with
				}
				rate = rate * int64(75+rng.IntN(51)) / 100
				m.next(rate, rate)
			}
			if (m.way == resting) != (with >= without) {
				n++
			}
		}
		return n
	}
	if n := wrong(300_000, 300_000); n > 20 {
		t.Errorf("a stream: %d of 200 trials say that rests do not pay", n)
	}
	if n := wrong(300_000, 150_000); n > 2 {
		t.Errorf("a window: %d of 200 trials say that rests pay", n)
	}
}

// Senders that wait for answers are quicker if a worker polls; to others it
// makes no difference, and it is not to cost.
func TestModerationPolls(t *testing.T) {
	// A request every turn: the answer comes after 20 us, or 15 us later if
	// its sender and we have to be woken.
	ask := func(m *moderation) source {
		var sent, at int64
		return func(now, read int64) int64 {
			if read == sent {
				sent, at = sent+1, now+20_000
				if m.way != polling {
					at += 15_000
				}
			}
			if now < at {
				return 0
			}
			return sent - read
		}
	}
	var sleeper moderation
	plain, _ := moderated(&sleeper, ask(&sleeper), time.Second)
	m := &moderation{longest: 150_000, poll: 50_000}
	if rate, _ := moderated(m, ask(m), time.Second); rate < plain*5/4 || m.found < m.polls*9/10 || m.rests != 0 {
		t.Errorf("requests: %d a second, %d without polls: %+v", rate, plain, m)
	}
	for _, c := range []struct {
		what string
		src  source
	}{
		{"one every 30 us", stream(33_000)},
		{"20 every ms", func(now, read int64) int64 { return now/1e6*20 - read }},
		{"one every 200 us", stream(5000)},
		{"400 every 20 ms", func(now, read int64) int64 { return now/20e6*400 - read }},
	} {
		m := &moderation{longest: 150_000, poll: 50_000}
		if moderated(m, c.src, 4*time.Second); m.polls > 4*33_000/25 {
			t.Errorf("%s: %d polls", c.what, m.polls)
		}
	}
}

// Polls end when the next frame is no longer near, or when there are many more.
func TestModerationStopsPolling(t *testing.T) {
	begin := func() *moderation {
		m := &moderation{longest: 150_000, poll: 50_000}
		for m.window < trials[polling].windows {
			came := int64(20_000)
			if m.way == polling {
				came = 30_000
				m.polled(true)
			}
			m.next(came, came)
		}
		if m.way != polling {
			t.Fatalf("after its trial: %+v", m)
		}
		m.hits, m.misses = 30, 10
		if m.next(30_000, 30_000); m.way != polling {
			t.Fatalf("a window later: %+v", m)
		}
		return m
	}
	m := begin()
	m.hits, m.misses = 10, 11
	if m.next(30_000, 30_000); m.way != asleep {
		t.Errorf("most polls in vain: %+v", m)
	}
	for range 20 { // not tried again at once
		m.next(30_000, 30_000)
	}
	if m.way != asleep || m.window < trials[polling].windows {
		t.Errorf("most polls in vain: %+v", m)
	}
	m = begin()
	m.next(5*moderateFrom, 1)
	m.next(5*moderateFrom, 1)
	if m.other != resting {
		t.Errorf("at a high rate: %+v", m)
	}
}

// What was found out is not for ever, and not for a time with little traffic.
func TestModerationTriesAgain(t *testing.T) {
	m := &moderation{longest: 150_000}
	moderated(m, stream(300_000), 30*time.Millisecond)
	if m.how(m.began+1) != resting || m.rest() != 150_000 {
		t.Fatalf("after its trial with a stream: %+v", m)
	}
	n := 0
	for range 10 * (trials[resting].windows + trials[resting].hold) {
		if m.next(300_000, 300_000); m.window == 0 {
			n++
		}
	}
	if n < 9 {
		t.Errorf("%d trials", n)
	}
	if m.next(moderateFrom/2-1, 0); m.way != asleep || m.other != asleep {
		t.Errorf("with little traffic: %+v", m)
	}
	m = &moderation{longest: 150_000}
	moderated(m, stream(300_000), 30*time.Millisecond)
	if m.way != resting || m.how(m.began+int64(time.Second)) != asleep {
		t.Error("rests after a second without a frame")
	}
}

// A worker that polls finds frames, makes way for a pause, and ends.
func TestBusyPoll(t *testing.T) { eachIO(t, testBusyPoll) }

func testBusyPoll(t *testing.T) {
	r := newRig(t, 1, 2, 1, nil)
	r.learn()
	polls := func() error {
		m := &r.dp.workers[0].mod
		m.poll = int64(MaxBusyPoll)
		m.other, m.way, m.window, m.until, m.kept = polling, polling, trials[polling].windows, 1<<30, 1<<30
		return nil
	}
	seq := uint32(0)
	eventually(t, "100 polls find a frame", func() bool {
		if err := r.dp.quiesce(polls); err != nil {
			t.Fatal(err)
		}
		for range 50 {
			seq++
			r.peers[0][0].Send(frame(2, 1, 1, seq))
			b := r.peers[1][0].Recv(time.Second)
			if b == nil {
				t.Fatalf("frame %d does not arrive", seq)
			}
			if _, got := flowSeq(b); got != seq {
				t.Fatalf("frame %d arrives, want %d", got, seq)
			}
		}
		return r.dp.WorkerStats()[0].Found >= 100
	})
}
