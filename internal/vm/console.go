package vm

import (
	"bytes"
	"strings"
	"sync"
)

// A console keeps what a guest prints and tells when it says that it is ready.
type console struct {
	mu    sync.Mutex
	all   []byte          // guarded by mu; the last maxConsole bytes
	ready []chan struct{} // guarded by mu; by boot, closed when it has happened
	boots int             // guarded by mu
	tail  []byte          // guarded by mu; of the line under way
}

const maxConsole = 64 << 10

func newConsole() *console { return &console{} }

func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, b...)
	c.all = c.all[max(0, len(c.all)-maxConsole):]
	c.tail = append(c.tail, b...)
	for {
		line, rest, ok := bytes.Cut(c.tail, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		c.tail = rest
		if bytes.Contains(line, []byte(ready)) {
			close(c.boot(c.boots))
			c.boots++
		}
	}
}

// boot gives the channel of boot i. It needs mu.
func (c *console) boot(i int) chan struct{} {
	for len(c.ready) <= i {
		c.ready = append(c.ready, make(chan struct{}))
	}
	return c.ready[i]
}

// after is closed when the guest has been ready that many times.
func (c *console) after(times int) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boot(times - 1)
}

// last gives the last lines.
func (c *console) last() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(c.all)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
