// Package demo (control plane) implements `router demo`: two network
// namespaces with a router between them, traffic through it, and a verdict.
//
//	namespace a               router                namespace b
//	agent: sends ── l2a ── bridge br0 ──────── l2b ── agent: receives
//	             └─ l3a ── routed ─── routed ─ l3b ─┘
//
// With Options.VM the ends are virtual machines, see guests.go. The router and both agents are child processes, so that the router's CPU
// time is its own; they die with the demo.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"taprouter/internal/spawn"
	"taprouter/internal/traffic"
)

// Options says what Run does.
type Options struct {
	Duration time.Duration // of each leg; 0: DefaultDuration
	JSON     bool          // one object on Stdout instead of tables
	Keep     bool          // leave everything up, after the last leg, until the context ends
	VM       bool          // between virtual machines
	Yes      bool          // download what the machines need without a question
	Router   string        // path of the router binary, which is also the agents'; "": our own
	Stdin    io.Reader     // the answer to that question; nil: nobody is there to give it
	Stdout   io.Writer     // the result; nil: os.Stdout
	Stderr   io.Writer     // progress; nil: os.Stderr

	legs []leg // which to run; nil: all
}

// DefaultDuration is the time of a leg.
const DefaultDuration = 3 * time.Second

// AgentCommand is the hidden subcommand that calls AgentMain.
const AgentCommand = "demo-agent"

// Exit statuses of Run.
const (
	ExitOK      = 0
	ExitUsage   = 1   // impossible options
	ExitRefused = 2   // the system would not let us, or the router did not run
	ExitFailed  = 3   // it ran and a check failed
	ExitStopped = 130 // the context ended first, as by Ctrl-C
)

// AgentMain is a traffic end: it carries out what the demo asks for on in
// until its end. It takes no arguments.
func AgentMain(args []string, in io.Reader, out io.Writer) int {
	if len(args) != 0 {
		return ExitUsage
	}
	if err := traffic.Serve(in, out, nil); err != nil {
		return ExitRefused
	}
	return ExitOK
}

// Run runs the demo from beginning to end. An exit status other than ExitOK
// comes with an error that says in one line what was wrong. Whatever was made
// is gone when it returns.
func Run(ctx context.Context, opt Options) (exit int, err error) {
	if err := opt.complete(); err != nil {
		return ExitUsage, err
	}
	if err := require(); err != nil {
		return ExitRefused, err
	}
	d := demo{opt: opt, names: newNames(os.Getpid()), show: newProgress(opt.Stderr)}
	if opt.VM {
		d.guests = &guests{}
		if err := d.prepare(ctx); err != nil {
			d.show.clear()
			return exitOf(ctx), fmt.Errorf("demo: %w", err)
		}
	}
	res, err := d.run(ctx)
	d.show.clear()
	if opt.Keep && res.complete {
		if err := res.print(opt.Stdout, opt.JSON); err == nil {
			d.keep(ctx)
		}
		opt.Stdout = io.Discard // it has been printed
	}
	if cerr := d.clean(); err == nil && cerr != nil {
		res.fail("clean up: %v", cerr)
	}
	switch {
	case ctx.Err() != nil && !res.complete:
		return ExitStopped, errors.New("demo: interrupted; everything that it made was removed")
	case err != nil:
		return ExitRefused, fmt.Errorf("demo: %w", err)
	}
	if err := res.print(opt.Stdout, opt.JSON); err != nil {
		return ExitRefused, fmt.Errorf("demo: %w", err)
	}
	if err := res.verdict(); err != nil {
		return ExitFailed, fmt.Errorf("demo: %w", err)
	}
	return ExitOK, nil
}

func (o *Options) complete() error {
	if o.Duration == 0 {
		o.Duration = DefaultDuration
	}
	if o.Duration < 100*time.Millisecond || o.Duration > time.Hour {
		return fmt.Errorf("demo: a leg of %v: from 100ms to 1h is possible", o.Duration)
	}
	switch {
	case o.legs != nil:
	case o.VM:
		o.legs = guestLegs()
	default:
		o.legs = allLegs()
	}
	if o.Stdout == nil {
		o.Stdout = os.Stdout
	}
	if o.Stderr == nil {
		o.Stderr = os.Stderr
	}
	if o.Router == "" {
		exe, err := os.Executable()
		if err != nil {
			return fmt.Errorf("demo: find our own program: %w", err)
		}
		o.Router = exe
	}
	return nil
}

// A demo is one run: what exists at a time, for clean to remove.
type demo struct {
	opt   Options
	names names
	show  *progress

	router  *spawn.Router
	a, b    *traffic.Remote // the ends
	agents  []*traffic.Agent
	guests  *guests // nil: the ends are in namespaces
	targets map[path]target
}

// run makes everything and drives the legs.
func (d *demo) run(ctx context.Context) (*result, error) {
	res := &result{opt: d.opt}
	if d.guests != nil {
		res.Guests = &d.guests.Guests
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := d.start(ctx, cancel)
	if err == nil {
		err = d.legs(ctx, res)
	}
	if err == nil && d.guests != nil {
		err = d.hops(ctx, res)
	}
	if err == nil {
		err = d.account(ctx, res)
	}
	if err != nil {
		// If the router has ended, that is the reason for everything else.
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return res, err
	}
	res.complete = true
	return res, nil
}

// start brings up the router and the agents and waits until each path works.
func (d *demo) start(ctx context.Context, cancel context.CancelCauseFunc) (err error) {
	conf := d.names.config()
	if d.guests != nil {
		conf = d.names.guestConfig()
	}
	d.show.say("starting the router %s between %s and %s", d.names.router, d.names.nsA, d.names.nsB)
	if d.router, err = spawn.Start(ctx, d.opt.Router, d.names.router, conf, cancel); err != nil {
		return err
	}
	if d.a, err = d.agent(d.names.nsA); err != nil {
		return err
	}
	if d.b, err = d.agent(d.names.nsB); err != nil {
		return err
	}
	if d.guests != nil {
		if err := d.boot(ctx); err != nil {
			return err
		}
	}
	d.show.say("waiting for addresses and neighbours")
	return d.reach(ctx)
}

// agent starts an end in a namespace.
func (d *demo) agent(ns string) (*traffic.Remote, error) {
	a, err := traffic.StartIn(ns, d.show, d.opt.Router, AgentCommand)
	if err != nil {
		return nil, err
	}
	d.agents = append(d.agents, a)
	return a.Remote, nil
}

// keep waits with everything up until the context or the router ends.
func (d *demo) keep(ctx context.Context) {
	fmt.Fprintf(d.opt.Stderr, "kept: router --name %s, namespaces %s and %s; Ctrl-C removes them\n",
		d.names.router, d.names.nsA, d.names.nsB)
	select {
	case <-ctx.Done():
	case <-d.router.Done():
	}
}

// stopTimeout is how long a child may take to end before it is killed.
const stopTimeout = 10 * time.Second

// clean ends the children and removes what they should have removed.
func (d *demo) clean() error {
	for _, a := range d.agents {
		a.Stop(stopTimeout)
	}
	if d.guests != nil {
		d.guests.stop()
	}
	var err error
	if d.router != nil {
		err = d.router.Stop()
	}
	return errors.Join(err, d.names.remove())
}
