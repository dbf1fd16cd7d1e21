// Package taprouter has no code of its own; its tests watch over the module.
package taprouter

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// arrows is the import diagram of ARCHITECTURE.md: what each package may
// import of this module. An arrow that is drawn there and here is allowed, no
// other. Tests may import what they like.
var arrows = map[string][]string{
	// The unit of work, and what stands below everything.
	"packet":           {},
	"internal/minheap": {},
	"internal/step":    {},

	// The stages. They are leaves: none knows its neighbours.
	"bql":                 {},
	"classify":            {"packet"},
	"fib":                 {},
	"forward":             {"packet", "fib", "offload"},
	"gro":                 {"packet"},
	"offload":             {"packet"},
	"qdisc":               {"packet", "internal/minheap", "internal/step"},
	"tun":                 {"packet", "tun/uring"},
	"tun/tuntest":         {"packet", "tun"},
	"tun/uring":           {},
	"offload/offloadtest": {"packet"},
	"xpsflow":             {"packet"},

	// Only the composer knows their order.
	"dataplane": {"packet", "tun", "classify", "gro", "offload", "forward", "fib", "xpsflow", "qdisc", "bql", "internal/minheap"},

	// ==== control plane above, data path below; nothing below imports above ====

	"control/tc":      {"qdisc"},
	"control/config":  {"control/tc", "qdisc"},
	"control/hostnet": {"control/config"},
	"control/neigh":   {"fib", "packet"},
	"control/peer":    {"control/config"},
	"control/api":     {"control/config", "control/tc"},
	"control/metrics": {"control/api"},

	"internal/traffic": {},
	"internal/spawn":   {"control/api", "internal/traffic"},
	"internal/vm":      {"control/config", "control/hostnet", "internal/traffic"},
	"demo":             {"control/api", "control/config", "control/hostnet", "internal/spawn", "internal/traffic", "internal/vm"},
	"bench/plot":       {},
	"bench": {
		"packet", "qdisc", "bql", "xpsflow", "dataplane", "tun", "forward", "fib",
		"control/api", "control/config", "control/hostnet", "internal/spawn", "internal/traffic",
	},
	"cmd/router": {
		"packet", "tun", "classify", "forward", "fib", "xpsflow", "qdisc", "bql", "dataplane",
		"control/api", "control/config", "control/hostnet", "control/metrics", "control/neigh", "control/peer", "control/tc",
		"bench", "demo", "internal/traffic", "internal/vm",
	},
	"test/netns":       {},
	"test/netns/guest": {"internal/traffic", "internal/vm"},
}

// fences says where modules that are large or slow, or reach out of the
// process, may be used: packages, or single files.
var fences = map[string][]string{
	"github.com/cilium/ebpf":         {"tun/steering_linux.go"},
	"github.com/songgao/water":       {"tun/water_linux.go"},
	"golang.zx2c4.com/wireguard":     {"tun/wireguard_linux.go"},
	"github.com/safchain/ethtool":    {"control/hostnet", "internal/vm"},
	"github.com/vishvananda/netlink": {"control/hostnet", "internal/vm"},
	"github.com/vishvananda/netns":   {"control/hostnet", "internal/traffic", "demo"},
	"github.com/goccy/go-yaml":       {"control/config"},
	"github.com/spf13/cobra":         {"cmd/router"},
	"github.com/google/gopacket":     {},
	"log/slog":                       {"cmd/router", "control/api", "control/hostnet", "control/metrics", "control/neigh", "demo"},
	"net/http":                       {"cmd/router", "control/api", "control/metrics"},
	"os/exec":                        {"bench/plot", "cmd/router", "demo", "internal/spawn", "internal/traffic", "internal/vm"},
}

func TestImports(t *testing.T) {
	for pkg, imports := range sourceImports(t) {
		allowed, known := arrows[pkg]
		if !known {
			t.Errorf("package %s is not in the import diagram: draw it in ARCHITECTURE.md and here", pkg)
			continue
		}
		for imp, files := range imports {
			if to, ok := strings.CutPrefix(imp, "taprouter/"); ok && !slices.Contains(allowed, to) {
				t.Errorf("%s: no arrow from %s to %s; allowed are %v", files[0], pkg, to, allowed)
			}
			for module, users := range fences {
				if imp != module && !strings.HasPrefix(imp, module+"/") || slices.Contains(users, pkg) {
					continue
				}
				for _, file := range files {
					if !slices.Contains(users, file) {
						t.Errorf("%s: %s may be imported by %v only", file, module, users)
					}
				}
			}
		}
	}
}

// TestPlanes holds the table itself to the line between the planes.
func TestPlanes(t *testing.T) {
	above := func(pkg string) bool {
		return strings.HasPrefix(pkg, "control/") || strings.HasPrefix(pkg, "cmd/") || pkg == "demo" || pkg == "bench" || pkg == "bench/plot" || pkg == "internal/spawn" || pkg == "internal/traffic" || pkg == "internal/vm" || strings.HasPrefix(pkg, "test/")
	}
	for pkg, allowed := range arrows {
		for _, to := range allowed {
			if _, ok := arrows[to]; !ok {
				t.Errorf("the arrow from %s leads to %s, which is not in the diagram", pkg, to)
			}
			if !above(pkg) && above(to) {
				t.Errorf("the arrow from %s to %s leads from the data path to the control plane", pkg, to)
			}
		}
	}
}

// sourceImports reads the import clauses of all packages, whatever their
// build tags: for each package the imports, with the files that have them.
func sourceImports(t *testing.T) map[string]map[string][]string {
	t.Helper()
	all := map[string]map[string][]string{}
	err := filepath.WalkDir(".", func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && file != "." && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata" || isModule(file)) {
			return filepath.SkipDir
		}
		if e.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		pkg := path.Dir(filepath.ToSlash(file))
		if all[pkg] == nil {
			all[pkg] = map[string][]string{}
		}
		for _, spec := range f.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			all[pkg][imp] = append(all[pkg][imp], filepath.ToSlash(file))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// isModule reports whether dir is a module of its own: it is no part of ours.
func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}
