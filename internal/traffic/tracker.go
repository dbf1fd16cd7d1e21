package traffic

// window is how far behind the highest number a Tracker tells a late packet
// from a duplicate.
const window = 1 << 16

// A Tracker follows the sequence numbers of one flow, from 0. A packet whose
// number is lower than the highest seen is reordered, or a duplicate if it
// came before. It is not safe for concurrent use; the zero value is ready.
type Tracker struct {
	next uint64 // one more than the highest seen
	seen [window / 64]uint64

	Packets    uint64 // everything that came, duplicates included
	Reordered  uint64
	Duplicates uint64
}

// Add takes in a packet's number.
func (t *Tracker) Add(seq uint64) {
	t.Packets++
	switch {
	case seq >= t.next:
		t.advance(seq)
	case t.next-seq > window: // too old to tell
		t.Reordered++
		return
	case t.seen[seq/64%(window/64)]&(1<<(seq%64)) != 0:
		t.Duplicates++
	default:
		t.Reordered++
	}
	t.seen[seq/64%(window/64)] |= 1 << (seq % 64)
}

// advance forgets the numbers that leave the window when seq becomes the
// highest.
func (t *Tracker) advance(seq uint64) {
	if seq-t.next >= window {
		t.seen = [window / 64]uint64{}
	} else {
		for n := t.next; n <= seq; n++ {
			t.seen[n/64%(window/64)] &^= 1 << (n % 64)
		}
	}
	t.next = seq + 1
}

// Unique counts the packets that came, each once.
func (t *Tracker) Unique() uint64 { return t.Packets - t.Duplicates }
