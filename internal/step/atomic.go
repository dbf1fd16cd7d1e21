//go:build !explore

// Package step (data path) names the atomics of the qdisc's run protocol. In
// the product they are those of sync/atomic, under another name and at no
// cost. Under the build tag explore each operation is a step of a
// deterministic scheduler, so that a test can run every interleaving.
package step

import (
	"runtime"
	"sync/atomic"
)

type (
	// Uint32 is a word of state bits, a lock or an index.
	Uint32 = atomic.Uint32
	// Pointer is a ring slot. Its Store publishes.
	Pointer[T any] = atomic.Pointer[T]
)

// Pause is called in a loop that waits for another thread.
func Pause() { runtime.Gosched() }
