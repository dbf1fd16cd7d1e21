package main

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"taprouter/control/config"
	"taprouter/dataplane"
	"taprouter/fib"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// router runs the program and gives its exit status and output.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// Bad usage is one line on stderr that begins with Error: and exit status 1;
// a router that is not there is status 2.
func TestErrors(t *testing.T) {
	two := filepath.Join(t.TempDir(), "two.yaml")
	if err := os.WriteFile(two, []byte("version: 1\nports:\n  - {name: tapa, type: tap}\n  - {name: tapb, type: tap}\nbridges:\n  - {name: br0, ports: [tapa, tapb]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"rum"}, 1, `did you mean "run"`},
		{[]string{"xps", "sett"}, 1, "unknown command"},
		{[]string{"run"}, 1, "which configuration"},
		{[]string{"run", "-c", "/no/such/file"}, 1, "no such file"},
		{[]string{"check"}, 1, "which FILE"},
		{[]string{"--nonsense"}, 1, "unknown flag"},
		{[]string{"run", "-c", two, "--fault", "einval:tapc:udp"}, 1, `there is no port "tapc"`},
		{[]string{"run", "-c", two, "--fault", "einval:tapa:sctp"}, 1, "want tcp4, tcp6, udp"},
		{[]string{"run", "-c", two, "--fault", "eio:tapa"}, 1, "want einval:PORT:SHAPE"},
		{[]string{"link", "show", "dev"}, 1, "dev needs a value"},
		{[]string{"link", "show", "on", "tapa"}, 1, `"on"`},
		{[]string{"xps", "set", "queue", "0", "workers", "1"}, 1, "dev is missing"},
		{[]string{"xps", "set", "dev", "a", "queue", "x", "workers", "1"}, 1, `queue "x": want a number`},
		{[]string{"xps", "set", "dev", "a", "queue", "0", "workers", "2-1"}, 1, "want a list"},
		{[]string{"xps", "set", "dev", "a", "queue", "0"}, 1, "workers is missing"},
		{[]string{"bql", "set", "dev", "a", "queue", "0"}, 1, "which setting"},
		{[]string{"qdisc", "replace", "dev", "a", "parent", "1", "mq"}, 1, "want :N"},
		{[]string{"qdisc", "replace", "dev", "a", "somewhere", "mq"}, 1, "want root or parent"},
		{[]string{"qdisc", "replace", "dev", "a", "root"}, 1, "needed"},
		{[]string{"qdisc", "replace", "dev", "a", "parent", ":1"}, 1, "a kind is needed"},
		{[]string{"link", "show", "--name", "no-such-router"}, 2, "router run -c FILE"},
		{[]string{"link", "set", "dev", "a", "txqueuelen", "5", "--name", "no-such-router"}, 2, "no router named"},
	} {
		code, stdout, stderr := command(t, tt.args...)
		if code != tt.code || stdout != "" || !strings.HasPrefix(stderr, "Error: ") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, tt.says) {
			t.Errorf("router %v: status %d, want %d; prints %q and %q, want one line with %q", tt.args, code, tt.code, stdout, stderr, tt.says)
		}
	}
}

func TestCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "two.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("version: 1\nports:\n  - {name: tapa, typ: tap}\n  - {name: tapa, type: tip}\n")
	code, _, stderr := command(t, "check", file)
	if code != 1 || strings.Count(stderr, file+":") < 2 || !strings.Contains(stderr, file+":3:") {
		t.Errorf("a bad file: status %d, %q", code, stderr)
	}
	write("version: 1\nports:\n  - {name: tapa, type: tap}\n  - {name: tapb, type: tap}\nbridges:\n  - {name: br0, ports: [tapa, tapb]}\n")
	if code, stdout, stderr := command(t, "check", file); code != 0 || !strings.Contains(stdout, "ok: 2 ports, 1 bridges") {
		t.Errorf("a good file: status %d, %q, %q", code, stdout, stderr)
	}
}

// Help teaches: every command has a text, and the example in `help run` is a
// configuration that is accepted.
func TestHelp(t *testing.T) {
	code, stdout, _ := command(t, "--help")
	for _, word := range []string{"router demo", "router check", "router run", "Exit status", "link", "qdisc", "line", "xps", "bql", "fdb", "route", "neigh", "drops", "status", "memory"} {
		if code != 0 || !strings.Contains(stdout, word) {
			t.Errorf("--help does not name %q", word)
		}
	}
	for _, c := range newCommand(&bytes.Buffer{}, &bytes.Buffer{}).Commands() {
		if c.Short == "" {
			t.Errorf("router %s has no description", c.Name())
		}
		for _, sub := range c.Commands() {
			if sub.Short == "" {
				t.Errorf("router %s %s has no description", c.Name(), sub.Name())
			}
		}
	}
	_, stdout, _ = command(t, "run", "--help")
	_, example, ok := strings.Cut(stdout, "  version: 1\n")
	example, _, _ = strings.Cut(example, "\n\n")
	if _, err := config.Parse("help", []byte("  version: 1\n"+example+"\n")); !ok || err != nil {
		t.Errorf("the example in help run is refused: %v", err)
	}
}

// What the configuration says of a line's ranges is what the data path takes.
func TestLineRanges(t *testing.T) {
	if config.MinLineRate != dataplane.MinLineRate || config.MaxLineRate != dataplane.MaxLineRate || config.MaxLineRing != dataplane.MaxLineRing ||
		config.MaxLineDelay != dataplane.MaxLineDelay || config.MaxLineOverhead != dataplane.MaxOverhead ||
		config.DefaultLineRing != dataplane.DefaultRing || config.EthernetOverhead != dataplane.EthernetOverhead {
		t.Error("the ranges or defaults of config.Line and dataplane.LineConfig differ")
	}
}

// What a configuration's addresses say about routes.
func TestBuildRoutes(t *testing.T) {
	conf, err := config.Parse("test", []byte(`
version: 1
ports:
  - {name: tapa, type: tap, addresses: [10.0.0.254/24, "fd00::fe/64"]}
  - {name: tapb, type: tap}
  - {name: tuna, type: tun, addresses: [10.1.0.1/31]}
bridges:
  - {name: br0, ports: [tapb], addresses: [10.2.0.1/24]}
routes:
  - {to: 10.9.0.0/16, via: 10.2.0.9}
  - {to: 10.8.0.0/16, type: blackhole}
`))
	if err != nil {
		t.Fatal(err)
	}
	s, err := build(conf)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		dst   string
		kind  fib.Kind
		iface uint16
		via   string
	}{
		{"10.0.0.254", fib.Local, 0, ""}, {"10.0.0.7", fib.Unicast, 0, ""}, {"10.0.0.255", fib.Broadcast, 0, ""}, {"10.0.0.0", fib.Broadcast, 0, ""},
		{"fd00::fe", fib.Local, 0, ""}, {"fd00::1", fib.Unicast, 0, ""},
		{"10.1.0.1", fib.Local, 2, ""}, {"10.1.0.0", fib.Unicast, 2, ""},
		{"10.2.0.1", fib.Local, 3, ""}, {"10.2.0.200", fib.Unicast, 3, ""},
		{"10.9.1.1", fib.Unicast, 3, "10.2.0.9"}, {"10.8.1.1", fib.Blackhole, 0, ""},
	} {
		r := s.Routes.Lookup(netip.MustParseAddr(tt.dst))
		if r == nil || r.Kind != tt.kind || r.Kind != fib.Blackhole && r.Iface != tt.iface || tt.via != "" && r.Via.String() != tt.via {
			t.Errorf("%s: %+v, want %v by interface %d via %q", tt.dst, r, tt.kind, tt.iface, tt.via)
		}
	}
	if r := s.Routes.Lookup(netip.MustParseAddr("192.0.2.1")); r != nil {
		t.Errorf("a route to nowhere: %+v", r)
	}
	if s.Ports[1].Bridge != 0 || s.Bridges[0].Iface != 3 || s.Ports[0].Bridge != -1 || !s.Ports[2].Tun {
		t.Errorf("ports %+v, bridge %+v", s.Ports, s.Bridges[0])
	}
	if !s.Ifaces[3].Addrs[1].Addr().IsLinkLocalUnicast() || len(s.Ifaces[2].Addrs) != 1 {
		t.Error("link-local addresses: want one on a bridge, none on a TUN")
	}
}
