package dataplane

import _ "unsafe" // for linkname

// nanotime is the runtime's monotonic clock in ns; time.Now would also read
// the wall clock.
//
//go:linkname nanotime runtime.nanotime
func nanotime() int64

// Now is the batch clock, in ns, for the control plane.
func Now() int64 { return nanotime() }
