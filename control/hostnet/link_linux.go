package hostnet

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Stats are the kernel's 64-bit counters of a link, as its side counts: what
// the kernel sends us is tx, and TxDropped is what found our queue full.
type Stats = netlink.LinkStatistics

// A Link is a netdev as it was when it was looked up.
type Link struct {
	Index      int
	Name       string
	MTU        int
	MAC        net.HardwareAddr // nil for a TUN
	TxQueueLen int
	Up         bool // IFF_UP: set up by the administrator
	Carrier    bool // IFF_LOWER_UP: somebody has the device open
	Stats      Stats
}

// ErrNoLink says that there is no such device.
var ErrNoLink = fmt.Errorf("no such device: %w", os.ErrNotExist)

// Lookup gives the device with that name.
func (ns *NS) Lookup(name string) (Link, error) {
	var l Link
	err := ns.with(name, "look up", func(_ *netlink.Handle, nl netlink.Link) error {
		l = fromAttrs(nl.Attrs())
		return nil
	})
	return l, err
}

func fromAttrs(a *netlink.LinkAttrs) Link {
	l := Link{
		Index: a.Index, Name: a.Name, MTU: a.MTU, MAC: a.HardwareAddr, TxQueueLen: a.TxQLen,
		Up: a.RawFlags&unix.IFF_UP != 0, Carrier: a.RawFlags&unix.IFF_LOWER_UP != 0,
	}
	if a.Statistics != nil {
		l.Stats = *a.Statistics
	}
	return l
}

// SetMTU sets the largest packet of the device, without the Ethernet header.
func (ns *NS) SetMTU(name string, mtu int) error {
	return ns.with(name, "set mtu", func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetMTU(l, mtu) })
}

// SetMAC sets the device's Ethernet address.
func (ns *NS) SetMAC(name string, mac [6]byte) error {
	return ns.with(name, "set address", func(h *netlink.Handle, l netlink.Link) error {
		return h.LinkSetHardwareAddr(l, mac[:])
	})
}

// SetTxQueueLen sets the length of the device's rings towards us, in packets.
func (ns *NS) SetTxQueueLen(name string, n int) error {
	return ns.with(name, "set txqueuelen", func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetTxQLen(l, n) })
}

// SetUp sets the device up or down.
func (ns *NS) SetUp(name string, up bool) error {
	return ns.with(name, "set up", func(h *netlink.Handle, l netlink.Link) error { return setUp(h, l, up) })
}

func setUp(h *netlink.Handle, l netlink.Link, up bool) error {
	if up {
		return h.LinkSetUp(l)
	}
	return h.LinkSetDown(l)
}

// with runs fn on a device; op names it in the error.
func (ns *NS) with(name, op string, fn func(h *netlink.Handle, l netlink.Link) error) error {
	h, err := ns.handle()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := find(h, name)
	if err == nil {
		err = fn(h, l)
	}
	if err != nil {
		return Explain(fmt.Errorf("%s of %s in netns %s: %w", op, name, ns, err), NetAdmin)
	}
	return nil
}

func find(h *netlink.Handle, name string) (netlink.Link, error) {
	l, err := h.LinkByName(name)
	var nf netlink.LinkNotFoundError
	if errors.As(err, &nf) {
		return nil, ErrNoLink
	}
	return l, err
}
