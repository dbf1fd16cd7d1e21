package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"taprouter/internal/vm"
)

// prepare gets what virtual machines need: QEMU, a program that can be their
// /init, a kernel, and an answer to whether KVM works.
func (d *demo) prepare(ctx context.Context) (err error) {
	if err := vm.Installed(); err != nil {
		return err
	}
	if err := vm.CheckInit(d.opt.Router); err != nil {
		return err
	}
	g := d.guests
	stop := d.count("looking for a kernel for the guests, in Debian's lists if need be")
	g.kernel, err = vm.FindKernel(ctx, vm.CacheDir())
	stop()
	if err != nil {
		return err
	}
	if !g.kernel.Fetched() {
		d.show.clear()
		if err := consent(ctx, d.opt, g.kernel, vm.CacheDir()); err != nil {
			return err
		}
		stop := d.count("downloading " + g.kernel.Package)
		err := g.kernel.Fetch(ctx)
		stop()
		if err != nil {
			return err
		}
	}
	g.Kernel = g.kernel.Package
	stop = d.count("trying KVM")
	g.kvm = vm.HasKVM(ctx, g.kernel, d.opt.Router)
	stop()
	g.KVM = g.kvm
	return ctx.Err()
}

// consent asks whether the kernel may be downloaded.
func consent(ctx context.Context, opt Options, k *vm.Kernel, dir string) error {
	if opt.Yes {
		return nil
	}
	what := fmt.Sprintf("%s (%.1f MB) from Debian to %s", k.Package, float64(k.Size)/1e6, dir)
	if opt.Stdin == nil {
		return fmt.Errorf("the guests need a kernel; to download %s say --yes", what)
	}
	fmt.Fprintf(opt.Stderr, "The guests need a kernel. It is not installed, only kept there.\nDownload %s? [y/N] ", what)
	answer := make(chan string, 1)
	go func() { // may be left waiting when we end
		line, _ := bufio.NewReader(opt.Stdin).ReadString('\n') // its end is a no
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
	case <-ctx.Done():
		return errors.New("interrupted")
	}
	return errors.New("nothing was downloaded, so there is nothing that the guests can boot")
}

// count shows what takes a while, and for how long already, until stop.
func (d *demo) count(what string) (stop func()) {
	d.show.say("%s", what)
	begin := time.Now()
	end, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		t := time.NewTicker(progressEvery)
		defer t.Stop()
		for {
			d.show.update("%s: %.1f s", what, time.Since(begin).Seconds())
			select {
			case <-end:
				return
			case <-t.C:
			}
		}
	}()
	return func() { close(end); <-over }
}

// exitOf is the status where something could not be had.
func exitOf(ctx context.Context) int {
	if ctx.Err() != nil {
		return ExitStopped
	}
	return ExitRefused
}
