package tun

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	wgtun "golang.zx2c4.com/wireguard/tun"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"taprouter/packet"
)

// A wireguardQueue reads and writes IP packets through the batch interface of
// golang.zx2c4.com/wireguard/tun: a read gives all segments of a superpacket,
// with their checksums, and a write merges what it can into superpackets. The
// library uses the virtio-net header itself and keeps it to itself.
//
// Its file waits in Go's poller: see waterQueue.
type wireguardQueue struct {
	dev  wgtun.Device
	poll pollFD // the reader's

	in     [][]byte // where packets are read to
	sizes  []int
	frames [][]byte

	out    [][]byte // slots for packets to be merged, each with room for a superpacket
	batch  [][]byte
	failed int        // packets whose batch failed, still to be reported
	why    unix.Errno // of that
	mem    []byte
}

// wireguardHeader is what the library wants free in front of each packet that
// it writes: room for its virtio-net header.
const wireguardHeader = vnetLen

// openWireguard opens one more queue of a device and wraps it. The wrapper is
// the one without goroutines, netlink and a probe a second.
func openWireguard(cfg Config) (*Queue, error) {
	fd, err := openQueue(cfg)
	if err != nil {
		return nil, err
	}
	dev, _, err := wgtun.CreateUnmonitoredTUNFromFD(fd) // takes fd over, also if it fails
	if err != nil {
		return nil, fmt.Errorf("tun: wireguard: %s: %w", cfg.Name, err)
	}
	d := &wireguardQueue{dev: dev}
	if err := d.allocate(dev.BatchSize()); err != nil {
		dev.Close()
		return nil, fmt.Errorf("tun: wireguard: %s: %w", cfg.Name, err)
	}
	d.poll.init(fd)
	return newDriverQueue(fd, true, d), nil
}

// allocate maps memory for n packets in and a batch out. What is never
// touched costs nothing: at MTU 1500 that is all but 4 KiB of each packet in.
func (d *wireguardQueue) allocate(n int) (err error) {
	const slot = 68 << 10 // the header and the largest IP packet, in whole pages
	if d.mem, err = mmap((n + packet.MaxBatch) * slot); err != nil {
		return err
	}
	slots := make([][]byte, n+packet.MaxBatch)
	for i := range slots {
		slots[i] = d.mem[i*slot : (i+1)*slot : (i+1)*slot]
	}
	d.in, d.out = slots[:n], slots[n:]
	d.sizes, d.frames = make([]int, n), make([][]byte, n+1)
	d.batch = make([][]byte, 0, packet.MaxBatch)
	return nil
}

func (d *wireguardQueue) read() ([][]byte, unix.Errno) {
	if !d.poll.readable() {
		return nil, unix.EAGAIN
	}
	n, err := d.dev.Read(d.in, d.sizes, 0)
	if errno := errnoOf(err); errno != 0 && errno != notErrno {
		return nil, errno
	}
	frames := d.frames[:0]
	for i, size := range d.sizes[:n] {
		frame := d.in[i][:size]
		mendChecksum(frame)
		frames = append(frames, frame)
	}
	if err != nil { // of this superpacket; those that follow may be right
		frames = append(frames, nil)
	}
	return frames, 0
}

// mendChecksum makes good for a checksum of UDP over IPv6 that the library
// computed to be zero and wrote as that: zero means none, which IPv6 does not
// allow (RFC 768, RFC 8200 section 8.1). One that was none from the start, as a
// tunnel may send it, stays.
func mendChecksum(ip []byte) {
	const udp, end = 40, 48
	if len(ip) < end || ip[0]>>4 != 6 || ip[6] != unix.IPPROTO_UDP || ip[udp+6] != 0 || ip[udp+7] != 0 {
		return
	}
	sum := checksum.Checksum(ip[8:], uint16(unix.IPPROTO_UDP)) // addresses, UDP
	if checksum.Combine(sum, uint16(len(ip)-udp)) == 0xffff {
		ip[udp+6], ip[udp+7] = 0xff, 0xff
	}
}

// write gives up to a batch to the library, which merges and writes it. If
// that fails it does not say for which packets, so that all of the batch count
// as failed: one is reported now, the others at the next calls, unwritten.
func (d *wireguardQueue) write(pkts []*packet.Packet) (int, unix.Errno) {
	if d.failed > 0 {
		d.failed--
		return 0, d.why
	}
	d.batch = d.batch[:0]
	for i, p := range pkts {
		n := p.CopyOut(d.out[i][wireguardHeader:], 0)
		d.batch = append(d.batch, d.out[i][:wireguardHeader+n])
	}
	if d.why = d.flush(); d.why != 0 {
		d.failed = len(pkts) - 1
		return 0, d.why
	}
	return len(pkts), 0
}

func (d *wireguardQueue) writeSegment(hdr []byte, payload [][]byte) unix.Errno {
	d.batch = append(d.batch[:0], appendPieces(d.out[0][:wireguardHeader], hdr, payload))
	return d.flush()
}

// flush gives d.batch to the library. What it gives back is a number of bytes
// and of no use. A full buffer cannot be: the send buffer is unlimited.
func (d *wireguardQueue) flush() unix.Errno {
	_, err := d.dev.Write(d.batch, wireguardHeader)
	errno := errnoOf(err)
	if errno == unix.EAGAIN || errno == unix.ENOBUFS {
		return unix.EIO // not to be written again: some of the batch was
	}
	return errno
}

func (d *wireguardQueue) close() error {
	err := d.dev.Close()
	return errors.Join(err, unix.Munmap(d.mem))
}
