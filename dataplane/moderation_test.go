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
// again, or after its rest. It gives the rate and the frames read at once.
func moderated(m *moderation, src source, d time.Duration) (rate, batch int64) {
	var now, read, turns int64
	for now < int64(d) {
		if n := src(now, read); n > 0 {
			read += n
			m.frames += n
			turns++
			now += n * 1000
			continue
		}
		now += max(m.rest(now), 5000)
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
			for m.window < trialWindows {
				rate := without
				if m.on {
					rate = with
				}
				m.next(rate * int64(75+rng.IntN(51)) / 100)
			}
			if m.on != (with >= without) {
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

// What was found out is not for ever, and not for a time with little traffic.
func TestModerationTriesAgain(t *testing.T) {
	m := &moderation{longest: 150_000}
	moderated(m, stream(300_000), 30*time.Millisecond)
	if !m.on || m.rest(m.began+1) != 150_000 {
		t.Fatalf("after its trial with a stream: %+v", m)
	}
	trials := 0
	for range 10 * (trialWindows + holdWindows) {
		if m.next(300_000); m.window == 0 {
			trials++
		}
	}
	if trials < 9 {
		t.Errorf("%d trials", trials)
	}
	if m.next(moderateFrom - 1); m.on || m.window != 0 {
		t.Errorf("with little traffic: %+v", m)
	}
	if m.on = true; m.rest(m.began+int64(time.Second)) != 0 {
		t.Error("rests after a second without a frame")
	}
}
