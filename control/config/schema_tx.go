package config

import (
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"taprouter/control/tc"
	"taprouter/qdisc"
)

func root(q *Qdisc) setter {
	return discipline(&q.Root, "qdisc", oneOf(&q.Root.Kind, MQ, PfifoFast, FQ),
		field{"child", discipline(&q.Child, "child", childKind(&q.Child.Kind))})
}

// discipline decodes a qdisc's mapping, in which the kind must be given.
func discipline(s *qdisc.Spec, what string, kind setter, more ...field) setter {
	fields := append([]field{{"kind", kind}}, more...)
	for i := range tc.FQ {
		fields = append(fields, field{tc.FQ[i].Name, option(s, &tc.FQ[i])})
	}
	decode := mapping(what, fields...)
	return func(d *decoder, n ast.Node) {
		s.FQ = qdisc.DefaultFQ(DefaultMTU)
		before := len(d.errs)
		decode(d, n)
		if !d.has(&s.Kind) && len(d.errs) == before {
			d.fail(start(n), "%s needs a kind", what)
		}
	}
}

func childKind(dst *string) setter {
	decode := oneOf(dst, PfifoFast, FQ)
	return func(d *decoder, n ast.Node) {
		if v, ok := d.resolve(n).(*ast.StringNode); ok && v.Value == MQ {
			d.mark(dst, n)
			d.errorf(n, "mq can only be the root; known are: pfifo_fast, fq")
			return
		}
		decode(d, n)
	}
}

// A given option of fq is what its place in the file is remembered by.
type given struct {
	spec *qdisc.Spec
	name string
}

// option decodes an option of fq in tc's units: one value, or a list.
func option(s *qdisc.Spec, o *tc.Option) setter {
	return func(d *decoder, n ast.Node) {
		var values []string
		at, before := given{s, o.Name}, len(d.errs)
		if o.N > 1 {
			d.mark(at, n)
			list(&values, text)(d, n)
		} else if v, _, ok := d.scalar(at, n, "one value"); ok {
			values = append(values, v)
		}
		if len(d.errs) > before {
			return
		}
		if o.Flag {
			values[0] = strings.ToLower(values[0])
		}
		if err := o.Set(&s.FQ, values...); err != nil {
			d.errorf(n, "%s", err)
		}
	}
}

func text(dst *string) setter {
	return parsed(dst, "one value", func(s string) (string, string) { return s, "" })
}

// line decodes the wire that a port imitates.
func line(l *Line) setter {
	decode := mapping("line",
		field{"rate", lineRate(&l.Rate)},
		field{"ring", integer(&l.Ring, 1, MaxLineRing)},
		field{"delay", duration(&l.Delay, 0, MaxLineDelay)},
		field{"overhead", overhead(&l.Overhead)},
		field{"shared", boolean(&l.Shared)},
	)
	return func(d *decoder, n ast.Node) {
		l.Ring = DefaultLineRing
		before := len(d.errs)
		decode(d, n)
		if !d.has(&l.Rate) && len(d.errs) == before {
			d.fail(start(n), "line needs a rate")
		}
	}
}

func lineRate(dst *int64) setter {
	want := "want a rate from " + tc.Rate(MinLineRate) + " to " + tc.Rate(MaxLineRate) + " such as 100mbit, got "
	return parsed(dst, "a rate like 100mbit", func(s string) (int64, string) {
		v, err := tc.ParseRate(s)
		if err != nil || v < MinLineRate || v > MaxLineRate {
			return 0, want + quote(s)
		}
		return int64(v), ""
	})
}

// overhead decodes a number of bytes, or ethernet for what that adds.
func overhead(dst *int) setter {
	return parsed(dst, "ethernet or a number of bytes", func(s string) (int, string) {
		if s == "ethernet" {
			return EthernetOverhead, ""
		}
		v, err := strconv.Atoi(s)
		if err != nil || v < 0 || v > MaxLineOverhead {
			return 0, "want ethernet or 0 to " + strconv.Itoa(MaxLineOverhead) + " bytes, got " + quote(s)
		}
		return v, ""
	})
}
