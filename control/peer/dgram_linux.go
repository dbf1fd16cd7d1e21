package peer

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"taprouter/control/config"
)

// A dgramPair receives at our address for as long as it is open, whoever
// sends; for each connection there is a socket to send from, as one that is
// connected to the peer says when that has room. It could not be the same: it
// would hear of the peer of its connection only, and not of that peer's
// successor at the same address.
type dgramPair struct {
	rx            int
	local, remote string
}

func bindDgram(conf config.Socket) (source, error) {
	if err := removeStale(conf.Local, unix.SOCK_DGRAM); err != nil {
		return nil, err
	}
	fd, err := dgramSocket()
	if err != nil {
		return nil, err
	}
	if err = unix.Fchmod(fd, fileMode); err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: conf.Local})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind %s: %w", conf.Local, err)
	}
	return &dgramPair{rx: fd, local: conf.Local, remote: conf.Remote}, nil
}

func dgramSocket() (int, error) {
	return unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
}

func (d *dgramPair) waits() bool { return false }

func (d *dgramPair) close() error {
	return errors.Join(unix.Close(d.rx), os.Remove(d.local))
}

func (d *dgramPair) next(context.Context) (rx, tx int, err error) {
	if tx, err = dgramSocket(); err != nil {
		return -1, -1, err
	}
	if err := unix.Connect(tx, &unix.SockaddrUnix{Name: d.remote}); err != nil {
		unix.Close(tx)
		return -1, -1, fmt.Errorf("connect %s: %w", d.remote, err)
	}
	if rx, err = unix.FcntlInt(uintptr(d.rx), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		unix.Close(tx)
	}
	return rx, tx, err
}
