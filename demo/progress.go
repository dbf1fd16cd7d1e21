package demo

import (
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A progress shows what goes on: on a terminal one line that changes,
// elsewhere a line for each thing that was begun or done.
type progress struct {
	mu  sync.Mutex
	w   io.Writer // guarded by mu
	tty bool
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w}
	if f, ok := w.(*os.File); ok {
		_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
		p.tty = err == nil
	}
	return p
}

// clearLine is the return to the line's start and ECMA-48 EL, erase to its end.
const clearLine = "\r\x1b[K"

// say shows a thing that was begun or done.
func (p *progress) say(format string, args ...any) { p.put(true, format, args...) }

// update shows how it is going, on a terminal only.
func (p *progress) update(format string, args ...any) { p.put(p.tty, format, args...) }

func (p *progress) put(shown bool, format string, args ...any) {
	if !shown {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tty {
		fmt.Fprintf(p.w, clearLine+format, args...)
		return
	}
	fmt.Fprintf(p.w, format+"\n", args...)
}

// Write passes on what the agents say on stderr.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.w.Write(b)
}

// clear makes room for other output.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tty {
		fmt.Fprint(p.w, clearLine)
	}
}
