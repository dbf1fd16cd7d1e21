package tun

import (
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"taprouter/tun/uring"
)

// With a ring, waiting for a queue and reading its next frame are one call:
// on an empty queue lies a read that completes when a frame comes. There is
// one at most, and ReadBatch does not read beside it, so frames keep their
// order. The epoll descriptor, where other threads put queues that have to be
// writable, is polled by the ring.

func (g *Ring) watch(q *Queue, token uint32) {
	for len(g.queues) <= int(token) {
		g.queues = append(g.queues, nil)
	}
	g.queues[token] = q
	g.idle = append(g.idle, token)
	g.ready = slices.Grow(g.ready, 2*len(g.queues)+len(g.poller.events)) // so that reap allocates nothing
	g.out = slices.Grow(g.out, cap(g.ready))
}

// unwatch ends what waits for q and forgets that it was ready. A read that was
// quicker has its frame, which stays for ReadBatch.
func (g *Ring) unwatch(q *Queue) (read bool) {
	i := slices.Index(g.queues, q)
	if i < 0 {
		return false
	}
	token, s := uint32(i), &q.rx
	g.submit() // only what is under way can be cancelled, and a frame that is there is read
	switch s.state {
	case rxArmed:
		g.u.Cancel(kindRead | uint64(token))
	case rxPolled:
		g.u.Cancel(kindPoll | uint64(token))
	}
	for s.state == rxArmed || s.state == rxPolled {
		_ = g.u.Enter(1, -1, true)
		g.reap()
	}
	g.queues[i] = nil
	g.idle = slices.DeleteFunc(g.idle, func(t uint32) bool { return t == token })
	g.ready = slices.DeleteFunc(g.ready, func(e Event) bool { return e.Token == token })
	if s.state == rxDone && unix.Errno(-s.res) == unix.ECANCELED {
		g.reader.cache.PutTail(s.tail)
		g.reader.cache.Put(s.p)
		s.state, s.p, s.tail = rxIdle, nil, nil
	}
	return s.state == rxDone
}

// arm puts together what is to be waited for and is not yet.
func (g *Ring) arm() {
	if !g.waking {
		g.waking = true
		e := g.u.Next()
		e.Op, e.FD, e.UserData = uring.OpRead, int32(g.poller.evfd), kindWake
		e.Buffer(g.wakes[:8])
	}
	if !g.watching {
		g.watching = true
		e := g.u.Next()
		e.Op, e.FD, e.OpFlags, e.Len, e.UserData = uring.OpPollAdd, int32(g.poller.epfd), unix.EPOLLIN, uring.PollMultishot, kindEpoll
	}
	for len(g.idle) > 0 && g.room() {
		token := g.idle[len(g.idle)-1]
		g.idle = g.idle[:len(g.idle)-1]
		if q := g.queues[token]; q != nil && q.rx.state == rxIdle {
			g.await(q, token)
		}
	}
}

// submit submits what was put together and takes in what can end now.
func (g *Ring) submit() {
	for again := true; again; again = g.u.Unsubmitted() > 0 {
		_ = g.u.Enter(0, -1, true)
	}
	g.reap()
}

// room leaves half of the submission queue for a batch.
func (g *Ring) room() bool {
	if g.u.Unsubmitted() < ringSize/2 {
		return true
	}
	_ = g.u.Enter(0, 0, true)
	return g.u.Unsubmitted() == 0
}

// await waits for q with a read if there is one left, or else, and where a
// driver reads, polls it.
func (g *Ring) await(q *Queue, token uint32) {
	s, r := &q.rx, g.reader
	if q.driver == nil && g.armed < g.maxArmed {
		s.p, s.tail = r.take()
	}
	at := 2 * g.u.Unsubmitted()
	e := g.u.Next()
	e.FD = int32(q.fd)
	if s.p == nil {
		s.state = rxPolled
		e.Op, e.OpFlags, e.UserData = uring.OpPollAdd, unix.EPOLLIN, kindPoll|uint64(token)
		return
	}
	g.armed++
	s.state = rxArmed
	e.Op, e.UserData = uring.OpReadv, kindRead|uint64(token)
	e.Iovecs(r.iov.into(q, s.p, s.tail, at))
}

// wait is Poller.Wait. A wait that ends for no reason counts as interrupted,
// as the kernel does not tell of that if something was submitted with it.
func (g *Ring) wait(timeout int64, raw bool) (events []Event, woken bool, err error) {
	want := 1
	if timeout == 0 || len(g.ready) > 0 {
		want = 0
	}
	var errno unix.Errno
	if want > 0 || g.u.Unsubmitted() > 0 || g.u.Pending() {
		errno = g.u.Enter(want, timeout, raw)
		g.reap()
	}
	if g.watched {
		g.writable()
	}
	events = append(g.out[:0], g.ready...)
	g.ready = g.ready[:0]
	woken, g.woken = g.woken, false
	switch errno {
	case 0:
		if want == 0 || len(events) > 0 || woken {
			return events, woken, nil
		}
	case unix.ETIME:
		return events, woken, nil
	case unix.EINTR, unix.EAGAIN, unix.EBUSY, unix.ENOMEM: // of the last ones, something is to be submitted again
	default:
		return nil, false, fmt.Errorf("tun: io_uring_enter: %w", errno)
	}
	runtime.Gosched()
	return events, true, nil
}

// writable takes in what the epoll descriptor has.
func (g *Ring) writable() {
	g.watched = false
	p := g.poller
	for n := len(p.events); n == len(p.events); {
		n, _ = epollWait(p.epfd, p.events[:], 0, true)
		n = max(n, 0)
		for _, e := range p.events[:n] {
			g.ready = append(g.ready, Event{Token: uint32(e.Fd), Bits: e.Events})
		}
	}
}
