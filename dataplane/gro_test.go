package dataplane

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
)

// datagram is frame with an id and right checksums.
func datagram(dst, src byte, flow uint16, seq uint32) []byte {
	b := frame(dst, src, flow, seq)
	ip := b[14:]
	binary.BigEndian.PutUint16(ip[4:], uint16(seq))
	binary.BigEndian.PutUint16(ip[10:], ^checksum.Checksum(ip[:20], 0))
	pseudo := checksum.Checksum(ip[12:20], 17+26)
	binary.BigEndian.PutUint16(ip[26:], ^checksum.Checksum(ip[20:], pseudo))
	return b
}

// What a port reads together is merged, counts as the packets that it was, and
// leaves as it came by a port that takes no superpackets. GRO can be switched
// off and on.
func TestGRO(t *testing.T) {
	r := newRig(t, 1, 2, 1, func(pc *PortConfig) { pc.GRO = true })
	in, out := r.peers[0][0], r.peers[1][0]
	const n = 48
	seq, read, sent := uint32(0), uint64(0), uint64(0)
	for round, on := range []bool{true, false, true} {
		if err := r.dp.SetGRO("p0", on); err != nil || r.dp.Ports()[0].GRO() != on || !r.dp.Ports()[1].GRO() {
			t.Fatalf("SetGRO: %v, now %v and %v", err, r.dp.Ports()[0].GRO(), r.dp.Ports()[1].GRO())
		}
		var want [2][][]byte
		before := r.dp.Ports()[0].QueueStats()[0].GRO
		_ = r.dp.quiesce(func() error { // so that one batch takes them all
			for k := range n {
				f := datagram(9, 1, uint16(k%2), seq/2)
				seq++
				want[k%2] = append(want[k%2], f)
				in.Send(f)
			}
			return nil
		})
		for range n {
			f := out.Recv(5 * time.Second)
			if f == nil {
				t.Fatal("a packet is lost")
			}
			flow, _ := flowSeq(f)
			if !bytes.Equal(f, want[flow][0]) {
				t.Fatalf("round %d, flow %d:\n%x came, want\n%x", round, flow, f, want[flow][0])
			}
			want[flow] = want[flow][1:]
		}
		read, sent = read+n, sent+n
		rx, tx := r.dp.Ports()[0].QueueStats()[0], r.dp.Ports()[1].QueueStats()[0]
		trains, merged := rx.GRO.Trains-before.Trains, rx.GRO.Merged-before.Merged
		if on && (trains != 2 || merged != n-2) || !on && trains+merged != 0 {
			t.Errorf("round %d, GRO %v: %d superpackets made, %d packets merged", round, on, trains, merged)
		}
		if rx.RxPackets != read || tx.TxPackets != sent || rx.RxBytes != 60*read {
			t.Errorf("round %d: %d packets of %d bytes read, %d sent, want %d", round, rx.RxPackets, rx.RxBytes, tx.TxPackets, read)
		}
	}
	if r.dp.SetGRO("p7", true) == nil {
		t.Error("a port that is not there was switched")
	}
	if n := r.dp.Ports()[1].Reordered(); n != 0 {
		t.Errorf("%d packets reordered", n)
	}
}
