// Package hostport turns the host names and ports that clients write into one
// canonical form, once, so that everything behind it (policy, resolver, dialer,
// log) compares and prints the same value.
//
// A [Host] is either a DNS name (lower-case ASCII, IDNA applied, no trailing
// dot) or an IP address (no zone, IPv4-mapped IPv6 unwrapped). Its fields are
// unexported and every constructor goes through the same rules, so a Host that
// is not canonical cannot exist, and == means "the same host".
//
// The parsers refuse what different programs read differently: IPv4 written in
// octal, hexadecimal, short or single-number form, zones, userinfo, ports with
// signs or leading zeros. They never guess. The package does no I/O.
package hostport

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/net/idna"

	"github.com/clawjail/clawjail/internal/base/texts"
)

// Reasons for which a host or port is refused. Test with errors.Is.
var (
	ErrEmpty      = errors.New("host is empty")
	ErrName       = errors.New("not a valid host name")
	ErrOddAddress = errors.New("IP address in an ambiguous form")
	ErrZone       = errors.New("IPv6 zones are not allowed")
	ErrUserinfo   = errors.New("user name or password in the address")
	ErrPort       = errors.New("port must be a plain number from 1 to 65535")
	ErrURL        = errors.New("not an absolute URL with a host")
)

// Limits of a DNS name in its textual form (RFC 1035 §2.3.4), and the longest
// text that is looked at before mapping: Unicode may shrink when mapped, but
// nothing honest is ten times longer than the result.
const (
	maxName  = 253
	maxLabel = 63
	maxInput = 10 * maxName
)

// Host is a canonical host. The zero Host is no host; IsZero tells.
type Host struct {
	// Exactly one of the two is set, except in the zero Host.
	name string
	addr netip.Addr
}

// FromAddr returns the Host of an IP address. Addresses with a zone are refused
// because the zone is lost or ignored by parts further down.
func FromAddr(a netip.Addr) (Host, error) {
	if !a.IsValid() {
		return Host{}, ErrEmpty
	}
	if a.Zone() != "" {
		return Host{}, fmt.Errorf("host %q: %w", a, ErrZone)
	}
	return Host{addr: a.Unmap()}, nil
}

// ParseHost reads a DNS name, an IPv4 address, or an IPv6 address in brackets.
func ParseHost(s string) (Host, error) {
	h, err := parseHost(s)
	if err != nil {
		return Host{}, fmt.Errorf("host %q: %w", texts.Clip(s, 100), err)
	}
	return h, nil
}

// MustParseHost is ParseHost for constants; it panics on what ParseHost refuses.
func MustParseHost(s string) Host {
	h, err := ParseHost(s)
	if err != nil {
		panic(err)
	}
	return h
}

func parseHost(s string) (Host, error) {
	switch {
	case s == "":
		return Host{}, ErrEmpty
	case len(s) > maxInput:
		return Host{}, ErrName
	case s[0] == '[':
		return parseBracketed(s)
	case strings.ContainsRune(s, '@'):
		return Host{}, ErrUserinfo
	}
	name, err := canonicalName(s)
	if err != nil {
		return Host{}, err
	}
	if !endsInNumber(name) {
		return Host{name: name}, nil
	}
	// A name whose last label is a number is an address to most programs and a
	// name to some. Only the one form that all read alike is accepted.
	a, err := netip.ParseAddr(name)
	if err != nil || !a.Is4() {
		return Host{}, ErrOddAddress
	}
	return Host{addr: a}, nil
}

func parseBracketed(s string) (Host, error) {
	if len(s) < 2 || s[len(s)-1] != ']' {
		return Host{}, ErrName
	}
	inner := s[1 : len(s)-1]
	if strings.ContainsRune(inner, '%') {
		return Host{}, ErrZone
	}
	a, err := netip.ParseAddr(inner)
	if err != nil || !a.Is6() {
		return Host{}, ErrName
	}
	return Host{addr: a.Unmap()}, nil
}

// canonicalName maps a name to lower-case ASCII without its trailing dot.
// Mapping comes first: it turns full-width digits and ideographic dots into
// plain ones, so every later check sees what a resolver would see.
func canonicalName(s string) (string, error) {
	if !isASCII(s) || hasPunycode(s) {
		mapped, err := lookupProfile().ToASCII(s)
		if err != nil {
			return "", ErrName
		}
		// Some mappings give a name that the same rules refuse, or map further.
		// Such a name has no canonical form.
		if again, err := lookupProfile().ToASCII(mapped); err != nil || again != mapped {
			return "", ErrName
		}
		s = mapped
	}
	s = strings.TrimSuffix(strings.ToLower(s), ".")
	if s == "" || len(s) > maxName || !isASCII(s) {
		return "", ErrName
	}
	for label := range strings.SplitSeq(s, ".") {
		if !validLabel(label) {
			return "", ErrName
		}
	}
	return s, nil
}

// lookupProfile follows what browsers do (UTS #46, non-transitional). Hyphens in
// the third and fourth place are allowed, since content networks use them
// ("r3---sn-x.example"); characters are checked by validLabel after mapping.
func lookupProfile() *idna.Profile {
	return idna.New(
		idna.MapForLookup(),
		idna.BidiRule(),
		idna.Transitional(false),
		idna.CheckJoiners(true),
		idna.CheckHyphens(false),
		idna.StrictDomainName(false),
	)
}

// validLabel accepts letters, digits, inner hyphens, and the underscore, which
// is not a host name character by RFC 1123 but is in use in public names.
func validLabel(label string) bool {
	if label == "" || len(label) > maxLabel || label[0] == '-' || label[len(label)-1] == '-' {
		return false
	}
	for i := range len(label) {
		c := label[i]
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return true
}

// endsInNumber reports whether the last label is what an IPv4 parser would take
// for a number: decimal digits, or 0x followed by hexadecimal digits or nothing.
func endsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}

// IsLoopback says whether a host, as a URL has it without brackets, is this machine by its loopback address or as localhost. Names that
// resolve to such an address are none.
func IsLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return strings.ToLower(host) == "localhost" || err == nil && addr.IsLoopback()
}

// IsZero reports whether h is no host at all.
func (h Host) IsZero() bool { return h == Host{} }

// IsAddr reports whether h is an IP address rather than a name.
func (h Host) IsAddr() bool { return h.addr.IsValid() }

// Addr returns the IP address; it is not valid when h is a name.
func (h Host) Addr() netip.Addr { return h.addr }

// Name returns the DNS name, or "" when h is an address.
func (h Host) Name() string { return h.name }

// IsUnder reports whether h is a name below parent, at any depth: a.b.example is
// under example and b.example; a name is not under itself, an address never is.
func (h Host) IsUnder(parent Host) bool {
	return h.name != "" && parent.name != "" && strings.HasSuffix(h.name, "."+parent.name)
}

// String returns the form that ParseHost reads back: IPv6 stands in brackets.
func (h Host) String() string {
	switch {
	case h.name != "":
		return h.name
	case h.addr.Is6():
		return "[" + h.addr.String() + "]"
	case h.addr.Is4():
		return h.addr.String()
	default:
		return ""
	}
}

// MarshalText implements encoding.TextMarshaler.
func (h Host) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler with the rules of ParseHost.
func (h *Host) UnmarshalText(text []byte) error {
	parsed, err := ParseHost(string(text))
	if err != nil {
		return err
	}
	*h = parsed
	return nil
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

func hasPunycode(s string) bool {
	return strings.Contains(strings.ToLower(s), "xn--")
}
