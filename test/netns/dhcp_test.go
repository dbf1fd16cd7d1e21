package netns

import (
	"net"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/server4"

	"taprouter/control/hostnet"
)

// dhcp answers DHCP on a device of namespace k: everybody gets this address.
func (n *Net) dhcp(k, dev string, server, lease net.IP) {
	n.t.Helper()
	ns, _, err := hostnet.Ensure(n.ns(k), false)
	if err != nil {
		n.t.Fatal(err)
	}
	defer ns.Close()
	var s *server4.Server
	err = ns.Do(func() error {
		s, err = server4.NewServer(dev, &net.UDPAddr{IP: net.IPv4zero, Port: dhcpv4.ServerPort}, func(c net.PacketConn, to net.Addr, m *dhcpv4.DHCPv4) {
			kind := dhcpv4.MessageTypeOffer
			if m.MessageType() == dhcpv4.MessageTypeRequest {
				kind = dhcpv4.MessageTypeAck
			}
			r, err := dhcpv4.NewReplyFromRequest(m, dhcpv4.WithMessageType(kind), dhcpv4.WithYourIP(lease), dhcpv4.WithServerIP(server),
				dhcpv4.WithOption(dhcpv4.OptServerIdentifier(server)), dhcpv4.WithNetmask(net.CIDRMask(24, 32)), dhcpv4.WithLeaseTime(3600))
			if err == nil {
				_, err = c.WriteTo(r.ToBytes(), to)
			}
			if err != nil {
				n.t.Error("DHCP server:", err)
			}
		})
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve() }() // ends with Close
	n.t.Cleanup(func() { s.Close(); <-served })
}
