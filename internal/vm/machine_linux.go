package vm

import (
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"taprouter/internal/traffic"
)

// qemu is the emulator, from Debian's qemu-system-x86.
const qemu = "qemu-system-x86_64"

// ErrNotInstalled says that there is no QEMU here, and how to get it.
var ErrNotInstalled = errors.New(qemu + " is not installed: apt-get install --no-install-recommends qemu-system-x86")

// Installed gives ErrNotInstalled, or nil.
func Installed() error {
	if _, err := exec.LookPath(qemu); err != nil {
		return ErrNotInstalled
	}
	return nil
}

// A NIC is a virtio-net device of a machine and what is behind it: a TAP, which
// QEMU makes, until it ends, if it is not there, or any other of QEMU's. MAC is
// what the guest sees.
type NIC struct {
	TAP    string
	Netdev string // in the place of a TAP: QEMU's -netdev, without its id
	MAC    string
	Queues int
}

// A Config says what Start starts.
type Config struct {
	Name   string
	Kernel *Kernel
	Init   string // path of a static program that calls Init
	NetNS  string // where the TAPs are; empty: ours
	CPUs   int
	KVM    bool // or else emulation (TCG)
	NICs   []NIC
}

// memory of a guest, in MiB: kernel, the program twice (file and pages), buffers.
const memory = 192

// A Machine is a running QEMU. Its methods may be called by any goroutine.
type Machine struct {
	*traffic.Remote
	Name    string
	nics    []NIC
	console *console
	p       *traffic.Process
	agent   net.Conn
	dir     string // of its sockets
	begun   time.Time
}

// Start starts a machine; Ready waits until its guest answers, Stop ends it.
// It dies with us.
func Start(cfg Config) (m *Machine, err error) {
	if m, err = newMachine(cfg); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			m.Stop()
			m = nil
		}
	}()
	cmd := exec.Command(qemu, m.args(cfg)...)
	cmd.Stdout, cmd.Stderr = m.console, m.console
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is ours
	if m.p, err = traffic.Start(cmd, cfg.NetNS, syscall.SIGKILL); err != nil {
		return m, fmt.Errorf("start %s: %w", qemu, err)
	}
	if m.agent, err = m.dial("agent"); err != nil {
		return m, err
	}
	m.Remote = traffic.NewRemote(m.agent, m.agent)
	return m, nil
}

// Prepare is Start for a QEMU that somebody else starts, with args among its
// arguments, and ends; Attach waits for its guest, Stop removes the files.
// cfg has no NICs.
func Prepare(cfg Config) (m *Machine, args []string, err error) {
	if m, err = newMachine(cfg); err != nil {
		return nil, nil, err
	}
	return m, m.bootArgs(cfg), nil
}

// Attach connects to the agent of a guest that was prepared, when its QEMU is
// there, and waits until it answers.
func (m *Machine) Attach(ctx context.Context) error {
	for {
		err := m.attach(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

// attach tries once. A request is lost if the guest has just seen that there
// was nobody and closes the port, to open it again.
func (m *Machine) attach(ctx context.Context) (err error) {
	if m.agent, err = m.dial("agent"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	r := traffic.NewRemote(m.agent, m.agent)
	if _, err := r.Counters(ctx); err != nil {
		r.Close()
		return fmt.Errorf("machine %s does not answer: %w", m.Name, err)
	}
	m.Remote = r
	return nil
}

// newMachine makes a machine's files.
func newMachine(cfg Config) (m *Machine, err error) {
	if err := CheckInit(cfg.Init); err != nil {
		return nil, err
	}
	m = &Machine{Name: cfg.Name, nics: cfg.NICs, console: newConsole(), begun: time.Now()}
	if m.dir, err = os.MkdirTemp("", "vm-"); err != nil {
		return nil, err
	}
	f, err := os.Create(m.initramfs())
	if err == nil {
		err = errors.Join(cfg.Kernel.writeInitramfs(f, cfg.Init), f.Close())
	}
	if err != nil {
		m.Stop()
		return nil, fmt.Errorf("write the guest's files: %w", err)
	}
	return m, nil
}

func (m *Machine) initramfs() string { return filepath.Join(m.dir, "initramfs") }

func (m *Machine) socket(name string) string { return filepath.Join(m.dir, name) }

// CheckInit refuses a program that needs a library, of which a guest has none.
func CheckInit(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%s cannot be a guest's /init: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s cannot be a guest's /init: it is linked dynamically; build it with CGO_ENABLED=0 (make build)", path)
		}
	}
	return nil
}

// args are those of a QEMU of our own: a console, control, network devices.
func (m *Machine) args(cfg Config) []string {
	args := append(m.bootArgs(cfg),
		"-name", cfg.Name, "-no-user-config", "-display", "none",
		"-append", "console=ttyS0 quiet panic=1 mitigations=off random.trust_cpu=on tsc=reliable no_timer_check",
		"-serial", "stdio",
		"-chardev", m.chardev("qmp"), "-mon", "chardev=qmp,mode=control",
		// Slots for devices that come and go.
		"-device", "pcie-root-port,id=slot0,chassis=1", "-device", "pcie-root-port,id=slot1,chassis=2",
	)
	for i, n := range cfg.NICs {
		device, _ := json.Marshal(n.properties(i)) // of strings and numbers
		args = append(args, "-netdev", n.netdev(i), "-device", string(device))
	}
	return args
}

func (m *Machine) chardev(name string) string {
	return "socket,id=" + name + ",path=" + m.socket(name) + ",server=on,wait=off"
}

// bootArgs are what a guest of ours boots from and the port of its agent. They
// have no spaces in them, so a shell may split them.
func (m *Machine) bootArgs(cfg Config) []string {
	accel := []string{"-accel", "tcg,thread=multi", "-cpu", "max"}
	if cfg.KVM {
		accel = []string{"-accel", "kvm", "-cpu", "host"}
	}
	return append(accel,
		"-M", "q35", "-nodefaults", "-smp", fmt.Sprint(max(cfg.CPUs, 1)), "-m", fmt.Sprint(memory),
		"-kernel", cfg.Kernel.Image(), "-initrd", m.initramfs(),
		"-chardev", m.chardev("agent"), "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name="+portName,
	)
}

func (n *NIC) netdev(i int) string {
	if n.Netdev != "" {
		return fmt.Sprintf("%s,id=net%d", n.Netdev, i)
	}
	s := fmt.Sprintf("tap,id=net%d,ifname=%s,script=no,downscript=no,vhost=off", i, n.TAP)
	if n.Queues > 1 {
		s += fmt.Sprintf(",queues=%d", n.Queues)
	}
	return s
}

// properties are those of device i, on the command line or later.
func (n *NIC) properties(i int) map[string]any {
	p := map[string]any{
		"driver": "virtio-net-pci", "id": fmt.Sprint("nic", i), "netdev": fmt.Sprint("net", i), "bus": fmt.Sprint("slot", i),
		"mac": n.MAC, "romfile": "",
	}
	if n.Queues > 1 {
		p["mq"], p["vectors"] = true, 2*n.Queues+2 // one for each ring, configuration, control
	}
	return p
}

// dial connects to one of QEMU's sockets, which it is about to make.
func (m *Machine) dial(name string) (net.Conn, error) {
	path := m.socket(name)
	for range 500 {
		c, err := net.Dial("unix", path)
		if err == nil {
			return c, nil
		}
		select {
		case <-m.Done():
			return nil, m.failed("has ended")
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil, m.failed("makes no socket")
}

// Ready waits until the guest answers, and gives the time since the start.
func (m *Machine) Ready(ctx context.Context) (time.Duration, error) { return m.Booted(ctx, 1) }

// Booted is Ready for a guest that has booted that many times.
func (m *Machine) Booted(ctx context.Context, times int) (time.Duration, error) {
	for {
		select {
		case <-m.console.after(times):
			return time.Since(m.begun), nil
		case <-m.p.Done():
			return 0, m.failed("has ended")
		case <-ctx.Done():
			return 0, errors.Join(ctx.Err(), m.failed("does not answer"))
		}
	}
}

// failed is an error with the last lines of the console.
func (m *Machine) failed(what string) error {
	return fmt.Errorf("machine %s %s; its last lines:\n%s", m.Name, what, m.console.last())
}

// PID is QEMU's process.
func (m *Machine) PID() int { return m.p.Cmd.Process.Pid }

// Done is closed when our QEMU has ended.
func (m *Machine) Done() <-chan struct{} {
	if m.p == nil {
		return nil
	}
	return m.p.Done()
}

// Stop ends the machine as a power cut would.
func (m *Machine) Stop() {
	if m.p != nil {
		_ = m.p.Cmd.Process.Kill()
		<-m.p.Done()
	}
	if m.Remote != nil {
		m.Close()
	}
	_ = os.RemoveAll(m.dir)
}

// Signal sends a signal to QEMU: SIGSTOP pauses the guest, SIGCONT goes on.
func (m *Machine) Signal(s syscall.Signal) error { return m.p.Cmd.Process.Signal(s) }

// kvmLimit is how long a guest may take to boot with KVM until it counts as
// hanging; without KVM it takes a few seconds.
const kvmLimit = 15 * time.Second

// HasKVM boots a guest with KVM and reports whether it came up in time. That
// /dev/kvm is there says little: nested in another hypervisor it may refuse or
// hang.
func HasKVM(ctx context.Context, k *Kernel, init string) bool {
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil {
		f.Close()
	} else {
		return false
	}
	m, err := Start(Config{Name: "kvm", Kernel: k, Init: init, KVM: true})
	if err != nil {
		return false
	}
	defer m.Stop()
	ctx, cancel := context.WithTimeout(ctx, kvmLimit)
	defer cancel()
	_, err = m.Ready(ctx)
	return err == nil
}
