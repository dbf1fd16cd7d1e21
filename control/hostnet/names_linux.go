package hostnet

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A name stands for a namespace only when that is mounted on it, a moment
// after the file was made; nothing tells when. So it is looked at again.
const (
	nameRetry = 10 * time.Millisecond
	nameLimit = 2 * time.Second // then it is a file that somebody left
)

// WatchNames calls fn with each name under which a namespace appears, as with
// `ip netns add`, until ctx ends. Names that are there already it leaves out.
// started is called once nothing that appears can be missed.
func WatchNames(ctx context.Context, started func(), fn func(name string)) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch namespaces: %w", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close()
	if _, err := unix.InotifyAddWatch(fd, runDir, unix.IN_CREATE|unix.IN_ONLYDIR); err != nil {
		return fmt.Errorf("watch namespaces: %w", &os.PathError{Op: "inotify_add_watch", Path: runDir, Err: err})
	}
	started()
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	pending := map[string]time.Time{} // until when they are looked at
	buf := make([]byte, 16<<10)
	for {
		var next time.Time // no deadline
		if len(pending) > 0 {
			next = time.Now().Add(nameRetry)
		}
		_ = f.SetReadDeadline(next) // of a closed file: Read says so
		n, err := f.Read(buf)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("watch namespaces: %w", err)
		}
		for _, name := range createdNames(buf[:n]) {
			pending[name] = time.Now().Add(nameLimit)
		}
		for name, limit := range pending {
			ns, _, err := Ensure(name, false)
			if err == nil {
				ns.Close()
				fn(name)
			}
			if err == nil || time.Now().After(limit) {
				delete(pending, name)
			}
		}
	}
}

// createdNames reads the names from inotify events (struct inotify_event).
func createdNames(b []byte) (names []string) {
	for len(b) >= unix.SizeofInotifyEvent {
		size := int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		if size > len(b) {
			return names
		}
		name, _, _ := bytes.Cut(b[:size], []byte{0})
		if len(name) > 0 {
			names = append(names, string(name))
		}
		b = b[size:]
	}
	return names
}
