package vm

import (
	"context"
	"net/netip"

	"taprouter/internal/traffic"
)

// Link gives the state of a guest's device.
func (m *Machine) Link(ctx context.Context, dev string) (l Link, err error) {
	err = m.Call(ctx, opLink, dev, &l)
	return l, err
}

// SetLink changes a guest's device and sets it up.
func (m *Machine) SetLink(ctx context.Context, c LinkConfig) error {
	return m.Call(ctx, opSetLink, c, nil)
}

// AddVLAN makes a device for the frames of dev that carry a VLAN tag.
func (m *Machine) AddVLAN(ctx context.Context, dev, name string, id int, addrs ...netip.Prefix) error {
	return m.Call(ctx, opVLAN, vlanArg{Dev: dev, Name: name, ID: id, Addrs: addrs}, nil)
}

// SetFeatures turns offloads of a guest's device on or off, under the names
// that ethtool -k shows.
func (m *Machine) SetFeatures(ctx context.Context, dev string, on map[string]bool) error {
	return m.Call(ctx, opFeatures, featuresArg{Dev: dev, On: on}, nil)
}

// Ping sends ICMP or ICMPv6 echo requests from a guest.
func (m *Machine) Ping(ctx context.Context, e Echo) (p traffic.Pings, err error) {
	err = m.Call(ctx, opPing, e, &p)
	return p, err
}

// Neighbours gives the addresses that a guest has resolved behind a device.
func (m *Machine) Neighbours(ctx context.Context, dev string) (addrs []netip.Addr, err error) {
	err = m.Call(ctx, opNeigh, dev, &addrs)
	return addrs, err
}

// Pin binds all that the guest's agent does to one vCPU after the other. It
// gives the number of changes.
func (m *Machine) Pin(ctx context.Context, p Pin) (hops int, err error) {
	err = m.Call(ctx, opPin, p, &hops)
	return hops, err
}

// End lets the guest reboot, crash or power off in a moment.
func (m *Machine) End(ctx context.Context, how string) error {
	return m.Call(ctx, opEnd, how, nil)
}
