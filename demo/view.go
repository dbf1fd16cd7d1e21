package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// A view is what the router says of itself over its socket.
type view struct{ http *http.Client }

func newView(socket string) view {
	return view{&http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}},
	}}
}

func (v view) close() { v.http.CloseIdleConnections() }

// get reads a JSON answer into result.
func (v view) get(ctx context.Context, path string, result any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://router"+path, nil)
	if err != nil {
		return err
	}
	resp, err := v.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask the router for %s: %w", path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("ask the router for %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("ask the router for %s: %s: %s", path, resp.Status, strings.TrimSpace(string(b)))
	}
	return json.Unmarshal(b, result)
}

// totals are the terms of the conservation of packets, in wire packets.
type totals struct {
	Received, Created, Injected, Sent, Queued, Parked, Punted, Dropped uint64
}

func (t totals) balanced() bool {
	return t.Received+t.Created+t.Injected == t.Sent+t.Queued+t.Parked+t.Punted+t.Dropped
}

func (v view) totals(ctx context.Context) (t totals, err error) {
	var s struct{ Totals totals }
	err = v.get(ctx, "/v1/status", &s)
	return s.Totals, err
}

// dropCounts are the router's drops by port and reason.
type dropCounts map[dropKey]uint64

type dropKey struct{ port, reason string }

func (v view) drops(ctx context.Context) (dropCounts, error) {
	var list []struct {
		Port, Reason string
		Packets      uint64
	}
	if err := v.get(ctx, "/v1/drops", &list); err != nil {
		return nil, err
	}
	c := dropCounts{}
	for _, d := range list {
		c[dropKey{d.Port, d.Reason}] += d.Packets
	}
	return c, nil
}

// noise are the reasons that explain no loss of a leg: what hosts send of
// their own accord (router solicitations, multicast reports) ends so.
var noise = map[string]bool{
	"no_bridge_port": true, "reserved_mac": true, "not_for_us": true, "protocol": true, "martian": true,
	"same_port": true, "vlan": true,
}

// since counts what was dropped after before at the ports of a leg and could
// have been the leg's.
func (c dropCounts) since(before dropCounts, ports [2]string) (n uint64) {
	for k, v := range c {
		if !noise[k.reason] && (k.port == ports[0] || k.port == ports[1] || k.port == "") {
			n += v - before[k]
		}
	}
	return n
}

// account takes the queues' statistics and the sum of all packets when
// everything is quiet.
func (d *demo) account(ctx context.Context, res *result) error {
	t, err := d.quiet(ctx)
	if err != nil {
		return err
	}
	if res.Conserved = t.balanced(); !res.Conserved {
		res.fail("the packet count does not add up: %+v", t)
	}
	if err := d.router.get(ctx, "/v1/qdiscs", &res.Queues); err != nil {
		return err
	}
	return nil
}

// quietTime and quietTries bound the wait for a time without packets.
const (
	quietTime  = 100 * time.Millisecond
	quietTries = 20
)

// quiet waits until the router has nothing to do and gives its totals. There
// may always be a packet of the kernel's own, so it does not insist.
func (d *demo) quiet(ctx context.Context) (t totals, err error) {
	for range quietTries {
		last := t
		if t, err = d.router.totals(ctx); err != nil || t == last && t.Queued == 0 {
			return t, err
		}
		select {
		case <-ctx.Done():
			return t, ctx.Err()
		case <-time.After(quietTime):
		}
	}
	return t, nil
}
