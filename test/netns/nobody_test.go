package netns

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A router whose ports are sockets is anybody's: a user without any right runs
// it, sees it, and frames go through.
func TestSocketPortsWithoutRights(t *testing.T) {
	const uid = 65534
	if err := os.Chmod(filepath.Dir(routerBinary), 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "rt-nobody")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	conf := fmt.Sprintf("version: 1\nworkers: 1\nports:\n  - {name: a, type: socket, stream: {listen: %[1]s/a.sock}}\n"+
		"  - {name: b, type: socket, stream: {listen: %[1]s/b.sock}}\nbridges: [{name: br0, ports: [a, b]}]\n", dir)
	file := filepath.Join(dir, "conf.yaml")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command(routerBinary, append(args, "--name", "nobody")...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
		return cmd
	}
	var out bytes.Buffer
	run := command("run", "-c", file)
	run.Stdout, run.Stderr = &out, &out
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = run.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(10*time.Second, func() { _ = run.Process.Kill() })
		defer kill.Stop()
		if err := run.Wait(); err != nil || t.Failed() {
			t.Errorf("%v:\n%s", err, out.String())
		}
	}()
	conns := map[string]net.Conn{}
	for _, k := range []string{"a", "b"} {
		until(t, 10*time.Second, "port "+k+" listens", func() bool {
			c, err := net.Dial("unix", filepath.Join(dir, k+".sock"))
			if err != nil {
				return false
			}
			conns[k] = c
			t.Cleanup(func() { c.Close() })
			return true
		})
	}
	until(t, 10*time.Second, "both ports are up", func() bool {
		var links []struct {
			OperState string `json:"operstate"`
		}
		b, err := command("link", "show", "-j").Output()
		return err == nil && json.Unmarshal(b, &links) == nil && len(links) == 2 && links[0].OperState == "UP" && links[1].OperState == "UP"
	})
	frame := append(binary.BigEndian.AppendUint32(nil, 60), make([]byte, 60)...)
	copy(frame[4:], []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5})
	if _, err := conns["a"].Write(frame); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(frame))
	_ = conns["b"].SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.ReadFull(conns["b"], got); err != nil || !bytes.Equal(got, frame) {
		t.Errorf("a frame came through as %x, %v", got, err)
	}
}
