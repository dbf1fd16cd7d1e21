// Package vm (control plane) implements virtual machines for tests and for the
// demo: Debian's kernel, our own program as /init, and QEMU.
//
//	host                                        guest
//	Machine ── QEMU ── unix socket ═══ virtio ── Init: traffic.Serve, set up links
//	             └── TAP in a kernel bridge ═══ eth0 (virtio-net)
//
// A guest is asked for everything through its agent: traffic.Remote's calls
// and those of this package. It has no disk and no shell.
package vm

import (
	"net/netip"
	"time"
)

// Operations of a guest beside those of a traffic agent.
const (
	opLink     = "link"
	opSetLink  = "set_link"
	opVLAN     = "vlan"
	opFeatures = "features"
	opPing     = "icmp"
	opNeigh    = "neigh"
	opPin      = "pin"
	opEnd      = "end"
)

// A LinkConfig is what SetLink makes of a guest's device. What is zero stays.
type LinkConfig struct {
	Name  string
	MTU   int
	MAC   [6]byte
	Addrs []netip.Prefix // added
	Down  bool           // instead of up
}

// A Link is a device as a guest sees it.
type Link struct {
	MTU            int
	MAC            string
	Carrier        bool
	CarrierChanges int // since the device was made
	Queues         int // of transmission
}

type vlanArg struct {
	Dev, Name string
	ID        int
	Addrs     []netip.Prefix
}

type featuresArg struct {
	Dev string
	On  map[string]bool
}

// An Echo says which ICMP echo requests are sent.
type Echo struct {
	To       netip.Addr
	Count    int
	Size     int // payload in bytes
	Interval int // ms
}

// A Pin binds everything that a guest's agent does to one vCPU at a time.
type Pin struct {
	CPUs []int         // in turn
	Hop  time.Duration // until the next one; 0: the first for good
	For  time.Duration // of hopping
}

// Ends of a guest.
const (
	Reboot   = "reboot"
	PowerOff = "poweroff"
	Crash    = "crash" // a kernel panic, and so a reboot after a second
)

// ready is what a guest says on its console when its agent answers.
const ready = "guest: ready"

// portName is the name of the virtio port that the agent uses.
const portName = "agent"
