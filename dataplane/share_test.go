package dataplane

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taprouter/packet"
	"taprouter/qdisc"
	"taprouter/tun"
	"taprouter/tun/tuntest"
)

// Superpackets of two segments that wait for a device leave room in the
// queue's share of the pool: a band of them fills by their number, and what is
// of another band is not refused for want of memory.
func TestSmallSuperpacketsLeaveRoom(t *testing.T) {
	const waiting = 300
	in, src := tuntest.Pair(t, tuntest.VnetLen)
	out, dst := tuntest.Pair(t, tuntest.VnetLen)
	if err := unix.SetsockoptInt(out.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF, 8<<10); err != nil {
		t.Fatal(err)
	}
	port := func(name string, q *tun.Queue) PortConfig {
		return PortConfig{Name: name, Queues: []*tun.Queue{q}, TxQueueLen: 1000, Qdisc: qdisc.Spec{Kind: "pfifo_fast"}, Accept: AcceptAll}
	}
	mem := packet.Memory{Heads: 2048, SmallTails: 512, Tails: 128} // 16 MiB, of which a queue may hold a quarter
	dp := must(New(Config{Workers: 1, Memory: mem, Ports: []PortConfig{port("p0", in), port("p1", out)}}))
	dp.Publish(bridge(2))
	if err := dp.Start(); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dp: dp, queue: [][]*tun.Queue{{in}, {out}}}
	defer r.stop()
	read := func(n uint64) {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); dp.Totals().Received < n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%+v, want %d received", dp.Totals(), n)
			}
		}
	}
	for i := range uint64(waiting) {
		src.Send(superpacket(2800, 1400))
		read(2 * (i + 1)) // the socket pair holds fewer than that
	}
	urgent := make([]byte, tuntest.VnetLen)
	f := frame(2, 1, 1, 1)
	f[15] = 0x10 // TOS low delay: band 0
	src.Send(append(urgent, f...))
	read(2*waiting + 1)
	if tot := dp.Totals(); tot.Dropped != 0 || tot.Queued == 0 {
		t.Errorf("%+v, want all of them queued or sent", tot)
	}
	for n := 0; n < waiting+1; n++ {
		if dst.Recv(2*time.Second) == nil {
			t.Fatalf("%d of %d frames came", n, waiting+1)
		}
	}
}
