package forward

import "net/netip"

// Rates of ICMP errors: a burst and then so many a second to one host. The
// first message to a host is always sent.
const (
	icmpBurst    = 20
	icmpInterval = 100e6 // ns for one more message
	limitSlots   = 256   // hosts remembered; a collision forgets the older one
)

// A limiter is a token bucket for each of the last hosts that errors went to.
type limiter struct {
	slots [limitSlots]struct {
		host   netip.Addr
		tokens int64
		last   int64
	}
}

func (l *limiter) allow(host netip.Addr, now int64) bool {
	b := host.As16()
	h := uint32(0)
	for _, x := range b {
		h = h*31 + uint32(x)
	}
	s := &l.slots[(h^h>>8)%limitSlots]
	if s.host != host {
		s.host, s.tokens, s.last = host, icmpBurst-1, now
		return true
	}
	if n := (now - s.last) / icmpInterval; n > 0 {
		s.tokens = min(s.tokens+n, icmpBurst)
		s.last += n * icmpInterval
	}
	if s.tokens == 0 {
		return false
	}
	s.tokens--
	return true
}
