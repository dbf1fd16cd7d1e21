package netns

import (
	"strings"
	"testing"
	"time"
)

// Two topologies serve most tests. In both, a and b are the hosts:
//
//	bridged   a 10.99.0.1/24 fd99::1/64  ══ br0 ══  b 10.99.0.2/24 fd99::2/64
//	routed    a 10.99.1.1/24 fd99:1::1/64 ═ .254 ::fe ═ router ═ .254 ::fe ═ b 10.99.2.1/24 fd99:2::1/64

const bridged = `
version: 1
workers: 2
ports:
  - {name: @dev:a, type: tap, queues: 2, netns: @ns:a, create: true, host: {addresses: [10.99.0.1/24, "fd99::1/64"]}}
  - {name: @dev:b, type: tap, queues: 2, netns: @ns:b, create: true, host: {addresses: [10.99.0.2/24, "fd99::2/64"]}}
bridges:
  - {name: br0, ports: [@dev:a, @dev:b]}
`

const routed = `
version: 1
workers: 2
ports:
  - name: @dev:a
    type: tap
    queues: 2
    netns: @ns:a
    create: true
    host: {addresses: [10.99.1.1/24, "fd99:1::1/64"], routes: [{to: default, via: 10.99.1.254}, {to: default, via: "fd99:1::fe"}]}
    addresses: [10.99.1.254/24, "fd99:1::fe/64"]
  - name: @dev:b
    type: tap
    queues: 2
    netns: @ns:b
    create: true
    host: {addresses: [10.99.2.1/24, "fd99:2::1/64"], routes: [{to: default, via: 10.99.2.254}, {to: default, via: "fd99:2::fe"}]}
    addresses: [10.99.2.254/24, "fd99:2::fe/64"]
`

// A topology says how host a reaches host b.
type topology struct {
	name, conf     string
	a4, b4, a6, b6 string
	brief          bool // a short run is enough: it is one of many
}

// duration is how long something that takes a second lasts.
func (top topology) duration() time.Duration {
	if top.brief && !full {
		return time.Second / 4
	}
	return time.Second
}

var topologies = []topology{
	{"l2", bridged, "10.99.0.1", "10.99.0.2", "fd99::1", "fd99::2", false},
	{"l3", routed, "10.99.1.1", "10.99.2.1", "fd99:1::1", "fd99:2::1", false},
}

// amount is how much a TCP test of iperf3 transfers.
func (top topology) amount() string {
	if top.brief && !full {
		return "-n 20M"
	}
	return amount()
}

// each runs f on both topologies, with the hosts reachable.
func each(t *testing.T, f func(t *testing.T, top topology, n *Net, r *Router)) {
	eachOf(t, topologies, f)
}

// eachBackend is each with the ports that go through a library besides: alone
// and beside a native one, as the other side's offloads are then done for them.
func eachBackend(t *testing.T, f func(t *testing.T, top topology, n *Net, r *Router)) {
	all := topologies
	l2, l3 := topologies[0], topologies[1]
	for _, b := range []struct {
		name  string
		of    topology
		typ   string
		ports int // that have the backend
	}{{"water", l2, "tap, backend: water", 2}, {"water beside native", l2, "tap, backend: water", 1},
		{"tun", l3, "tun", 2}, {"tun, water", l3, "tun\n    backend: water", 2},
		{"wireguard", l3, "tun\n    backend: wireguard", 2}, {"wireguard beside native", l3, "tun\n    backend: wireguard", 1}} {
		top := b.of
		top.brief = true
		top.name += " " + b.name
		top.conf = strings.Replace(top.conf, "type: tap", "type: "+b.typ, b.ports)
		all = append(all[:len(all):len(all)], top)
	}
	eachOf(t, all, f)
}

func eachOf(t *testing.T, all []topology, f func(t *testing.T, top topology, n *Net, r *Router)) {
	for _, top := range all {
		t.Run(top.name, func(t *testing.T) {
			n := newNet(t)
			r := n.router(top.conf)
			n.ping("a", top.b4)
			n.ping("a", top.b6)
			f(t, top, n, r)
		})
	}
}
