//go:build !explore

package qdisc

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"taprouter/packet"
)

// A program is a config and operations on an FQ and on its model, in bytes,
// so that a fuzzer can write one: a header, then operations of equal length.
const (
	fqHeaderLen = 24
	fqOpLen     = 6
)

// fqBytes reads a program; behind its end there are zeros.
type fqBytes struct{ b []byte }

func (r *fqBytes) u8() (v uint8) {
	if len(r.b) > 0 {
		v, r.b = r.b[0], r.b[1:]
	}
	return v
}

func choose[T any](r *fqBytes, of ...T) T { return of[int(r.u8())%len(of)] }

// readFQConfig makes a valid config with many extreme values.
func readFQConfig(r *fqBytes) FQConfig {
	c := DefaultFQ(1500)
	c.Limit = choose(r, 10000, 10000, 1, 2, 3, 8, 20, 100)
	c.FlowLimit = choose(r, 100, 100, 1, 2, 5, 10)
	c.Quantum = choose[uint32](r, 3028, 3028, 64, 300, 1500, 65536, 1<<20)
	c.InitialQuantum = choose[uint32](r, 15140, 15140, 0, 1, 1500, 3028, 200000)
	c.MaxRate = choose[uint64](r, 0, 0, 0, 1, 1000, 68750, 68751, 1e6, 1e8, math.MaxUint32)
	c.Pacing = r.u8()%8 != 0
	c.Buckets = choose(r, 2, 2, 4, 32, 1024)
	c.RefillDelay = choose[time.Duration](r, 40*time.Millisecond, 0, 1, time.Millisecond, 5*time.Second)
	c.OrphanMask = choose[uint32](r, 1023, 0, 1, 3, 15, 0xf0, math.MaxUint32, math.MaxUint32)
	c.LowRateThreshold = choose[uint64](r, 68750, 68750, 0, 1e6, math.MaxUint32)
	c.CEThreshold = choose[time.Duration](r, -1, 0, time.Microsecond, time.Millisecond, time.Second)
	c.Horizon = choose[time.Duration](r, 10*time.Second, 0, time.Millisecond, time.Second)
	c.HorizonDrop = r.u8()%2 == 0
	switch r.u8() % 4 {
	case 1:
		c.Priomap = [16]uint8{}
	case 2:
		for i := range c.Priomap {
			c.Priomap[i] = uint8(i % 3)
		}
	}
	switch r.u8() % 4 {
	case 1:
		c.Weights = [3]uint32{16384, 16384, 16384}
	case 2:
		c.Weights = [3]uint32{16384, 100000, 589824}
	}
	return c
}

// fqRun runs one program on both.
type fqRun struct {
	f     *FQ
	m     *fqModel
	now   int64
	seen  int64 // the latest time that the FQ was told
	hash  uint32
	ids   map[*packet.Packet]*modelPkt
	steps []string
}

// runFQProgram gives the steps that were made, and what differed in the last.
func runFQProgram(prog []byte) (steps []string, err error) {
	head, ops := prog, []byte(nil)
	if len(prog) > fqHeaderLen {
		head, ops = prog[:fqHeaderLen], prog[fqHeaderLen:]
	}
	r := &fqBytes{head}
	cfg := readFQConfig(r)
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	x := &fqRun{f: NewFQ(cfg), m: newFQModel(cfg), now: 3600e9, ids: map[*packet.Packet]*modelPkt{}}
	x.hash = choose[uint32](r, 2, 8, 64, math.MaxUint32)
	x.note("config %+v, hashes below %d", cfg, x.hash)
	defer func() {
		if e := recover(); e != nil {
			steps, err = x.steps, fmt.Errorf("panic: %v\n%s", e, debug.Stack())
		}
	}()
	for len(ops) >= fqOpLen {
		if err := x.op(&fqBytes{ops[:fqOpLen]}); err != nil {
			return x.steps, err
		}
		ops = ops[fqOpLen:]
	}
	x.note("the end")
	return x.steps, x.drain()
}

func (x *fqRun) note(format string, args ...any) {
	x.steps = append(x.steps, fmt.Sprintf(format, args...))
}

func (x *fqRun) op(r *fqBytes) error {
	switch code := r.u8() % 32; {
	case code < 11:
		return x.arrive(1+int(r.u8()%8), false, r)
	case code < 15:
		return x.arrive(1+int(r.u8()%64), true, r)
	case code < 22:
		for range 1 + int(r.u8()%16) {
			if _, err := x.dequeue(); err != nil {
				return err
			}
		}
		return nil
	case code == 22:
		return x.drain()
	case code < 28:
		return x.pass(x.step(r))
	case code == 28:
		return x.intake()
	case code == 29:
		if a := r.u8(); a < 60 {
			return x.reset()
		} else if a < 120 {
			on := a%2 == 0
			x.note("fast path %v", on)
			setFastPath(x.f, on)
			x.m.fastpath = on
		}
		return nil
	case code == 30:
		return x.change(r)
	default:
		return x.pass(4e9)
	}
}

// step chooses by how much time goes on.
func (x *fqRun) step(r *fqBytes) int64 {
	kind, n := r.u8()%8, int64(r.u8())<<8|int64(r.u8())
	switch due := x.m.nextDue - x.now; {
	case kind < 3 && x.m.nextDue != modelNever && due > 0:
		return due + int64(kind) - 1
	case kind < 4:
		return n % 256
	case kind == 4:
		return n * 100
	case kind == 5:
		return n * 10e3
	case kind == 6:
		return n * 100e3
	default:
		return n * 1e6
	}
}

// arrive enqueues n packets, of one flow or of several.
func (x *fqRun) arrive(n int, same bool, r *fqBytes) error {
	rng := rand.New(rand.NewPCG(uint64(r.u8()), uint64(r.u8())<<16|uint64(r.u8())<<8|uint64(r.u8())))
	first := rng.Uint32N(x.hash)
	edt := rng.IntN(4) // EDT stamps: of none, none, some, most
	var l packet.List
	var ms []*modelPkt
	for range n {
		h := first
		if !same {
			h = rng.Uint32N(x.hash)
		}
		m := &modelPkt{id: len(x.ids), hash: h, prio: uint8(rng.UintN(256))}
		m.length = []int64{60, 64, 100, 1514, 1514, 9014, 65549}[rng.IntN(7)]
		if edt > 1 && rng.IntN(4) < edt {
			m.tx = max(1, x.now+[]int64{-1e9, -1000, -1, 0, 1, 300, 100e3, 5e6, 2e9, 20e9, 1 << 60}[rng.IntN(11)])
		}
		p := &packet.Packet{Hash: m.hash, Priority: m.prio, WireLen: uint32(m.length), TxTime: m.tx, Segs: 1}
		x.ids[p] = m
		ms = append(ms, m)
		l.Push(p)
	}
	if x.m.anyStale(x.now) {
		return x.arriveEach(&l)
	}
	x.note("%d arrive %v", n, ms)
	for _, m := range ms {
		x.m.enqueue(m)
	}
	if s := x.f.Enqueue(&l); s.n != n || l.Len() != 0 {
		return fmt.Errorf("Enqueue took %d and left %d of %d", s.n, l.Len(), n)
	}
	return x.compare()
}

// arriveEach takes packets in one by one: with stale flows about, the model
// must learn after each of them what gc has found.
func (x *fqRun) arriveEach(l *packet.List) error {
	for p := l.Pop(); p != nil; p = l.Pop() {
		x.note("arrives %v", x.ids[p])
		x.m.enqueue(x.ids[p])
		var one packet.List
		one.Push(p)
		x.f.Enqueue(&one)
		if err := x.intake(); err != nil {
			return err
		}
	}
	return nil
}

// pass lets time go on. What arrived is taken in before any flow grows stale.
func (x *fqRun) pass(ns int64) error {
	if len(x.m.intake) > 0 && x.m.anyStale(x.now+ns) {
		if err := x.intake(); err != nil {
			return err
		}
	}
	x.now += ns
	x.note("%d ns pass, now %d", ns, x.now)
	return nil
}

func (x *fqRun) intake() error {
	x.note("intake")
	x.seen = x.now
	x.f.Intake(x.now)
	x.m.takeIn(x.now)
	return x.compare()
}

func (x *fqRun) dequeue() (more bool, err error) {
	x.seen = x.now
	got, want := x.f.Dequeue(x.now), x.m.dequeue(x.now)
	x.note("dequeue %v", want)
	if err := x.same(got, want); err != nil {
		return false, err
	}
	return got != nil, x.compare()
}

func (x *fqRun) same(got *packet.Packet, want *modelPkt) error {
	m := x.ids[got]
	switch {
	case m != want:
		return fmt.Errorf("got packet %v, want %v", m, want)
	case got != nil && got.TxTime != want.tx:
		return fmt.Errorf("packet %v has TxTime %d, want %d", m, got.TxTime, want.tx)
	case got != nil && got.Next != nil:
		return fmt.Errorf("packet %v is still linked", m)
	}
	return nil
}

// drain takes what can leave, then waits for the rest.
func (x *fqRun) drain() error {
	for x.f.Len() > 0 {
		more, err := x.dequeue()
		if err != nil {
			return err
		}
		if more || x.f.Len() == 0 {
			continue
		}
		due := x.f.Due()
		if due <= x.now || due == math.MaxInt64 {
			return fmt.Errorf("%d packets, none leaves and the next is due at %d", x.f.Len(), due)
		}
		if err := x.pass(due - x.now); err != nil {
			return err
		}
	}
	if st := x.f.Stats(); st.Flows != st.InactiveFlows || st.ThrottledFlows != 0 {
		return fmt.Errorf("drained: %+v", st)
	}
	return nil
}

func (x *fqRun) reset() error {
	x.note("reset")
	var all packet.List
	x.f.Reset(&all)
	type place struct{ queue, at int }
	places := map[*modelPkt]place{}
	queues := x.m.reset(x.seen)
	for i, q := range queues {
		for j, m := range q {
			places[m] = place{i, j}
		}
	}
	next := make([]int, len(queues))
	for p := all.Pop(); p != nil; p = all.Pop() {
		m := x.ids[p]
		at, ok := places[m]
		if !ok || at.at != next[at.queue] || at.queue != 0 && next[0] < len(queues[0]) {
			return fmt.Errorf("reset gave %v, which was not next or not there", m)
		}
		next[at.queue]++
		delete(places, m)
	}
	if len(places) > 0 {
		return fmt.Errorf("reset left %d packets", len(places))
	}
	return x.compare()
}

func (x *fqRun) change(r *fqBytes) error {
	// Five bytes seed a whole config.
	seed := uint64(r.u8())<<32 | uint64(r.u8())<<24 | uint64(r.u8())<<16 | uint64(r.u8())<<8 | uint64(r.u8())
	rng := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, fqHeaderLen)
	for i := range b {
		b[i] = uint8(rng.UintN(256))
	}
	cfg := readFQConfig(&fqBytes{b})
	cfg.NoFastPath = !x.m.fastpath
	x.note("change to %+v", cfg)
	var surplus packet.List
	x.f.Change(cfg, &surplus)
	x.m.change(cfg, x.seen)
	if err := x.syncFlows(); err != nil { // a new number of buckets collects too
		return err
	}
	for _, want := range x.m.shed(x.seen) {
		if err := x.same(surplus.Pop(), want); err != nil {
			return fmt.Errorf("surplus: %w", err)
		}
	}
	if surplus.Len() > 0 {
		return fmt.Errorf("surplus: %d packets too many", surplus.Len())
	}
	return x.compare()
}

// compare looks at everything that both show between operations.
func (x *fqRun) compare() error {
	if err := x.syncFlows(); err != nil {
		return err
	}
	for _, b := range x.f.buckets {
		for _, s := range b {
			if got, want := s.flow.packets.Len(), len(x.m.flows[s.key].pkts); got != want {
				return fmt.Errorf("flow %d has %d packets, want %d", s.key, got, want)
			}
		}
	}
	dropped := x.f.TakeDropped()
	for _, want := range x.m.dropped {
		p := dropped.Pop()
		if x.ids[p] != want {
			return fmt.Errorf("dropped %v, want %v", x.ids[p], want)
		}
		if p.Drop != want.drop {
			return fmt.Errorf("dropped %v for %v, want %v", want, p.Drop, want.drop)
		}
	}
	if dropped.Len() > 0 {
		return fmt.Errorf("dropped %v, want none", x.ids[dropped.Front()])
	}
	x.m.dropped = nil
	if got, want := x.f.Len(), x.m.len(); got != want {
		return fmt.Errorf("Len = %d, want %d", got, want)
	}
	if got, want := x.f.Due(), x.m.nextDue; got != want {
		return fmt.Errorf("Due = %d, want %d", got, want)
	}
	if got, want := x.f.Stats(), x.m.stats(); got != want {
		return fmt.Errorf("stats\n got %+v\nwant %+v", got, want)
	}
	if st := x.f.Stats(); uint64(st.Flows)+st.GCFlows+x.m.lost != x.m.made {
		return fmt.Errorf("%d flows, %d collected, %d reset; %d were made", st.Flows, st.GCFlows, x.m.lost, x.m.made)
	}
	return nil
}

// syncFlows tells the model which flows gc has found and compares the rest.
func (x *fqRun) syncFlows() error {
	have := map[uint32]bool{}
	for _, b := range x.f.buckets {
		for i, s := range b {
			if i > 0 && b[i-1].key >= s.key {
				return errors.New("a bucket is out of order")
			}
			if x.m.flows[s.key] == nil {
				return fmt.Errorf("there is a flow %d, which the model has not", s.key)
			}
			have[s.key] = true
		}
	}
	for key := range x.m.flows {
		if !have[key] {
			if err := x.m.collect(key, x.seen); err != nil {
				return err
			}
		}
	}
	return nil
}

// shrinkFQ leaves out operations and lowers bytes for as long as the program
// still fails.
func shrinkFQ(prog []byte) []byte {
	for n := (len(prog) - fqHeaderLen) / fqOpLen / 2; n > 0; n /= 2 {
		for at := fqHeaderLen; at+n*fqOpLen <= len(prog); {
			shorter := append(append([]byte(nil), prog[:at]...), prog[at+n*fqOpLen:]...)
			if _, err := runFQProgram(shorter); err != nil {
				prog = shorter
			} else {
				at += n * fqOpLen
			}
		}
	}
	for i := range prog {
		for old := prog[i]; prog[i] > 0; old = prog[i] {
			prog[i] /= 2
			if _, err := runFQProgram(prog); err == nil {
				prog[i] = old
				break
			}
		}
	}
	return prog
}

// failFQ reports the last steps of the shortest program that it finds.
func failFQ(t *testing.T, prog []byte) {
	t.Helper()
	prog = shrinkFQ(prog)
	steps, err := runFQProgram(prog)
	if n := len(steps); n > 40 {
		steps = append([]string{steps[0], "..."}, steps[n-40:]...)
	}
	t.Fatalf("%s\n%v\nprogram %q", strings.Join(steps, "\n"), err, prog)
}

func TestFQModel(t *testing.T) {
	programs := 3000
	if raceEnabled || testing.Short() {
		programs = 300
	}
	seed := uint64(time.Now().UnixNano())
	for i := range programs {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		prog := make([]byte, fqHeaderLen+fqOpLen*(1+rng.IntN(60)))
		for j := range prog {
			prog[j] = uint8(rng.UintN(256))
		}
		if _, err := runFQProgram(prog); err != nil {
			t.Logf("seed %d, program %d", seed, i)
			failFQ(t, prog)
		}
	}
}

func FuzzFQ(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 1))
	for n := range 20 {
		prog := make([]byte, fqHeaderLen+fqOpLen*n)
		for j := range prog {
			prog[j] = uint8(rng.UintN(256))
		}
		f.Add(prog)
	}
	f.Fuzz(func(t *testing.T, prog []byte) {
		if len(prog) > fqHeaderLen+fqOpLen*200 {
			return
		}
		if _, err := runFQProgram(prog); err != nil {
			failFQ(t, prog)
		}
	})
}
