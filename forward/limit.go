package forward

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Rates of ICMP errors of one worker: to one host a burst and then so many a
// second, and the same for all hosts together, which bounds what forged
// sources can make us send. The first message to a host is always sent
// unless the latter is used up.
const (
	hostBurst    = 20
	hostInterval = 100e6 // ns for one more message: 10/s
	allBurst     = 1000
	allInterval  = 1e6 // ns: 1000/s
	limitSets    = 128 // sets of hosts remembered
	limitWays    = 4   // hosts of a set; a fifth makes us forget the longest silent
)

// A bucket is a token bucket: tokens used of burst, one given back each
// interval. The zero value is full.
type bucket struct {
	used int64
	last int64 // when tokens were last given back, ns
}

func (b *bucket) take(burst, interval, now int64) bool {
	n := (now - b.last) / interval
	b.last += n * interval
	b.used = max(b.used-n, 0)
	if b.used >= burst {
		return false
	}
	b.used++
	return true
}

// A limiter has a bucket for each of the last hosts that errors went to.
type limiter struct {
	all  bucket
	sets [limitSets][limitWays]struct {
		host netip.Addr
		bucket
	}
}

func (l *limiter) allow(host netip.Addr, now int64) bool {
	a := host.As16()
	hi, lo := bits.Mul64(binary.BigEndian.Uint64(a[:8])*31+binary.BigEndian.Uint64(a[8:]), 0x9e3779b97f4a7c15)
	set := &l.sets[(hi^lo)%limitSets]
	e := &set[0]
	for i := range set {
		if set[i].host == host {
			e = &set[i]
			break
		}
		if set[i].last < e.last {
			e = &set[i]
		}
	}
	if e.host != host {
		e.host, e.bucket = host, bucket{last: now}
	}
	return e.take(hostBurst, hostInterval, now) && l.all.take(allBurst, allInterval, now)
}
