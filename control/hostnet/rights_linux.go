package hostnet

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// A Right is something that an operation needs from the system.
type Right uint

const (
	NetAdmin     Right = 1 << iota // CAP_NET_ADMIN: devices, addresses, routes
	SysAdmin                       // CAP_SYS_ADMIN: making and entering namespaces
	NetBroadcast                   // CAP_NET_BROADCAST: events from other namespaces
	TunDevice                      // /dev/net/tun
	BPF                            // CAP_BPF, or CAP_SYS_ADMIN as before Linux 5.8: loading eBPF programs
)

const tunPath = "/dev/net/tun"

var capabilities = []struct {
	right Right
	bit   uint
	name  string
}{
	{NetAdmin, unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"},
	{SysAdmin, unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"},
	{NetBroadcast, unix.CAP_NET_BROADCAST, "CAP_NET_BROADCAST"},
	{BPF, unix.CAP_BPF, "CAP_BPF"},
}

// Explain adds to the error of an operation that needs these rights which of
// them is missing. Other errors, and nil, it returns as they are.
func Explain(err error, needs Right) error {
	if err == nil {
		return nil
	}
	denied := errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
	nodev := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO)
	if needs&TunDevice != 0 && (denied || nodev) {
		if why := tunProblem(); why != "" {
			return fmt.Errorf("%w: %s", err, why)
		}
	}
	if !denied {
		return err
	}
	if missing := missingCaps(effectiveCaps(), needs); missing != "" {
		return fmt.Errorf("%w: missing %s", err, missing)
	}
	if needs&BPF != 0 {
		return fmt.Errorf("%w: CAP_BPF is there but counts in the initial user namespace only, and a container's seccomp filter may forbid bpf(2)", err)
	}
	return err
}

// tunProblem says why /dev/net/tun cannot be opened; empty if it can.
func tunProblem() string {
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case err == nil:
		unix.Close(fd)
		return ""
	case errors.Is(err, unix.ENOENT):
		return tunPath + " is missing: run modprobe tun, or give the container the device"
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return tunPath + " has no driver: run modprobe tun"
	case errors.Is(err, unix.EPERM):
		return tunPath + " is forbidden: the device cgroup of this container or unit must allow c 10:200"
	}
	why := tunPath + " cannot be opened for reading and writing"
	if st, err := os.Stat(tunPath); err == nil {
		why += " by this user (its mode is " + st.Mode().Perm().String() + ")"
	}
	return why
}

func effectiveCaps() uint64 {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return ^uint64(0)
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective)
}

func missingCaps(have uint64, needs Right) string {
	if have>>unix.CAP_SYS_ADMIN&1 == 1 {
		needs &^= BPF
	}
	var names []string
	for _, c := range capabilities {
		if needs&c.right != 0 && have>>c.bit&1 == 0 {
			names = append(names, c.name)
		}
	}
	return strings.Join(names, " and ")
}
