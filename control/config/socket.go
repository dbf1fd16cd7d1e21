package config

import (
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
)

// stream decodes where a stream's peer is, or comes to.
func stream(s *Socket) setter {
	return mapping("stream",
		field{"listen", socketAddr(&s.Listen)},
		field{"connect", socketAddr(&s.Connect)},
	)
}

// dgram decodes the addresses of datagrams.
func dgram(s *Socket) setter {
	return mapping("dgram",
		field{"local", socketPath(&s.Local)},
		field{"remote", socketPath(&s.Remote)},
	)
}

// maxSocketPath is the length of sun_path, struct sockaddr_un, without the 0 at its end.
const maxSocketPath = 107

func socketPath(dst *string) setter {
	return parsed(dst, "a path", func(s string) (string, string) { return s, pathFault(s) })
}

func pathFault(s string) string {
	switch {
	case !strings.HasPrefix(s, "/") || filepath.Clean(s) == "/":
		return "want the absolute path of a socket like /run/vm1.sock, got " + quote(s)
	case len(s) > maxSocketPath:
		return "the path has " + strconv.Itoa(len(s)) + " bytes, that of a socket at most " + strconv.Itoa(maxSocketPath)
	}
	return ""
}

// socketAddr decodes a path, or an address and port on the loopback: what is
// said there is neither encrypted nor signed.
func socketAddr(dst *string) setter {
	return parsed(dst, "an address", func(s string) (string, string) {
		if strings.HasPrefix(s, "/") {
			return s, pathFault(s)
		}
		a, err := netip.ParseAddrPort(s)
		switch {
		case err != nil || a.Port() == 0:
			return "", "want the absolute path of a socket, or an address and port like 127.0.0.1:5555, got " + quote(s)
		case !a.Addr().IsLoopback():
			return "", a.Addr().String() + " is no address of the loopback, and frames are neither encrypted nor signed; use a path, 127.0.0.1 or ::1"
		}
		return s, ""
	})
}

// checkSocket refuses a socket that says not how to reach its peer, and what
// only a netdev has.
func (d *decoder) checkSocket(p *Port) {
	s := &p.Socket
	stream, dgram := s.Listen+s.Connect != "", s.Local+s.Remote != ""
	if p.Type != SocketType {
		for _, v := range []*string{&s.Listen, &s.Connect, &s.Local, &s.Remote} {
			if d.has(v) {
				d.errorAt(v, "port %s: a %s port has no socket; add type: socket", p.Name, p.Type)
				return
			}
		}
		return
	}
	switch {
	case stream == dgram:
		d.errorAt(&p.Type, "port %s: a socket needs a peer; add one of stream: {listen: PATH}, stream: {connect: PATH}, dgram: {local: PATH, remote: PATH}", p.Name)
	case s.Listen != "" && s.Connect != "":
		d.errorAt(&s.Connect, "port %s: a stream listens or connects; remove one of them", p.Name)
	case dgram && (s.Local == "" || s.Remote == ""):
		d.errorAt(&p.Type, "port %s: dgram needs local and remote", p.Name)
	case dgram && s.Local == s.Remote:
		d.errorAt(&s.Remote, "port %s: local and remote are the same; the port would talk to itself", p.Name)
	}
	h := &p.Host
	for _, f := range []struct {
		v    any
		name string
	}{
		{&p.NetNS, "netns"}, {&p.Create, "create"}, {&p.Persist, "persist"}, {&p.NAPI, "napi"}, {&p.Backpressure, "backpressure"},
		{&p.Steering, "steering"}, {&p.Backend, "backend"}, {&h.Addresses, "host.addresses"}, {&h.Routes, "host.routes"}, {&h.MAC, "host.mac"},
		{&h.Bridge, "host.bridge"}, {&h.Create, "host.create"}, {&h.Up, "host.up"}, {&h.TxQueueLen, "host.txqueuelen"},
	} {
		if d.has(f.v) {
			d.errorAt(f.v, "port %s: a socket port has no netdev; remove %s", p.Name, f.name)
		}
	}
	if p.VnetHdr {
		d.errorAt(&p.VnetHdr, "port %s: a socket carries plain frames; remove vnet_hdr", p.Name)
	}
	if p.Queues > 1 {
		d.errorAt(&p.Queues, "port %s: a socket is one queue; write queues: 1 or remove it", p.Name)
	}
	if p.Line.Rate != 0 {
		d.errorAt(&p.Line.Rate, "port %s: a line writes each packet at its time and cannot wait for a peer; remove line", p.Name)
	}
}

// checkSockets refuses an address that two ports would take.
func (d *decoder) checkSockets(c *Config) {
	seen := map[string]*Port{}
	for i := range c.Ports {
		p := &c.Ports[i]
		for _, v := range []*string{&p.Socket.Listen, &p.Socket.Local} {
			if other := seen[*v]; other != nil && *v != "" {
				d.errorAt(v, "port %s: port %s has the address %s already", p.Name, other.Name, *v)
			}
			seen[*v] = p
		}
	}
}
