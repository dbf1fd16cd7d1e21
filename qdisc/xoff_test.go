//go:build !explore

package qdisc

import "testing"

func TestXoff(t *testing.T) {
	var x Xoff
	over := func() int { return -1 }
	if x.Stopped() || x.WakeStack() || x.WakeDriver() {
		t.Error("a fresh queue is stopped or wants to be scheduled")
	}
	x.StopStack(func() int { return 0 })
	if x.Stopped() {
		t.Error("stopped although there is room again at the second look")
	}
	x.StopStack(over)
	if !x.Stopped() || x.DriverStopped() {
		t.Error("not stopped by the stack alone")
	}
	x.StopDriver()
	if x.WakeStack() {
		t.Error("scheduled while the driver has stopped the queue")
	}
	if !x.DriverStopped() || !x.WakeDriver() || x.Stopped() {
		t.Error("the driver's wake does not end its stop")
	}
	x.StopStack(over)
	if !x.WakeStack() || x.Stopped() || x.WakeStack() {
		t.Error("the stack's wake must schedule, once")
	}
}
