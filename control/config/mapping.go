package config

import (
	"slices"

	"github.com/goccy/go-yaml/ast"
)

// A field is a known key of a mapping and what decodes its value.
type field struct {
	key string
	set setter
}

// mapping decodes a mapping with these keys, each at most once; what names it
// in messages ("a port").
func mapping(what string, fields ...field) setter {
	return func(d *decoder, n ast.Node) {
		entries, ok := d.entries(n, what)
		if !ok {
			return
		}
		outer := d.key
		defer func() { d.key = outer }()
		for _, e := range entries {
			key := e.Key.GetToken().Value
			i := slices.IndexFunc(fields, func(f field) bool { return f.key == key })
			if i < 0 {
				d.fail(start(e), "unknown key %q in %s%s", key, what, hint(key, "known keys", keys(fields)))
				continue
			}
			d.key = key
			fields[i].set(d, e.Value)
		}
	}
}

func keys(fields []field) []string {
	list := make([]string, len(fields))
	for i, f := range fields {
		list[i] = f.key
	}
	return list
}

// entries gives the entries of a mapping, those of merged mappings (<<)
// included where the mapping does not have the key itself.
func (d *decoder) entries(n ast.Node, what string) ([]*ast.MappingValueNode, bool) {
	v := d.resolve(n)
	if v == nil {
		return nil, false
	}
	var all []*ast.MappingValueNode
	switch m := v.(type) {
	case *ast.MappingNode:
		all = m.Values
	case *ast.MappingValueNode:
		all = []*ast.MappingValueNode{m}
	default:
		d.errorf(n, "want %s as a mapping (key: value), got %s", what, describe(v))
		return nil, false
	}
	var own, merged []*ast.MappingValueNode
	for _, e := range all {
		if _, ok := e.Key.(*ast.MergeKeyNode); ok {
			merged = append(merged, d.merge(e.Value, what)...)
			continue
		}
		own = append(own, e)
	}
	for _, e := range merged {
		key := e.Key.GetToken().Value
		if !slices.ContainsFunc(own, func(o *ast.MappingValueNode) bool { return o.Key.GetToken().Value == key }) {
			own = append(own, e)
		}
	}
	return own, true
}

// merge gives the entries of a mapping, or of several in a list, that is
// merged into another.
func (d *decoder) merge(n ast.Node, what string) []*ast.MappingValueNode {
	if d.merges--; d.merges < 0 {
		if d.merges == -1 {
			d.errorf(n, "too many merged mappings")
		}
		return nil
	}
	v := d.resolve(n)
	if v == nil {
		return nil
	}
	s, ok := v.(*ast.SequenceNode)
	if !ok {
		e, _ := d.entries(v, what)
		return e
	}
	var all []*ast.MappingValueNode
	for _, n := range s.Values {
		all = append(all, d.merge(n, what)...)
	}
	return all
}

// list decodes a sequence, each element with the setter that elem makes for
// its place. The places do not move afterwards, so they can be marked.
func list[T any](dst *[]T, elem func(*T) setter) setter {
	return func(d *decoder, n ast.Node) {
		v := d.resolve(n)
		if v == nil {
			return
		}
		s, ok := v.(*ast.SequenceNode)
		if !ok {
			d.errorf(n, "want a list ([a, b] or lines that begin with -), got %s", describe(v))
			return
		}
		d.mark(dst, n)
		*dst = make([]T, len(s.Values))
		for i, e := range s.Values {
			d.mark(&(*dst)[i], e)
			before := len(d.errs)
			elem(&(*dst)[i])(d, e)
			if len(d.errs) > before {
				d.faulty[&(*dst)[i]] = true
			}
		}
	}
}

// describe names what n is, for messages.
func describe(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.LiteralNode:
		return "a block of text"
	}
	return quote(n.GetToken().Value)
}
