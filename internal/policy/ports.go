package policy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/policy/hostport"
)

// PortRange is an inclusive range of ports. As text it is "443", "8000-8080", or "*" for all.
type PortRange struct {
	First, Last uint16
}

// Ports returns the ranges that hold just these ports.
func Ports(ports ...uint16) []PortRange {
	ranges := make([]PortRange, len(ports))
	for i, p := range ports {
		ranges[i] = PortRange{p, p}
	}
	return ranges
}

// AnyPort returns the range of all ports. A rule without ports is an error, so
// that "all" is always written down.
func AnyPort() []PortRange { return []PortRange{{1, 65535}} }

// ParsePortRange reads the text of a range.
func ParsePortRange(s string) (PortRange, error) {
	if s == "*" {
		return AnyPort()[0], nil
	}
	from, to, isRange := strings.Cut(s, "-")
	first, err := hostport.ParsePort(from)
	if err != nil {
		return PortRange{}, fmt.Errorf("ports %q: %w", clip(s), err)
	}
	pr := PortRange{first, first}
	if isRange {
		if pr.Last, err = hostport.ParsePort(to); err != nil {
			return PortRange{}, fmt.Errorf("ports %q: %w", clip(s), err)
		}
	}
	if !pr.valid() {
		return PortRange{}, fmt.Errorf("ports %q: the first is above the last", clip(s))
	}
	return pr, nil
}

func (pr PortRange) valid() bool { return pr.First != 0 && pr.First <= pr.Last }

func (pr PortRange) contains(port uint16) bool { return pr.First <= port && port <= pr.Last }

// String returns the form that ParsePortRange reads back.
func (pr PortRange) String() string {
	first := strconv.Itoa(int(pr.First))
	switch {
	case pr == AnyPort()[0]:
		return "*"
	case pr.First == pr.Last:
		return first
	default:
		return first + "-" + strconv.Itoa(int(pr.Last))
	}
}

// MarshalText implements encoding.TextMarshaler. A value that is no range has no text.
func (pr PortRange) MarshalText() ([]byte, error) {
	if !pr.valid() {
		return nil, errors.New("ports " + pr.String() + ": not a range from 1 to 65535")
	}
	return []byte(pr.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler with the rules of ParsePortRange.
func (pr *PortRange) UnmarshalText(text []byte) error {
	parsed, err := ParsePortRange(string(text))
	if err != nil {
		return err
	}
	*pr = parsed
	return nil
}
