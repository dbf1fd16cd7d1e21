package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// An Event is the state of a link after something about it changed, or its
// end, or the end of the watch.
type Event struct {
	Index   int
	Name    string // as it is now
	MTU     int
	MAC     net.HardwareAddr
	Up      bool  // IFF_UP
	Carrier bool  // IFF_LOWER_UP
	Gone    bool  // deleted, or moved to another namespace: the port's descriptor knows which
	NSGone  bool  // the namespace was deleted with all that was in it; the last event
	Err     error // the watch has failed; the last event
}

// A Watcher reports what happens to the links of one namespace.
//
// Its socket is in our namespace and hears the others by their id: a socket in
// the watched namespace would keep that alive, and the deletion of a
// namespace under a port would never come true.
type Watcher struct {
	f     *os.File
	conn  syscall.RawConn
	nsid  int // own: it is our namespace
	fn    func(Event)
	links map[int]string // name by index: what was reported and is not gone
	done  chan struct{}

	closed atomic.Bool // by Close: what the socket says then is no event
}

const own = -1

// Watch calls fn for every link that is in ns now and then for each change.
// The calls come from one goroutine. ns may be closed after.
func Watch(ns *NS, fn func(Event)) (*Watcher, error) {
	w := &Watcher{nsid: own, fn: fn, links: map[int]string{}, done: make(chan struct{})}
	home, err := Current()
	if err != nil {
		return nil, err
	}
	defer home.Close()
	if !home.Same(ns) {
		if w.nsid, err = nsID(ns); err != nil {
			return nil, Explain(fmt.Errorf("watch netns %s: %w", ns, err), NetAdmin)
		}
	}
	if err := w.open(); err != nil {
		return nil, Explain(fmt.Errorf("watch netns %s: %w", ns, err), NetBroadcast)
	}
	first, err := w.dump()
	if err != nil {
		w.f.Close()
		return nil, Explain(fmt.Errorf("watch netns %s: %w", ns, err), NetAdmin)
	}
	go w.run(first)
	return w, nil
}

// WatchFD is Watch for the namespace behind fd, such as TUNGETDEVNETNS gives.
// It takes fd over and closes it.
func WatchFD(fd int, fn func(Event)) (*Watcher, error) {
	ns, err := FromFD(fd)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return Watch(ns, fn)
}

// Close ends the watch and waits for the last call to return. fn must not
// call it.
func (w *Watcher) Close() {
	w.closed.Store(true)
	w.f.Close()
	<-w.done
}

// nsID gives the number by which our namespace knows ns, and assigns one if
// there is none.
func nsID(ns *NS) (int, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	defer h.Close()
	id, err := h.GetNetNsIdByFd(ns.fd)
	if err != nil || id >= 0 {
		return id, err
	}
	if err := h.SetNetNsIdByFd(ns.fd, -1); err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, err
	}
	if id, err = h.GetNetNsIdByFd(ns.fd); err == nil && id < 0 {
		err = errors.New("the kernel assigned no namespace id")
	}
	return id, err
}

func (w *Watcher) open() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for _, opt := range []struct{ name, value int }{
		{unix.NETLINK_ADD_MEMBERSHIP, unix.RTNLGRP_LINK},
		{unix.NETLINK_ADD_MEMBERSHIP, unix.RTNLGRP_NSID},
		{unix.NETLINK_LISTEN_ALL_NSID, 1},
	} {
		if err == nil && (w.nsid != own || opt.value == unix.RTNLGRP_LINK && opt.name == unix.NETLINK_ADD_MEMBERSHIP) {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, opt.name, opt.value)
		}
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	w.f = os.NewFile(uintptr(fd), "netlink")
	w.conn, err = w.f.SyscallConn()
	if err != nil {
		w.f.Close()
	}
	return err
}

// dump asks for every link of the namespace without entering it.
func (w *Watcher) dump() ([]Event, error) {
	var msgs [][]byte
	var err error
	for range 5 { // a dump that a change interrupted is asked for again
		req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		if w.nsid != own {
			req.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(w.nsid))))
		}
		msgs, err = req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
		if !errors.Is(err, nl.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var events []Event
	for _, m := range msgs {
		if e, ok := parseLink(unix.RTM_NEWLINK, m); ok {
			events = append(events, e)
		}
	}
	return events, nil
}

// parseLink reads an RTM_NEWLINK or RTM_DELLINK. Messages of a bridge about
// its ports come in another family and are not about the link itself.
func parseLink(kind uint16, m []byte) (Event, bool) {
	if len(m) < unix.SizeofIfInfomsg || m[0] != unix.AF_UNSPEC {
		return Event{}, false
	}
	link, err := netlink.LinkDeserialize(&unix.NlMsghdr{Type: kind}, m)
	if err != nil {
		return Event{}, false
	}
	l := fromAttrs(link.Attrs())
	return Event{
		Index: l.Index, Name: l.Name, MTU: l.MTU, MAC: l.MAC,
		Up: l.Up, Carrier: l.Carrier, Gone: kind == unix.RTM_DELLINK,
	}, true
}

func (w *Watcher) run(first []Event) {
	defer close(w.done)
	for _, e := range first {
		w.report(e)
	}
	buf := make([]byte, 64<<10)
	oob := make([]byte, 256)
	for {
		n, nsid, err := w.receive(buf, oob)
		switch {
		case w.closed.Load():
			return
		case errors.Is(err, unix.ENOBUFS):
			err = w.resync()
		case err == nil:
			err = w.handle(buf[:n], nsid)
		}
		if errors.Is(err, errNSGone) {
			w.fn(Event{NSGone: true})
			return
		}
		if err != nil {
			w.fn(Event{Err: fmt.Errorf("watch links: %w", err)})
			return
		}
	}
}

var errNSGone = errors.New("the namespace was deleted")

// receive reads one datagram and the namespace it is from.
func (w *Watcher) receive(buf, oob []byte) (n, nsid int, err error) {
	var oobn int
	cerr := w.conn.Read(func(fd uintptr) bool {
		for {
			n, oobn, _, _, err = unix.Recvmsg(int(fd), buf, oob, 0)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	if cerr != nil {
		return 0, 0, cerr
	}
	if err != nil {
		return 0, 0, err
	}
	return n, fromNSID(oob[:oobn]), nil
}

// fromNSID reads the namespace id that comes with a message from elsewhere.
func fromNSID(oob []byte) int {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return own
	}
	for _, m := range msgs {
		if m.Header.Level == unix.SOL_NETLINK && m.Header.Type == unix.NETLINK_LISTEN_ALL_NSID && len(m.Data) >= 4 {
			return int(int32(binary.NativeEndian.Uint32(m.Data)))
		}
	}
	return own
}

func (w *Watcher) handle(b []byte, nsid int) error {
	msgs, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return w.resync() // cut off
	}
	for _, m := range msgs {
		switch {
		case m.Header.Type == unix.RTM_DELNSID && nsid == own && deletedNSID(m.Data) == w.nsid:
			return errNSGone
		case nsid == w.nsid && (m.Header.Type == unix.RTM_NEWLINK || m.Header.Type == unix.RTM_DELLINK):
			if e, ok := parseLink(m.Header.Type, m.Data); ok {
				w.report(e)
			}
		}
	}
	return nil
}

// deletedNSID reads the id of an RTM_DELNSID; -2 if it has none.
func deletedNSID(m []byte) int {
	attrs, err := nl.ParseRouteAttr(m[min(unix.SizeofRtGenmsg+3, len(m)):]) // padded to 4
	if err != nil {
		return -2
	}
	for _, a := range attrs {
		if a.Attr.Type == netlink.NETNSA_NSID && len(a.Value) >= 4 {
			return int(int32(binary.NativeEndian.Uint32(a.Value)))
		}
	}
	return -2
}

func (w *Watcher) report(e Event) {
	if e.Gone {
		delete(w.links, e.Index)
	} else {
		w.links[e.Index] = e.Name
	}
	w.fn(e)
}

// resync makes up for lost messages: it reports every link, and as gone what
// was there before and is not any more.
func (w *Watcher) resync() error {
	now, err := w.dump()
	if err != nil {
		if w.nsid != own && errors.Is(err, unix.EINVAL) {
			return errNSGone // the id is not known any more
		}
		return err
	}
	there := map[int]bool{}
	for _, e := range now {
		there[e.Index] = true
	}
	for i, name := range w.links {
		if !there[i] {
			w.report(Event{Index: i, Name: name, Gone: true})
		}
	}
	for _, e := range now {
		w.report(e)
	}
	return nil
}
