// Package tun (data path) implements multi-queue TUN and TAP ports: opening
// with every offload the kernel grants, reading and writing batches of frames
// with their virtio-net headers, and waiting for many queues at once.
//
// device_linux.go and steering_linux.go are the control side; queue_linux.go
// and poller_linux.go are the data path. A queue that is not read and written
// by our own system calls has a driver: water_linux.go, wireguard_linux.go.
package tun

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"taprouter/packet"
)

// Mode says which layer a device carries.
type Mode uint16

const (
	TAP Mode = unix.IFF_TAP // Ethernet frames
	TUN Mode = unix.IFF_TUN // IP packets
)

func (m Mode) String() string {
	if m == TUN {
		return "tun"
	}
	return "tap"
}

// A Backend is what opens, reads and writes the queues of a device.
type Backend uint8

const (
	Native    Backend = iota
	Water             // songgao/water: plain frames, no virtio-net header
	Wireguard         // golang.zx2c4.com/wireguard/tun: TUN only; its virtio-net header is its own
)

// ParseBackend is the inverse of String.
func ParseBackend(s string) (Backend, error) {
	for i, name := range backendNames {
		if s == name {
			return Backend(i), nil
		}
	}
	return 0, fmt.Errorf("tun: backend %q: want one of %s", s, strings.Join(backendNames[:], ", "))
}

var backendNames = [...]string{"native", "water", "wireguard"}

func (b Backend) String() string { return backendNames[b] }

// MaxQueues is the kernel's limit on queues of one device (MAX_TAP_QUEUES).
const MaxQueues = 256

// ErrNoBackpressure says that the kernel lacks IFF_BACKPRESSURE.
var ErrNoBackpressure = errors.New("tun: the kernel cannot stop senders to a full device (IFF_BACKPRESSURE, Linux 7.2)")

// ErrGone is what a queue reports once its device was deleted.
var ErrGone = errors.New("tun: the device was deleted")

// Config says what Open makes or attaches to.
type Config struct {
	Name    string
	Mode    Mode
	Backend Backend
	Queues  int  // 1..MaxQueues
	VnetHdr bool // carry virtio-net headers, and with them all offloads; of the backends, wireguard always and water never
	NAPI    bool // IFF_NAPI: writes go through the kernel's GRO
	Persist bool // the device outlives us
	SndBuf  int  // bytes of TUNSETSNDBUF, 0 = unlimited
	// Backpressure has a full ring stop the kernel's senders instead of
	// dropping what they send: IFF_BACKPRESSURE, Linux 7.2.
	Backpressure bool
}

// A Device is an open TUN or TAP with all its queues. Its methods belong to
// the control plane and may be called concurrently, Close excepted; the queues
// belong to the workers.
type Device struct {
	Name     string
	Mode     Mode
	Backend  Backend
	VnetLen  int     // bytes of vnet header in front of each frame, 0 without
	Offloads Offload // what the kernel granted: it may send us such frames
	Persist  bool

	mu       sync.Mutex
	queues   []*Queue // by kernel queue index; guarded by mu
	detached []*Queue // guarded by mu
	steering Steering // guarded by mu
}

// Offload is a set of TUN_F_* bits: what the reader of a device takes.
type Offload uint32

// Offload bits, include/uapi/linux/if_tun.h.
const (
	OffCsum   Offload = 0x01 // TUN_F_CSUM
	OffTSO4   Offload = 0x02 // TUN_F_TSO4
	OffTSO6   Offload = 0x04 // TUN_F_TSO6
	OffTSOECN Offload = 0x08 // TUN_F_TSO_ECN
	OffUSO4   Offload = 0x20 // TUN_F_USO4
	OffUSO6   Offload = 0x40 // TUN_F_USO6
)

var offloadNames = []struct {
	bit  Offload
	name string
}{{OffCsum, "csum"}, {OffTSO4, "tso4"}, {OffTSO6, "tso6"}, {OffTSOECN, "tso-ecn"}, {OffUSO4, "uso4"}, {OffUSO6, "uso6"}}

// Names lists the bits of o in words.
func (o Offload) Names() []string {
	names := []string{}
	for _, n := range offloadNames {
		if o&n.bit != 0 {
			names = append(names, n.name)
		}
	}
	return names
}

func (o Offload) String() string { return strings.Join(o.Names(), ",") }

// Open makes the device, or attaches to it if it exists and persists, in the
// network namespace of the calling thread.
func Open(cfg Config) (*Device, error) {
	if cfg.Queues < 1 || cfg.Queues > MaxQueues {
		return nil, fmt.Errorf("tun: %s: %d queues, want 1..%d", cfg.Name, cfg.Queues, MaxQueues)
	}
	open := openNative
	switch cfg.Backend {
	case Water:
		open, cfg.VnetHdr = openWater, false
	case Wireguard:
		if cfg.Mode != TUN {
			return nil, fmt.Errorf("tun: %s: wireguard opens a tun, not a %v", cfg.Name, cfg.Mode)
		}
		open, cfg.VnetHdr = openWireguard, true
	}
	d := &Device{Name: cfg.Name, Mode: cfg.Mode, Backend: cfg.Backend, Persist: cfg.Persist}
	if cfg.VnetHdr {
		d.VnetLen = vnetLen
	}
	for range cfg.Queues {
		q, err := open(cfg)
		if err != nil {
			d.Close()
			return nil, err
		}
		d.queues = append(d.queues, q)
	}
	if err := d.setup(cfg); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func openNative(cfg Config) (*Queue, error) {
	fd, err := openQueue(cfg)
	if err != nil {
		return nil, err
	}
	vnet := 0
	if cfg.VnetHdr {
		vnet = vnetLen
	}
	q := NewQueue(fd, vnet)
	q.raw = cfg.Mode == TUN
	return q, nil
}

// openQueue opens one more queue of the device. The descriptor is
// non-blocking, so that an empty ring and a full buffer both say EAGAIN.
func openQueue(cfg Config) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("tun: open /dev/net/tun: %w", err)
	}
	ifr, err := unix.NewIfreq(cfg.Name)
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("tun: name %q: %w", cfg.Name, err)
	}
	if cfg.Backpressure && features(fd)&iffBackpressure == 0 {
		unix.Close(fd)
		return -1, ErrNoBackpressure
	}
	flags := uint16(cfg.Mode) | unix.IFF_NO_PI
	if cfg.Queues > 1 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	if cfg.VnetHdr {
		flags |= unix.IFF_VNET_HDR
	}
	if cfg.NAPI {
		flags |= unix.IFF_NAPI
	}
	if cfg.Backpressure {
		flags |= iffBackpressure
	}
	ifr.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("tun: TUNSETIFF %s: %w", cfg.Name, err)
	}
	return fd, nil
}

const iffBackpressure = 0x80

// features gives the IFF_ bits that the kernel knows. TUNGETFEATURES.
func features(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.TUNGETFEATURES)
	if err != nil {
		return 0
	}
	return n
}

// setup applies what is set once a device, through its first queue. Offloads
// stick to a persistent device, so they are always set, even to none.
func (d *Device) setup(cfg Config) error {
	fd := d.queues[0].fd
	if cfg.VnetHdr {
		if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, d.VnetLen); err != nil {
			return fmt.Errorf("tun: vnet header size on %s: %w", d.Name, err)
		}
	}
	want := Offload(0)
	if cfg.VnetHdr {
		want = OffCsum | OffTSO4 | OffTSO6 | OffTSOECN | OffUSO4 | OffUSO6
	}
	if cfg.Backend == Wireguard {
		want &^= OffTSOECN // it knows no superpacket with ECN
	}
	granted, err := setOffload(fd, want)
	if err != nil {
		return fmt.Errorf("tun: offloads on %s: %w", d.Name, err)
	}
	d.Offloads = granted
	persist := 0
	if cfg.Persist {
		persist = 1
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, persist); err != nil {
		return fmt.Errorf("tun: persist on %s: %w", d.Name, err)
	}
	if cfg.SndBuf > 0 {
		if err := unix.IoctlSetPointerInt(fd, unix.TUNSETSNDBUF, cfg.SndBuf); err != nil {
			return fmt.Errorf("tun: send buffer of %d bytes on %s: %w", cfg.SndBuf, d.Name, err)
		}
	}
	return nil
}

// setOffload asks for want and falls back bit by bit to what the kernel
// takes. USO exists only as a pair, TSO_ECN only with a TSO.
func setOffload(fd int, want Offload) (Offload, error) {
	try := func(o Offload) bool { return unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, int(o)) == nil }
	if try(want) {
		return want, nil
	}
	granted := Offload(0)
	for _, o := range []Offload{OffCsum, OffTSO4, OffTSO6, OffTSOECN, OffUSO4 | OffUSO6} {
		if want&o == o && try(granted|o) {
			granted |= o
		}
	}
	// The last try may have failed: leave the device with what was granted.
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, int(granted)); err != nil {
		return 0, err
	}
	return granted, nil
}

// Queues gives the attached queues by kernel queue index. The slice is a copy.
func (d *Device) Queues() []*Queue {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]*Queue(nil), d.queues...)
}

// Detach takes q out of the kernel's steering. The kernel moves the last
// queue into the freed index, and Queues follows it. Frames that q has not
// read are lost. Needs IFF_MULTI_QUEUE (more than one queue at Open).
func (d *Device) Detach(q *Queue) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.index(q)
	if i < 0 {
		return fmt.Errorf("tun: detach on %s: %w", d.Name, os.ErrInvalid)
	}
	if err := setQueue(q.fd, unix.IFF_DETACH_QUEUE); err != nil {
		return fmt.Errorf("tun: detach queue %d of %s: %w", i, d.Name, err)
	}
	last := len(d.queues) - 1
	d.queues[i] = d.queues[last]
	d.queues = d.queues[:last]
	d.detached = append(d.detached, q)
	return nil
}

// Attach brings a detached queue back, as the one with the highest index.
func (d *Device) Attach(q *Queue) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := setQueue(q.fd, unix.IFF_ATTACH_QUEUE); err != nil {
		return fmt.Errorf("tun: attach a queue to %s: %w", d.Name, err)
	}
	d.queues = append(d.queues, q)
	d.detached = slices.DeleteFunc(d.detached, func(x *Queue) bool { return x == q })
	return nil
}

// index needs d.mu.
func (d *Device) index(q *Queue) int {
	for i := range d.queues {
		if d.queues[i] == q {
			return i
		}
	}
	return -1
}

func setQueue(fd int, flag uint16) error {
	ifr, err := unix.NewIfreq("x") // TUNSETQUEUE ignores the name
	if err != nil {
		return err
	}
	ifr.SetUint16(flag)
	return unix.IoctlIfreq(fd, unix.TUNSETQUEUE, ifr)
}

// NetNS gives a descriptor of the network namespace in which the device is
// now: it can be moved at any time. The caller closes it.
// TUNGETDEVNETNS, Linux 5.8.
func (d *Device) NetNS() (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queues) == 0 {
		return -1, os.ErrClosed
	}
	fd, err := unix.IoctlRetInt(d.queues[0].fd, tunGetDevNetNS)
	if err != nil {
		return -1, fmt.Errorf("tun: namespace of %s: %w", d.Name, err)
	}
	return fd, nil
}

const tunGetDevNetNS = 0x54e3 // TUNGETDEVNETNS = _IO('T', 227)

// deviceFlags gives the IFF_* flags of the device behind a queue.
func deviceFlags(fd int) (uint16, error) {
	ifr, err := unix.NewIfreq("x")
	if err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, ifr); err != nil {
		return 0, fmt.Errorf("TUNGETIFF: %w", err)
	}
	return ifr.Uint16(), nil
}

// CurrentName asks the kernel for the device's name, which may have changed.
func (d *Device) CurrentName() (string, error) {
	ifr, err := unix.NewIfreq("x")
	if err != nil {
		return "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queues) == 0 {
		return "", os.ErrClosed
	}
	if err := unix.IoctlIfreq(d.queues[0].fd, unix.TUNGETIFF, ifr); err != nil {
		if errors.Is(err, unix.EBADFD) {
			return "", ErrGone
		}
		return "", fmt.Errorf("tun: TUNGETIFF %s: %w", d.Name, err)
	}
	return ifr.Name(), nil
}

// Close closes every queue. No worker may use them. A device that outlives us goes back to the kernel's steering.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	if d.Persist && len(d.queues) > 0 && d.steering != SteerKernel {
		if err := setProgram(d.queues[0].fd, noProgram); err != nil && !errors.Is(err, ErrGone) {
			errs = append(errs, err)
		}
	}
	for _, q := range append(d.queues, d.detached...) {
		errs = append(errs, q.Close())
	}
	d.queues, d.detached = nil, nil
	return errors.Join(errs...)
}

// vnetLen is sizeof(struct virtio_net_hdr).
const vnetLen = 10

// A vnet header fits the headroom: this does not compile otherwise.
const _ = uint(packet.Headroom - vnetLen)
