package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// keywords reads `word value word value`, each word one of allowed.
func keywords(args []string, allowed ...string) (map[string]string, error) {
	w := map[string]string{}
	for i := 0; i < len(args); i += 2 {
		switch {
		case !slices.Contains(allowed, args[i]):
			return nil, fmt.Errorf("%q: want %s", args[i], strings.Join(allowed, ", "))
		case i+1 == len(args):
			return nil, fmt.Errorf("%s needs a value", args[i])
		}
		if _, twice := w[args[i]]; twice {
			return nil, fmt.Errorf("%s is given twice", args[i])
		}
		w[args[i]] = args[i+1]
	}
	if slices.Contains(allowed, "dev") && len(allowed) > 1 && w["dev"] == "" {
		return nil, errors.New("dev is missing")
	}
	return w, nil
}

// hasWord says whether word is one of the words of `word value word value`.
func hasWord(args []string, word string) bool {
	for i := 0; i < len(args); i += 2 {
		if args[i] == word {
			return true
		}
	}
	return false
}

func number(w map[string]string, key string) (int, error) {
	s, ok := w[key]
	if !ok {
		return 0, fmt.Errorf("%s is missing", key)
	}
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%s %q: want a number", key, s)
	}
	return int(n), nil
}

// period reads a time, 0 for off.
func period(w map[string]string, key string) (time.Duration, error) {
	if w[key] == "off" {
		return 0, nil
	}
	d, err := time.ParseDuration(w[key])
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%s %q: want a time such as 1ms, or off", key, w[key])
	}
	return d, nil
}

// parseList reads numbers and ranges, 0,2-3, or none.
func parseList(s string) ([]int, error) {
	list := []int{}
	if s == "none" {
		return list, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		a, err1 := strconv.ParseUint(from, 10, 16)
		b, err2 := strconv.ParseUint(to, 10, 16)
		if err1 != nil || err2 != nil || a > b {
			return nil, fmt.Errorf("workers %q: want a list such as 0,2-3, or none", s)
		}
		for n := a; n <= b; n++ {
			list = append(list, int(n))
		}
	}
	return list, nil
}
