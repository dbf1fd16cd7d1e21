package demo

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/vishvananda/netns"

	"taprouter/control/api"
)

// names are what this run calls the things it makes. They carry our pid, so
// that two demos do not meet.
type names struct {
	router             string
	nsA, nsB           string
	l2a, l2b, l3a, l3b string // netdevs, at most 15 characters
	slow               string // one more, beside machines
	prefix             string // of all
}

func newNames(pid int) names {
	p := fmt.Sprintf("td%d", pid) // a pid has at most 7 digits
	return names{
		router: "demo-" + p, nsA: p + "a", nsB: p + "b",
		l2a: p + "l2a", l2b: p + "l2b", l3a: p + "l3a", l3b: p + "l3b", slow: p + "c", prefix: p,
	}
}

const (
	queues = 2    // of each port
	mtu    = 1500 // of each port
)

// config is the router's configuration.
func (n names) config() string {
	port := func(name, ns, rest string) string {
		return fmt.Sprintf("  - {name: %s, type: tap, queues: %d, mtu: %d, netns: %s, create: true, %s}\n", name, queues, mtu, ns, rest)
	}
	var b strings.Builder
	b.WriteString("version: 1\nports:\n")
	b.WriteString(port(n.l2a, n.nsA, `host: {addresses: [10.71.1.1/24, "fd71:1::1/64"]}`))
	b.WriteString(port(n.l2b, n.nsB, `host: {addresses: [10.71.1.2/24, "fd71:1::2/64"]}`))
	b.WriteString(port(n.l3a, n.nsA, `addresses: [10.71.2.254/24, "fd71:2::fe/64"], `+
		`host: {addresses: [10.71.2.1/24, "fd71:2::1/64"], routes: [{to: 10.71.3.0/24, via: 10.71.2.254}, {to: "fd71:3::/64", via: "fd71:2::fe"}]}`))
	b.WriteString(port(n.l3b, n.nsB, `addresses: [10.71.3.254/24, "fd71:3::fe/64"], `+
		`host: {addresses: [10.71.3.1/24, "fd71:3::1/64"], routes: [{to: 10.71.2.0/24, via: 10.71.3.254}, {to: "fd71:2::/64", via: "fd71:3::fe"}]}`))
	fmt.Fprintf(&b, "bridges:\n  - {name: br0, ports: [%s, %s]}\n", n.l2a, n.l2b)
	return b.String()
}

// A path is a way through the router: bridged or routed, IPv4 or IPv6.
type path struct{ layer, family string }

// paths gives the paths in the order of the legs, with their receiving
// addresses.
var paths = []struct {
	path
	to string
}{
	{path{"l2", "ipv4"}, "10.71.1.2"},
	{path{"l2", "ipv6"}, "fd71:1::2"},
	{path{"l3", "ipv4"}, "10.71.3.1"},
	{path{"l3", "ipv6"}, "fd71:3::1"},
}

// ports gives a path's ports, the sender's first.
func (n names) ports(p path) [2]string {
	if p.layer == "l3" {
		return [2]string{n.l3a, n.l3b}
	}
	return [2]string{n.l2a, n.l2b}
}

// remove deletes what a router that was killed has left.
func (n names) remove() error {
	var errs []error
	for _, ns := range []string{n.nsA, n.nsB} {
		if _, err := os.Lstat("/run/netns/" + ns); err != nil {
			continue
		}
		errs = append(errs, fmt.Errorf("the router left namespace %s behind", ns))
		if err := netns.DeleteNamed(ns); err != nil {
			errs = append(errs, fmt.Errorf("remove namespace %s: %w", ns, err))
		}
	}
	if err := os.Remove(n.socket()); err == nil {
		errs = append(errs, fmt.Errorf("the router left %s behind", n.socket()))
	}
	return errors.Join(errs...)
}

func (n names) socket() string { return api.SocketPath(n.router) }
