package config

import (
	"slices"
	"strconv"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// document decodes the whole file. The file's shape is what follows.
func document(c *Config) setter {
	version := 0
	c.IO, c.Coalesce, c.BusyPoll, c.Balance = IOAuto, DefaultCoalesce, DefaultBusyPoll, true
	return func(d *decoder, n ast.Node) {
		mapping("the configuration",
			field{"version", parsed(&version, "1", parseVersion)},
			field{"workers", integer(&c.Workers, 1, MaxWorkers)},
			field{"io", oneOf(&c.IO, IOAuto, IOUring, IOReadv)},
			field{"coalesce", duration(&c.Coalesce, 0, MaxCoalesce)},
			field{"busy_poll", duration(&c.BusyPoll, 0, MaxBusyPoll)},
			field{"balance", boolean(&c.Balance)},
			field{"memory", mapping("memory", field{"pool", size(&c.Pool, 8<<20, 1<<40)}, field{"huge", oneOf(&c.Huge, HugeAuto, HugeOn, HugeOff)})},
			field{"ports", list(&c.Ports, port)},
			field{"bridges", list(&c.Bridges, bridge)},
			field{"routes", list(&c.Routes, route)},
		)(d, n)
		if !d.has(&version) && len(d.errs) == 0 {
			d.fail(start(n), `"version: 1" is missing`)
		}
	}
}

func parseVersion(s string) (int, string) {
	if s != "1" {
		return 0, "version " + quote(s) + " is not known; this router reads version 1"
	}
	return 1, ""
}

func port(p *Port) setter {
	*p = Port{Type: TAP, Backend: Native, MTU: DefaultMTU, TxQueueLen: DefaultTxQueueLen, VnetHdr: true, Steering: SteerKernel, Host: Host{Up: true, TxQueueLen: DefaultHostTxQueueLen}}
	p.XPS = XPS{FlowTableCnt: DefaultFlowTable, Mode: Inflight}
	return required(&p.Name, "a port", mapping("a port",
		field{"name", ifname(&p.Name)},
		field{"type", oneOf(&p.Type, TAP, TUN, SocketType)},
		field{"stream", stream(&p.Socket)},
		field{"dgram", dgram(&p.Socket)},
		field{"backend", oneOf(&p.Backend, Native, Water, Wireguard)},
		field{"queues", integer(&p.Queues, 1, MaxQueues)},
		field{"netns", netnsName(&p.NetNS)},
		field{"create", boolean(&p.Create)},
		field{"persist", boolean(&p.Persist)},
		field{"mtu", integer(&p.MTU, MinMTU, MaxMTU)},
		field{"txqueuelen", integer(&p.TxQueueLen, 1, 1<<20)},
		field{"mac", mac(&p.MAC)},
		field{"addresses", list(&p.Addresses, address)},
		field{"host", host(&p.Host)},
		field{"vnet_hdr", boolean(&p.VnetHdr)},
		field{"accept", accept(&p.Accept)},
		field{"gro", boolean(&p.GRO)},
		field{"sndbuf", size(&p.SndBuf, 1<<10, 1<<30)},
		field{"napi", boolean(&p.NAPI)},
		field{"backpressure", boolean(&p.Backpressure)},
		field{"qdisc", root(&p.Qdisc)},
		field{"line", line(&p.Line)},
		field{"xps", xps(&p.XPS)},
		field{"steering", oneOf(&p.Steering, SteerKernel, SteerRandom, SteerHash, SteerQueue)},
	))
}

// required wraps a mapping in which the key name must be given.
func required(name *string, what string, set setter) setter {
	return func(d *decoder, n ast.Node) {
		before := len(d.errs)
		set(d, n)
		if !d.has(name) && len(d.errs) == before {
			d.fail(start(n), "%s needs a name", what)
		}
	}
}

func host(h *Host) setter {
	return mapping("host",
		field{"addresses", list(&h.Addresses, address)},
		field{"routes", list(&h.Routes, hostRoute)},
		field{"mac", mac(&h.MAC)},
		field{"bridge", ifname(&h.Bridge)},
		field{"create", boolean(&h.Create)},
		field{"up", boolean(&h.Up)},
		field{"txqueuelen", integer(&h.TxQueueLen, 1, 1<<20)},
	)
}

func hostRoute(r *HostRoute) setter {
	return mapping("a route of host",
		field{"to", destination(&r.To)},
		field{"via", addr(&r.Via)},
	)
}

// accept decodes the list of offloads; its absence is filled in later.
func accept(a *Accept) setter {
	var words []string
	decode := list(&words, func(w *string) setter { return oneOf(w, "csum", "tso", "uso") })
	return func(d *decoder, n ast.Node) {
		d.mark(a, n)
		decode(d, n)
		*a = Accept{slices.Contains(words, "csum"), slices.Contains(words, "tso"), slices.Contains(words, "uso")}
	}
}

func xps(x *XPS) setter {
	return mapping("xps",
		field{"flow_table_cnt", integer(&x.FlowTableCnt, 0, 1<<20)},
		field{"mode", oneOf(&x.Mode, Inflight, DQL)},
		field{"map", queueMap(&x.Map)},
	)
}

// queueMap decodes {queue: [workers]}.
func queueMap(m *[][]int) setter {
	return func(d *decoder, n ast.Node) {
		entries, ok := d.entries(n, "queue: [workers]")
		if !ok {
			return
		}
		d.mark(m, n)
		*m = make([][]int, MaxQueues) // at once: marked places must not move
		last := -1
		for _, e := range entries {
			q, err := strconv.Atoi(e.Key.GetToken().Value)
			if err != nil || q < 0 || q >= MaxQueues {
				d.fail(start(e), "map: want the number of a queue, got %s", quote(e.Key.GetToken().Value))
				continue
			}
			last = max(last, q)
			list(&(*m)[q], func(w *int) setter { return integer(w, 0, MaxWorkers-1) })(d, e.Value)
		}
		*m = (*m)[:last+1]
	}
}

func bridge(b *Bridge) setter {
	*b = Bridge{AgeingTime: DefaultAgeingTime, FDBMax: DefaultFDBMax}
	return required(&b.Name, "a bridge", mapping("a bridge",
		field{"name", ifname(&b.Name)},
		field{"ports", list(&b.Ports, ifname)},
		field{"ageing_time", duration(&b.AgeingTime, time.Second, 1_000_000*time.Second)},
		field{"fdb_max", integer(&b.FDBMax, 1, 1<<20)},
		field{"mac", mac(&b.MAC)},
		field{"mtu", integer(&b.MTU, MinMTU, MaxMTU)},
		field{"addresses", list(&b.Addresses, address)},
	))
}

func route(r *Route) setter {
	r.Type = Unicast
	return mapping("a route",
		field{"to", destination(&r.To)},
		field{"via", addr(&r.Via)},
		field{"dev", ifname(&r.Dev)},
		field{"type", oneOf(&r.Type, Unicast, Blackhole, Unreachable)},
	)
}
