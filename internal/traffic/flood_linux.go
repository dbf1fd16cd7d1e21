package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
)

// Flood says what SendFlood sends: small UDP datagrams over IPv4.
type Flood struct {
	Dev      string           // out of this Ethernet device
	Src, Dst net.HardwareAddr // of the frames
	From, To netip.Addr
	Port     uint16 // destination
	Flows    int    // that differ in the source port, in turn
	PPS      int    // 0: as fast as it goes
	Duration time.Duration
}

// FloodFrame is the length of each frame, and FloodPayload what is behind its
// Ethernet, IPv4 and UDP headers, in bytes.
const (
	FloodFrame   = 64
	FloodPayload = FloodFrame - 14 - 20 - 8
)

const (
	floodPort  = 20000 // source port of the first flow
	floodFlows = 4096  // at most
	floodBatch = 64    // frames a system call
	floodBurst = 8     // the same where there is a rate, so that no ring overflows for a burst
)

// Flooded is what was sent, in frames.
type Flooded struct {
	Offered uint64        `json:"offered"`
	Refused uint64        `json:"refused"` // of these, by the device: its ring was full
	Elapsed time.Duration `json:"elapsed"`
}

// SendFlood hands frames that were made before to the device, past the host's
// queueing discipline, and does not repeat what the device has no room for.
func SendFlood(ctx context.Context, cfg Flood) (Flooded, error) {
	f, err := newFlood(cfg)
	if err != nil {
		return Flooded{}, fmt.Errorf("traffic: flood: %w", err)
	}
	defer unix.Close(f.fd)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := f.run(ctx); err != nil {
		return f.sent, fmt.Errorf("traffic: flood: %w", err)
	}
	return f.sent, ctx.Err()
}

type flood struct {
	cfg    Flood
	fd     int
	frames [][]byte // of each flow
	flow   int      // whose turn it is
	msgs   *messages
	sent   Flooded
}

func newFlood(cfg Flood) (*flood, error) {
	if cfg.Flows < 1 || cfg.Flows > floodFlows || cfg.PPS < 0 || len(cfg.Src) != 6 || len(cfg.Dst) != 6 || !cfg.From.Is4() || !cfg.To.Is4() {
		return nil, fmt.Errorf("impossible parameters %+v", cfg)
	}
	f := &flood{cfg: cfg}
	for i := range cfg.Flows {
		f.frames = append(f.frames, cfg.frame(floodPort+uint16(i)))
	}
	dev, err := net.InterfaceByName(cfg.Dev)
	if err != nil {
		return nil, err
	}
	// Protocol 0: the socket receives nothing.
	if f.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, err
	}
	err = errors.Join(
		unix.SetsockoptInt(f.fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1),
		unix.Bind(f.fd, &unix.SockaddrLinklayer{Ifindex: dev.Index}),
	)
	if err != nil {
		_ = unix.Close(f.fd)
		return nil, err
	}
	f.msgs = newMessages(floodBatch, dev.Index, unix.ETH_P_IP)
	return f, nil
}

// frame makes a frame with all checksums.
func (cfg Flood) frame(port uint16) []byte {
	b := make([]byte, FloodFrame)
	copy(b[0:], cfg.Dst)
	copy(b[6:], cfg.Src)
	binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IP)
	ip := b[14:]
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, unix.IPPROTO_UDP // no options, DF, TTL
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	copy(ip[12:], cfg.From.AsSlice())
	copy(ip[16:], cfg.To.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], ^checksum.Checksum(ip[:20], 0))
	udp := ip[20:]
	copy(udp[8:], pattern)
	binary.BigEndian.PutUint16(udp[0:], port)
	binary.BigEndian.PutUint16(udp[2:], cfg.Port)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	// RFC 768: the pseudo header is both addresses, protocol and length; 0 would be no checksum.
	sum := checksum.Checksum(ip[12:20], unix.IPPROTO_UDP+uint16(len(udp)))
	sum = ^checksum.Checksum(udp, sum)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	return b
}

func (f *flood) run(ctx context.Context) error {
	burst := floodBatch
	if f.cfg.PPS > 0 {
		burst = floodBurst
	}
	start := time.Now()
	for ctx.Err() == nil {
		now := time.Since(start)
		if now >= f.cfg.Duration {
			break
		}
		if f.cfg.PPS > 0 {
			due := time.Duration(float64(f.sent.Offered) / float64(f.cfg.PPS) * float64(time.Second))
			if due > now {
				// Not time.Sleep, whose timers are of a millisecond when the process is idle.
				_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(min(due-now, time.Millisecond))}, nil)
				continue
			}
		}
		for i := range burst {
			f.msgs.set(i, f.frames[f.flow])
			f.flow = (f.flow + 1) % len(f.frames)
		}
		if err := f.send(burst); err != nil {
			return err
		}
	}
	f.sent.Elapsed = time.Since(start)
	return nil
}

// send offers the first n messages, each once.
func (f *flood) send(n int) error {
	for done := 0; done < n; {
		k, err := f.msgs.send(f.fd, done, n)
		switch {
		case err == nil:
			done += k
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EAGAIN):
			f.sent.Refused++
			done++
		case !errors.Is(err, unix.EINTR):
			return err
		}
	}
	f.sent.Offered += uint64(n)
	return nil
}
