//go:build explore

package qdisc

import (
	"testing"

	"taprouter/internal/step"
	"taprouter/packet"
)

// TestExplore runs every interleaving, up to a number of preemptions, of a
// few workers on one qdisc. TestMutations shows that these programs would
// find the known mistakes.
func TestExplore(t *testing.T) {
	programs := []struct {
		name        string
		preemptions int
		setup       func() *world
	}{
		{"three-senders", 3, threeSenders},
		{"no-bypass", 3, noBypass},
		{"overtake", 3, overtake},
		{"busy-once", 3, busyOnce},
		{"stop-wake", 2, stopWake},
		{"stop-wake-batch", 3, stopWakeBatch},
		{"one-place", 2, onePlace},
		{"stopped", 2, stopped},
		{"dql", 3, dql},
		{"dql-two-senders", 2, dqlTwoSenders},
		{"tx-action", 3, txAction},
		{"reset", 3, reset},
		{"reset-sender", 3, resetSender},
		{"deactivate", 3, deactivate},
		{"quota", 1, overQuota},
		{"two-queues", 2, twoQueues},
		{"bands", 3, bands},
		{"fq", 3, fq},
		{"fq-stop-wake", 2, fqStopWake},
	}
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			if testing.Short() {
				p.preemptions = min(p.preemptions, 2)
			}
			r := step.Explore(step.Options{Preemptions: p.preemptions, MaxSteps: 20000}, func() step.Program {
				w := p.setup()
				return step.Program{Threads: w.threads, Alike: w.alike, Check: w.check}
			})
			if r.Err != nil {
				t.Fatalf("%s, execution %d: %v", p.name, r.Executions, r.Err)
			}
			t.Logf("%d executions, %d steps", r.Executions, r.Steps)
		})
	}
}

// threeSenders meet on an empty qdisc.
func threeSenders() *world {
	w := newWorld(1, 3, 8)
	for i := range 3 {
		w.worker("sender", i, func(c *CPU) { w.send(c, 1) })
	}
	w.alike = 3
	return w
}

// noBypass: as threeSenders, through a qdisc that queues everything.
func noBypass() *world {
	w := threeSenders()
	w.q.SetBypass(false)
	return w
}

// overtake: a sender's packets must not pass each other while a place that
// another one reserved is not filled. The third keeps the run bit from both.
func overtake() *world {
	w := newWorld(1, 3, 8)
	w.worker("first", 0, func(c *CPU) {
		w.send(c, 1)
		w.send(c, 1)
	})
	w.worker("second", 1, func(c *CPU) { w.send(c, 1) })
	w.worker("third", 2, func(c *CPU) { w.send(c, 1) })
	return w
}

// busyOnce: the device refuses a packet that a bypassing sender could pass (F6).
func busyOnce() *world {
	w := newWorld(1, 2, 8)
	w.dev[0].busy = 1
	for i := range 2 {
		w.worker("sender", i, func(c *CPU) { w.send(c, 2) })
	}
	w.alike = 2
	return w
}

// stopWake: the device has no room at first and stops the queue; its
// interrupt makes room and wakes it (F7b).
func stopWake() *world {
	w := newWorld(1, 3, 8)
	d := w.dev[0]
	d.bounded = true
	w.worker("sender", 0, func(c *CPU) {
		w.send(c, 1)
		w.send(c, 1)
	})
	w.worker("sender", 1, func(c *CPU) { w.send(c, 1) })
	w.worker("interrupt", 2, func(c *CPU) {
		d.addRoom(c, 1)
		d.addRoom(c, 10)
	})
	w.maxActions = 12
	return w
}

// stopWakeBatch: a batch is refused in its middle, more than once.
func stopWakeBatch() *world {
	w := newWorld(1, 2, 8)
	d := w.dev[0]
	d.bounded = true
	w.worker("sender", 0, func(c *CPU) { w.send(c, 4) })
	w.worker("interrupt", 1, func(c *CPU) {
		d.addRoom(c, 1)
		d.avail = 1 // from now on a run takes part of what was requeued
		d.addRoom(c, 2)
		d.addRoom(c, 1)
	})
	return w
}

// onePlace: producers and the consumer meet in a ring with one place. What
// finds it taken is dropped.
func onePlace() *world {
	w := newWorld(1, 3, 1)
	w.queue(0, 1)
	w.q.Schedule(w.cpus[0])
	w.worker("run", 0, func(*CPU) {})
	for i := 1; i < 3; i++ {
		w.worker("sender", i, func(c *CPU) {
			w.send(c, 1)
			w.send(c, 1)
		})
	}
	return w
}

// stopped: a queue that stays stopped costs a run for the packet that was
// refused and one for each time that senders get in each other's way, not one
// a packet (F7).
func stopped() *world {
	w := newWorld(1, 3, 8)
	w.dev[0].bounded = true
	for i := range 2 {
		w.worker("sender", i, func(c *CPU) {
			for range 3 {
				w.send(c, 1)
				w.settle(c)
			}
		})
	}
	w.alike = 2
	w.maxActions = 3
	w.atEnd = func() { w.dev[0].addRoom(w.cpus[2], 100) }
	return w
}

// dql: the queue stops by itself over its limit; a completion starts it.
func dql() *world {
	w := newWorld(1, 2, 8)
	w.dev[0].limit = 150
	w.worker("sender", 0, func(c *CPU) {
		w.send(c, 2)
		w.send(c, 1)
	})
	w.completer(1, 300)
	return w
}

// dqlTwoSenders: as dql, and one sender may find the qdisc stopped by the
// other's packets.
func dqlTwoSenders() *world {
	w := newWorld(1, 3, 8)
	w.dev[0].limit = 150
	for i := range 2 {
		w.worker("sender", i, func(c *CPU) { w.send(c, 2) })
	}
	w.alike = 2
	w.completer(2, 400)
	return w
}

// txAction: a scheduled run meets senders and another schedule.
func txAction() *world {
	w := newWorld(1, 3, 8)
	w.queue(0, 2)
	w.q.Schedule(w.cpus[0])
	w.worker("run", 0, func(*CPU) {})
	w.worker("sender", 1, func(c *CPU) { w.send(c, 1) })
	w.worker("schedule", 2, func(c *CPU) {
		w.q.Schedule(c)
		w.q.Schedule(c)
	})
	return w
}

// reset meets a run.
func reset() *world {
	w := newWorld(1, 2, 8)
	w.queue(0, 3)
	w.q.Schedule(w.cpus[0])
	w.worker("run", 0, func(*CPU) {})
	w.worker("reset", 1, func(c *CPU) { w.q.Reset(c, packet.DropPurge) })
	return w
}

// resetSender: what is sent while a reset goes on may be dropped but must
// not stay.
func resetSender() *world {
	w := newWorld(1, 3, 8)
	w.worker("sender", 0, func(c *CPU) { w.send(c, 1) })
	w.worker("sender", 1, func(c *CPU) { w.send(c, 1) })
	w.worker("reset", 2, func(c *CPU) { w.q.Reset(c, packet.DropPurge) })
	w.alike = 2
	return w
}

// deactivate: a run is skipped while the qdisc is being taken down; what is
// there is sent when it is back.
func deactivate() *world {
	w := newWorld(1, 3, 8)
	w.queue(0, 1)
	w.q.Schedule(w.cpus[0])
	w.worker("run", 0, func(*CPU) {})
	w.worker("sender", 1, func(c *CPU) { w.send(c, 1) })
	w.worker("control", 2, func(c *CPU) {
		w.q.Deactivate()
		w.q.Activate(c)
	})
	return w
}

// overQuota: a run ends after its quota although there is more.
func overQuota() *world {
	w := newWorld(1, 2, 2*quota)
	w.queue(0, quota+2)
	w.q.Schedule(w.cpus[0])
	w.worker("run", 0, func(*CPU) {})
	w.worker("sender", 1, func(c *CPU) { w.send(c, 1) })
	return w
}

// twoQueues: one qdisc for two queues, of which one is stopped and woken.
func twoQueues() *world {
	w := newWorld(2, 3, 8)
	w.dev[1].bounded = true
	for i := range 2 {
		w.worker("sender", i, func(c *CPU) {
			w.sendTo(c, i, 1)
			w.sendTo(c, 1-i, 1)
		})
	}
	w.worker("interrupt", 2, func(c *CPU) { w.dev[1].addRoom(c, 10) })
	return w
}

// fq: some senders' packets pass, or are left for others. One flow, so that
// order is what it is for the others.
func fq() *world { return overtake().through(oneFlow()) }

// fqStopWake: as stopWake, through fq.
func fqStopWake() *world { return stopWake().through(oneFlow()) }

func oneFlow() *FQ {
	cfg := DefaultFQ(1500)
	cfg.OrphanMask, cfg.Buckets = 0, 1
	return NewFQ(cfg)
}

// bands: as threeSenders but through pfifo_fast.
func bands() *world {
	return threeSenders().through(NewPfifoFast(8))
}
