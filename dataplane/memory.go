package dataplane

import (
	"reflect"

	"taprouter/fib"
	"taprouter/packet"
	"taprouter/qdisc"
	"taprouter/tun"
	"taprouter/xpsflow"
)

// A MemoryKind is one kind of table or struct, on the Go heap but for io_uring.
type MemoryKind struct {
	Kind string
	Size int // bytes of one
	Most int // how many there can be, as configured
	Now  int // how many are in use
}

// A MemoryView is the memory of the data path at one moment.
type MemoryView struct {
	Pool    packet.Usage // Cached: of Serve and Inject, of each worker, of the control plane's changes
	Hugetlb int          // bytes of the pool in reserved huge pages
	Kinds   []MemoryKind
}

// Memory says what memory the data path takes and can take.
func (dp *Dataplane) Memory() (v MemoryView) {
	_ = dp.quiesce(func() error {
		v.Pool, v.Hugetlb = dp.pool.Usage(), dp.pool.Hugetlb()
		h := v.Pool.Heads
		v.add("packet", sizeOf[packet.Packet](), h.Total, h.Total-h.Untouched)
		n, ports := len(dp.workers)+1, len(dp.ports)
		v.add("worker", sizeOf[Worker]()+ports*(sizeOf[egress]()+2*sizeOf[[packet.NumReasons]uint64]()), n, n)
		v.add("reader", sizeOf[tun.Reader](), n, n)
		for _, w := range dp.workers {
			if w.ring != nil {
				v.add("io_uring", w.ring.Memory(), 1, 1)
			}
		}
		for _, p := range dp.ports {
			p.memory(&v)
		}
		s := dp.snapshot.Load()
		for i := range s.Bridges {
			b := s.Bridges[i].FDB
			v.add("fdb entry", fib.FDBSlotSize, b.Places(), b.Len())
		}
		routes := len(s.Routes.Routes())
		v.add("route", fib.RouteSize, routes, routes)
		v.add("punt", sizeOf[Punt](), cap(dp.punts), len(dp.punts))
		return nil
	})
	return v
}

func (p *Port) memory(v *MemoryView) {
	v.add("order bucket", sizeOf[uint64](), orderBuckets, orderBuckets)
	v.add("flow bucket", xpsflow.BucketSize, p.steer.TableSize(), p.steer.InFlight())
	v.add("tx queue", sizeOf[TxQueue](), len(p.tx), len(p.tx))
	for i, q := range p.root.children {
		if i > 0 && p.root.mq == nil {
			break
		}
		switch d := q.Discipline().(type) {
		case *qdisc.PfifoFast:
			n, size := d.Places()
			v.add("ring place", size, n, d.Len())
		case *qdisc.FQ:
			n, most, size := d.Flows()
			v.add("fq flow", size, most, n)
		}
	}
	for _, l := range p.lines {
		for _, t := range l.queues {
			v.add("line place", sizeOf[txSlot](), len(t.ring.slots), t.ring.used())
		}
		// What is delayed is bounded in bytes. A piece is 536 bytes or more
		// (the least MSS that senders assume, RFC 9293 section 3.7.1), of a
		// superpacket that holds at least as much.
		v.add("line piece", sizeOf[departure](), l.share/536, int(l.delayed.head-l.delayed.tail))
	}
}

// add adds to what there is of a kind.
func (v *MemoryView) add(kind string, size, most, now int) {
	for i := range v.Kinds {
		if k := &v.Kinds[i]; k.Kind == kind {
			k.Most += most
			k.Now += now
			return
		}
	}
	v.Kinds = append(v.Kinds, MemoryKind{kind, size, most, now})
}

// Bound is how much the data path can take, in bytes: buffers, and tables.
func (v *MemoryView) Bound() (buffers, tables int) {
	for _, k := range v.Pool.Kinds() {
		buffers += k.Size * k.Total
	}
	for _, k := range v.Kinds {
		tables += k.Size * k.Most
	}
	return buffers, tables
}

func sizeOf[T any]() int { return int(reflect.TypeFor[T]().Size()) }
