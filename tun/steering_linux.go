package tun

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Steering says how the kernel chooses the queue on which a packet reaches us.
type Steering uint8

const (
	// SteerKernel is the kernel's own way: a flow comes on the queue on which
	// we last wrote a packet of it, in either direction; a flow that we never
	// wrote by its hash.
	SteerKernel Steering = iota
	// SteerRandom takes a random queue for every packet. It reorders flows.
	SteerRandom
	// SteerHash takes the queue by a hash of addresses and ports that is the
	// same for both directions. Where we write changes nothing.
	SteerHash
	// SteerQueue takes the queue on which the packet came into the kernel, as
	// the device it came from has recorded it: of a virtual machine's TAP in
	// the same bridge the queue on which the guest sent. What has no record,
	// as a host's own packets, goes by SteerHash.
	SteerQueue
)

var steerings = [...]string{"kernel", "random", "hash", "queue"}

func (s Steering) String() string { return steerings[s] }

// ParseSteering reads what String writes.
func ParseSteering(s string) (Steering, error) {
	for i, name := range steerings {
		if s == name {
			return Steering(i), nil
		}
	}
	return 0, fmt.Errorf("steering %q: want kernel, random, hash or queue", s)
}

// Steering gives what SetSteering set last.
func (d *Device) Steering() Steering {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.steering
}

// SetSteering changes how the kernel chooses among the attached queues, from
// the next packet on; what lies in the queues stays there, so a flow that
// changes its queue can be read out of order once. It may be called at any
// time and outlasts Attach and Detach. All but SteerKernel load an eBPF
// program, which needs CAP_BPF (or CAP_SYS_ADMIN), and Linux 4.16; without the
// latter the error is errors.ErrUnsupported.
func (d *Device) SetSteering(s Steering) error {
	if err := d.setSteering(s); err != nil {
		return fmt.Errorf("tun: steering %s on %s: %w", s, d.Name, err)
	}
	return nil
}

func (d *Device) setSteering(s Steering) error {
	fd := noProgram
	if s != SteerKernel {
		prog, err := loadSteering(s, d.Mode)
		if err != nil {
			return err
		}
		defer prog.Close() // the device holds it
		fd = prog.FD()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queues) == 0 {
		return os.ErrClosed
	}
	if err := setProgram(d.queues[0].fd, fd); err != nil {
		return err
	}
	d.steering = s
	return nil
}

const noProgram = -1

// setProgram gives the device of a queue another program, or none.
func setProgram(queue, prog int) error {
	err := unix.IoctlSetPointerInt(queue, unix.TUNSETSTEERINGEBPF, prog)
	switch {
	case errors.Is(err, unix.EBADFD):
		return ErrGone
	case errors.Is(err, unix.EINVAL) && prog == noProgram:
		return nil // a kernel that knows no programs
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("this kernel steers by its own rule only, take steering kernel (TUNSETSTEERINGEBPF came with Linux 4.16): %w", errors.ErrUnsupported)
	}
	return err
}

func loadSteering(s Steering, mode Mode) (*ebpf.Program, error) {
	spec := &ebpf.ProgramSpec{Name: "steer_" + s.String(), Type: ebpf.SocketFilter, License: "Apache-2.0"}
	start := startTAP
	if mode == TUN {
		start = startTUN
	}
	switch s {
	case SteerRandom:
		spec.Instructions = asm.Instructions{asm.FnGetPrandomU32.Call(), asm.Return()}
	case SteerQueue:
		spec.Instructions = append(recorded[:len(recorded):len(recorded)], hashProgram(start)...)
	default:
		spec.Instructions = hashProgram(start)
	}
	prog, err := ebpf.NewProgram(spec)
	switch {
	case errors.Is(err, unix.EPERM): // without the library's guess at the memory limit, which is older kernels'
		return nil, fmt.Errorf("load the eBPF program: %w", unix.EPERM)
	case errors.Is(err, unix.ENOSYS):
		return nil, fmt.Errorf("this kernel has no eBPF, take steering kernel (CONFIG_BPF_SYSCALL): %w", errors.ErrUnsupported)
	case err != nil:
		return nil, fmt.Errorf("load the eBPF program: %w", err)
	}
	return prog, nil
}

// recorded ends with the queue that the packet was received on, if that is
// recorded. The packet's queue mapping is then that number plus one
// (skb_record_rx_queue), and nothing on the way through a bridge changes it
// before the device is asked for a queue. A queue that we do not have is taken
// modulo the number of queues, as the result of any program.
var recorded = asm.Instructions{
	asm.LoadMem(asm.R0, asm.R1, queueMapping, asm.Word),
	asm.JEq.Imm(asm.R0, 0, "hash"),
	asm.Sub.Imm(asm.R0, 1),
	asm.Return(),
}

const queueMapping = 12 // offset in struct __sk_buff, include/uapi/linux/bpf.h

// The hash program. The kernel's own hash of a packet is of no use here: that
// of a local socket is a random number, which changes with retransmits, and
// no helper of a socket filter computes another. So the program reads the
// headers itself. It makes a number of each end of the flow, address and port,
// and the hash of their sum, which does not know which end was which.
//
// Ports count for whole packets of protocols that have them. All fragments of
// a datagram, the first too, and IPv6 with extension headers go by address, as
// do ICMP and tunnels. What is not IP goes by MAC address. VLAN tags do not
// count, as both directions of a flow may carry different ones. A packet that
// ends inside its headers takes queue 0: so ends a program whose load fails.
const (
	ctx = asm.R6 // where loads from the packet expect the context
	src = asm.R7 // one end of the flow
	dst = asm.R8 // the other
	at  = asm.R9 // where the next header begins, in bytes
)

// hashProgram puts the program together; start finds the network header.
func hashProgram(start asm.Instructions) asm.Instructions {
	p := asm.Instructions{asm.Mov.Reg(ctx, asm.R1).WithSymbol("hash"), asm.Mov.Imm(src, 0), asm.Mov.Imm(dst, 0)}
	for _, part := range []asm.Instructions{start, hashIPv4(), hashIPv6(), hashPorts(), hashEnd()} {
		p = append(p, part...)
	}
	return p
}

var startTUN = asm.Instructions{
	asm.Mov.Imm(at, 0),
	load(0, asm.Byte),
	asm.RSh.Imm(asm.R0, 4), // the version
	asm.JEq.Imm(asm.R0, 4, "ipv4"),
	asm.JEq.Imm(asm.R0, 6, "ipv6"),
	asm.Ja.Label("end"),
}

// startTAP skips up to two VLAN tags.
var startTAP = asm.Instructions{
	asm.Mov.Imm(at, 14),
	load(-2, asm.Half), // EtherType
	asm.JEq.Imm(asm.R0, 0x8100, "tag"),
	asm.JNE.Imm(asm.R0, 0x88a8, "type"),
	load(2, asm.Half).WithSymbol("tag"),
	asm.Add.Imm(at, 4),
	asm.JNE.Imm(asm.R0, 0x8100, "type"),
	load(2, asm.Half),
	asm.Add.Imm(at, 4),
	asm.JEq.Imm(asm.R0, 0x0800, "ipv4").WithSymbol("type"),
	asm.JEq.Imm(asm.R0, 0x86dd, "ipv6"),
	asm.LoadAbs(8, asm.Word), // the last four bytes of each MAC address
	asm.Add.Reg(src, asm.R0),
	asm.LoadAbs(2, asm.Word),
	asm.Add.Reg(dst, asm.R0),
	asm.Ja.Label("end"),
}

func hashIPv4() asm.Instructions {
	p := append(take(src, 12, asm.Word), take(dst, 16, asm.Word)...)
	p[0] = p[0].WithSymbol("ipv4")
	p = append(p,
		load(6, asm.Half),
		asm.JSet.Imm(asm.R0, 0x3fff, "end"), // a fragment: more of them, or an offset
		load(9, asm.Byte))
	p = append(p, unlessPorts("ipv4 ports")...)
	return append(p,
		load(0, asm.Byte).WithSymbol("ipv4 ports"),
		asm.And.Imm(asm.R0, 15), // header length in words
		asm.LSh.Imm(asm.R0, 2),
		asm.Add.Reg(at, asm.R0),
		asm.Ja.Label("ports"))
}

func hashIPv6() asm.Instructions {
	var p asm.Instructions
	for i := range int32(4) {
		p = append(p, take(src, 8+4*i, asm.Word)...)
		p = append(p, take(dst, 24+4*i, asm.Word)...)
	}
	p[0] = p[0].WithSymbol("ipv6")
	p = append(p, load(6, asm.Byte), asm.Add.Imm(at, 40))
	return append(p, unlessPorts("ports")...)
}

// unlessPorts goes on at label if the protocol in R0 has ports, else ends.
func unlessPorts(label string) (p asm.Instructions) {
	for _, proto := range []int32{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP, unix.IPPROTO_UDPLITE} {
		p = append(p, asm.JEq.Imm(asm.R0, proto, label))
	}
	return append(p, asm.Ja.Label("end"))
}

func hashPorts() asm.Instructions {
	p := append(take(src, 0, asm.Half), take(dst, 2, asm.Half)...)
	p[0] = p[0].WithSymbol("ports")
	return p
}

func hashEnd() asm.Instructions {
	p := append(fold(src), fold(dst)...)
	p[0] = p[0].WithSymbol("end")
	p = append(p, asm.Add.Reg(src, dst))
	p = append(p, fold(src)...)
	return append(p,
		asm.Mov.Reg(asm.R0, src),
		asm.RSh.Imm(asm.R0, 32), // the better half
		asm.Return())
}

// load reads a field of the packet, offset bytes behind at, into R0. It
// destroys R1 to R5.
func load(offset int32, size asm.Size) asm.Instruction {
	return asm.LoadInd(asm.R0, at, offset, size)
}

// take mixes a field of the packet into one end's number.
func take(end asm.Register, offset int32, size asm.Size) asm.Instructions {
	return append(asm.Instructions{load(offset, size), asm.Add.Reg(end, asm.R0)}, multiply(end)...)
}

// fold spreads the high bits of r, which depend on all others, over it.
func fold(r asm.Register) asm.Instructions {
	return append(asm.Instructions{asm.Mov.Reg(asm.R0, r), asm.RSh.Imm(asm.R0, 32), asm.Xor.Reg(r, asm.R0)}, multiply(r)...)
}

func multiply(r asm.Register) asm.Instructions {
	const golden = -0x61c8864680b583eb // 2^64 / the golden ratio, as a signed number
	return asm.Instructions{asm.LoadImm(asm.R1, golden, asm.DWord), asm.Mul.Reg(r, asm.R1)}
}
