// Command guest is the /init of the virtual machines that the tests boot: that
// of internal/vm, and a DHCP client.
package main

import (
	"context"
	"fmt"

	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"

	"taprouter/internal/traffic"
	"taprouter/internal/vm"
)

func main() { vm.Init(map[string]traffic.Handler{"dhcp": traffic.Handle(lease)}) }

// lease asks for an address for a device that is up, and gives it as a prefix.
func lease(ctx context.Context, dev string) (string, error) {
	c, err := nclient4.New(dev)
	if err != nil {
		return "", err
	}
	defer c.Close()
	l, err := c.Request(ctx)
	if err != nil {
		return "", err
	}
	ones, _ := l.ACK.SubnetMask().Size()
	return fmt.Sprintf("%s/%d", l.ACK.YourIPAddr, ones), nil
}
