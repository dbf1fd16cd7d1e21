// Command router forwards packets between TUN/TAP devices in user space and
// shows what happens to them. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"taprouter/demo"
	"taprouter/internal/vm"
)

// Exit statuses.
const (
	exitUsage   = 1 // bad usage, or a configuration that is refused
	exitRefused = 2 // refused by the system, or by the running router
)

// release is set by the linker for releases.
var release string

func version() string {
	if release != "" {
		return release
	}
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" {
		return b.Main.Version
	}
	return "(devel)"
}

func main() {
	if vm.IsInit() { // in a guest of the demo
		vm.Init(nil)
	}
	if len(os.Args) > 1 && os.Args[1] == demo.AgentCommand {
		os.Exit(demo.AgentMain(os.Args[2:], os.Stdin, os.Stdout))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// An exitError ends the program with a status of its own.
type exitError struct {
	code int
	err  error // nil: everything was said
}

func (e exitError) Error() string { return fmt.Sprint(e.err) }

// A systemError is not the user's fault: exit status 2.
type systemError struct{ error }

func (e systemError) Unwrap() error { return e.error }

// run is the program: it gives the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	out := &output{w: stdout}
	cmd := newCommand(out, stderr)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err == nil && out.err != nil {
		err = systemError{out.err}
	}
	var exit exitError
	var system systemError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		if exit.err != nil {
			complain(stderr, exit.err)
		}
		return exit.code
	case errors.As(err, &system):
		complain(stderr, err)
		return exitRefused
	}
	complain(stderr, err)
	return exitUsage
}

// complain prints an error, which may join several, on one line.
func complain(stderr io.Writer, err error) {
	fmt.Fprintln(stderr, "Error:", strings.ReplaceAll(err.Error(), "\n", "; "))
}

// An output remembers that a write has failed, so that printers need not.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	if err != nil && o.err == nil {
		o.err = err
	}
	return n, err
}

// options are the flags that all commands know.
type options struct {
	name                string
	json, pretty, stats bool
	all                 bool // of drops
	out, err            io.Writer
}

func newCommand(stdout, stderr io.Writer) *cobra.Command {
	o := &options{out: stdout, err: stderr}
	root := &cobra.Command{
		Use:   "router",
		Short: "Forward packets between TUN/TAP devices in user space",
		Long: `router forwards packets between Linux TUN/TAP devices, as a bridge and as an
IPv4/IPv6 router, and queues them the way a modern kernel does: XPS with a
flow table, lockless qdiscs under mq, fq, byte queue limits.

  router demo                   see it work: two namespaces, a router between them
  router demo --vm              the same with two virtual machines
  router check two.yaml         is this configuration right?
  router run -c two.yaml        forward until SIGTERM
  router qdisc show -s          what waits and what was sent, as tc prints it
  router xps show -s            which worker prefers which queue; flows moved, refused
  router drops show             why packets were dropped
  router bench xmit             what lockless, mq and bypass are worth here

Every show takes -s for statistics and -j for JSON. "router completion bash" (or
zsh) prints what completes commands and the names of ports. Exit status: 0 done, 1 bad
usage or configuration, 2 refused by the system, 3 checks of the demo or a bench failed.`,
		SilenceUsage: true, SilenceErrors: true,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknown(cmd, args[0])
			}
			return cmd.Help()
		},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.CompletionOptions.HiddenDefaultCmd = true
	f := root.PersistentFlags()
	f.StringVar(&o.name, "name", "router", "name of the router; its socket is /run/taprouter/NAME.sock, or a user's in $XDG_RUNTIME_DIR/taprouter")
	f.BoolVarP(&o.json, "json", "j", false, "print JSON")
	f.BoolVarP(&o.pretty, "pretty", "p", false, "with -j: print it indented")
	f.BoolVarP(&o.stats, "statistics", "s", false, "print statistics too")
	_ = root.RegisterFlagCompletionFunc("name", completeName) // the flag exists
	root.AddCommand(runCommand(o), checkCommand(o), demoCommand(o), benchCommand(o), versionCommand(o))
	addObjects(root, o)
	return root
}

// unknown is the error for a word that is no command, with the nearest ones.
func unknown(cmd *cobra.Command, word string) error {
	msg := fmt.Sprintf("unknown command %q for %q", word, cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2 // letters that may differ
	if near := cmd.SuggestionsFor(word); len(near) > 0 {
		msg += fmt.Sprintf(", did you mean %q?", near[0])
	}
	return errors.New(msg + "; see `" + cmd.CommandPath() + " --help`")
}

func versionCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(o.out, "router", version())
			return err
		},
	}
}
