package forward

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/gopacket/layers"

	"taprouter/packet"
)

// frame60 is a minimal frame with an ethertype that nobody knows.
func frame60(dst, src uint64) []byte { return frameN(dst, src, 60) }

func frameN(dst, src uint64, n int) []byte {
	b := make([]byte, n)
	putMAC(b, dst)
	putMAC(b[6:], src)
	b[12], b[13] = 0x88, 0xb5 // local experimental
	return b
}

func tagged(dst, src uint64, n int) []byte {
	b := frameN(dst, src, n)
	copy(b[12:], []byte{0x81, 0, 0, 5, 0x88, 0xb5})
	return b
}

const (
	hostA = hostMAC | 0xa
	hostB = hostMAC | 0xb
	hostC = hostMAC | 0xc
	bcast = 0xffffffffffff
)

func TestBridge(t *testing.T) {
	w := newWorld(t)
	w.is("unknown destination", w.send(2, frame60(hostB, hostA)), "tx 3", "tx 4")
	w.is("answer to a learned address", w.send(3, frame60(hostA, hostB)), "tx 2")
	w.is("both known", w.send(2, frame60(hostB, hostA), frame60(hostB, hostA)), "tx 3", "tx 3")
	w.is("same port", w.send(3, frame60(hostB, hostC)), "drop same_port")
	w.is("broadcast", w.send(4, frame60(bcast, hostC)), "tx 2", "tx 3")
	w.is("C has moved to port 4", w.send(2, frame60(hostC, hostA)), "tx 4")
	if moves, _ := w.s.Bridges[0].FDB.Counters(); moves != 1 {
		t.Errorf("%d moves, want 1", moves)
	}
	w.is("IPv4 multicast", w.send(2, frame60(0x01005e000001, hostA)), "tx 3", "tx 4")
	w.is("solicited-node multicast (B11)", w.send(2, frame60(0x3333ff123456, hostA)), "tx 3", "tx 4")
	for n := range uint64(16) {
		w.is("reserved", w.send(2, frame60(reserved+n, hostA)), "drop reserved_mac")
	}
	w.is("behind the reserved ones", w.send(2, frame60(reserved+16, hostA)), "tx 3", "tx 4")
	w.is("group source", w.send(2, frame60(hostB, 0x01005e000001)), "drop malformed")
	w.is("zero source", w.send(2, frame60(hostB, 0)), "drop malformed")
	w.is("runt", w.send(2, make([]byte, 13)), "drop truncated")
	w.is("tagged frames pass, MACs are of no VLAN", w.send(2, tagged(hostB, hostA, 60)), "tx 3")
	w.is("malformed IPv4 is none of a bridge's business", w.send(2, append(frame60(hostB, hostA)[:12], 8, 0, 0x44, 0)), "tx 3")
	w.is("the other bridge knows nothing of this", w.send(6, frame60(hostB, hostA)), "tx 7")
}

// One batch may hold frames from several ports: what was decided for one must
// not be taken for another.
func TestBridgeMixedBatch(t *testing.T) {
	w := newWorld(t)
	w.send(3, frame60(bcast, hostB))
	var pkts []*packet.Packet
	for _, in := range []uint16{2, 2, 3, 6} {
		pkts = append(pkts, w.load(in, frame60(hostB, hostA), packet.Vnet{}))
	}
	w.is("A to B from four places", w.forward(pkts), "tx 3", "tx 3", "tx 7", "drop same_port")
}

func TestBridgeDownPorts(t *testing.T) {
	w := newWorld(t)
	w.send(3, frame60(bcast, hostB))
	down := *w.s
	down.Ports = append([]Port(nil), w.s.Ports...)
	down.Ports[3].Up = false
	w.s = &down
	w.is("to a port that is down", w.send(2, frame60(hostB, hostA)), "drop link_down")
	w.is("flood past it", w.send(2, frame60(bcast, hostA)), "tx 4")
	down.Ports[4].Up = false
	w.is("nobody left", w.send(2, frame60(bcast, hostA)), "drop no_bridge_port")
	down.Ports[3].Up = true
	down.Ports[3].Bridge = -1 // it left the bridge, its addresses are still in the table
	down.Bridges = append([]Bridge(nil), w.s.Bridges...)
	down.Bridges[0].Ports = []uint16{2, 4}
	down.Ports[4].Up = true
	w.is("learned on a port that left", w.send(2, frame60(hostB, hostA)), "tx 4")
	w.s = &Snapshot{}
	w.is("no such port", w.send(2, frame60(hostB, hostA)), "drop link_down")
}

func TestBridgeMTU(t *testing.T) {
	w := newWorld(t)
	w.send(3, frame60(bcast, hostB))
	gso := func(size int, seg uint16) []byte { // a TCP superpacket of size bytes
		h := v4("10.9.9.1", "10.9.9.2", layers.IPProtocolTCP)
		tcp := &layers.TCP{SrcPort: 1, DstPort: 2, ACK: true}
		_ = tcp.SetNetworkLayerForChecksum(h)
		return build(ether(hostB, hostA, layers.EthernetTypeIPv4), h, tcp, payload(size-54))
	}
	for _, tt := range []struct {
		name  string
		frame []byte
		gso   uint16
		want  string
	}{
		{"as long as may be", frameN(hostB, hostA, 1514), 0, "tx 3"},
		{"one byte more", frameN(hostB, hostA, 1515), 0, "drop too_big"},
		{"a tag more", tagged(hostB, hostA, 1518), 0, "tx 3"},
		{"a tag and a byte more", tagged(hostB, hostA, 1519), 0, "drop too_big"},
		{"segments that fit", gso(30000, 1460), 1460, "tx 3"},
		{"segments that do not", gso(30000, 1461), 1461, "drop too_big"},
	} {
		var v packet.Vnet
		if tt.gso != 0 {
			v = packet.Vnet{Flags: packet.NeedsCsum, GSOType: packet.GSOTCPv4, GSOSize: tt.gso, HdrLen: 54, CsumStart: 34, CsumOffset: 16}
		}
		gs := w.sendGSO(2, tt.frame, v)
		w.is(tt.name, gs, tt.want)
		if len(gs) == 1 && !bytes.Equal(gs[0].frame, tt.frame) {
			t.Errorf("%s: the frame was changed", tt.name)
		}
	}
}

func TestFloodCopies(t *testing.T) {
	w := newWorld(t)
	frame := frameN(bcast, hostA, 9000) // with a tail
	s := *w.s
	s.Ports = append([]Port(nil), w.s.Ports...)
	for i := range s.Ports {
		s.Ports[i].MTU = 9000
	}
	w.s = &s
	gs := w.send(2, frame, frame)
	w.is("jumbo broadcast", gs, "tx 3", "tx 4", "tx 3", "tx 4")
	for _, g := range gs {
		if !bytes.Equal(g.frame, frame) {
			t.Errorf("%v: the copy differs", g)
		}
	}
	if w.f.Created != 2 {
		t.Errorf("Created = %d, want 2", w.f.Created)
	}
}

func TestFloodWithoutBuffers(t *testing.T) {
	w := newWorld(t)
	p := w.load(2, frame60(bcast, hostA), packet.Vnet{})
	var held packet.List
	for q := w.cache.Get(); q != nil; q = w.cache.Get() {
		held.Push(q)
	}
	w.is("one port gets it", w.forward([]*packet.Packet{p}), "tx 4")
	if w.f.NoBuffer != 1 || w.f.Created != 0 {
		t.Errorf("NoBuffer %d, Created %d; want 1, 0", w.f.NoBuffer, w.f.Created)
	}
	w.cache.PutList(&held)
}

func arp(op uint16, dst, src uint64, sender, target string) []byte {
	return build(ether(dst, src, layers.EthernetTypeARP), &layers.ARP{AddrType: 1, Protocol: 0x800, HwAddressSize: 6, ProtAddressSize: 4,
		Operation: op, SourceHwAddress: hw(src), SourceProtAddress: ip(sender).AsSlice(), DstHwAddress: hw(0), DstProtAddress: ip(target).AsSlice()})
}

// The router on a bridge hears what concerns it and no more, and everybody
// else still gets what was for all.
func TestRouterOnBridge(t *testing.T) {
	w := newWorld(t)
	w.is("ARP for us", w.send(2, arp(1, bcast, hostA, "10.0.2.9", "10.0.2.1")), "tx 3", "tx 4", "punt 8")
	w.is("ARP for another", w.send(2, arp(1, bcast, hostA, "10.0.2.9", "10.0.2.2")), "tx 3", "tx 4")
	w.is("gratuitous ARP", w.send(2, arp(1, bcast, hostA, "10.0.2.9", "10.0.2.9")), "tx 3", "tx 4", "punt 8")
	w.is("ARP reply to us", w.send(2, arp(2, mac(ifBridge), hostA, "10.0.2.9", "10.0.2.1")), "punt 8")
	w.is("NS for us", w.send(2, ns(0x3333ff000001, hostA, "fd02::9", "ff02::1:ff00:1", "fd02::1")), "tx 3", "tx 4", "punt 8")
	w.is("NS for another in our group", w.send(2, ns(0x3333ff000001, hostA, "fd02::9", "ff02::1:ff00:1", "fd02::77:1")), "tx 3", "tx 4")
	w.is("ping to us", w.send(2, echo4(mac(ifBridge), hostA, "10.0.2.9", "10.0.2.1")), "punt 8")
	w.is("no router on the other bridge", w.send(6, arp(1, bcast, hostA, "10.0.2.9", "10.0.2.1")), "tx 7")
	w.is("tagged to the router's MAC", w.send(2, tagged(mac(ifBridge), hostA, 60)), "drop vlan")
}

// Routing into a bridge ends at the port where the neighbour lives.
func TestRouteIntoBridge(t *testing.T) {
	w := newWorld(t)
	gs := w.send(0, udp4(0, "10.0.0.9", "10.0.2.2", 10, nil))
	w.is("neighbour's port unknown", gs, "tx 2", "tx 3", "tx 4")
	w.send(3, frame60(bcast, hostMAC|0x22))
	gs = w.send(0, udp4(0, "10.0.0.9", "10.0.2.2", 10, nil))
	w.is("neighbour's port known", gs, "tx 3")
	if b := gs[0].frame; binary.BigEndian.Uint64(b)>>16 != hostMAC|0x22 || binary.BigEndian.Uint64(b[4:])&(1<<48-1) != mac(ifBridge) {
		t.Errorf("addresses %x", b[:12])
	}
	gs = w.send(3, udp4(3, "10.0.2.5", "10.0.2.2", 10, nil))
	w.is("back out of the port it came in by", gs, "tx 3")
}

func TestInject(t *testing.T) {
	w := newWorld(t)
	inject := func(iface uint16, flags packet.Flags, frame []byte) []got {
		p := w.load(packet.NoPort, frame, packet.Vnet{})
		p.Flags = flags | packet.Local
		w.cls.Batch([]*packet.Packet{p})
		w.injected++
		w.f.Inject(w.s, iface, p, w.now, &w.out)
		return w.take()
	}
	w.is("a routed port", inject(0, 0, frame60(hostA, mac(0))), "tx 0")
	w.is("a bridge, unknown", inject(ifBridge, 0, frame60(hostB, mac(ifBridge))), "tx 2", "tx 3", "tx 4")
	w.send(3, frame60(bcast, hostB))
	w.is("a bridge, known", inject(ifBridge, 0, frame60(hostB, mac(ifBridge))), "tx 3")
	w.is("a bridge, broadcast", inject(ifBridge, 0, frame60(bcast, mac(ifBridge))), "tx 2", "tx 3", "tx 4")
	w.is("a TUN", inject(5, packet.Raw, udp4(5, "10.0.3.1", "10.0.3.9", 1, nil)), "tx 5")
	w.is("Ethernet to a TUN", inject(5, 0, frame60(hostB, hostA)), "drop tx_einval")
	w.is("raw to Ethernet", inject(0, packet.Raw, udp4(5, "10.0.3.1", "10.0.3.9", 1, nil)), "drop tx_einval")
	w.is("a runt", inject(0, 0, make([]byte, 5)), "drop truncated")
	w.is("no such interface", inject(99, 0, frame60(hostB, hostA)), "drop link_down")
}
