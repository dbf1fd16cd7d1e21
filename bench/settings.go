package bench

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"taprouter/control/config"
)

// Settings are keys of the router's configuration and their values, as YAML:
//
//	workers              of the whole file
//	port.qdisc           of both ports
//	port.host.txqueuelen of the kernel's side of both ports
type Settings map[string]string

// ParseSettings reads KEY=VALUE, each.
func ParseSettings(list []string) (Settings, error) {
	s := Settings{}
	for _, kv := range list {
		key, value, ok := strings.Cut(kv, "=")
		if !ok || key == "" || strings.ContainsAny(kv, "\n#") {
			return nil, fmt.Errorf("%q: want KEY=VALUE, as in port.queues=2", kv)
		}
		s[key] = value
	}
	return s, nil
}

// With gives s with t's values where both have a key.
func (s Settings) With(t Settings) Settings {
	all := maps.Clone(s)
	maps.Copy(all, t)
	return all
}

// String writes s for the head of a table.
func (s Settings) String() string {
	if len(s) == 0 {
		return "defaults"
	}
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(s)) {
		parts = append(parts, key+"="+s[key])
	}
	return strings.Join(parts, " ")
}

// plan is the scene with these settings.
func (s Settings) plan(layer string) plan {
	p := plan{routed: layer == layerL3}
	for _, key := range slices.Sorted(maps.Keys(s)) {
		value := s[key]
		switch name, ok := strings.CutPrefix(key, "port.host."); {
		case ok:
			p.host += fmt.Sprintf(", %s: %s", name, value)
		case strings.HasPrefix(key, "port."):
			port := fmt.Sprintf(", %s: %s", strings.TrimPrefix(key, "port."), value)
			p.portA, p.portB = p.portA+port, p.portB+port
		default:
			p.router += fmt.Sprintf("%s: %s\n", key, value)
		}
	}
	return p
}

// Check says what the router would find wrong with the settings.
func (s Settings) Check() error {
	_, err := config.Parse("settings", []byte(s.plan(layerL2).config(names{name: "x", nsA: "xa", nsB: "xb", devA: "xa", devB: "xb"})))
	var first *config.Error
	if errors.As(err, &first) {
		return errors.New(first.Msg)
	}
	return err
}
