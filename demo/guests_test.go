package demo

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"taprouter/control/config"
	"taprouter/internal/vm"
)

func TestConsent(t *testing.T) {
	k := &vm.Kernel{Package: "linux-image-6", Size: 26_700_000}
	for _, tt := range []struct {
		name, typed string
		yes, there  bool
		refuses     string
	}{
		{name: "yes", yes: true},
		{name: "typed", typed: "y\n", there: true},
		{name: "typed in full", typed: " Yes \n", there: true},
		{name: "no", typed: "n\n", there: true, refuses: "nothing was downloaded"},
		{name: "only enter", typed: "\n", there: true, refuses: "nothing was downloaded"},
		{name: "end of input", there: true, refuses: "nothing was downloaded"},
		{name: "nobody there", refuses: "to download linux-image-6 (26.7 MB) from Debian to /c say --yes"},
	} {
		var asked bytes.Buffer
		opt := Options{Yes: tt.yes, Stderr: &asked}
		if tt.there {
			opt.Stdin = strings.NewReader(tt.typed)
		}
		err := consent(context.Background(), opt, k, "/c")
		if (err == nil) != (tt.refuses == "") || err != nil && !strings.Contains(err.Error(), tt.refuses) {
			t.Errorf("%s: error %v, want one with %q", tt.name, err, tt.refuses)
		}
		if got := strings.Contains(asked.String(), "linux-image-6 (26.7 MB)"); got != tt.there {
			t.Errorf("%s: asked %q", tt.name, asked.String())
		}
	}
}

// Ctrl-C ends the question.
func TestConsentInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r, w := io.Pipe()
	err := consent(ctx, Options{Stdin: r, Stderr: io.Discard}, &vm.Kernel{}, "/c")
	w.Close()
	if err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("error %v", err)
	}
}

func TestGuestConfig(t *testing.T) {
	n := newNames(4194304) // the highest pid of 64-bit Linux
	c, err := config.Parse("demo.yaml", []byte(n.guestConfig()))
	if err != nil || len(c.Warnings) > 0 {
		t.Errorf("%v, warnings %q", err, c.Warnings)
	}
	for _, name := range append((&guests{}).taps(n), n.slow) {
		if len(name) > 15 { // IFNAMSIZ - 1
			t.Errorf("device name %s is too long", name)
		}
	}
}

func TestGuestsText(t *testing.T) {
	g := Guests{Kernel: "linux-image-6", Boot: []float64{3.5, 4}, Ping: Ping{50, 49, 700, 1800},
		Hops: []Hop{{Sender: "pinned", FlowTable: "none", MbitS: 85}, {Sender: "hopping", FlowTable: "inflight", MbitS: 81.5, Hops: 263, OFO: 14, Moves: 57, Refused: 1594, Retransmits: 10}}}
	got := g.head() + g.hopTable()
	for _, want := range []string{
		"guest a      2 vCPUs, 2 queues, up after 3.5 s\n", "Debian's linux-image-6, emulated", "49 of 50 answered, p50 700 µs, p99 1800 µs",
		"pinned    none           85.0      0            0          0       -        -            0\n",
		"hopping   inflight       81.5    263           14          0      57     1594           10\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the text has no %q:\n%s", want, got)
		}
	}
}
