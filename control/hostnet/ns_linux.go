// Package hostnet (control plane) implements the kernel's side of a port:
// network namespaces, the netdev's addresses and routes, and what happens to
// it later. Everything that speaks netlink is here.
package hostnet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// runDir is where named namespaces are, as for ip-netns(8).
const runDir = "/run/netns"

// An NS is a network namespace held open. It keeps the namespace alive, even
// a deleted one: hold it only while working on it. It is safe for concurrent
// use until Close.
type NS struct {
	name     string // in runDir; empty if it has none that we know
	fd       int
	dev, ino uint64 // which namespace it is
}

// Current gives the namespace of the calling process.
func Current() (*NS, error) { return openNS("", "/proc/thread-self/ns/net") }

// FromFD takes over fd, a descriptor of a namespace such as TUNGETDEVNETNS
// gives.
func FromFD(fd int) (*NS, error) {
	ns := &NS{fd: fd}
	if err := ns.identify(); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return ns, nil
}

// Ensure opens the namespace with that name; an empty name is ours. With
// create it makes a missing one, with lo up, as `ip netns add` does. It
// reports whether it did.
func Ensure(name string, create bool) (ns *NS, created bool, err error) {
	if name == "" {
		ns, err = Current()
		return ns, false, err
	}
	path := filepath.Join(runDir, name)
	if filepath.Dir(path) != runDir {
		return nil, false, fmt.Errorf("netns %q: not a name", name)
	}
	ns, err = openNS(name, path)
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return ns, false, err
	}
	if !create {
		return nil, false, fmt.Errorf("netns %s does not exist; add `create: true` or run ip netns add %s: %w", name, name, os.ErrNotExist)
	}
	if err := makeNS(path); err != nil {
		return nil, false, Explain(fmt.Errorf("create netns %s: %w", name, err), SysAdmin)
	}
	ns, err = openNS(name, path)
	if err == nil {
		if err = ns.SetUp("lo", true); err != nil {
			ns.Close()
		}
	}
	if err != nil {
		_ = remove(path)
		return nil, false, err
	}
	return ns, true, nil
}

func openNS(name, path string) (*NS, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open netns: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	ns, err := FromFD(fd)
	if err != nil {
		return nil, err
	}
	ns.name = name
	return ns, nil
}

func (ns *NS) identify() error {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Fstat(ns.fd, &st); err != nil {
		return fmt.Errorf("netns %s: %w", ns, err)
	}
	if err := unix.Fstatfs(ns.fd, &fs); err != nil {
		return fmt.Errorf("netns %s: %w", ns, err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return fmt.Errorf("netns %s is not a namespace: remove the left-over file", ns)
	}
	ns.dev, ns.ino = st.Dev, st.Ino
	return nil
}

func (ns *NS) String() string {
	if ns.name == "" {
		return fmt.Sprintf("net:[%d]", ns.ino)
	}
	return ns.name
}

// Same reports whether both are one namespace.
func (ns *NS) Same(other *NS) bool { return ns.dev == other.dev && ns.ino == other.ino }

// Close lets go of the namespace.
func (ns *NS) Close() error {
	fd := ns.fd
	ns.fd = -1
	return unix.Close(fd)
}

// Delete takes the name away, as `ip netns del` does, if it still stands for
// this namespace; it may be called after Close. The kernel removes the
// namespace and the devices in it when nothing holds it any more.
func (ns *NS) Delete() error {
	now, err := openNS(ns.name, filepath.Join(runDir, ns.name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	same := now.Same(ns)
	now.Close()
	if !same {
		return nil // somebody else's by now
	}
	return Delete(ns.name)
}

// Delete takes away the name of a namespace, whoever made it.
func Delete(name string) error {
	if err := remove(filepath.Join(runDir, name)); err != nil {
		return Explain(fmt.Errorf("delete netns %s: %w", name, err), SysAdmin)
	}
	return nil
}

func remove(path string) error {
	// EINVAL: a plain file, as a creation leaves it that did not get far.
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return os.Remove(path)
}

// makeNS makes a namespace that the file at path stands for.
func makeNS(path string) error {
	if err := shareRunDir(); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0)
	if err != nil {
		return err
	}
	f.Close()
	err = onThread(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() error {
		return unix.Mount("/proc/thread-self/ns/net", path, "none", unix.MS_BIND, "")
	})
	if err != nil {
		_ = os.Remove(path)
	}
	return err
}

// shareRunDir makes runDir a mount point that propagates, so that a namespace
// deleted here vanishes in other mount namespaces too, and the other way round.
func shareRunDir() error {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return err
	}
	err := unix.Mount("", runDir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err := unix.Mount(runDir, runDir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount("", runDir, "none", unix.MS_SHARED|unix.MS_REC, "")
}

// Do runs fn with the calling goroutine in the namespace. Goroutines that fn
// starts are elsewhere. What fn opens stays in the namespace and keeps it
// alive: sockets, and TUN/TAP queues.
func (ns *NS) Do(fn func() error) error {
	if home, err := Current(); err == nil {
		defer home.Close()
		if home.Same(ns) {
			return fn() // needs no right
		}
	}
	return onThread(func() error {
		if err := unix.Setns(ns.fd, unix.CLONE_NEWNET); err != nil {
			return Explain(fmt.Errorf("enter netns %s: %w", ns, err), SysAdmin)
		}
		return nil
	}, fn)
}

// onThread runs enter, which changes the thread's namespace, and then fn, on
// a thread of their own. The thread goes back; if it cannot, it dies with the
// goroutine rather than serve others from the wrong namespace.
func onThread(enter, fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := Current()
		if err == nil {
			err = thereAndBack(home, enter, fn)
			home.Close()
		} else {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

func thereAndBack(home *NS, enter, fn func() error) error {
	err := enter()
	if err == nil {
		err = fn()
	}
	if isHere(home) || unix.Setns(home.fd, unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return err
}

// isHere reports whether the calling thread is in ns.
func isHere(ns *NS) bool {
	here, err := Current()
	if err != nil {
		return false
	}
	defer here.Close()
	return here.Same(ns)
}

// handle opens a netlink socket in the namespace.
func (ns *NS) handle() (h *netlink.Handle, err error) {
	err = ns.Do(func() error {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return h, nil
}
