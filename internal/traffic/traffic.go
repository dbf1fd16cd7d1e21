// Package traffic (control plane) implements the traffic ends of the demo and
// of the tests: UDP flows with sequence numbers and checked payload, TCP bulk
// with a checked stream, a round trip probe, and the kernel's own counters.
//
// The senders and receivers work in the network namespace of the thread that
// opens their sockets, so they normally run in a process of their own inside
// the namespace: Serve is that process's side, Remote the other one, and
// StartIn puts it there.
package traffic

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
	"time"
)

// HeaderLen is the least size of a datagram: what Seal writes.
//
//	0      4      8              16             24     28     32
//	magic  flow   seq            time (ns)      len    crc32c payload …
const HeaderLen = 32

// MaxDatagram is the largest payload of a UDP datagram over IPv4.
const MaxDatagram = 65507

const magic = 0x7472_6166 // "traf"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A Header is what each datagram says about itself.
type Header struct {
	Flow uint32
	Seq  uint64
	Time int64 // of sending, ns since 1970
}

// Errors of Open.
var (
	ErrForeign = errors.New("traffic: not a datagram of ours")
	ErrCorrupt = errors.New("traffic: the datagram's length or hash is wrong")
)

// Seal makes b, at least HeaderLen long, a datagram with header h. What
// follows the header is the payload and stays as it is.
func Seal(b []byte, h Header) {
	binary.BigEndian.PutUint32(b[0:], magic)
	binary.BigEndian.PutUint32(b[4:], h.Flow)
	binary.BigEndian.PutUint64(b[8:], h.Seq)
	binary.BigEndian.PutUint64(b[16:], uint64(h.Time))
	binary.BigEndian.PutUint32(b[24:], uint32(len(b)))
	binary.BigEndian.PutUint32(b[28:], sum(b))
}

// Open checks a received datagram and reads its header.
func Open(b []byte) (Header, error) {
	if len(b) < HeaderLen || binary.BigEndian.Uint32(b) != magic {
		return Header{}, ErrForeign
	}
	if binary.BigEndian.Uint32(b[24:]) != uint32(len(b)) || binary.BigEndian.Uint32(b[28:]) != sum(b) {
		return Header{}, ErrCorrupt
	}
	return Header{
		Flow: binary.BigEndian.Uint32(b[4:]),
		Seq:  binary.BigEndian.Uint64(b[8:]),
		Time: int64(binary.BigEndian.Uint64(b[16:])),
	}, nil
}

// sum is the CRC-32C of everything but its own field.
func sum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:28], castagnoli), castagnoli, b[32:])
}

// period is the length of the pattern that payloads and streams repeat: a
// prime, so that a piece in the wrong place does not look right.
const period = 65521

// pattern holds the pattern twice, so that any period bytes from any offset
// are one slice.
var pattern = func() []byte {
	b := make([]byte, 2*period)
	x := uint64(0x9e3779b97f4a7c15)
	for i := range period { // xorshift64
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x >> 32)
	}
	copy(b[period:], b)
	return b
}()

// network gives tcp6 or udp6 where addr is an IPv6 address. For [::] package
// net would ask whether there is IPv6 by binding to ::1, which fails where lo
// is down, as it is in a new namespace, and would listen on IPv4.
func network(proto, addr string) string {
	if a, err := netip.ParseAddrPort(addr); err == nil && a.Addr().Is6() {
		return proto + "6"
	}
	return proto
}

// Mbit gives the rate of n bytes in d, in Mbit/s; 0 where d is not positive.
func Mbit(n uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) * 8 / 1e6 / d.Seconds()
}
