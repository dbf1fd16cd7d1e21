package qdisc

import "fmt"

// A Spec says what discipline to make.
type Spec struct {
	Kind string // pfifo_fast or fq; mq is a port's affair
	FQ   FQConfig
}

// New makes the discipline for a queue of txqueuelen packets.
func (s Spec) New(txqueuelen int) (Discipline, error) {
	switch s.Kind {
	case "pfifo_fast":
		return NewPfifoFast(txqueuelen), nil
	case "fq":
		if err := s.FQ.Check(); err != nil {
			return nil, err
		}
		return NewFQ(s.FQ), nil
	}
	return nil, fmt.Errorf("unknown qdisc kind %q, known are: mq (root only), pfifo_fast, fq", s.Kind)
}
