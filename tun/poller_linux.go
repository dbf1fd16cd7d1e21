package tun

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Event bits of a ready queue.
const (
	Readable = unix.EPOLLIN
	Writable = unix.EPOLLOUT
	Broken   = unix.EPOLLERR | unix.EPOLLHUP // the device is gone
)

// An Event says that the queue registered under Token is ready.
type Event struct {
	Token uint32
	Bits  uint32
}

// A Poller is where one worker waits for its queues. Wait belongs to the
// worker; Wake, Watch and the others may be called by anybody.
type Poller struct {
	epfd, evfd int
	events     [64]unix.EpollEvent
	ready      [64]Event
}

const wakeToken = -1 // the Pad of the wake-up descriptor's event

// NewPoller makes a Poller with its wake-up descriptor.
func NewPoller() (*Poller, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("tun: epoll_create: %w", err)
	}
	evfd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epfd)
		return nil, fmt.Errorf("tun: eventfd: %w", err)
	}
	p := &Poller{epfd: epfd, evfd: evfd}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Pad: wakeToken}
	if err := unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, evfd, &ev); err != nil {
		p.Close()
		return nil, fmt.Errorf("tun: epoll_ctl: %w", err)
	}
	return p, nil
}

// Close frees the descriptors. Nobody may wait.
func (p *Poller) Close() {
	unix.Close(p.epfd)
	unix.Close(p.evfd)
}

// Watch reports q as readable under token for as long as it is.
func (p *Poller) Watch(q *Queue, token uint32) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(token)}
	if err := unix.EpollCtl(p.epfd, unix.EPOLL_CTL_ADD, q.fd, &ev); err != nil {
		return fmt.Errorf("tun: watch a queue: %w", err)
	}
	return nil
}

// Unwatch ends Watch.
func (p *Poller) Unwatch(q *Queue) {
	_ = unix.EpollCtl(p.epfd, unix.EPOLL_CTL_DEL, q.fd, nil)
}

// WatchWritable reports q once, under token, when it is writable; if it is
// already, at the next Wait. Any worker may call it.
func (p *Poller) WatchWritable(q *Queue, token uint32) error {
	ev := unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLONESHOT, Fd: int32(token)}
	err := unix.EpollCtl(p.epfd, unix.EPOLL_CTL_MOD, q.waitFD, &ev)
	if err == unix.ENOENT {
		err = unix.EpollCtl(p.epfd, unix.EPOLL_CTL_ADD, q.waitFD, &ev)
	}
	if err == unix.EEXIST { // another caller added it meanwhile
		err = unix.EpollCtl(p.epfd, unix.EPOLL_CTL_MOD, q.waitFD, &ev)
	}
	if err != nil {
		return fmt.Errorf("tun: wait for a writable queue: %w", err)
	}
	return nil
}

// Wake makes the next or the current Wait return at once.
func (p *Poller) Wake() {
	one := [8]byte{0: 1}
	_, _ = unix.Write(p.evfd, one[:])
}

// Wait waits until a queue is ready, Wake was called or timeout nanoseconds
// have passed (negative: no limit), and gives the ready queues; the slice is
// valid until the next Wait. woken reports a Wake.
//
// With raw the caller keeps its P while it waits, which makes the return
// faster but holds up the garbage collector: only for short timeouts. A raw
// wait that the runtime interrupts yields and returns empty.
func (p *Poller) Wait(timeout int64, raw bool) (events []Event, woken bool, err error) {
	n, errno := epollWait(p.epfd, p.events[:], timeout, raw)
	if errno == unix.EINTR {
		runtime.Gosched()
		return nil, true, nil
	}
	if errno != 0 {
		return nil, false, fmt.Errorf("tun: epoll_wait: %w", errno)
	}
	k := 0
	for i := range p.events[:n] {
		e := &p.events[i]
		if e.Pad == wakeToken {
			var b [8]byte
			_, _ = unix.Read(p.evfd, b[:])
			woken = true
			continue
		}
		p.ready[k] = Event{Token: uint32(e.Fd), Bits: e.Events}
		k++
	}
	return p.ready[:k], woken, nil
}

// Rest sleeps for that many nanoseconds, or until Wake, whatever is ready: for
// a worker that cannot do anything with what is, or lets it gather. The wait
// is raw; as in Wait the runtime may end it.
func (p *Poller) Rest(nsec int64) {
	if rest(p.evfd, nsec) == unix.EINTR {
		runtime.Gosched()
	}
}
