package tun

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"
	wgtun "golang.zx2c4.com/wireguard/tun"

	"taprouter/packet"
)

// failing is a device that writes some of a batch and fails.
type failing struct {
	wgtun.Device
	writes int
}

func (f *failing) Write(bufs [][]byte, _ int) (int, error) {
	f.writes++
	return len(bufs[0]), unix.EAGAIN
}

// Of a batch that failed, each packet is reported once and none is written
// again, as nobody knows which were written.
func TestFailedBatchIsNotRepeated(t *testing.T) {
	pool, err := packet.NewPool(packet.Memory{Heads: packet.MaxBatch, Tails: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	c := pool.NewCache()
	dev := &failing{}
	d := &wireguardQueue{dev: dev}
	if err := d.allocate(1); err != nil {
		t.Fatal(err)
	}
	q, w := &Queue{driver: d}, &Writer{}
	var pkts []*packet.Packet
	for range 5 {
		p := c.Get()
		p.Set([]byte{0x45, 0, 0, 0})
		pkts = append(pkts, p)
	}
	for i := range pkts {
		if n, errno := w.WriteBatch(q, pkts[i:]); n != 0 || errno != unix.EIO || dev.writes != 1 {
			t.Fatalf("packet %d: WriteBatch = %d, %v after %d writes, want 0, EIO, one write", i, n, errno, dev.writes)
		}
	}
	if _, _ = w.WriteBatch(q, pkts[:1]); dev.writes != 2 {
		t.Errorf("the next batch was not written")
	}
}

// Whatever a datagram's checksum, the library's arithmetic followed by
// mendChecksum gives the right one.
func TestMendChecksum(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	zeros := 0
	for word := range 1 << 16 { // one of them sums up to zero
		payload := []byte{byte(word >> 8), byte(word), 1, 2, 3}
		if word%1000 == 0 {
			payload = append(payload, byte(rng.Uint32()))
		}
		ip := &layers.IPv6{Version: 6, NextHeader: layers.IPProtocolUDP, HopLimit: 64, SrcIP: bytes.Repeat([]byte{1}, 16), DstIP: bytes.Repeat([]byte{2}, 16)}
		udp := &layers.UDP{SrcPort: 1000, DstPort: 2000}
		_ = udp.SetNetworkLayerForChecksum(ip)
		b := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, udp, gopacket.Payload(payload)); err != nil {
			t.Fatal(err)
		}
		want := b.Bytes()
		if binary.BigEndian.Uint16(want[46:]) == 0 {
			want[46], want[47] = 0xff, 0xff // gopacket forgets that as well
		}
		got := bytes.Clone(want)
		if got[46] == 0xff && got[47] == 0xff { // as the library writes it
			got[46], got[47] = 0, 0
			zeros++
		}
		if mendChecksum(got); !bytes.Equal(got, want) {
			t.Fatalf("payload %x: checksum %x, want %x", payload, got[46:48], want[46:48])
		}
		if word%500 == 1 { // a tunnel's, that never had one
			got[46], got[47] = 0, 0
			if mendChecksum(got); got[46] != 0 && want[46] != 0xff {
				t.Fatalf("payload %x: no checksum became %x", payload, got[46:48])
			}
		}
	}
	if zeros == 0 {
		t.Error("no checksum was zero")
	}
	for _, other := range [][]byte{nil, make([]byte, 40), append([]byte{0x45}, make([]byte, 47)...)} {
		got := bytes.Clone(other)
		if mendChecksum(got); !bytes.Equal(got, other) {
			t.Errorf("%x became %x", other, got)
		}
	}
}
