// Package netns (tests) runs the router's binary between real network
// namespaces over real TAPs. It needs root, /dev/net/tun and Debian's
// iproute2, iperf3, ethtool, iputils-ping and traceroute.
package netns

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// routerBinary is the router under test, built by TestMain; with the race detector
// if the tests have it.
var routerBinary string

// full says that the long versions of the field cases are asked for (make soak).
var full = os.Getenv("ROUTER_SOAK") != ""

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if err := usable(); err != nil {
		if os.Getenv("ROUTER_REQUIRE_NETNS") != "" {
			fmt.Fprintln(os.Stderr, "network namespaces are required:", err)
			return 1
		}
		fmt.Fprintln(os.Stderr, "skipped:", err)
		return 0
	}
	dir, err := os.MkdirTemp("", "router-netns")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	routerBinary = filepath.Join(dir, "router")
	args := []string{"build", "-o", routerBinary}
	if raceEnabled {
		args = append(args, "-race")
		// Each process would wait a second at its end for late reports.
		os.Setenv("GORACE", strings.TrimSpace(os.Getenv("GORACE")+" atexit_sleep_ms=20"))
	}
	build := exec.Command("go", append(args, "taprouter/cmd/router")...)
	if !raceEnabled { // which needs cgo; or else as make build does
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the router:", err)
		return 1
	}
	code := m.Run()
	left := namespaces()
	maps.DeleteFunc(left, func(name string, _ bool) bool { return !strings.HasPrefix(name, "tr"+runID()) })
	if len(left) > 0 {
		fmt.Fprintln(os.Stderr, "namespaces left behind:", slices.Sorted(maps.Keys(left)))
		return 1
	}
	return code
}

// usable says what is missing for these tests.
func usable() error {
	if os.Geteuid() != 0 {
		return errors.New("not root")
	}
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	f.Close()
	for _, tool := range []string{"ip", "iperf3", "ethtool", "ping", "traceroute"} {
		if _, err := exec.LookPath(tool); err != nil {
			return err
		}
	}
	return nil
}

func namespaces() map[string]bool {
	all := map[string]bool{}
	entries, _ := os.ReadDir("/run/netns")
	for _, e := range entries {
		all[e.Name()] = true
	}
	return all
}

// runID is in the names of everything that this run makes, and of nothing
// that another run makes at the same time.
func runID() string { return fmt.Sprintf("%06x", os.Getpid()) }

// A Net is a test's own set of namespaces and one or more routers.
type Net struct {
	t  *testing.T
	id string
}

var nets struct {
	sync.Mutex
	n int
}

// newNet gives names that no other test and no other run uses.
func newNet(t *testing.T) *Net {
	t.Helper()
	nets.Lock()
	defer nets.Unlock()
	nets.n++
	return &Net{t: t, id: fmt.Sprintf("%s%x", runID(), nets.n)}
}

// ns names the test's namespace k.
func (n *Net) ns(k string) string { return "tr" + n.id + k }

// dev names the test's device k.
func (n *Net) dev(k string) string { return "t" + n.id + k }

// expand replaces @ns:x and @dev:x in s by the test's names.
func (n *Net) expand(s string) string {
	for _, kind := range []struct {
		mark string
		name func(string) string
	}{{"@ns:", n.ns}, {"@dev:", n.dev}} {
		for {
			before, after, ok := strings.Cut(s, kind.mark)
			if !ok {
				break
			}
			k := 0
			for k < len(after) && (after[k] >= 'a' && after[k] <= 'z' || after[k] >= '0' && after[k] <= '9') {
				k++
			}
			s = before + kind.name(after[:k]) + after[k:]
		}
	}
	return s
}

// exec runs a command line inside namespace k and gives its output.
func (n *Net) exec(k, line string) (string, error) {
	args := append([]string{"netns", "exec", n.ns(k)}, strings.Fields(n.expand(line))...)
	return output(exec.Command("ip", args...))
}

// must is exec that fails the test.
func (n *Net) must(k, line string) string {
	n.t.Helper()
	out, err := n.exec(k, line)
	if err != nil {
		n.t.Fatalf("in %s: %s: %v\n%s", n.ns(k), line, err, out)
	}
	return out
}

// run runs a command line here, which must work, and gives its output.
func (n *Net) run(line string) string {
	n.t.Helper()
	f := strings.Fields(n.expand(line))
	out, err := output(exec.Command(f[0], f[1:]...))
	if err != nil {
		n.t.Fatalf("%s: %v: %s", line, err, out)
	}
	return out
}

// background is exec beside what follows; the result gives its output, and
// the error if there is one.
func (n *Net) background(k, line string) (result func() string) {
	done := make(chan string, 1)
	go func() {
		out, err := n.exec(k, line)
		if err != nil {
			out += err.Error()
		}
		done <- out
	}()
	return func() string { return <-done }
}

func output(cmd *exec.Cmd) (string, error) {
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is sent when the thread that forked ends
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := cmd.Start(); err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	err := cmd.Wait()
	return b.String(), err
}

// A Router is one running router process.
type Router struct {
	net  *Net
	name string
	conf string
	args []string // of router run
	cmd  *exec.Cmd
	log  *syncBuffer
	done chan error
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// router starts a router with this configuration, and further arguments of
// router run, and waits until it serves.
// At the end of the test it is stopped as an administrator would, must exit
// with 0, must have kept count of every packet and must not have raced.
func (n *Net) router(conf string, args ...string) *Router {
	n.t.Helper()
	nets.Lock()
	nets.n++
	r := &Router{net: n, name: fmt.Sprintf("test%d-%d", os.Getpid(), nets.n)}
	nets.Unlock()
	for _, arg := range args {
		r.args = append(r.args, n.expand(arg))
	}
	r.conf = filepath.Join(n.t.TempDir(), r.name+".yaml")
	if io := os.Getenv("ROUTER_IO"); io != "" { // or else whichever is quicker
		conf = strings.Replace(conf, "version: 1\n", "version: 1\nio: "+io+"\n", 1)
	}
	if err := os.WriteFile(r.conf, []byte(n.expand(conf)), 0o600); err != nil {
		n.t.Fatal(err)
	}
	r.start()
	n.t.Cleanup(r.stop)
	return r
}

func (r *Router) start() {
	r.net.t.Helper()
	r.log = &syncBuffer{}
	r.done = make(chan error, 1)
	r.cmd = exec.Command(routerBinary, append([]string{"run", "-c", r.conf, "--name", r.name}, r.args...)...)
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log
	if err := r.cmd.Start(); err != nil {
		r.net.t.Fatal(err)
	}
	cmd, done := r.cmd, r.done
	go func() { done <- cmd.Wait() }()
	deadline := time.Now().Add(20 * time.Second)
	for {
		if _, err := r.command("status", "-j"); err == nil {
			return
		}
		select {
		case err := <-r.done:
			r.cmd = nil // nothing is left for stop
			r.net.t.Fatalf("the router ended at start: %v\n%s", err, r.log)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			_ = r.cmd.Process.Kill()
			r.net.t.Fatalf("the router does not answer\n%s", r.log)
		}
	}
}

// stop waits until the router is quiet, checks its counts and ends it.
func (r *Router) stop() {
	r.net.t.Helper()
	if r.cmd != nil && !r.net.t.Failed() {
		r.balanced()
	}
	r.end()
}

// end ends the router with SIGTERM, whatever it does, and checks how it ended.
func (r *Router) end() {
	t := r.net.t
	t.Helper()
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-r.done:
		if err != nil {
			t.Errorf("the router ended with %v\n%s", err, r.log)
		}
	case <-time.After(20 * time.Second):
		_ = r.cmd.Process.Signal(syscall.SIGQUIT) // shows where it hangs
		<-r.done
		t.Errorf("the router did not end on SIGTERM\n%s", r.log)
	}
	r.cmd = nil
	if strings.Contains(r.log.String(), "DATA RACE") {
		t.Errorf("data race in the router\n%s", r.log)
	}
	if t.Failed() {
		lines := strings.SplitAfter(r.log.String(), "\n")
		t.Logf("router log:\n%s", strings.Join(lines[max(0, len(lines)-40):], ""))
	}
}

// kill ends the router as a crash would.
func (r *Router) kill() {
	_ = r.cmd.Process.Kill()
	<-r.done
	r.cmd = nil
}

// command runs another router command against this router.
func (r *Router) command(args ...string) (string, error) {
	var out, errb bytes.Buffer
	cmd := exec.Command(routerBinary, append(args, "--name", r.name)...)
	cmd.Stdout, cmd.Stderr = &out, &errb
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, strings.TrimSpace(errb.String()))
	}
	return out.String(), nil
}

// ask is command with -j, decoded into v.
func (r *Router) ask(v any, args ...string) {
	r.net.t.Helper()
	out, err := r.command(append(args, "-j")...)
	if err != nil {
		r.net.t.Fatalf("router %v: %v", args, err)
	}
	if err := json.Unmarshal([]byte(out), v); err != nil {
		r.net.t.Fatalf("router %v printed no JSON: %v\n%s", args, err, out)
	}
}

// mustDo is command that fails the test.
func (r *Router) mustDo(args ...string) {
	r.net.t.Helper()
	if out, err := r.command(args...); err != nil {
		r.net.t.Fatalf("router %v: %v\n%s", args, err, out)
	}
}

// until waits for a condition.
func until(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !cond(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// ping waits until an address answers from namespace k.
func (n *Net) ping(k, addr string) {
	n.t.Helper()
	until(n.t, 10*time.Second, "ping "+addr+" from "+k, func() bool {
		_, err := n.exec(k, "ping -c 1 -W 1 "+addr)
		return err == nil
	})
}
