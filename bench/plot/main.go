// Command plot draws the tables of `router bench ... --json` as SVG:
//
//	go run ./bench/plot [-o DIR] [FILE]
//
// What draws is a module of its own, bench/plot/svg, so that its libraries are
// no dependency of the router; this builds it and runs it here.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
	}
	os.Exit(code)
}

// run gives the exit status of the program that draws.
func run(args []string) (int, error) {
	const dir = "bench/plot/svg"
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		return 1, errors.New("run it from the root of the project: go run ./bench/plot")
	}
	tmp, err := os.MkdirTemp("", "router-plot-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(tmp)
	bin := filepath.Join(tmp, "svg")
	if out, err := exec.Command("go", "-C", dir, "build", "-o", bin, ".").CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build %s: %w\n%s", dir, err, out)
	}
	cmd := exec.Command(bin, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}
