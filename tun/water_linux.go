package tun

import (
	"fmt"
	"os"

	"github.com/songgao/water"
	"golang.org/x/sys/unix"

	"taprouter/packet"
)

// A waterQueue reads and writes plain frames, one call each, through
// songgao/water, whose files wait in Go's poller. So that a worker never does,
// it looks whether there is a frame before each read; a write has no reason to
// wait, as the send buffer is unlimited.
type waterQueue struct {
	dev  *water.Interface
	poll pollFD // the reader's

	in    []byte // the frame that was read
	frame [1][]byte
	out   []byte // a frame put together from pieces
}

// openWater opens one more queue of a device. The library knows neither the
// virtio-net header nor close-on-exec, and always sets or clears persistence.
func openWater(cfg Config) (*Queue, error) {
	wc := water.Config{DeviceType: water.TAP}
	if cfg.Mode == TUN {
		wc.DeviceType = water.TUN
	}
	wc.Name, wc.Persist, wc.MultiQueue = cfg.Name, cfg.Persist, cfg.Queues > 1
	dev, err := water.New(wc)
	if err != nil {
		return nil, fmt.Errorf("tun: water: %s: %w", cfg.Name, err)
	}
	fd := int(dev.ReadWriteCloser.(*os.File).Fd()) // stays non-blocking: the file was so when it was made
	unix.CloseOnExec(fd)
	// A queue that joins a device has the flags of the first, whatever it asks for.
	flags, err := deviceFlags(fd)
	if err == nil && flags&unix.IFF_VNET_HDR != 0 {
		err = fmt.Errorf("somebody else holds it with a virtio-net header, which water cannot read: %w", unix.EBUSY)
	}
	if err != nil {
		dev.Close()
		return nil, fmt.Errorf("tun: water: %s: %w", cfg.Name, err)
	}
	d := &waterQueue{dev: dev, in: make([]byte, maxFrame), out: make([]byte, maxFrame)}
	d.poll.init(fd)
	return newDriverQueue(fd, cfg.Mode == TUN, d), nil
}

func (d *waterQueue) read() ([][]byte, unix.Errno) {
	if !d.poll.readable() {
		return nil, unix.EAGAIN
	}
	n, err := d.dev.Read(d.in)
	if err != nil {
		return nil, errnoOf(err)
	}
	d.frame[0] = d.in[:n]
	return d.frame[:], 0
}

func (d *waterQueue) write(pkts []*packet.Packet) (int, unix.Errno) {
	for i, p := range pkts {
		frame := p.Bytes()
		if p.HasTail() {
			frame = d.out[:p.CopyOut(d.out, 0)]
		}
		if _, err := d.dev.Write(frame); err != nil {
			return i, errnoOf(err)
		}
	}
	return len(pkts), 0
}

func (d *waterQueue) writeSegment(hdr []byte, payload [][]byte) unix.Errno {
	_, err := d.dev.Write(appendPieces(d.out[:0], hdr, payload))
	return errnoOf(err)
}

func (d *waterQueue) close() error { return d.dev.Close() }
