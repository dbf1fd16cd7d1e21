package demo

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// require says in one line what this system or user lacks.
func require() error {
	caps, err := effective()
	if err != nil {
		return fmt.Errorf("demo: read our capabilities: %w", err)
	}
	var missing []string
	for _, c := range []struct {
		bit  uint
		name string
	}{
		{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, // devices, addresses
		{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}, // namespaces
	} {
		if caps&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("demo: %s missing: run it as root", strings.Join(missing, " and "))
	}
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errors.New("demo: /dev/net/tun missing: load the kernel's tun module (modprobe tun)")
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return errors.New("demo: /dev/net/tun is there, but no driver behind it: load the kernel's tun module (modprobe tun)")
	case err != nil:
		return fmt.Errorf("demo: /dev/net/tun: %w", err)
	}
	_ = f.Close()
	if _, err := os.Stat("/proc/self/ns/net"); err != nil {
		return errors.New("demo: network namespaces missing: /proc/self/ns/net does not exist (CONFIG_NET_NS, or /proc is not mounted)")
	}
	return nil
}

// effective gives the effective capabilities.
func effective() (uint64, error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // 32 bits each
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return 0, err
	}
	return uint64(data[0].Effective) | uint64(data[1].Effective)<<32, nil
}
