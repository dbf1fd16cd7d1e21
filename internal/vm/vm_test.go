package vm

import (
	"archive/tar"
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// readCpio is the slow twin of the writer: name to mode, device and content,
// in order.
func readCpio(t *testing.T, b []byte) (all []string) {
	t.Helper()
	pos := 0
	take := func(n int) string {
		if pos+n > len(b) {
			t.Fatalf("archive of %d bytes ends early", len(b))
		}
		s := string(b[pos : pos+n])
		pos += n
		return s
	}
	align := func() { pos = (pos + 3) / 4 * 4 }
	for {
		if m := take(6); m != "070701" {
			t.Fatalf("magic %q at %d", m, pos-6)
		}
		var f [13]int64
		for i := range f {
			v, err := strconv.ParseInt(take(8), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			f[i] = v
		}
		name := strings.TrimSuffix(take(int(f[11])), "\x00")
		align()
		data := take(int(f[6]))
		align()
		if name == "TRAILER!!!" {
			return all
		}
		all = append(all, strings.Join([]string{name, strconv.FormatInt(f[1], 8), strconv.FormatInt(f[9], 10), strconv.FormatInt(f[10], 10), data}, " "))
	}
}

func TestInitramfs(t *testing.T) {
	dir := t.TempDir()
	init := filepath.Join(dir, "program")
	for name, data := range map[string]string{"program": "ELF..", "virtio_ring.ko": "ring", "virtio.ko": "v", "virtio_net.ko": "netxx"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k := &Kernel{dir: dir}
	var b bytes.Buffer
	if err := k.writeInitramfs(&b, init); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(readCpio(t, b.Bytes()), "\n")
	want := `dev 40755 0 0 
dev/console 20600 5 1 
modules 40755 0 0 
modules/00-virtio_ring 100755 0 0 ring
modules/01-virtio 100755 0 0 v
modules/08-virtio_net 100755 0 0 netxx
init 100755 0 0 ELF..`
	if got != want {
		t.Errorf("archive has\n%s\nwant\n%s", got, want)
	}
	if err := k.writeInitramfs(&b, filepath.Join(dir, "nosuch")); err == nil {
		t.Error("a missing program: no error")
	}
}

func TestUnpack(t *testing.T) {
	archive := func(names ...string) *tar.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, n := range names {
			if err := w.WriteHeader(&tar.Header{Name: n, Mode: 0o644, Size: int64(len(n))}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(n)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return tar.NewReader(&b)
	}
	dir := t.TempDir()
	err := copyWanted(archive("./boot/System.map-6", "./boot/vmlinuz-6", "./lib/modules/6/virtio_net.ko", "./lib/modules/6/other.ko"), dir)
	if err != nil {
		t.Fatal(err)
	}
	found, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(found) != 2 {
		t.Errorf("unpacked %v, want vmlinuz and virtio_net.ko", found)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "vmlinuz")); err != nil || string(b) != "./boot/vmlinuz-6" {
		t.Errorf("vmlinuz = %q, %v", b, err)
	}
	if err := copyWanted(archive("./lib/modules/6/virtio_net.ko"), dir); err == nil {
		t.Error("a package without a kernel: no error")
	}
}

func TestConsole(t *testing.T) {
	c := newConsole()
	first, second := c.after(1), c.after(2)
	happened := func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return true
		default:
			return false
		}
	}
	_, _ = c.Write([]byte("BIOS\r\n" + ready[:5]))
	if happened(first) {
		t.Error("ready before the line has ended")
	}
	_, _ = c.Write([]byte(ready[5:] + "\r\nmore\n"))
	if !happened(first) || happened(second) || !happened(c.after(1)) {
		t.Errorf("after one boot: %v, %v", happened(first), happened(second))
	}
	_, _ = c.Write([]byte(ready + "\n"))
	if !happened(second) {
		t.Error("the second boot was not seen")
	}
	_, _ = c.Write(bytes.Repeat([]byte("0123456789\n"), maxConsole/5))
	if n := len(c.all); n > maxConsole || strings.Count(c.last(), "\n") != 14 {
		t.Errorf("%d bytes kept; last lines %q", n, c.last())
	}
}

func TestAwait(t *testing.T) {
	const deleted = "DEVICE_DELETED"
	for _, tt := range []struct{ said, event, want string }{
		{`{"QMP": {}}` + "\n" + `{"return": {}}`, "", ""},
		{`{"event": "RESET"}` + "\n" + `{"error": {"class": "x", "desc": "no device"}}`, "", "no device"},
		{`{"event": "RESET"}`, "", "says nothing"},
		{`{"event": "DEVICE_DELETED", "data": {"path": "x"}}` + "\n" + `{"event": "DEVICE_DELETED", "data": {"device": "nic0"}}`, deleted, ""},
		{`{"event": "DEVICE_DELETED", "data": {"device": "nic1"}}`, deleted, "says nothing"},
		{`junk`, "", "invalid"},
	} {
		err := await(bufio.NewScanner(strings.NewReader(tt.said)), tt.event, "nic0")
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("await(%q, %q) = %v, want %q", tt.said, tt.event, err, tt.want)
		}
	}
}

func TestArguments(t *testing.T) {
	m := &Machine{dir: "/d"}
	cfg := Config{Name: "x", Kernel: &Kernel{dir: "/k"}, CPUs: 2, NICs: []NIC{{TAP: "vm0", MAC: "02:00:00:00:00:01", Queues: 2}}}
	args := strings.Join(m.args(cfg), " ")
	for _, want := range []string{"-accel tcg", "-smp 2", "-kernel /k/vmlinuz", "ifname=vm0,script=no,downscript=no,vhost=off,queues=2", `"mq":true`, `"vectors":6`} {
		if !strings.Contains(args, want) {
			t.Errorf("%q is not in %s", want, args)
		}
	}
	for _, arg := range m.bootArgs(cfg) {
		if strings.ContainsAny(arg, " \t\"'") {
			t.Errorf("a shell would take %s apart", arg)
		}
	}
	cfg.KVM, cfg.NICs[0].Queues = true, 1
	args = strings.Join(m.args(cfg), " ")
	if !strings.Contains(args, "-accel kvm") || strings.Contains(args, "queues=") || strings.Contains(args, "mq") {
		t.Errorf("with KVM and one queue: %s", args)
	}
}

func TestStatic(t *testing.T) {
	if err := CheckInit("/bin/sh"); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("a shell as /init: %v", err)
	}
	if err := CheckInit(os.DevNull); err == nil {
		t.Error("nothing as /init: no error")
	}
}
