//go:build !explore

package qdisc

import (
	"testing"

	"taprouter/packet"
)

// numbered makes n packets of a priority, numbered from first.
func numbered(first, n int, prio uint8) *packet.List {
	pkts := make([]packet.Packet, n)
	for i := range pkts {
		pkts[i].Hash, pkts[i].Priority, pkts[i].Segs = uint32(first+i), prio, 1
	}
	return list(pkts)
}

func drain(d Discipline) (nums []int) {
	for p := d.Dequeue(0); p != nil; p = d.Dequeue(0) {
		nums = append(nums, int(p.Hash))
	}
	return nums
}

func wantNumbers(t *testing.T, got []int, want ...int) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

func TestPriomap(t *testing.T) {
	want := [16]int{1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1} // prio2band, net/sched/sch_generic.c
	for prio, band := range want {
		for _, high := range []uint8{0, 0x10, 0xf0} { // only four bits count
			d := NewPfifoFast(4)
			d.Enqueue(numbered(0, 1, high|uint8(prio)))
			if n := d.rings[band].len(); n != 1 {
				t.Errorf("priority %d does not go to band %d", high|uint8(prio), band)
			}
		}
	}
}

func TestStrictPriority(t *testing.T) {
	d := NewPfifoFast(10)
	d.Enqueue(numbered(20, 3, 2))
	d.Enqueue(numbered(10, 2, 0))
	d.Enqueue(numbered(0, 1, 6))
	if d.Len() != 6 {
		t.Errorf("Len = %d, want 6", d.Len())
	}
	wantNumbers(t, drain(d), 0, 10, 11, 20, 21, 22)
	if d.Len() != 0 {
		t.Error("not empty at the end")
	}
}

// A batch over several bands is taken apart; what does not fit in its band
// stays in the list.
func TestEnqueueMixedBatch(t *testing.T) {
	d := NewPfifoFast(2)
	var l packet.List
	for i, prio := range []uint8{0, 6, 2, 0, 6, 0, 2, 2} {
		l.Append(numbered(i, 1, prio))
	}
	s := d.Enqueue(&l)
	if s.n != 6 || s.segs != 6 || l.Len() != 2 {
		t.Errorf("took %+v and left %d, want 6 and 2", s, l.Len())
	}
	wantNumbers(t, drain(d), 1, 4, 0, 3, 2, 6)
}

func TestCapacityIsExact(t *testing.T) {
	for _, n := range []int{1, 3, 500, 1000} {
		d := NewPfifoFast(n)
		for _, prio := range priorities {
			l := numbered(0, n+1, prio)
			d.Enqueue(l)
			if l.Len() != 1 {
				t.Errorf("a band of %d refused %d of %d", n, l.Len(), n+1)
			}
		}
		if d.Len() != 3*n {
			t.Errorf("txqueuelen %d: holds %d, want %d", n, d.Len(), 3*n)
		}
	}
}

// A new length keeps the oldest packets of each band that fit.
func TestResize(t *testing.T) {
	b := newBed(t, 1, 1)
	q := b.qdisc(NewPfifoFast(10))
	c := b.cpus[0]
	b.out[0].room = 0
	q.Xmit(c, b.pkts(100, 1, 0, 0)) // requeued: not in a band
	q.Xmit(c, b.pkts(0, 6, 6, 0))
	q.Xmit(c, b.pkts(10, 2, 0, 0))
	q.Resize(c, 4)
	if st := q.Stats(); st.Qlen != 1+4+2 || st.Backlog != 700 || st.Drops != 2 || c.Drops.Len() != 2 || c.Drops.Front().Drop != packet.DropPurge {
		t.Errorf("after a resize to 4: %+v", st)
	}
	q.Xmit(c, b.pkts(12, 3, 0, 0)) // two more fit
	q.Resize(c, 6)
	q.Xmit(c, b.pkts(20, 3, 0, 0)) // and two more
	if st := q.Stats(); st.Qlen != 1+4+6 || st.Drops != 2+1+1 {
		t.Errorf("after a resize to 6: %+v", st)
	}
	b.out[0].room = -1
	b.out[0].xoff.WakeDriver()
	q.Schedule(c)
	b.run()
	b.wantOrder(0, 100, 0, 1, 2, 3, 10, 11, 12, 13, 20, 21)
	if st := q.Stats(); st.Qlen != 0 || st.Backlog != 0 || q.mem.Load() != 0 {
		t.Errorf("at the end: %+v", st)
	}
}

func TestMQStats(t *testing.T) {
	b := newBed(t, 1, 2)
	m := MQ{}
	for i := range b.out {
		q := New(NewPfifoFast(10), []Txq{b.out[i]}, 1)
		m.Children = append(m.Children, q)
		b.out[i].room = i // the first takes nothing, the second one packet
		q.Xmit(b.cpus[0], b.pkts(0, 3, 0, i))
	}
	got := m.Stats()
	want := Stats{Bytes: 600, Packets: 6, Requeues: 5, Qlen: 5, Backlog: 500, QueuedSegs: 5}
	if got != want {
		t.Errorf("mq shows %+v, want %+v", got, want)
	}
}
