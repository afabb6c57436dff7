package hostport

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/base/texts"
)

// Endpoint is a canonical host with a port. It is comparable; the zero Endpoint
// is no endpoint.
type Endpoint struct {
	host Host
	port uint16
}

// NewEndpoint joins a host and a port; neither may be zero.
func NewEndpoint(h Host, port uint16) (Endpoint, error) {
	if h.IsZero() {
		return Endpoint{}, ErrEmpty
	}
	if port == 0 {
		return Endpoint{}, ErrPort
	}
	return Endpoint{host: h, port: port}, nil
}

// ParsePort reads a decimal port from 1 to 65535 without sign or leading zero.
func ParsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '0' {
		return 0, fmt.Errorf("port %q: %w", texts.Clip(s, 100), ErrPort)
	}
	return uint16(n), nil
}

// ParseAuthority reads the target of a CONNECT request: a host and a port, both
// required (RFC 9110 §9.3.6).
func ParseAuthority(s string) (Endpoint, error) {
	host, port, found, err := split(s)
	if err != nil {
		return Endpoint{}, err
	}
	if !found {
		return Endpoint{}, fmt.Errorf("address %q has no port: %w", texts.Clip(s, 100), ErrPort)
	}
	return join(host, port)
}

// ParseHostHeader reads the value of a Host header, whose port may be left out.
func ParseHostHeader(s string, defaultPort uint16) (Endpoint, error) {
	host, port, found, err := split(s)
	if err != nil {
		return Endpoint{}, err
	}
	if !found {
		port = strconv.Itoa(int(defaultPort))
	}
	return join(host, port)
}

// DefaultPort returns the port of an http, https, ws or wss URL without one.
func DefaultPort(scheme string) (uint16, bool) {
	switch scheme {
	case "http", "ws":
		return 80, true
	case "https", "wss":
		return 443, true
	default:
		return 0, false
	}
}

// FromURL reads the host and port of an absolute http, https, ws or wss URL.
func FromURL(u *url.URL) (Endpoint, error) {
	port, ok := DefaultPort(u.Scheme)
	if !ok || u.Opaque != "" {
		return Endpoint{}, ErrURL
	}
	if u.User != nil {
		return Endpoint{}, ErrUserinfo
	}
	if u.Host == "" {
		return Endpoint{}, fmt.Errorf("%w: %w", ErrURL, ErrEmpty)
	}
	return ParseHostHeader(u.Host, port)
}

// split cuts "host", "host:port", "[v6]" and "[v6]:port" without checking the parts.
func split(s string) (host, port string, found bool, err error) {
	if strings.ContainsRune(s, '@') {
		return "", "", false, fmt.Errorf("address %q: %w", texts.Clip(s, 100), ErrUserinfo)
	}
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return "", "", false, fmt.Errorf("address %q: %w", texts.Clip(s, 100), ErrName)
		}
		host, rest := s[:end+1], s[end+1:]
		if rest == "" {
			return host, "", false, nil
		}
		if rest[0] != ':' {
			return "", "", false, fmt.Errorf("address %q: %w", texts.Clip(s, 100), ErrName)
		}
		return host, rest[1:], true, nil
	}
	host, port, found = strings.Cut(s, ":")
	return host, port, found, nil
}

func join(host, port string) (Endpoint, error) {
	h, hostErr := ParseHost(host)
	p, portErr := ParsePort(port)
	if err := errors.Join(hostErr, portErr); err != nil {
		return Endpoint{}, err
	}
	return NewEndpoint(h, p)
}

// Host returns the host.
func (e Endpoint) Host() Host { return e.host }

// Port returns the port, from 1 to 65535; 0 only in the zero Endpoint.
func (e Endpoint) Port() uint16 { return e.port }

// IsZero reports whether e is no endpoint at all.
func (e Endpoint) IsZero() bool { return e == Endpoint{} }

// AddrPort returns the address to dial when the host is an IP address.
func (e Endpoint) AddrPort() (netip.AddrPort, bool) {
	if !e.host.IsAddr() {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(e.host.addr, e.port), true
}

// String returns host:port, as ParseAuthority reads it back.
func (e Endpoint) String() string {
	if e.IsZero() {
		return ""
	}
	return e.host.String() + ":" + strconv.Itoa(int(e.port))
}

// HostHeader returns the value of a Host header for a URL of that scheme: the
// port is left out where it is the scheme's own.
func (e Endpoint) HostHeader(scheme string) string {
	if port, ok := DefaultPort(scheme); ok && port == e.port {
		return e.host.String()
	}
	return e.String()
}
