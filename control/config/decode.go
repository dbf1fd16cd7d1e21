package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// A decoder takes one YAML document apart and remembers where each value
// stood. It walks the syntax tree itself rather than unmarshal into structs:
// so every fault is found in one go, each with its position.
type decoder struct {
	file    string
	anchors map[string]ast.Node
	merges  int          // budget of `<<` keys, against anchors that multiply
	key     string       // of the value being decoded, for messages
	where   map[any]pos  // by pointer to the decoded value
	faulty  map[any]bool // by pointer to a list's element: a fault was found in it
	errs    []*Error
	warns   []*Error
}

type pos struct{ line, col int }

// A setter decodes a node into what it was made for.
type setter func(d *decoder, n ast.Node)

func newDecoder(file string) *decoder {
	return &decoder{file: file, anchors: map[string]ast.Node{}, merges: 1000, where: map[any]pos{}, faulty: map[any]bool{}}
}

// parse decodes data with set. It reports whether data is YAML at all.
func (d *decoder) parse(data []byte, set setter) bool {
	f, err := parseYAML(data)
	if err != nil {
		d.syntax(err)
		return false
	}
	var docs []*ast.DocumentNode
	for _, doc := range f.Docs {
		if doc != nil && doc.Body != nil {
			docs = append(docs, doc)
		}
	}
	if len(docs) == 0 {
		d.fail(pos{1, 1}, `the file is empty: it needs at least "version: 1"`)
		return false
	}
	if len(docs) > 1 {
		d.fail(start(docs[1].Body), "a second document: one file holds one configuration")
		return false
	}
	ast.Walk(d, docs[0].Body)
	set(d, docs[0].Body)
	return true
}

// parseYAML keeps a panic of the library from taking the router down.
func parseYAML(data []byte) (f *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("not YAML (%v)", r)
		}
	}()
	return parser.ParseBytes(data, 0)
}

var alreadyAt = regexp.MustCompile(`at \[(\d+):(\d+)\]`)

func (d *decoder) syntax(err error) {
	p, msg := pos{1, 1}, err.Error()
	var ye yaml.Error
	if errors.As(err, &ye) {
		msg = ye.GetMessage()
		if tk := ye.GetToken(); tk != nil {
			p = at(tk)
		}
	}
	switch {
	case strings.Contains(msg, "character '\t'"):
		msg = "a tab cannot indent YAML; use spaces"
	case strings.Contains(msg, "already defined"):
		msg = alreadyAt.ReplaceAllString(msg, "at line $1, column $2")
	}
	d.fail(p, "%s", strings.ReplaceAll(msg, "\n", " "))
}

// Visit collects anchors (ast.Visitor).
func (d *decoder) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok && a.Name != nil {
		d.anchors[a.Name.GetToken().Value] = a.Value
	}
	return d
}

func (d *decoder) fail(p pos, format string, args ...any) {
	d.errs = append(d.errs, &Error{d.file, p.line, p.col, fmt.Sprintf(format, args...)})
}

// errorf reports a fault in the value n of the current key.
func (d *decoder) errorf(n ast.Node, format string, args ...any) {
	if d.key != "" {
		format, args = "%s: "+format, append([]any{d.key}, args...)
	}
	d.fail(start(n), format, args...)
}

// mark remembers that the value behind the pointer v was written at n.
func (d *decoder) mark(v any, n ast.Node) { d.where[v] = start(n) }

// has reports whether the file gave the value behind v.
func (d *decoder) has(v any) bool { _, ok := d.where[v]; return ok }

// errorAt reports a fault where the value behind the pointer v was written.
func (d *decoder) errorAt(v any, format string, args ...any) {
	d.fail(d.where[v], format, args...)
}

func (d *decoder) warnAt(v any, format string, args ...any) {
	p := d.where[v]
	d.warns = append(d.warns, &Error{d.file, p.line, p.col, fmt.Sprintf(format, args...)})
}

func at(tk *token.Token) pos {
	if tk == nil || tk.Position == nil {
		return pos{1, 1}
	}
	return pos{max(tk.Position.Line, 1), max(tk.Position.Column, 1)}
}

// start is where n begins. (The token of a mapping in block style is its
// first colon.)
func start(n ast.Node) pos {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return start(n.Values[0])
		}
	case *ast.MappingValueNode:
		if n.Key != nil {
			return at(n.Key.GetToken())
		}
	case nil:
		return pos{1, 1}
	}
	return at(n.GetToken())
}

// resolve follows anchors, aliases and tags to the value itself; nil after a
// fault, which it reports.
func (d *decoder) resolve(n ast.Node) ast.Node {
	for range 16 {
		switch v := n.(type) {
		case *ast.AnchorNode:
			n = v.Value
		case *ast.AliasNode:
			name := v.Value.GetToken().Value
			if n = d.anchors[name]; n == nil {
				d.errorf(v, "alias *%s has no anchor &%s", name, name)
				return nil
			}
		case *ast.TagNode:
			d.errorf(v, "a tag (%s) has no use here; remove it", v.GetToken().Value)
			return nil
		case nil, *ast.NullNode:
			d.errorf(n, "no value; give one or remove the key")
			return nil
		default:
			return n
		}
	}
	d.errorf(n, "an alias that leads to itself")
	return nil
}
