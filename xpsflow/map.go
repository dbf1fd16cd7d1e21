package xpsflow

import (
	"fmt"
	"slices"
)

// MaxQueues is the largest number of tx queues of a port.
const MaxQueues = 1 << 12

// A Map says which tx queues each worker prefers (XPS, with workers in the
// place of CPUs). It is immutable; With gives a changed copy.
type Map struct {
	queues int
	sets   [][]uint16 // by worker, ascending
}

// NewMap gives the default map: worker i prefers queue i mod queues.
func NewMap(workers, queues int) *Map {
	m := &Map{queues: queues, sets: make([][]uint16, workers)}
	for i := range m.sets {
		m.sets[i] = []uint16{uint16(i % queues)}
	}
	return m
}

// With gives a copy of m in which exactly these workers have queue in their
// set. A worker whose set becomes empty chooses among all queues.
func (m *Map) With(queue int, workers []int) (*Map, error) {
	if queue < 0 || queue >= m.queues {
		return nil, fmt.Errorf("xps: no queue %d, the port has 0 to %d", queue, m.queues-1)
	}
	for _, w := range workers {
		if w < 0 || w >= len(m.sets) {
			return nil, fmt.Errorf("xps: no worker %d, there are 0 to %d", w, len(m.sets)-1)
		}
	}
	n := &Map{queues: m.queues, sets: make([][]uint16, len(m.sets))}
	for w, old := range m.sets {
		set := slices.DeleteFunc(slices.Clone(old), func(q uint16) bool { return int(q) == queue })
		if slices.Contains(workers, w) {
			set = append(set, uint16(queue))
			slices.Sort(set)
		}
		n.sets[w] = set
	}
	return n, nil
}

// Queues gives the set of a worker, ascending. It must not be changed.
func (m *Map) Queues(worker int) []uint16 { return m.sets[worker] }

// Workers gives the workers that have queue in their set, ascending.
func (m *Map) Workers(queue int) []int {
	var ws []int
	for w, set := range m.sets {
		if slices.Contains(set, uint16(queue)) {
			ws = append(ws, w)
		}
	}
	return ws
}

// choose gives the queue that worker prefers for a flow: one of its set, and
// where that is empty or names a queue that does not exist (queues is their
// number), one of all.
func (m *Map) choose(worker int, hash uint32, queues int) int {
	if set := m.sets[worker]; len(set) > 0 {
		if q := int(set[scale(hash, len(set))]); q < queues {
			return q
		}
	}
	return scale(hash, queues)
}

// scale spreads hash evenly over 0..n-1. reciprocal_scale.
func scale(hash uint32, n int) int { return int(uint64(hash) * uint64(n) >> 32) }
