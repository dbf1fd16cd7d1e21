package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	"taprouter/control/api"
)

// A Leg is a row of the table, and an element of "legs" in JSON.
type Leg struct {
	Name        string  `json:"name"`
	MbitS       float64 `json:"mbit_s"`      // goodput at the receiver
	Packets     uint64  `json:"packets"`     // TCP: data segments sent; UDP: datagrams received
	Lost        uint64  `json:"lost"`        // TCP: counted by anybody on the way; UDP: sent and not received
	Reordered   uint64  `json:"reordered"`   // see disorder for TCP
	Retransmits uint64  `json:"retransmits"` // segments
	RTTP50      float64 `json:"rtt_p50_us"`  // of pings beside the traffic
	RTTP99      float64 `json:"rtt_p99_us"`
	CPU         float64 `json:"router_cpu_s_per_gb"` // of payload, 10^9 bytes
}

// A result is what Run prints. Its exported fields are the JSON object.
type result struct {
	Legs      []Leg   `json:"legs"`
	Queues    []queue `json:"queues"`
	Conserved bool    `json:"conserved"`
	*Guests           // with virtual machines

	opt      Options
	xps      []api.XPS
	complete bool // all legs have run
	failed   []string
}

func (r *result) fail(format string, args ...any) {
	r.failed = append(r.failed, fmt.Sprintf(format, args...))
}

// verdict is nil if everything is as it has to be.
func (r *result) verdict() error {
	if len(r.failed) == 0 {
		return nil
	}
	return errors.New(strings.ReplaceAll(strings.Join(r.failed, "; "), "\n", ", "))
}

func (r *result) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	_, err := io.WriteString(w, r.text())
	return err
}

func (r *result) text() string {
	var b strings.Builder
	if r.Guests != nil {
		b.WriteString(r.Guests.head())
	}
	l := r.opt.legs[0]
	fmt.Fprintf(&b, "%v a leg; TAPs of %d queues, MTU %d; UDP %d bytes at %d to %d packets/s; ping every %v; %d CPUs\n\n",
		r.opt.Duration, queues, mtu, udpSize, l.pps, l.maxPPS, pingInterval, runtime.NumCPU())
	fmt.Fprintf(&b, "%-14s %9s %9s %7s %9s %11s %9s %9s %9s\n",
		"leg", "Mbit/s", "packets", "lost", "reordered", "retransmits", "p50 µs", "p99 µs", "CPU s/GB")
	for _, l := range r.Legs {
		fmt.Fprintf(&b, "%-14s %9.0f %9d %7d %9d %11d %9.0f %9.0f %9.2f\n",
			l.Name, l.MbitS, l.Packets, l.Lost, l.Reordered, l.Retransmits, l.RTTP50, l.RTTP99, l.CPU)
	}
	if r.Guests != nil {
		b.WriteString(r.Guests.hopTable())
	}
	fmt.Fprintf(&b, "\n%s", queueTable(r.Queues, r.xps))
	if r.Guests != nil {
		b.WriteString("ports l2a and l2b are in bridges with the TAPs of guests a and b, c is the slow line\n")
	}
	if err := r.verdict(); err != nil {
		fmt.Fprintf(&b, "\nFAILED: %v\n", err)
	} else {
		fmt.Fprintf(&b, "\nOK: all %d legs passed traffic, nothing in them was reordered, every packet is accounted for\n", len(r.Legs))
	}
	return b.String()
}
