package netns

import (
	"bufio"
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"taprouter/internal/vm"
)

// A block is what stands between two fences of a page.
type block struct {
	line  int
	info  string // the words behind the first fence
	lines []string
}

func (b block) text() string { return strings.Join(b.lines, "\n") + "\n" }

func blocks(t *testing.T, page string) (all []block) {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	open := false
	for i, l := range strings.Split(string(data), "\n") {
		info, fence := strings.CutPrefix(l, "```")
		switch {
		case fence && !open:
			all, open = append(all, block{line: i + 2, info: info}), true
		case fence:
			open = false
		case open:
			b := &all[len(all)-1]
			b.lines = append(b.lines, l)
		}
	}
	return all
}

// What docs/vms.md says works as it stands there: its files are written, its
// commands run by one shell in a namespace that is the host, and what is typed
// in a guest is done there.
func TestVMHowto(t *testing.T) {
	needMachines(t)
	n := newNet(t)
	n.run("ip netns add @ns:h")
	t.Cleanup(func() { n.run("ip netns del @ns:h") })
	g := map[string]*Machine{}
	env := os.Environ()
	for _, k := range []string{"a", "b"} {
		m, args, err := vm.Prepare(vm.Config{Name: n.ns(k), Kernel: machines.kernel, Init: machines.init, CPUs: 2, KVM: machines.kvm})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Stop)
		g[k] = &Machine{Machine: m, t: t}
		env = append(env, "VM_"+strings.ToUpper(k)+"="+strings.Join(args, " "))
	}
	sh := n.shell("h", append(env, "PATH="+filepath.Dir(routerBinary)+":"+os.Getenv("PATH")))
	for _, b := range blocks(t, "../../docs/vms.md") {
		switch kind, guest, _ := strings.Cut(b.info, " guest="); {
		case kind == "yaml":
			name := strings.TrimPrefix(b.lines[0], "# ")
			if err := os.WriteFile(filepath.Join(sh.dir, name), []byte(b.text()), 0o600); err != nil {
				t.Fatal(err)
			}
		case guest != "":
			for _, l := range b.lines {
				g[guest].do(l)
			}
		default:
			sh.do(b)
			for k, m := range g { // as soon as they are there
				if m.Remote == nil && strings.Contains(b.text(), "$VM_"+strings.ToUpper(k)) {
					m.must(m.Attach(m.ctx()))
				}
			}
		}
	}
	sh.end()
	if out := n.must("h", "ip -o link"); strings.Count(out, "\n") != 1 {
		t.Errorf("at the end of the page there is more than lo:\n%s", out)
	}
	for _, want := range []string{"vms.yaml: ok", "steering queue", "host-bridge br-a", "02:00:00:00:77:0a dev vm-a", "02:00:00:00:77:0b dev vm-b"} {
		if !strings.Contains(sh.out.String(), want) {
			t.Errorf("the commands do not print %q:\n%s", want, sh.out.String())
		}
	}
	if strings.Contains(sh.out.String(), "problem") {
		t.Errorf("a problem:\n%s", sh.out.String())
	}
}

// do is a command of a guest, which has no shell.
func (m *Machine) do(line string) {
	m.t.Helper()
	f := strings.Fields(line)
	switch {
	case strings.HasPrefix(line, "ip addr add ") && len(f) == 6 && f[4] == "dev":
		m.must(m.SetLink(m.ctx(), vm.LinkConfig{Name: f[5], Addrs: []netip.Prefix{netip.MustParsePrefix(f[3])}}))
	case strings.HasPrefix(line, "ip link set ") && strings.HasSuffix(line, " up"):
		m.must(m.SetLink(m.ctx(), vm.LinkConfig{Name: f[3]}))
	case strings.HasPrefix(line, "ping -c 3 "):
		m.reach(f[3])
		m.echo(f[3], 3, 56)
	default:
		m.t.Fatalf("a guest of the test cannot %q", line)
	}
}

// A shell is one bash that runs blocks of a page, one after the other.
type shell struct {
	t     *testing.T
	cmd   *exec.Cmd
	dir   string // where it is
	in    *os.File
	lines *bufio.Scanner
	out   bytes.Buffer
}

// shell starts a shell in namespace k, with a /run/taprouter of its own.
func (n *Net) shell(k string, env []string) *shell {
	t := n.t
	t.Helper()
	s := &shell{t: t, dir: t.TempDir()}
	s.cmd = exec.Command("ip", "netns", "exec", n.ns(k), "bash", "-c",
		"mkdir -p /run/taprouter && mount -t tmpfs tmpfs /run/taprouter && exec bash -eu")
	s.cmd.Dir, s.cmd.Env = s.dir, env
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s.in, s.lines = in, bufio.NewScanner(out)
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = stdin, stdout, stdout
	err = s.cmd.Start()
	stdin.Close()
	stdout.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // if the page did not come to its end
		for _, k := range []string{"a", "b"} {
			var pid int
			b, _ := os.ReadFile(filepath.Join(s.dir, k+".pid"))
			if _, err := fmt.Sscan(string(b), &pid); err == nil && t.Failed() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
		_ = s.cmd.Wait()
		in.Close()
		out.Close()
	})
	return s
}

// do runs a block, all of which must work.
func (s *shell) do(b block) {
	s.t.Helper()
	done := fmt.Sprintf("=== the block in line %d is done", b.line)
	if _, err := fmt.Fprintf(s.in, "%s\necho '%s'\n", b.text(), done); err != nil {
		s.t.Fatal(err)
	}
	late := time.AfterFunc(time.Minute, func() { _ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) })
	defer late.Stop()
	for s.lines.Scan() {
		fmt.Fprintln(&s.out, s.lines.Text())
		if s.lines.Text() == done {
			return
		}
	}
	s.t.Fatalf("docs/vms.md:%d: the shell ended in this block:\n%s\n%s", b.line, b.text(), s.out.String())
}

// end lets the shell end; nothing may be left running.
func (s *shell) end() {
	s.t.Helper()
	s.in.Close()
	for s.lines.Scan() {
		fmt.Fprintln(&s.out, s.lines.Text())
	}
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("the shell ended with %v:\n%s", err, s.out.String())
	}
}
