package config

import (
	"strings"
	"testing"
)

// one is a configuration with one port that has these extra keys.
func one(keys string) string {
	return "version: 1\nworkers: 2\nports:\n- {name: a, " + keys + "}\n"
}

const routed = "version: 1\nworkers: 2\nports:\n" +
	"- {name: a, addresses: [10.0.1.1/24, \"fd00:1::1/64\"]}\n" +
	"- {name: b, addresses: [10.0.2.1/24]}\n"

func TestRefused(t *testing.T) {
	tests := []struct{ name, in, want string }{
		// the file
		{"empty", "", `1:1: the file is empty: it needs at least "version: 1"`},
		{"only a comment", "# nothing\n", `1:1: the file is empty: it needs at least "version: 1"`},
		{"no version", "workers: 2\n", `1:1: "version: 1" is missing`},
		{"other version", "version: 2\n", `1:10: version: version "2" is not known; this router reads version 1`},
		{"a list", "- 1\n", `1:1: want the configuration as a mapping (key: value), got a list`},
		{"two documents", "version: 1\n---\nversion: 1\n", `3:1: a second document: one file holds one configuration`},
		{"tab", "version: 1\nports:\n\t- name: a\n", `3:1: a tab cannot indent YAML; use spaces`},
		{"key twice", "version: 1\nworkers: 2\nworkers: 3\n", `3:1: mapping key "workers" already defined at line 2, column 1`},
		{"open bracket", "version: 1\nports: [\n", `2:8: sequence end token ']' not found`},
		{"unknown key", "version: 1\nport: []\n", `2:1: unknown key "port" in the configuration; did you mean "ports"?`},
		{"unknown key, no idea", "version: 1\nfoobar: 1\n", `2:1: unknown key "foobar" in the configuration; known keys: version, workers, io, coalesce, busy_poll, balance, memory, ports, bridges, routes`},
		{"no value", "version: 1\nports:\n", `2:8: ports: no value; give one or remove the key`},
		{"no anchor", "version: 1\nports: *p\n", `2:8: ports: alias *p has no anchor &p`},
		{"alias loop", "version: 1\nports: &p *p\n", `2:11: unexpected scalar value type`},
		{"merge loop", "version: 1\nports:\n- &p {<<: *p}\n", `3:11: ports: too many merged mappings`},
		{"tag", "version: !!int 1\n", `1:10: version: a tag (!!int) has no use here; remove it`},
		{"no list", "version: 1\nports: {name: a}\n", `2:8: ports: want a list ([a, b] or lines that begin with -), got a mapping`},
		{"no mapping", "version: 1\nports: [a]\n", `2:9: ports: want a port as a mapping (key: value), got "a"`},
		{"no scalar", one("mtu: [1]"), `4:18: mtu: want a number from 68 to 65521, got a list`},

		// scalars
		{"io", "version: 1\nio: epoll\n", `2:5: io: unknown "epoll"; known are: auto, uring, readv`},
		{"busy_poll", "version: 1\nbusy_poll: 2ms\n", `2:12: busy_poll: want a duration from 0s to 1ms, got 2ms`},
		{"coalesce", "version: 1\ncoalesce: 2ms\n", `2:11: coalesce: want a duration from 0s to 1ms, got 2ms`},
		{"workers 0", "version: 1\nworkers: 0\n", `2:10: workers: want a number from 1 to 256, got 0`},
		{"octal", one("queues: 010"), `4:21: queues: 010 would be octal in YAML; write 10`},
		{"quoted number", one(`queues: "2"`), `4:21: queues: want a number from 1 to 256, got the text "2"; remove the quotes`},
		{"word for number", one("queues: two"), `4:21: queues: want a number from 1 to 256, got "two"`},
		{"float", one("queues: 2.5"), `4:21: queues: want a number from 1 to 256, got "2.5"`},
		{"huge", one("queues: 99999999999999999999"), `4:21: queues: want a number from 1 to 256, got 99999999999999999999`},
		{"queues 257", one("queues: 257"), `4:21: queues: want a number from 1 to 256, got 257`},
		{"mtu 67", one("mtu: 67"), `4:18: mtu: want a number from 68 to 65521, got 67`},
		{"mtu 65522", one("mtu: 65522"), `4:18: mtu: want a number from 68 to 65521, got 65522`},
		{"txqueuelen 0", one("txqueuelen: 0"), `4:25: txqueuelen: want a number from 1 to 1048576, got 0`},
		{"steering", one("steering: rss"), `4:23: steering: unknown "rss"; known are: kernel, random, hash, queue`},
		{"bool", one("create: yes"), `4:21: create: want true or false, got "yes"`},
		{"size", one("sndbuf: 64kb"), `4:21: sndbuf: want a size in bytes, KiB, MiB or GiB like 128MiB, got "64kb"`},
		{"size too small", "version: 1\nmemory: {pool: 1MiB}\n", `2:16: pool: want a size from 8MiB to 1024GiB, got 1MiB`},
		{"huge pages", "version: 1\nmemory: {huge: yes}\n", `2:16: huge: unknown "yes"; known are: auto, on, off`},
		{"size overflow", one("sndbuf: 9999999999999GiB"), `4:21: sndbuf: want a size in bytes, KiB, MiB or GiB like 128MiB, got "9999999999999GiB"`},
		{"duration without unit", "version: 1\nbridges: [{name: b, ageing_time: 300}]\n", `2:34: ageing_time: a duration needs a unit; write 300s for seconds`},
		{"duration", "version: 1\nbridges: [{name: b, ageing_time: long}]\n", `2:34: ageing_time: want a duration like 300s or 5m, got "long"`},
		{"duration range", "version: 1\nbridges: [{name: b, ageing_time: -1s}]\n", `2:34: ageing_time: want a duration from 1s to 277h46m40s, got -1s`},
		{"fdb_max", "version: 1\nbridges: [{name: b, fdb_max: 0}]\n", `2:30: fdb_max: want a number from 1 to 1048576, got 0`},
		{"mac", one("mac: 02:00"), `4:18: mac: want an Ethernet address like 02:00:00:00:0a:fe, got "02:00"`},
		{"mac multicast", one("mac: 01:00:5e:00:00:01"), `4:18: mac: 01:00:5e:00:00:01 is no address of one station: the first byte must be even, and not all can be 0`},
		{"type", one("type: tapp"), `4:19: type: unknown "tapp"; known are: tap, tun, socket`},

		// names
		{"no name", "version: 1\nports: [{queues: 2}]\n", `2:9: a port needs a name`},
		{"empty name", "version: 1\nports: [{name: \"\"}]\n", `2:16: name: a device name cannot be empty`},
		{"long name", "version: 1\nports: [{name: abcdefghijklmnop}]\n", `2:16: name: "abcdefghijklmnop" has 16 bytes, a device name at most 15`},
		{"bad name", "version: 1\nports: [{name: a/b}]\n", `2:16: name: "a/b" is no device name: letters, digits, - _ . are safe; no space, control character, / : %`},
		{"netns name", one("netns: ../x"), `4:20: netns: "../x" is no name of a network namespace (see ` + "`ip netns`)"},
		{"port twice", "version: 1\nports: [{name: a, addresses: [10.0.0.1/24]}, {name: a, addresses: [10.1.0.1/24]}]\n", `2:53: port a: the name is taken by the port at line 2`},
		{"bridge like port", routed + "bridges: [{name: a, ports: []}]\n", `6:18: bridge a: the name is taken by the port at line 4`},

		// addresses
		{"no length", one("addresses: [10.0.0.1]"), `4:25: addresses: "10.0.0.1" has no prefix length; write 10.0.0.1/24`},
		{"length", one("addresses: [10.0.0.1/33]"), `4:25: addresses: /33 is no prefix length: want 0 to 32`},
		{"no address", one("addresses: [10.0.0/24]"), `4:25: addresses: want an address with its prefix length like 10.99.1.1/24 or fd00::1/64, got "10.0.0/24"`},
		{"network", one("addresses: [10.0.0.0/24]"), `4:25: addresses: 10.0.0.0/24 is the subnet itself; want a station in it like 10.0.0.1/24`},
		{"broadcast", one("addresses: [10.0.0.255/24]"), `4:25: addresses: 10.0.0.255/24 is the broadcast address of its subnet`},
		{"multicast", one(`addresses: ["ff02::1/64"]`), `4:25: addresses: ff02::1 is not the address of one station`},
		{"loopback", one("addresses: [127.0.0.1/8]"), `4:25: addresses: 127.0.0.1 is a loopback address`},
		{"mapped", one(`addresses: ["::ffff:10.0.0.1/120"]`), `4:25: addresses: write 10.0.0.1, not the IPv6 form of it`},
		{"zone", one(`addresses: ["fe80::1%eth0/64"]`), `4:25: addresses: an address has no zone here; leave out "%eth0"`},
		{"whole internet", one("addresses: [10.0.0.1/0]"), `4:25: addresses: an interface cannot have the whole Internet on its link (/0)`},
		{"address twice", one("addresses: [10.0.0.1/24, 10.0.0.1/16]"), `4:38: a: address 10.0.0.1 is given twice`},
		{"address on two", routed + "- {name: c, addresses: [10.0.2.1/32]}\n", `6:25: c: address 10.0.2.1 is on b already`},
		{"overlap", routed + "- {name: c, addresses: [10.0.0.9/16]}\n", `6:25: c: subnet 10.0.0.0/16 overlaps 10.0.1.0/24 on a; each subnet is on one port or bridge`},
		{"ipv6 mtu", one(`mtu: 1000, addresses: ["fd00::1/64"]`), `4:18: a: IPv6 needs an mtu of at least 1280, this is 1000`},

		// ports
		{"create without netns", one("addresses: [10.0.0.1/24], create: true"), `4:47: port a: create makes a missing namespace, but none is named; add netns: NAME`},
		{"tun with mac", one("type: tun, mac: 02:00:00:00:00:01"), `4:29: port a: a tun port carries no Ethernet; remove mac or take type: tap`},
		{"same mac", one("mac: 02:00:00:00:00:01, host: {mac: 02:00:00:00:00:01}"), `4:49: port a: host.mac and mac are the same; the two ends of the port are two stations`},
		{"accept without header", one("vnet_hdr: false, accept: [csum]"), `4:38: port a: without vnet_hdr nothing can be accepted; write accept: [] or remove it`},
		{"tso alone", one("accept: [tso]"), `4:21: port a: tso and uso need csum, as a superpacket's checksum is never complete; add csum`},
		{"gro", one("gro: auto"), `4:18: gro: want true or false, got "auto"`},
		{"accept word", one("accept: [gso]"), `4:22: accept: unknown "gso"; known are: csum, tso, uso`},
		{"napi", one("napi: true, queues: 2, xps: {flow_table_cnt: 64}"), `4:19: port a: napi cannot go with a flow table on 2 queues, as a packet is not delivered when it is written; set xps.flow_table_cnt: 0 or queues: 1`},
		{"backend", one("backend: watr"), `4:22: backend: unknown "watr"; known are: native, water, wireguard`},
		{"wireguard tap", one("backend: wireguard"), `4:22: port a: backend wireguard carries IP packets only; add type: tun, or take backend: native`},
		{"water header", one("backend: water, vnet_hdr: true"), `4:39: port a: backend water has no virtio-net header and so no offloads; remove vnet_hdr, or take backend: native`},
		{"water accept", one("backend: water, accept: [csum]"), `4:37: port a: without vnet_hdr nothing can be accepted; write accept: [] or remove it`},
		{"water sndbuf", one("backend: water, sndbuf: 64KiB"), `4:37: port a: backend water would wait for room in a bounded send buffer; remove sndbuf, or take backend: native`},
		{"water napi", one("backend: water, queues: 1, napi: true"), `4:46: port a: backend water cannot ask for NAPI; remove napi, or take backend: native`},
		{"water backpressure", one("backend: water, backpressure: true"), `4:43: port a: backend water cannot ask for it; remove backpressure, or take backend: native`},
		{"wireguard header", one("type: tun, backend: wireguard, vnet_hdr: false"), `4:54: port a: backend wireguard always uses the virtio-net header; remove vnet_hdr, or take backend: native`},
		{"wireguard accept", one("type: tun, backend: wireguard, accept: [csum]"), `4:52: port a: backend wireguard takes whole packets only and merges them itself; remove accept, or take backend: native`},
		{"wireguard sndbuf", one("type: tun, backend: wireguard, sndbuf: 64KiB"), `4:52: port a: backend wireguard would wait for room in a bounded send buffer; remove sndbuf, or take backend: native`},
		{"socket without peer", one(`type: socket`), `4:19: port a: a socket needs a peer; add one of stream: {listen: PATH}, stream: {connect: PATH}, dgram: {local: PATH, remote: PATH}`},
		{"socket of two kinds", one(`type: socket, stream: {listen: /run/a}, dgram: {local: /run/b, remote: /run/c}`), `4:19: port a: a socket needs a peer; add one of stream: {listen: PATH}, stream: {connect: PATH}, dgram: {local: PATH, remote: PATH}`},
		{"stream both ways", one(`type: socket, stream: {listen: /run/a, connect: /run/b}`), `4:61: port a: a stream listens or connects; remove one of them`},
		{"dgram half", one(`type: socket, dgram: {local: /run/a}`), `4:19: port a: dgram needs local and remote`},
		{"dgram to itself", one(`type: socket, dgram: {local: /run/a, remote: /run/a}`), `4:58: port a: local and remote are the same; the port would talk to itself`},
		{"stream on a tap", one(`stream: {listen: /run/a}`), `4:30: port a: a tap port has no socket; add type: socket`},
		{"socket path", one(`type: socket, stream: {listen: run/a}`), `4:44: listen: want the absolute path of a socket, or an address and port like 127.0.0.1:5555, got "run/a"`},
		{"socket address", one(`type: socket, stream: {connect: "10.0.0.1:5555"}`), `4:45: connect: 10.0.0.1 is no address of the loopback, and frames are neither encrypted nor signed; use a path, 127.0.0.1 or ::1`},
		{"dgram address", one(`type: socket, dgram: {local: "127.0.0.1:1", remote: /run/a}`), `4:42: local: want the absolute path of a socket like /run/vm1.sock, got "127.0.0.1:1"`},
		{"socket netns", one(`type: socket, stream: {listen: /run/a}, netns: ns1`), `4:60: port a: a socket port has no netdev; remove netns`},
		{"socket host", one(`type: socket, stream: {listen: /run/a}, host: {addresses: [10.0.0.1/24]}`), `4:71: port a: a socket port has no netdev; remove host.addresses`},
		{"socket header", one(`type: socket, stream: {listen: /run/a}, vnet_hdr: true`), `4:63: port a: a socket carries plain frames; remove vnet_hdr`},
		{"socket accept", one(`type: socket, stream: {listen: /run/a}, accept: [csum]`), `4:61: port a: without vnet_hdr nothing can be accepted; write accept: [] or remove it`},
		{"socket queues", one(`type: socket, stream: {listen: /run/a}, queues: 2`), `4:61: port a: a socket is one queue; write queues: 1 or remove it`},
		{"socket line", one(`type: socket, stream: {listen: /run/a}, line: {rate: 1gbit}`), `4:66: port a: a line writes each packet at its time and cannot wait for a peer; remove line`},
		{"socket backend", one(`type: socket, stream: {listen: /run/a}, backend: water`), `4:62: port a: a socket port has no netdev; remove backend`},
		{"socket path too long", one("type: socket, stream: {listen: /run/" + strings.Repeat("x", 103) + "}"), `4:44: listen: the path has 108 bytes, that of a socket at most 107`},
		{"socket twice", "version: 1\nports:\n- {name: a, type: socket, stream: {listen: /run/a}, addresses: [10.0.0.1/24]}\n- {name: b, type: socket, stream: {listen: /run/a}, addresses: [10.1.0.1/24]}\n", `4:44: port b: port a has the address /run/a already`},
		{"qdisc", one("qdisc: {kind: htb}"), `4:27: kind: unknown "htb"; known are: mq, pfifo_fast, fq`},
		{"no kind", one("qdisc: {child: {kind: pfifo_fast}}"), `4:20: qdisc needs a kind`},
		{"child mq", one("qdisc: {kind: mq, child: {kind: mq}}"), `4:45: kind: mq can only be the root; known are: pfifo_fast, fq`},
		{"child of pfifo_fast", one("qdisc: {kind: pfifo_fast, child: {kind: pfifo_fast}}"), `4:53: port a: only mq has a child; pfifo_fast stands alone`},
		{"child loop", one("qdisc: &q {kind: mq, child: *q}"), "4:30: kind: mq can only be the root; known are: pfifo_fast, fq\n4:34: unknown key \"child\" in child; known keys: kind, limit, flow_limit, buckets, orphan_mask, pacing, bands, priomap, weights, quantum, initial_quantum, maxrate, low_rate_threshold, refill_delay, ce_threshold, timer_slack, horizon, horizon_drop, offload_horizon, fastpath"},
		{"fq option", one("qdisc: {kind: fq, flow_limt: 5}"), `4:31: unknown key "flow_limt" in qdisc; did you mean "flow_limit"?`},
		{"fq range", one("qdisc: {kind: fq, limit: 0}"), `4:38: limit: want 1 to 1048576, got "0"`},
		{"fq rate", one("qdisc: {kind: fq, maxrate: fast}"), `4:40: maxrate: want 8bit to 34359Mbit, or 0 or unlimited for none, got "fast"`},
		{"fq time", one("qdisc: {kind: fq, horizon: 2h}"), `4:40: horizon: want 0us to 4294967295us, got "2h"`},
		{"fq flag", one("qdisc: {kind: fq, pacing: off}"), `4:39: pacing: want true or false, got "off"`},
		{"fq priomap", one("qdisc: {kind: fq, priomap: [0, 1]}"), `4:40: priomap: want 0 to 2 for each of 16 priorities, 16 values, got 2`},
		{"fq weights", one("qdisc: {kind: fq, weights: [16384, 16384, 5]}"), `4:40: weights: want 16384 to 2147483647 bytes for each of 3 bands, got "5"`},
		{"fq no list", one("qdisc: {kind: fq, weights: 5}"), `4:40: weights: want a list ([a, b] or lines that begin with -), got "5"`},
		{"fq no value", one("qdisc: {kind: fq, limit: [5]}"), `4:38: limit: want one value, got a list`},
		{"fq offload", one("qdisc: {kind: mq, child: {kind: fq, offload_horizon: 5ms}}"), `4:66: offload_horizon: want 0us: there is no device here that paces, got "5ms"`},
		{"option of pfifo_fast", one("qdisc: {kind: pfifo_fast, limit: 5}"), `4:46: port a: limit is an option of fq; pfifo_fast has none`},
		{"option of mq", one("qdisc: {kind: mq, pacing: false, child: {kind: fq}}"), `4:39: port a: pacing is an option of fq; mq has none`},
		{"option of the child", one("qdisc: {kind: mq, child: {kind: pfifo_fast, maxrate: 0}}"), `4:66: port a: maxrate is an option of fq; pfifo_fast has none`},
		{"short qdisc", one("qdisc: fq"), `4:20: qdisc: want qdisc as a mapping (key: value), got "fq"`},
		{"line without rate", one("line: {ring: 5}"), `4:19: line needs a rate`},
		{"line rate", one("line: {rate: 1000mbyte}"), `4:26: rate: want a rate from 8Kbit to 400Gbit such as 100mbit, got "1000mbyte"`},
		{"line rate range", one("line: {rate: 7kbit}"), `4:26: rate: want a rate from 8Kbit to 400Gbit such as 100mbit, got "7kbit"`},
		{"line ring", one("line: {rate: 1gbit, ring: 32769}"), `4:39: ring: want a number from 1 to 32768, got 32769`},
		{"line delay", one("line: {rate: 1gbit, delay: 11s}"), `4:40: delay: want a duration from 0s to 10s, got 11s`},
		{"line overhead", one("line: {rate: 1gbit, overhead: 257}"), `4:43: overhead: want ethernet or 0 to 256 bytes, got "257"`},
		{"line shared", one("line: {rate: 1gbit, shared: 1}"), `4:41: shared: want true or false, got "1"`},
		{"line and sndbuf", one("line: {rate: 1gbit}, sndbuf: 64KiB"), `4:42: port a: a line writes each packet at its time and cannot wait for sndbuf; remove one of them`},
		{"xps mode", one("xps: {mode: in_flight}"), `4:25: mode: unknown "in_flight"; known are: inflight, dql`},
		{"xps map queue", one("queues: 2, xps: {map: {2: [0]}}"), `4:35: port a: the map names queue 2, but queues are 0 to 1`},
		{"xps map worker", one("queues: 2, xps: {map: {1: [0, 2]}}"), `4:43: port a: queue 1 names worker 2, but workers are 0 to 1`},
		{"xps map key", one("queues: 2, xps: {map: {x: [0]}}"), `4:36: map: want the number of a queue, got "x"`},
		{"host same address", one("addresses: [10.0.0.1/24], host: {addresses: [10.0.0.1/24]}"), `4:58: port a: host and router have the same address 10.0.0.1`},
		{"host address twice", one("host: {addresses: [10.0.0.1/24, 10.0.0.1/24]}"), `4:45: port a: host address 10.0.0.1/24 is given twice`},
		{"host gateway", one("host: {addresses: [10.0.0.1/24], routes: [{to: default, via: 10.0.1.1}]}"), `4:74: port a: 10.0.1.1 is in no subnet of host.addresses`},
		{"host default", one("host: {addresses: [10.0.0.1/24], routes: [{to: default}]}"), `4:55: port a: host route to default of which family? write 0.0.0.0/0 or ::/0`},
		{"host create without bridge", one("host: {create: true}"), `4:28: port a: host.create makes a missing kernel bridge, but none is named; add bridge: NAME`},
		{"host bridge like port", one("host: {bridge: a}"), `4:28: port a: the port cannot be a bridge that it joins; give one of them another name`},

		// bridges
		{"no such port", routed + "bridges: [{name: br0, ports: [tapx]}]\n", `6:31: bridge br0: there is no port tapx; ports are: a, b`},
		{"nearly such a port", "version: 1\nports: [{name: tapa}]\nbridges: [{name: br0, ports: [tapb]}]\n", `3:31: bridge br0: there is no port tapb; did you mean "tapa"?`},
		{"port twice in bridge", "version: 1\nports: [{name: a}]\nbridges: [{name: br0, ports: [a, a]}]\n", `3:34: bridge br0: port a is listed twice`},
		{"port in two bridges", "version: 1\nports: [{name: a}]\nbridges:\n- {name: br0, ports: [a]}\n- {name: br1, ports: [a]}\n", `5:23: bridge br1: port a is in bridge br0 already`},
		{"addresses in bridge", "version: 1\nports: [{name: a, addresses: [10.0.0.1/24]}]\nbridges: [{name: br0, ports: [a]}]\n", `2:30: port a is in bridge br0 and cannot have addresses; give them to the bridge`},
		{"tun in bridge", "version: 1\nports: [{name: a, type: tun}]\nbridges: [{name: br0, ports: [a]}]\n", `3:31: bridge br0: port a is a tun port, which carries no Ethernet; a bridge takes type: tap`},

		// routes
		{"no destination", routed + "routes: [{via: 10.0.1.9}]\n", `6:10: route needs a destination; add to: PREFIX or to: default`},
		{"host bits", routed + "routes: [{to: 10.1.2.3/16, via: 10.0.1.9}]\n", `6:15: to: 10.1.2.3/16 has bits set beyond its length; write 10.1.0.0/16`},
		{"via with length", routed + "routes: [{to: 10.1.0.0/16, via: 10.0.1.9/24}]\n", `6:33: via: want an address without a prefix length, got "10.0.1.9/24"`},
		{"unreachable gateway", routed + "routes: [{to: 10.1.0.0/16, via: 10.0.9.9}]\n", `6:33: route to 10.1.0.0/16: gateway 10.0.9.9 is in no subnet of a port or bridge`},
		{"gateway elsewhere", routed + "routes: [{to: 10.1.0.0/16, via: 10.0.1.9, dev: b}]\n", `6:33: route to 10.1.0.0/16: gateway 10.0.1.9 is in no subnet of b`},
		{"own gateway", routed + "routes: [{to: 10.1.0.0/16, via: 10.0.1.1}]\n", `6:33: route to 10.1.0.0/16: 10.0.1.1 is our own address on a`},
		{"families", routed + "routes: [{to: 10.1.0.0/16, via: \"fd00:1::9\"}]\n", `6:10: route to 10.1.0.0/16 goes via fd00:1::9 of the other family`},
		{"no way", routed + "routes: [{to: 10.1.0.0/16}]\n", `6:10: route to 10.1.0.0/16 needs a gateway or a device; add via: ADDRESS or dev: NAME`},
		{"link-local gateway", routed + "routes: [{to: default, via: \"fe80::1\"}]\n", `6:29: route to ::/0: fe80::1 is link-local; add dev: NAME`},
		{"no such dev", routed + "routes: [{to: 10.1.0.0/16, dev: eth0}]\n", `6:33: route to 10.1.0.0/16: there is no port or bridge eth0; there are: a, b`},
		{"dev without family", routed + "routes: [{to: \"fd01::/48\", dev: b}]\n", `6:33: route to fd01::/48: b has no IPv6 address of ours`},
		{"route twice", routed + "routes: [{to: default, via: 10.0.1.9}, {to: 0.0.0.0/0, via: 10.0.2.9}]\n", `6:40: route to 0.0.0.0/0 is there already, at line 6`},
		{"connected", routed + "routes: [{to: 10.0.1.0/24, via: 10.0.2.9}]\n", `6:10: route to 10.0.1.0/24: that subnet is on the link of a already`},
		{"blackhole with via", routed + "routes: [{to: 10.1.0.0/16, via: 10.0.1.9, type: blackhole}]\n", `6:10: route to 10.1.0.0/16: type blackhole leads nowhere; remove via and dev`},
		{"route type", routed + "routes: [{to: 10.1.0.0/16, type: prohibit}]\n", `6:34: type: unknown "prohibit"; known are: unicast, blackhole, unreachable`},

		// several at once, in the order of the file
		{"all of them", "version: 1\nworkers: 0\nports:\n- {name: a, queuez: 2, mtu: 1}\n- {name: a}\nbridges: [{name: br0, ports: [c]}]\n",
			"2:10: workers: want a number from 1 to 256, got 0\n" +
				"4:13: unknown key \"queuez\" in a port; did you mean \"queues\"?\n" +
				"4:29: mtu: want a number from 68 to 65521, got 1\n" +
				"5:10: port a: the name is taken by the port at line 4\n" +
				"6:31: bridge br0: there is no port c; ports are: a, a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse("x.yaml", []byte(tt.in))
			if err == nil {
				t.Fatalf("Parse(%q) = %+v, want an error", tt.in, c)
			}
			want := "x.yaml:" + strings.ReplaceAll(tt.want, "\n", "\nx.yaml:")
			if got := err.Error(); got != want {
				t.Errorf("Parse(%q)\n got %s\nwant %s", tt.in, got, want)
			}
		})
	}
}
