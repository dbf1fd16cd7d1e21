// Command svg draws the tables of `router bench ... --json` as SVG, one file
// a table: ours with bars from the lowest round to the highest, and below the
// ratio, ours beside the published one.
//
// It is a module of its own so that what it needs to draw is no dependency of
// the router. From the root of the project:
//
//	go run ./bench/plot -o docs out.json
//	make plot JSON=out.json
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// A report is the part of a bench's JSON that is drawn.
type report struct {
	Bench   string
	Version int
	Machine struct {
		CPU    string
		Cores  int
		Kernel string
	}
	Tables []table
}

type table struct {
	Number            int `json:"table"`
	Title, Unit, A, B string
	Rows              []row
}

type row struct {
	Name           string
	Threads, Burst int
	Unit           string
	A, B, Ratio    stat
	Theirs         *struct{ A, B, Ratio float64 }
}

type stat struct{ Median, Min, Max float64 }

// version is the JSON's that this program knows.
const version = 1

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(args []string, stdin io.Reader, stderr io.Writer) error {
	fs := flag.NewFlagSet("plot", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprintln(stderr, "plot [-o DIR] [FILE]: draw the JSON of `router bench` from FILE, or stdin, as DIR/bench-NAME-TABLE.svg")
		fs.PrintDefaults()
	}
	dir := fs.String("o", ".", "directory for the drawings, made if missing")
	files, err := parse(fs, args)
	if err != nil {
		if err == flag.ErrHelp {
			return nil
		}
		return err
	}
	if len(files) > 1 {
		return fmt.Errorf("%d files: want one, or none for stdin", len(files))
	}
	in := stdin
	if len(files) == 1 {
		f, err := os.Open(files[0])
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	return drawAll(in, *dir, stderr)
}

// parse reads flags before and behind file names.
func parse(fs *flag.FlagSet, args []string) (files []string, err error) {
	for {
		if err := fs.Parse(args); err != nil {
			return nil, err
		}
		if args = fs.Args(); len(args) == 0 {
			return files, nil
		}
		files, args = append(files, args[0]), args[1:]
	}
}

func drawAll(in io.Reader, dir string, stderr io.Writer) error {
	var rep report
	if err := json.NewDecoder(in).Decode(&rep); err != nil {
		return fmt.Errorf("want the output of `router bench ... --json`: %w", err)
	}
	if rep.Version != version {
		return fmt.Errorf("version %d of the JSON is not known, only %d", rep.Version, version)
	}
	if len(rep.Tables) == 0 {
		return fmt.Errorf("there is no table in it")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, t := range rep.Tables {
		if len(t.Rows) == 0 {
			continue
		}
		svg, err := render(rep, t)
		if err != nil {
			return fmt.Errorf("table %d: %w", t.Number, err)
		}
		file := filepath.Join(dir, fmt.Sprintf("bench-%s-%d.svg", filepath.Base(rep.Bench), t.Number))
		if err := os.WriteFile(file, svg, 0o644); err != nil {
			return err
		}
		fmt.Fprintln(stderr, file)
	}
	return nil
}
