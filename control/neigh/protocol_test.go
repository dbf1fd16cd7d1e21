package neigh

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/ip4defrag"
	"github.com/google/gopacket/layers"
)

// runTable starts Run; the function that it gives ends it.
func runTable(t *testing.T, tab *Table) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { tab.Run(ctx); close(done) }()
	return func() { cancel(); <-done }
}

// What RFC 4861, 7.1 and 7.2.5, says of messages that are not taken at their
// word. The neighbour is REACHABLE at hostMAC before each.
func TestDiscoveryRules(t *testing.T) {
	group := netip.MustParseAddr("ff02::1:ff00:fe")
	all := netip.IPv6LinkLocalAllNodes()
	evil := [6]byte{3, 0, 0, 0, 0, 1} // a group address
	for _, tt := range []struct {
		name  string
		frame []byte
		state string
		sent  int
		count func(s Stats) uint64
	}{
		{"other MAC, no override", ndOf(t, 136, 255, otherMAC, host6, ours6, host6, naSolicited, 2), "STALE", 0, nil},
		{"solicited, to a group", ndOf(t, 136, 255, otherMAC, host6, all, host6, naSolicited|naOverride, 2), "REACHABLE", 0, Stats.malformed},
		{"a group's MAC", ndOf(t, 136, 255, evil, host6, ours6, host6, naSolicited|naOverride, 2), "REACHABLE", 0, Stats.malformed},
		{"announces our address", ndOf(t, 136, 255, otherMAC, host6, all, ours6, naOverride, 2), "REACHABLE", 0, Stats.conflicts},
		{"from our address", ndOf(t, 135, 255, otherMAC, ours6, group, ours6, 0, 1), "REACHABLE", 0, Stats.conflicts},
		{"unsolicited, same MAC", ndOf(t, 136, 255, hostMAC, host6, all, host6, naOverride, 2), "REACHABLE", 0, nil},
		{"without option", ndOf(t, 136, 255, hostMAC, host6, ours6, host6, naSolicited, 0), "REACHABLE", 0, nil},
		{"from a group", ndOf(t, 135, 255, hostMAC, all, group, ours6, 0, 1), "REACHABLE", 0, Stats.malformed},
		{"for a group", ndOf(t, 135, 255, hostMAC, host6, group, group, 0, 1), "REACHABLE", 0, Stats.malformed},
		{"to another group", ndOf(t, 135, 255, hostMAC, host6, netip.MustParseAddr("ff02::1:ff00:1"), ours6, 0, 1), "REACHABLE", 0, Stats.ignored},
		{"DAD by unicast", ndOf(t, 135, 255, hostMAC, netip.IPv6Unspecified(), ours6, ours6, 0, 0), "REACHABLE", 0, Stats.malformed},
		{"DAD with option", ndOf(t, 135, 255, hostMAC, netip.IPv6Unspecified(), group, ours6, 0, 1), "REACHABLE", 0, Stats.malformed},
		{"probe by unicast, no option", ndOf(t, 135, 255, hostMAC, host6, ours6, ours6, 0, 0), "REACHABLE", 1, nil},
		{"solicitation from a new MAC", ndOf(t, 135, 255, otherMAC, host6, group, ours6, 0, 1), "STALE", 1, nil},
		{"router solicitation", ndOf(t, 133, 255, hostMAC, host6, all, host6, 0, 1), "REACHABLE", 0, Stats.ignored},
	} {
		w := newWire(t)
		w.tab.Resolve(0, host6)
		w.hear(ndOf(t, 136, 255, hostMAC, host6, ours6, host6, naSolicited|naOverride, 2))
		got := w.hear(tt.frame)
		if len(got) != tt.sent || w.state(host6) != tt.state || len(w.tab.Entries()) != 1 {
			t.Errorf("%s: %d frames, %s, want %d, %s", tt.name, len(got), w.state(host6), tt.sent, tt.state)
		}
		if tt.count != nil && tt.count(w.tab.Stats()) != 1 {
			t.Errorf("%s: counted as %+v", tt.name, w.tab.Stats())
		}
	}
}

func (s Stats) malformed() uint64 { return s.RxMalformed }
func (s Stats) ignored() uint64   { return s.RxIgnored }
func (s Stats) conflicts() uint64 { return s.Conflicts }

// What nobody can be asked for, or has been asked for by mistake.
func TestResolveRefuses(t *testing.T) {
	w := newWire(t)
	for _, tt := range []struct {
		iface uint16
		addr  netip.Addr
	}{{0, ours4}, {0, netip.Addr{}}, {0, netip.IPv6LinkLocalAllNodes()}, {0, netip.IPv4Unspecified()}, {0, broadcast4}, {1, host4}, {9, host4}} {
		w.tab.Resolve(tt.iface, tt.addr)
		if len(w.sent) != 0 || len(w.tab.Entries()) != 0 {
			t.Errorf("Resolve(%d, %v) asked", tt.iface, tt.addr)
		}
	}
	w.tab.Resolve(0, netip.AddrFrom16(host4.As16()).WithZone("")) // 4in6 is IPv4
	if w.state(host4) != "INCOMPLETE" {
		t.Error("an IPv4 address in IPv6 form was not understood")
	}
}

// Every truncation of every message, and every byte changed: no panic, and no
// answer to what is not a good message.
func TestBrokenFrames(t *testing.T) {
	w := newWire(t)
	for _, f := range [][]byte{
		arpOf(t, 1, hostMAC, host4, ours4)[:42], ndOf(t, 135, 255, hostMAC, host6, ours6, ours6, 0, 1),
		ping4(t, 20), ping6(t, ours6, 20), cut6(ping6(t, ours6, 64), 40, 1)[0],
	} {
		for n := range f {
			if got := w.hear(bytes.Clone(f[:n])); len(got) != 0 {
				t.Errorf("the first %d bytes of %x were answered", n, f)
			}
			for bit := range 8 {
				g := bytes.Clone(f)
				g[n] ^= 1 << bit
				w.hear(g)
				g = g[14:]
				w.tab.HandleFrame(1, g)
			}
		}
	}
}

// A link-local address is known on its link only; others on every link.
func TestAddressOfOtherLink(t *testing.T) {
	w := newWire(t)
	ll := netip.MustParseAddr("fe80::77")
	w.tab.cfg.Ifaces[1].Addrs = append(w.tab.cfg.Ifaces[1].Addrs, netip.PrefixFrom(ll, 64))
	if got := w.hear(ping6(t, ll, 8)); len(got) != 0 {
		t.Error("a link-local address of another link was answered for")
	}
	f := ping4(t, 8)
	copy(f[30:], netip.MustParseAddr("10.1.0.254").AsSlice())
	put16(f[24:], 0) // nobody looks at the header's checksum here
	if got := w.hear(f); len(got) != 1 {
		t.Error("an address of another interface was not answered for")
	}
	w.sent = nil
	if w.tab.HandleFrame(1, f[14:]); len(w.sent) != 1 || w.sent[0][0] != 0x45 {
		t.Errorf("a ping by TUN: %d answers", len(w.sent))
	}
}

// cut6 cuts an IPv6 frame in fragments with size bytes of payload.
func cut6(f []byte, size int, id uint32) (out [][]byte) {
	body := f[54:]
	for off := 0; off < len(body); off += size {
		part := body[off:min(off+size, len(body))]
		g := append(bytes.Clone(f[:54]), protoICMPv6, 0, 0, 0, 0, 0, 0, 0)
		g[20] = protoFragment
		put16(g[18:], uint16(8+len(part)))
		word := uint16(off)
		if off+size < len(body) {
			word |= 1
		}
		put16(g[56:], word)
		binary.BigEndian.PutUint32(g[58:], id)
		out = append(out, append(g, part...))
	}
	return out
}

// The largest pings there are come back whole: gopacket puts IPv4's answer
// together, our own reassembly, whose twin that is, IPv6's.
func TestLargeEcho(t *testing.T) {
	for _, n := range []int{1472, 1480, 8000, 60_000, 65_507} {
		w := newWire(t)
		var got [][]byte
		request := ping4(t, n)
		for _, f := range fragments(request, 1480, backwards) {
			got = append(got, w.hear(f)...)
		}
		d := ip4defrag.NewIPv4Defragmenter()
		var whole *layers.IPv4
		for _, f := range got {
			ip := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default).Layer(layers.LayerTypeIPv4).(*layers.IPv4)
			if len(f) > 1514 {
				t.Errorf("%d bytes: a fragment of %d", n, len(f))
			}
			var err error
			if whole, err = d.DefragIPv4(ip); err != nil {
				t.Fatal(err)
			}
		}
		if whole == nil || len(whole.Payload) != 8+n || !bytes.Equal(whole.Payload[4:], request[38:]) || whole.Payload[0] != 0 {
			t.Errorf("IPv4, %d bytes: the answer in %d fragments is not the request", n, len(got))
		}
		w, got = newWire(t), nil
		request = ping6(t, ours6, n-20)
		for _, f := range cut6(request, 1448, 7) {
			got = append(got, w.hear(f)...)
		}
		var r reassembly
		var msg []byte
		for _, f := range got {
			if f[20] != protoFragment {
				msg = f[54:]
				continue
			}
			word := be16(f[56:])
			msg = r.add(fragID{}, int(word&^7), f[62:], word&1 == 0, 0)
		}
		if len(msg) != len(request)-54 || msg[0] != icmp6EchoReply || !bytes.Equal(msg[4:], request[58:]) {
			t.Errorf("IPv6, %d bytes: the answer in %d fragments is not the request", n, len(got))
		}
	}
}

// An MTU that is too small to be true does not stop us.
func TestTinyMTU(t *testing.T) {
	w := newWire(t)
	for _, mtu := range []int{-1, 0, 20, 27, 68} {
		w.tab.cfg.Ifaces[0].MTU = mtu
		if got := w.hear(ping4(t, 100)); len(got) != 3 {
			t.Errorf("MTU %d: %d fragments", mtu, len(got))
		}
		if got := w.hear(ping6(t, ours6, 100)); len(got) != 7 {
			t.Errorf("MTU %d: %d IPv6 fragments", mtu, len(got))
		}
	}
}

func TestReassembly(t *testing.T) {
	type frag struct {
		off, n int
		last   bool
	}
	for _, tt := range []struct {
		name string
		in   []frag
		want int // 0 = nothing
	}{
		{"in order", []frag{{0, 8, false}, {8, 8, false}, {16, 3, true}}, 19},
		{"last first", []frag{{16, 3, true}, {8, 8, false}, {0, 8, false}}, 19},
		{"alone", []frag{{0, 5, true}}, 5},
		{"a hole", []frag{{0, 8, false}, {16, 3, true}}, 0},
		{"overlap", []frag{{0, 16, false}, {8, 8, false}, {16, 3, true}}, 0},
		{"twice", []frag{{0, 8, false}, {0, 8, false}, {8, 3, true}}, 0},
		{"beyond the end, after it", []frag{{8, 3, true}, {16, 8, false}, {0, 8, false}}, 0},
		{"beyond the end, before it", []frag{{16, 8, false}, {8, 3, true}, {0, 8, false}}, 0},
		{"two ends", []frag{{16, 3, true}, {8, 3, true}, {0, 8, false}}, 0},
		{"not of eights", []frag{{0, 7, false}, {8, 3, true}}, 0},
		{"empty", []frag{{0, 8, false}, {8, 0, true}}, 0},
		{"too long", []frag{{65528, 8, true}, {0, 8, false}}, 0},
	} {
		var r reassembly
		var got []byte
		for _, f := range tt.in {
			b := make([]byte, f.n)
			for i := range b {
				b[i] = byte(f.off + i)
			}
			if d := r.add(fragID{}, f.off, b, f.last, 0); d != nil {
				got = d
			}
		}
		if len(got) != tt.want {
			t.Errorf("%s: %d bytes, want %d", tt.name, len(got), tt.want)
		}
		for i, b := range got {
			if b != byte(i) {
				t.Fatalf("%s: byte %d is %d", tt.name, i, b)
			}
		}
	}
}

// Datagrams that somebody leaves open do not keep others out.
func TestReassemblyFull(t *testing.T) {
	var r reassembly
	for i := range 100 {
		r.add(fragID{id: uint32(i)}, 0, make([]byte, 8), false, int64(i))
		if len(r.open) > asmMax {
			t.Fatalf("%d are open", len(r.open))
		}
	}
	if d := r.add(fragID{id: 99}, 8, make([]byte, 8), true, 100); len(d) != 16 {
		t.Errorf("the newest came to %d bytes, want 16", len(d))
	}
}
