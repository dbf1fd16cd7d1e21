package config

import (
	"math"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// quote quotes s for a message and cuts it if it is long.
func quote(s string) string {
	if len(s) > 40 {
		s = s[:40] + "…"
	}
	return strconv.Quote(s)
}

// scalar gives the text of a plain value as it was written, so that a name
// like 010 or on stays what it is. It marks dst.
func (d *decoder) scalar(dst any, n ast.Node, want string) (text string, plain, ok bool) {
	v := d.resolve(n)
	switch v := v.(type) {
	case nil:
		return "", false, false
	case *ast.StringNode:
		d.mark(dst, n)
		_, quoted := quotedAt(v)
		return v.Value, !quoted, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		d.mark(dst, n)
		return v.GetToken().Value, true, true
	}
	d.errorf(n, "want %s, got %s", want, describe(v))
	return "", false, false
}

func quotedAt(n *ast.StringNode) (byte, bool) {
	o := strings.TrimSpace(n.GetToken().Origin)
	if o != "" && (o[0] == '"' || o[0] == '\'') {
		return o[0], true
	}
	return 0, false
}

// parsed makes a setter from a parser of text. What parse gives as second
// result, if any, is what is wrong.
func parsed[T any](dst *T, want string, parse func(string) (T, string)) setter {
	return func(d *decoder, n ast.Node) {
		s, _, ok := d.scalar(dst, n, want)
		if !ok {
			return
		}
		v, wrong := parse(s)
		if wrong != "" {
			d.errorf(n, "%s", wrong)
			return
		}
		*dst = v
	}
}

var decimal = regexp.MustCompile(`^-?[0-9]+$`)

// integer decodes a decimal number from lo to hi.
func integer(dst *int, lo, hi int) setter {
	return func(d *decoder, n ast.Node) {
		want := "a number from " + strconv.Itoa(lo) + " to " + strconv.Itoa(hi)
		s, plain, ok := d.scalar(dst, n, want)
		if !ok {
			return
		}
		digits := strings.TrimLeft(s, "0")
		switch {
		case !decimal.MatchString(s):
			d.errorf(n, "want %s, got %s", want, quote(s))
		case !plain:
			d.errorf(n, "want %s, got the text %s; remove the quotes", want, quote(s))
		case s[0] == '0' && digits != "" && s != "0":
			d.errorf(n, "%s would be octal in YAML; write %s", s, digits)
		default:
			v, err := strconv.Atoi(s)
			if err != nil || v < lo || v > hi {
				d.errorf(n, "want %s, got %s", want, s)
				return
			}
			*dst = v
		}
	}
}

// boolean decodes true or false.
func boolean(dst *bool) setter {
	return parsed(dst, "true or false", func(s string) (bool, string) {
		switch s {
		case "true", "True", "TRUE":
			return true, ""
		case "false", "False", "FALSE":
			return false, ""
		}
		return false, "want true or false, got " + quote(s)
	})
}

// oneOf decodes one of the words.
func oneOf(dst *string, words ...string) setter {
	return parsed(dst, "one of "+strings.Join(words, ", "), func(s string) (string, string) {
		for _, w := range words {
			if s == w {
				return s, ""
			}
		}
		return "", "unknown " + quote(s) + "; known are: " + strings.Join(words, ", ")
	})
}

// ifname decodes the name of a network device (the kernel's dev_valid_name).
func ifname(dst *string) setter {
	return parsed(dst, "a device name", func(s string) (string, string) {
		switch {
		case s == "":
			return "", "a device name cannot be empty"
		case len(s) > 15:
			return "", quote(s) + " has " + strconv.Itoa(len(s)) + " bytes, a device name at most 15"
		case s == "." || s == ".." || strings.ContainsFunc(s, badNameRune):
			return "", quote(s) + " is no device name: letters, digits, - _ . are safe; no space, control character, / : %"
		}
		return s, ""
	})
}

func badNameRune(r rune) bool {
	return r <= ' ' || r == 0x7f || r == 0xa0 || r == 0xfffd || strings.ContainsRune("/:%", r)
}

// netnsName decodes the name of a network namespace: a file in /run/netns.
func netnsName(dst *string) setter {
	return parsed(dst, "the name of a network namespace", func(s string) (string, string) {
		if s == "" || s == "." || s == ".." || len(s) > 255 || strings.ContainsFunc(s, badNameRune) {
			return "", quote(s) + " is no name of a network namespace (see `ip netns`)"
		}
		return s, ""
	})
}

// duration decodes 300s, 1m30s.
func duration(dst *time.Duration, lo, hi time.Duration) setter {
	return parsed(dst, "a duration like 300s", func(s string) (time.Duration, string) {
		if decimal.MatchString(s) {
			return 0, "a duration needs a unit; write " + s + "s for seconds"
		}
		v, err := time.ParseDuration(s)
		if err != nil {
			return 0, "want a duration like 300s or 5m, got " + quote(s)
		}
		if v < lo || v > hi {
			return 0, "want a duration from " + lo.String() + " to " + hi.String() + ", got " + s
		}
		return v, ""
	})
}

var sizeUnits = []struct {
	name  string
	shift int
}{{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"B", 0}, {"", 0}}

// size decodes a number of bytes: 4096, 64KiB, 128MiB, 1GiB.
func size[T int | int64](dst *T, lo, hi int64) setter {
	return parsed(dst, "a size like 128MiB", func(s string) (T, string) {
		for _, u := range sizeUnits {
			num, ok := strings.CutSuffix(s, u.name)
			if !ok {
				continue
			}
			v, err := strconv.ParseInt(strings.TrimSpace(num), 10, 64)
			if err != nil || v < 0 || v > math.MaxInt64>>u.shift {
				break
			}
			if v <<= u.shift; v < lo || v > hi {
				return 0, "want a size from " + bytes(lo) + " to " + bytes(hi) + ", got " + s
			}
			return T(v), ""
		}
		return 0, "want a size in bytes, KiB, MiB or GiB like 128MiB, got " + quote(s)
	})
}

func bytes(n int64) string {
	for i := 2; i >= 0; i-- {
		if u := sizeUnits[i]; n >= 1<<u.shift && n%(1<<u.shift) == 0 {
			return strconv.FormatInt(n>>u.shift, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// mac decodes a unicast Ethernet address.
func mac(dst *MAC) setter {
	return parsed(dst, "an Ethernet address", func(s string) (MAC, string) {
		hw, err := net.ParseMAC(s)
		if err != nil || len(hw) != 6 {
			return MAC{}, "want an Ethernet address like 02:00:00:00:0a:fe, got " + quote(s)
		}
		m := MAC(hw)
		if m.IsZero() || m[0]&1 != 0 {
			return MAC{}, s + " is no address of one station: the first byte must be even, and not all can be 0"
		}
		return m, ""
	})
}

// addr decodes an IP address without a length.
func addr(dst *netip.Addr) setter {
	return parsed(dst, "an IP address", func(s string) (netip.Addr, string) {
		a, err := netip.ParseAddr(s)
		switch {
		case err != nil && strings.Contains(s, "/"):
			return a, "want an address without a prefix length, got " + quote(s)
		case err != nil:
			return a, "want an IP address like 10.0.0.1 or fd00::1, got " + quote(s)
		}
		return a, notAStation(a)
	})
}

// notAStation says why a cannot be the address of one station.
func notAStation(a netip.Addr) string {
	switch {
	case a.Zone() != "":
		return "an address has no zone here; leave out " + quote("%"+a.Zone())
	case a.Is4In6():
		return "write " + a.Unmap().String() + ", not the IPv6 form of it"
	case a.IsUnspecified(), a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return a.String() + " is not the address of one station"
	case a.IsLoopback():
		return a.String() + " is a loopback address"
	}
	return ""
}

// prefixText parses an address with its length and says what is wrong with it.
func prefixText(s string) (netip.Prefix, string) {
	p, err := netip.ParsePrefix(s)
	if err == nil {
		return p, ""
	}
	host, length, found := strings.Cut(s, "/")
	a, aerr := netip.ParseAddr(host)
	switch {
	case aerr != nil:
		return p, "want an address with its prefix length like 10.99.1.1/24 or fd00::1/64, got " + quote(s)
	case !found:
		return p, quote(s) + " has no prefix length; write " + s + map[bool]string{true: "/24", false: "/64"}[a.Is4()]
	case a.Zone() != "":
		return p, notAStation(a)
	}
	return p, "/" + length + " is no prefix length: want 0 to " + strconv.Itoa(a.BitLen())
}

// address decodes an interface's address with the length of its subnet.
func address(dst *netip.Prefix) setter {
	return parsed(dst, "an address like 10.99.1.1/24", func(s string) (netip.Prefix, string) {
		p, wrong := prefixText(s)
		if wrong == "" {
			wrong = notAStation(p.Addr())
		}
		if wrong != "" {
			return p, wrong
		}
		switch a := p.Addr(); {
		case p.Bits() == 0:
			return p, "an interface cannot have the whole Internet on its link (/0)"
		case a.Is4() && p.Bits() < 31 && a == p.Masked().Addr():
			return p, s + " is the subnet itself; want a station in it like " + a.Next().String() + "/" + strconv.Itoa(p.Bits())
		case a.Is4() && p.Bits() < 31 && !p.Contains(a.Next()):
			return p, s + " is the broadcast address of its subnet"
		}
		return p, ""
	})
}

// destination decodes a route's prefix; "default" gives an invalid prefix,
// to be completed from the gateway's family.
func destination(dst *netip.Prefix) setter {
	return parsed(dst, "a prefix like 10.1.0.0/16", func(s string) (netip.Prefix, string) {
		if s == "default" {
			return netip.Prefix{}, ""
		}
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" { // a station, as in ip-route(8)
			s += "/" + strconv.Itoa(a.BitLen())
		}
		p, wrong := prefixText(s)
		switch {
		case wrong != "":
		case p.Addr().Is4In6():
			wrong = "write the IPv4 prefix, not the IPv6 form of it"
		case p != p.Masked():
			wrong = s + " has bits set beyond its length; write " + p.Masked().String()
		case p.Addr().IsMulticast():
			wrong = s + " is multicast, which is not routed"
		}
		return p, wrong
	})
}
