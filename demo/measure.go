package demo

import (
	"context"
	"fmt"
	"time"

	"taprouter/internal/traffic"
)

// An observation is what the kernel and the router have counted so far.
type observation struct {
	a, b  traffic.Counters // of the sender and the receiver
	host  traffic.Counters // of the namespace with the machines' TAPs, if there are any
	drops dropCounts       // the router's
	cpu   time.Duration    // the router's
}

func (d *demo) observe(ctx context.Context) (o observation, err error) {
	if o.a, err = d.a.Counters(ctx); err != nil {
		return o, err
	}
	if o.b, err = d.b.Counters(ctx); err != nil {
		return o, err
	}
	if d.guests != nil {
		if o.host, err = d.guests.host.Counters(ctx); err != nil {
			return o, err
		}
	}
	if o.drops, err = d.drops(ctx); err != nil {
		return o, err
	}
	o.cpu, err = d.router.CPU()
	return o, err
}

// seen is what happened between two observations, as far as it concerns a
// leg: losses that somebody counted, and the receiver's sign of disorder.
type seen struct {
	router uint64        // dropped by the router
	tap    uint64        // dropped by the TAP: the ring that we read was full, or a frame of ours was refused
	end    uint64        // dropped by the receiver's kernel: socket buffers
	ofo    uint64        // TCPOFOQueue
	cpu    time.Duration // the router's
}

func (s seen) lost() uint64 { return s.router + s.tap + s.end }

func (o observation) since(before observation, ports [2]string, taps ...string) seen {
	a, b := o.a.Since(before.a), o.b.Since(before.b)
	s := seen{
		router: o.drops.since(before.drops, ports),
		end: b.Sum("Udp.RcvbufErrors", "Udp6RcvbufErrors", "Udp.MemErrors", "Udp6MemErrors",
			"TcpExt.TCPBacklogDrop", "TcpExt.TCPRcvQDrop", "TcpExt.RcvPruned", "TcpExt.OfoPruned", "TcpExt.PFMemallocDrop"),
		ofo: b.Sum("TcpExt.TCPOFOQueue"),
		cpu: o.cpu - before.cpu,
	}
	for _, p := range append(taps, ports[:]...) { // each is in one of the namespaces
		for _, c := range []traffic.Counters{a, b, o.host.Since(before.host)} {
			s.tap += c.Sum("dev."+p+".tx_dropped", "dev."+p+".rx_dropped", "dev."+p+".rx_errors", "dev."+p+".tx_errors")
		}
	}
	return s
}

// measured is a leg with everything that is known about it.
type measured struct {
	Leg
	leg     leg
	pings   traffic.Pings
	tcpSent traffic.TCPSent
	udpSent traffic.UDPSent
	got     traffic.Received
	seen    seen
}

// add makes the row of the table.
func (m *measured) add() {
	m.Name = m.leg.name()
	bytes := m.got.TCP.Bytes + m.got.UDP.Bytes // one of them is 0
	// What UDP sends does not wait: if the receiver saw it all in a lump that
	// was no faster.
	elapsed := max(m.got.TCP.Elapsed, m.got.UDP.Elapsed, m.udpSent.Elapsed)
	m.MbitS = round(traffic.Mbit(bytes, elapsed), 1)
	m.RTTP50, m.RTTP99 = micros(m.pings.P50), micros(m.pings.P99)
	if bytes > 0 {
		m.CPU = round(m.seen.cpu.Seconds()/(float64(bytes)/1e9), 3)
	}
	if m.leg.proto == "tcp" {
		m.Packets, m.Retransmits = m.tcpSent.Segments, m.tcpSent.Retransmits
		m.Lost = m.seen.lost()
		m.Reordered = disorder(m.seen, m.tcpSent)
		return
	}
	m.Packets, m.Lost, m.Reordered = m.got.UDP.Packets, m.got.UDP.Lost, m.got.UDP.Reordered
}

// disorder counts the TCP segments that came out of order for no other reason
// than that something overtook them. Behind each lost segment everything up
// to its retransmission waits in the receiver's out-of-order queue, which has
// nothing to do with order. So where nothing was lost every entry counts.
// Where losses were counted, only as many as the sender itself saw overtaken:
// tcpi_reord_seen counts segments that arrived, without having been sent
// again, after later ones had. It is also fooled by segments that were sent
// again for nothing, as after a long delay; each of those ends in a duplicate
// SACK, and these are taken off.
func disorder(s seen, sent traffic.TCPSent) uint64 {
	if s.lost() == 0 {
		return s.ofo
	}
	return min(s.ofo, sent.ReordSeen-min(sent.ReordSeen, sent.DSACKDups))
}

// failures says in words what was not as it has to be.
func (m *measured) failures() (f []string) {
	failf := func(format string, args ...any) { f = append(f, fmt.Sprintf(format, args...)) }
	flows, corrupt := m.got.TCP.Conns, m.got.TCP.Corrupt
	if m.leg.proto == "udp" {
		flows, corrupt = m.got.UDP.Flows, m.got.UDP.Corrupt
	}
	if m.Packets == 0 || m.MbitS == 0 {
		failf("no traffic passed")
	} else if flows != m.leg.flows {
		failf("%d of %d flows passed traffic", flows, m.leg.flows)
	}
	if m.pings.Received == 0 {
		failf("no answer to any of %d pings", m.pings.Sent)
	}
	if corrupt > 0 {
		failf("%d times the payload was not what was sent", corrupt)
	}
	if m.Reordered > 0 {
		failf("%d packets reordered", m.Reordered)
	}
	if n := m.got.UDP.Duplicates; n > 0 {
		failf("%d packets came twice", n)
	}
	if m.leg.proto == "udp" && m.Lost > m.seen.lost() {
		failf("%d packets lost, but only %d of them counted (router %d, TAP %d, receiver %d)",
			m.Lost, m.seen.lost(), m.seen.router, m.seen.tap, m.seen.end)
	}
	return f
}

func micros(d time.Duration) float64 { return round(float64(d)/1e3, 1) }

func round(v float64, digits int) float64 {
	scale := 1.0
	for range digits {
		scale *= 10
	}
	return float64(int64(v*scale+0.5)) / scale
}
