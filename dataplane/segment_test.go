package dataplane

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"taprouter/packet"
	"taprouter/qdisc"
	"taprouter/tun"
	"taprouter/tun/tuntest"
)

// superpacket is a TCP/IPv4 GSO frame with n bytes of payload, its vnet
// header in front. The payload counts up, so that any mix-up shows.
func superpacket(n, mss int) []byte {
	b := make([]byte, tuntest.VnetLen+54+n)
	copy(b, []byte{packet.NeedsCsum, packet.GSOTCPv4, 54, 0, byte(mss), byte(mss >> 8), 34, 0, 16, 0})
	f := b[tuntest.VnetLen:]
	copy(f, frame(2, 1, 0, 0)[:14])
	ip := f[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, 6
	binary.BigEndian.PutUint16(ip[2:], uint16(40+n))
	copy(ip[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	tcp := ip[20:]
	binary.BigEndian.PutUint16(tcp, 1000)
	binary.BigEndian.PutUint16(tcp[2:], 80)
	binary.BigEndian.PutUint32(tcp[4:], 7)
	tcp[12], tcp[13] = 0x50, 0x18
	for i := range n {
		tcp[20+i] = byte(i) ^ byte(i>>8)
	}
	binary.BigEndian.PutUint16(ip[10:], ^checksum.Checksum(ip[:20], 0))
	binary.BigEndian.PutUint16(tcp[16:], checksum.Combine(checksum.Checksum(ip[12:20], 6), uint16(20+n)))
	return b
}

// valid reports whether both checksums of a TCP/IPv4 frame are right.
func valid(f []byte) bool {
	ip, tcp := f[14:34], f[34:]
	sum := checksum.Combine(checksum.Checksum(ip[12:20], 6), uint16(len(tcp)))
	return checksum.Checksum(ip, 0) == 0xffff && checksum.Checksum(tcp, sum) == 0xffff
}

// A port whose reader takes no superpackets gets segments with complete
// checksums; when its device is full in the middle of one, the rest follows
// where it stopped, and what was queued behind comes after it.
func TestSegmentsGoOnAfterARefusal(t *testing.T) {
	const payload, mss, supers = 30000, 1400, 3
	in, src := tuntest.Pair(t, tuntest.VnetLen)
	out, dst := tuntest.Pair(t, tuntest.VnetLen)
	if err := unix.SetsockoptInt(out.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF, 8<<10); err != nil {
		t.Fatal(err)
	}
	port := func(name string, q *tun.Queue) PortConfig {
		return PortConfig{Name: name, Queues: []*tun.Queue{q}, TxQueueLen: 100, Qdisc: qdisc.Spec{Kind: "pfifo_fast"}}
	}
	dp := must(New(Config{Workers: 1, Memory: packet.Memory{Heads: 512, Tails: 16}, Ports: []PortConfig{port("p0", in), port("p1", out)}}))
	dp.Publish(bridge(2))
	if err := dp.Start(); err != nil {
		t.Fatal(err)
	}
	rig := &rig{t: t, dp: dp, queue: [][]*tun.Queue{{in}, {out}}}
	defer rig.stop()
	for range supers {
		src.Send(superpacket(payload, mss))
	}
	for s := range supers {
		for got := 0; got < payload; {
			b := dst.Recv(2 * time.Second)
			if b == nil {
				t.Fatalf("superpacket %d: nothing after %d of %d bytes", s, got, payload)
			}
			f := b[tuntest.VnetLen:]
			if b[0] != 0 || b[1] != 0 {
				t.Fatalf("a segment with vnet header %x", b[:tuntest.VnetLen])
			}
			if !valid(f) {
				t.Fatalf("superpacket %d at %d: wrong checksum", s, got)
			}
			if seq := binary.BigEndian.Uint32(f[38:]); int(seq) != 7+got {
				t.Fatalf("superpacket %d: sequence number %d, want %d", s, seq, 7+got)
			}
			for i, c := range f[54:] {
				if k := got + i; c != byte(k)^byte(k>>8) {
					t.Fatalf("superpacket %d: byte %d is %x", s, k, c)
				}
			}
			got += len(f) - 54
		}
	}
	segs := uint64((payload + mss - 1) / mss)
	st := dp.Ports()[1].QueueStats()[0]
	if st.Segmented != supers*segs || st.TxPackets != supers*segs || st.DriverStops == 0 {
		t.Errorf("%+v, want %d segments and at least one stop", st, supers*segs)
	}
}
