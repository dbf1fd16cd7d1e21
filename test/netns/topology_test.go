package netns

import "testing"

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
}

var topologies = []topology{
	{"l2", bridged, "10.99.0.1", "10.99.0.2", "fd99::1", "fd99::2"},
	{"l3", routed, "10.99.1.1", "10.99.2.1", "fd99:1::1", "fd99:2::1"},
}

// each runs f on both topologies, with the hosts reachable.
func each(t *testing.T, f func(t *testing.T, top topology, n *Net, r *Router)) {
	for _, top := range topologies {
		t.Run(top.name, func(t *testing.T) {
			n := newNet(t)
			r := n.router(top.conf)
			n.ping("a", top.b4)
			n.ping("a", top.b6)
			f(t, top, n, r)
		})
	}
}
