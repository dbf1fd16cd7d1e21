package netns

import (
	"strings"
	"testing"
)

// Steering is set at start and changed live, stays when queues go and come
// back, and is shown where it is not the kernel's own.
func TestSteering(t *testing.T) {
	n := newNet(t)
	r := n.router(strings.Replace(bridged, "@dev:a, type: tap, queues: 2", "@dev:a, type: tap, queues: 2, steering: hash", 1))
	n.ping("a", "10.99.0.2")
	want := func(k, steering string) {
		t.Helper()
		if got := r.link("@dev:" + k).Steering; got != steering {
			t.Errorf("%s: steering %q, want %q", k, got, steering)
		}
	}
	want("a", "hash")
	want("b", "kernel")
	if out, err := r.command("link", "show"); err != nil || strings.Count(out, "steering") != 1 || !strings.Contains(out, " steering hash ") {
		t.Errorf("link show: %v, want steering hash once\n%s", err, out)
	}
	for _, c := range []string{"queues 1", "steering random", "queues 2", "steering hash", "queues 1", "steering kernel"} {
		r.mustDo(append([]string{"link", "set", "dev", n.dev("b")}, strings.Fields(c)...)...)
		if _, steering, ok := strings.Cut(c, "steering "); ok {
			want("b", steering)
		}
		n.ping("a", "10.99.0.2")
	}
	// What is asked of a device that is gone is refused.
	n.must("b", "ip link del dev @dev:b")
	if out, err := r.command("link", "set", "dev", n.dev("b"), "steering", "hash"); err == nil || !strings.Contains(err.Error(), "deleted") {
		t.Errorf("steering of a deleted device: %v %s", err, out)
	}
}
