package netns

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Each right that the router lacks is named, and nothing is left behind by a
// start that failed.
func TestMissingRights(t *testing.T) {
	const without = "setpriv --bounding-set -%s --inh-caps -%s "
	for _, tt := range []struct{ name, before, keys, want string }{
		{"no CAP_NET_ADMIN", strings.ReplaceAll(without, "%s", "net_admin"), "", "CAP_NET_ADMIN"},
		{"no CAP_SYS_ADMIN", strings.ReplaceAll(without, "%s", "sys_admin"), "netns: @ns:a, create: true", "CAP_SYS_ADMIN"},
		{"no CAP_BPF", "setpriv --bounding-set -bpf,-sys_admin --inh-caps -bpf,-sys_admin ", "steering: hash", "missing CAP_BPF"},
		{"no device node", `unshare -m sh -c 'mount -t tmpfs none /dev/net && exec "$0" "$@"' `, "", "/dev/net/tun"},
		{"no IFF_BACKPRESSURE", "", "backpressure: true", "Linux 7.2"},
		{"no namespace", "", "netns: @ns:a", "create: true"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.keys == "backpressure: true" && kernelHasBackpressure(t) {
				t.Skip("this kernel has IFF_BACKPRESSURE")
			}
			n := newNet(t)
			file := filepath.Join(t.TempDir(), "conf.yaml")
			if err := os.WriteFile(file, []byte(n.expand("version: 1\nports:\n  - {name: @dev:a, type: tap, "+tt.keys+"}\n")), 0o644); err != nil {
				t.Fatal(err)
			}
			out, err := output(exec.Command("sh", "-c", "exec "+tt.before+`"$0" "$@"`, routerBinary, "run", "-c", file, "--name", n.id))
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 2 {
				t.Errorf("it ended with %v, want status 2", err)
			}
			last := out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:]
			if !strings.HasPrefix(last, "Error: ") || !strings.Contains(last, tt.want) {
				t.Errorf("the last line is %q, want Error: … %s …", last, tt.want)
			}
			if namespaces()[n.ns("a")] {
				t.Error("a namespace was left behind")
				_ = exec.Command("ip", "netns", "del", n.ns("a")).Run()
			}
			if exec.Command("ip", "link", "show", "dev", n.dev("a")).Run() == nil {
				t.Error("a device was left behind")
			}
		})
	}
}

// kernelHasBackpressure asks TUNGETFEATURES for IFF_BACKPRESSURE.
func kernelHasBackpressure(t *testing.T) bool {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	bits, err := unix.IoctlGetInt(int(f.Fd()), unix.TUNGETFEATURES)
	if err != nil {
		t.Fatal(err)
	}
	return bits&0x80 != 0
}
