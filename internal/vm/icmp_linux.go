package vm

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"taprouter/internal/traffic"
)

// icmpPatience is how long the answer to a request is waited for.
const icmpPatience = 2 * time.Second

// ping sends ICMP or ICMPv6 echo requests, each after the answer to the one
// before, or after that did not come in time.
func ping(ctx context.Context, c Echo) (p traffic.Pings, err error) {
	network, local := "ip4:icmp", "0.0.0.0"
	var request, answer icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if c.To.Is6() {
		network, local = "ip6:ipv6-icmp", "::"
		request, answer = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	conn, err := icmp.ListenPacket(network, local)
	if err != nil {
		return p, err
	}
	defer conn.Close()
	id := os.Getpid() & 0xffff
	var rtts []time.Duration
	for seq := range c.Count {
		m := icmp.Message{Type: request, Body: &icmp.Echo{ID: id, Seq: seq, Data: make([]byte, c.Size)}}
		b, err := m.Marshal(nil)
		if err != nil {
			return p, err
		}
		p.Sent++
		begin := time.Now()
		if _, err := conn.WriteTo(b, &net.IPAddr{IP: c.To.AsSlice(), Zone: c.To.Zone()}); err == nil && answered(conn, answer, id, seq, c.Size) {
			rtts = append(rtts, time.Since(begin))
		}
		if ctx.Err() != nil {
			return p, ctx.Err()
		}
		time.Sleep(time.Duration(c.Interval) * time.Millisecond)
	}
	return traffic.NewPings(p.Sent, rtts), nil
}

// answered waits for the answer with that number and size.
func answered(conn *icmp.PacketConn, kind icmp.Type, id, seq, size int) bool {
	buf := make([]byte, 1<<16)
	_ = conn.SetReadDeadline(time.Now().Add(icmpPatience))
	for {
		n, _, err := conn.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) || err != nil {
			return false
		}
		proto := 1 // IANA protocol numbers
		if _, v6 := kind.(ipv6.ICMPType); v6 {
			proto = 58
		}
		m, err := icmp.ParseMessage(proto, buf[:n])
		if err != nil || m.Type != kind {
			continue
		}
		if e, ok := m.Body.(*icmp.Echo); ok && e.ID == id && e.Seq == seq && len(e.Data) == size {
			return true
		}
	}
}
