package vm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Modes of files in an archive, as stat(2) has them.
const (
	modeDir  = 0o040755
	modeFile = 0o100755
	modeChar = 0o020600
)

// writeInitramfs writes what a guest boots from: /init, which is the program
// at that path, the modules in /modules, and /dev/console for its output.
func (k *Kernel) writeInitramfs(w io.Writer, init string) error {
	b := bufio.NewWriter(w)
	a := &cpio{w: b}
	a.entry("dev", modeDir, 0, 0, nil)
	a.entry("dev/console", modeChar, 5, 1, nil)
	a.entry("modules", modeDir, 0, 0, nil)
	for i, m := range modules {
		data, err := os.ReadFile(filepath.Join(k.dir, m+".ko"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		a.entry(fmt.Sprintf("modules/%02d-%s", i, m), modeFile, 0, 0, data)
	}
	data, err := os.ReadFile(init)
	if err != nil {
		return err
	}
	a.entry("init", modeFile, 0, 0, data)
	a.entry("TRAILER!!!", 0, 0, 0, nil)
	return errors.Join(a.err, b.Flush())
}

// A cpio writes an archive in the format "newc" that the kernel unpacks
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type cpio struct {
	w   io.Writer
	ino int
	err error // the first one
}

// entry adds a file with its name from the root, or a device.
func (c *cpio) entry(name string, mode, major, minor int, data []byte) {
	c.ino++
	c.print("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.ino, mode, 0, 0, 1, 0, len(data), 0, 0, major, minor, len(name)+1, 0, name)
	c.pad(110 + len(name) + 1)
	c.print("%s", data)
	c.pad(len(data))
}

// pad goes on to a multiple of four after n bytes.
func (c *cpio) pad(n int) { c.print("%s", "\x00\x00\x00"[:-n&3]) }

func (c *cpio) print(format string, args ...any) {
	if c.err == nil {
		_, c.err = fmt.Fprintf(c.w, format, args...)
	}
}
