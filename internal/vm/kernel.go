package vm

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// meta is the Debian package that depends on the newest kernel for virtual
// machines.
const meta = "linux-image-cloud-amd64"

// modules are what a guest loads, in this order. One that is missing is built
// into the kernel.
var modules = []string{
	"virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_console",
	"failover", "net_failover", "virtio_net",
	"llc", "stp", "garp", "mrp", "8021q",
}

// A Kernel is a Debian kernel, unpacked as far as guests need it.
type Kernel struct {
	Package string // its name
	Version string
	Size    int64 // bytes to download
	dir     string
}

// ErrNoPackages says that Debian's packages cannot be had here.
var ErrNoPackages = errors.New("packages of Debian cannot be had")

// CacheDir is where kernels are kept: taprouter/vm in the user's cache.
func CacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil { // no HOME
		dir = filepath.Join(os.TempDir(), "cache")
	}
	return filepath.Join(dir, "taprouter", "vm")
}

// FindKernel gives the newest kernel in dir, or else asks apt which one could
// be had; Fetch gets it.
func FindKernel(ctx context.Context, dir string) (*Kernel, error) {
	found, _ := filepath.Glob(filepath.Join(dir, "*", "vmlinuz"))
	if len(found) > 0 {
		slices.Sort(found)
		at := filepath.Dir(found[len(found)-1])
		return &Kernel{Package: filepath.Base(at), dir: at}, nil
	}
	for _, tool := range []string{"apt-get", "apt-cache", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoPackages, err)
		}
	}
	deps, err := aptField(ctx, meta, "Depends")
	if err != nil { // no lists yet
		if out, uerr := exec.CommandContext(ctx, "apt-get", "update", "-qq").CombinedOutput(); uerr != nil {
			return nil, fmt.Errorf("%w: apt-get update: %w: %s", ErrNoPackages, uerr, bytes.TrimSpace(out))
		}
		deps, err = aptField(ctx, meta, "Depends")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoPackages, err)
	}
	k := &Kernel{}
	k.Package, _, _ = strings.Cut(deps, " ")
	k.dir = filepath.Join(dir, k.Package)
	if k.Version, err = aptField(ctx, k.Package, "Version"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoPackages, err)
	}
	size, err := aptField(ctx, k.Package, "Size")
	if err == nil {
		k.Size, err = strconv.ParseInt(size, 10, 64)
	}
	return k, err
}

// aptField gives a field of the newest version of a package.
func aptField(ctx context.Context, pkg, field string) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-cache", "show", "--no-all-versions", pkg).Output()
	if err != nil {
		return "", fmt.Errorf("apt-cache show %s: %w", pkg, err)
	}
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), field+": "); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("apt-cache show %s: no field %s", pkg, field)
}

// Fetched reports whether the kernel is in the cache.
func (k *Kernel) Fetched() bool {
	_, err := os.Stat(k.Image())
	return err == nil
}

// Image is the path of the kernel's image.
func (k *Kernel) Image() string { return filepath.Join(k.dir, "vmlinuz") }

// Fetch downloads the package and keeps its image and modules. It installs
// nothing.
func (k *Kernel) Fetch(ctx context.Context) error {
	if k.Fetched() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(k.dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(k.dir), ".fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	get := exec.CommandContext(ctx, "apt-get", "download", "-qq", k.Package+"="+k.Version)
	get.Dir = tmp
	if out, err := get.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: apt-get download %s: %w: %s", ErrNoPackages, k.Package, err, bytes.TrimSpace(out))
	}
	debs, _ := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if len(debs) != 1 {
		return fmt.Errorf("%w: apt-get download %s gave %d packages", ErrNoPackages, k.Package, len(debs))
	}
	if err := os.MkdirAll(filepath.Join(tmp, "k"), 0o755); err != nil {
		return err
	}
	if err := unpack(ctx, debs[0], filepath.Join(tmp, "k")); err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(debs[0]), err)
	}
	if err := os.Rename(filepath.Join(tmp, "k"), k.dir); err != nil && !k.Fetched() { // or else somebody was quicker
		return err
	}
	return nil
}

// unpack copies the image and the modules that guests load out of a package.
func unpack(ctx context.Context, deb, dir string) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = copyWanted(tar.NewReader(pipe), dir)
	_, _ = io.Copy(io.Discard, pipe) // so that dpkg-deb can end
	return errors.Join(err, cmd.Wait())
}

func copyWanted(r *tar.Reader, dir string) error {
	image := false
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			if !image {
				return errors.New("there is no kernel in it")
			}
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Base(h.Name)
		mod, isMod := strings.CutSuffix(name, ".ko")
		switch {
		case strings.HasPrefix(name, "vmlinuz-"):
			name, image = "vmlinuz", true
		case !isMod || !slices.Contains(modules, mod):
			continue
		}
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
}
