package classify

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
)

// A Seed keys the flow hash, so that nobody outside can make flows collide.
type Seed [4]uint64

// NewSeed draws a random key.
func NewSeed() Seed { return Seed{rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64() | 1} }

// A key is what a packet's flow is told by.
type key struct {
	src, dst  [2]uint64 // addresses; IPv4 in the low half of the second word
	ports     uint32    // source port, destination port; or SPI, MPLS label
	vlan      uint32
	label     uint32 // IPv6 flow label
	gre       uint32 // GRE key
	ethertype uint16
	proto     uint8
	l4        bool // ports are ports
}

func (k *key) v4(src, dst []byte) {
	k.src = [2]uint64{0, uint64(binary.BigEndian.Uint32(src))}
	k.dst = [2]uint64{0, uint64(binary.BigEndian.Uint32(dst))}
}

func (k *key) v6(src, dst []byte) {
	k.src = [2]uint64{binary.BigEndian.Uint64(src), binary.BigEndian.Uint64(src[8:])}
	k.dst = [2]uint64{binary.BigEndian.Uint64(dst), binary.BigEndian.Uint64(dst[8:])}
}

// hash mixes the key into 32 bits that are never 0. Unless asymmetric, the
// addresses and, independently, the ports are put in order first, so that
// both directions of a flow hash alike (__flow_hash_consistentify).
func (k *key) hash(s *Seed, asymmetric bool) uint32 {
	if !asymmetric {
		if k.dst[0] < k.src[0] || k.dst[0] == k.src[0] && k.dst[1] < k.src[1] {
			k.src, k.dst = k.dst, k.src
		}
		if k.l4 && k.ports<<16 < k.ports&^0xffff {
			k.ports = bits.RotateLeft32(k.ports, 16)
		}
	}
	h := mix(k.src[0]^s[0], k.src[1]^s[1])
	h = mix(h^k.dst[0], k.dst[1]^s[2])
	h = mix(h^(uint64(k.ports)<<32|uint64(k.proto)<<16|uint64(k.ethertype)), s[3])
	if k.vlan|k.label|k.gre != 0 {
		h = mix(h^(uint64(k.vlan)<<32|uint64(k.label)), s[1]^uint64(k.gre))
	}
	h = mix(h^s[2], s[0]^0x9e3779b97f4a7c15)
	return max(uint32(h)^uint32(h>>32), 1)
}

// mix multiplies to 128 bits and folds them, as wyhash does.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
