package policy

import (
	"fmt"
	"strings"

	"github.com/clawjail/clawjail/internal/policy/hostport"
)

// Pattern says which hosts a rule covers. The zero Pattern covers none.
//
//	example.com     that name, or that address, and nothing else
//	*.example.com   every name below example.com at any depth, not example.com
//	*               every host (an allow rule with it covers no address, see Rule.miss)
type Pattern struct {
	kind patternKind
	host hostport.Host
}

type patternKind uint8

const (
	exact patternKind = iota + 1
	below
	anything
)

// ParsePattern reads a pattern. The name in it is made canonical, so that the
// case, a trailing dot or its Unicode form make no difference.
func ParsePattern(s string) (Pattern, error) {
	if s == "*" {
		return AnyHost(), nil
	}
	rest, wild := strings.CutPrefix(s, "*.")
	h, err := hostport.ParseHost(rest)
	switch {
	case err != nil:
		return Pattern{}, fmt.Errorf("host pattern %q: %w", s, err)
	case !wild:
		return ExactHost(h), nil
	case h.IsAddr():
		return Pattern{}, fmt.Errorf("host pattern %q: an address has no names below it", s)
	}
	return Pattern{kind: below, host: h}, nil
}

// MustParsePattern is ParsePattern for constants; it panics on an error.
func MustParsePattern(s string) Pattern {
	p, err := ParsePattern(s)
	if err != nil {
		panic(err)
	}
	return p
}

// AnyHost is the pattern "*".
func AnyHost() Pattern { return Pattern{kind: anything} }

// ExactHost is the pattern of one host; of no host, when h is zero.
func ExactHost(h hostport.Host) Pattern {
	if h.IsZero() {
		return Pattern{}
	}
	return Pattern{kind: exact, host: h}
}

// Matches reports whether the pattern covers the host.
func (p Pattern) Matches(h hostport.Host) bool {
	switch p.kind {
	case exact:
		return h == p.host
	case below:
		return h.IsUnder(p.host)
	case anything:
		return !h.IsZero()
	default:
		return false
	}
}

// String returns the form that ParsePattern reads back.
func (p Pattern) String() string {
	switch p.kind {
	case exact:
		return p.host.String()
	case below:
		return "*." + p.host.String()
	case anything:
		return "*"
	default:
		return ""
	}
}

// MarshalText implements encoding.TextMarshaler.
func (p Pattern) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler with the rules of ParsePattern.
func (p *Pattern) UnmarshalText(text []byte) error {
	parsed, err := ParsePattern(string(text))
	if err != nil {
		return err
	}
	*p = parsed
	return nil
}
