package netns

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// After a crash the router starts again at once with the same configuration
// and traffic is back, with devices that died with it and with persistent ones.
func TestKillAndStartAgain(t *testing.T) {
	for _, persist := range []bool{false, true} {
		conf := bridged
		if persist {
			conf = strings.ReplaceAll(conf, "create: true,", "create: true, persist: true,")
		}
		n := newNet(t)
		t.Cleanup(func() { // a killed router leaves what it made
			for _, k := range []string{"a", "b"} {
				_ = exec.Command("ip", "netns", "del", n.ns(k)).Run()
			}
		})
		r := n.router(conf)
		n.ping("a", "10.99.0.2")
		index := n.must("a", "cat /sys/class/net/@dev:a/ifindex")
		r.kill()
		begin := time.Now()
		r.start()
		n.ping("a", "10.99.0.2")
		limit := 2 * time.Second
		if raceEnabled {
			limit = 10 * time.Second
		}
		if took := time.Since(begin); took > limit {
			t.Errorf("persist=%v: traffic was back after %v, want at most %v", persist, took, limit)
		}
		if now := n.must("a", "cat /sys/class/net/@dev:a/ifindex"); persist && now != index {
			t.Errorf("the persistent device has index %s, had %s", now, index)
		}
		r.stop()
		if _, err := n.exec("a", "ip link show dev @dev:a"); (err == nil) != persist {
			t.Errorf("persist=%v: device left behind: %v", persist, err == nil)
		}
	}
}

// A namespace that is deleted takes its port with it, and nothing else.
func TestNamespaceDeleted(t *testing.T) {
	n := newNet(t)
	r := n.router(bridged[:strings.Index(bridged, "bridges:")] + `
  - {name: @dev:c, type: tap, queues: 2, netns: @ns:c, create: true, host: {addresses: [10.99.0.3/24]}}
  - {name: @dev:d, type: tap, queues: 2, netns: @ns:d, create: true, host: {addresses: [10.99.0.4/24]}}
bridges:
  - {name: br0, ports: [@dev:a, @dev:b]}
  - {name: br1, ports: [@dev:c, @dev:d]}
`)
	n.ping("a", "10.99.0.2")
	n.ping("c", "10.99.0.4")
	beside := n.background("a", "ping -i 0.02 -c 150 10.99.0.2")
	if out, err := exec.Command("ip", "netns", "del", n.ns("d")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	until(t, 10*time.Second, "the port is shown as gone", func() bool { return r.link("@dev:d").OperState == "GONE" })
	if out := beside(); !strings.Contains(out, " 0% packet loss") {
		t.Errorf("the other pair lost packets:\n%s", out)
	}
	if _, err := n.exec("c", "ping -c 1 -W 1 10.99.0.4"); err == nil {
		t.Error("a host in a deleted namespace answers")
	}
	if l := r.link("@dev:d"); l.Reason == "" {
		t.Error("no reason is given for a port that is gone")
	}
}

// SIGTERM removes what the router made and leaves what it found.
func TestTermLeavesThingsAsFound(t *testing.T) {
	n := newNet(t)
	if out, err := exec.Command("ip", "netns", "add", n.ns("b")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	defer func() { _ = exec.Command("ip", "netns", "del", n.ns("b")).Run() }()
	r := n.router(bridged)
	n.ping("a", "10.99.0.2")
	r.stop()
	all := namespaces()
	if all[n.ns("a")] || !all[n.ns("b")] {
		t.Errorf("made and left: %v; found and removed: %v", all[n.ns("a")], !all[n.ns("b")])
	}
	if _, err := n.exec("b", "ip link show dev @dev:b"); err == nil {
		t.Error("the TAP is still there")
	}
}

// refused runs a router that must not start, and gives what it says.
func refused(t *testing.T, conf string, attr *syscall.SysProcAttr, wantCode int, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != "/" && d != "."; d = filepath.Dir(d) {
		_ = os.Chmod(d, 0o755) // readable for another user; a temporary folder
		if strings.HasPrefix(filepath.Dir(d), os.TempDir()) {
			continue
		}
		break
	}
	file := filepath.Join(dir, "conf.yaml")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(routerBinary, append([]string{"run", "-c", file}, args...)...)
	cmd.SysProcAttr = attr
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != wantCode {
		t.Errorf("router run ended with %v, want status %d:\n%s", err, wantCode, out.String())
	}
	if !strings.Contains(out.String(), "Error: ") {
		t.Errorf("no line begins with Error:\n%s", out.String())
	}
	return out.String()
}

func TestRefusals(t *testing.T) {
	n := newNet(t)
	says := func(out string, words ...string) {
		t.Helper()
		for _, w := range words {
			if !strings.Contains(out, w) {
				t.Errorf("%q is not in:\n%s", w, out)
			}
		}
	}
	says(refused(t, n.expand("version: 1\nports:\n  - {name: @dev:a, type: tap, netns: @ns:no}\n"), nil, 2, "--name", n.id),
		n.ns("no"), "create: true")
	says(refused(t, "version: 1\nports:\n  - {name: x, typ: tap}\n", nil, 1, "--name", n.id), "conf.yaml:3:", "typ")
	r := n.router(bridged)
	says(refused(t, n.expand("version: 1\nports:\n  - {name: @dev:x, type: tap}\n"), nil, 2, "--name", r.name), "--name")
	if err := os.Chmod(filepath.Dir(routerBinary), 0o755); err != nil {
		t.Fatal(err)
	}
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out := refused(t, n.expand("version: 1\nports:\n  - {name: @dev:y, type: tap}\n"), nobody, 2, "--name", n.id)
	if !strings.Contains(out, "CAP_NET_ADMIN") && !strings.Contains(out, "/dev/net/tun") { // which it misses first depends on who may write to /tmp
		t.Errorf("it does not say which right is missing:\n%s", out)
	}
}
