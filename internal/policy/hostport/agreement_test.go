package hostport

import (
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/idna"
)

// Spellings that have led other gateways to an address that their check did not see. Either this package reads the
// address that everybody reads, or it refuses.
func TestSpellingsThatHaveFooledGateways(t *testing.T) {
	const refused = ""
	for in, want := range map[string]string{
		"http://[::1%25lo]/":            refused,
		"http://[::1%251]/":             refused,
		"http://[::1%lo]/":              refused,
		"http://[fe80::1%25eth0]/":      refused,
		"http://[::ffff:127.0.0.1%25l]": refused,
		"http://①②⑦.0.0.1/":             "127.0.0.1:80",
		"http://127。0。0。1/":             "127.0.0.1:80",
		"http://EXAMPLE.com./":          "example.com:80",
		"http://example.com../":         refused,
		"http://a@b@127.0.0.1/":         refused,
		"http://a:b@127.0.0.1/":         refused,
		"http://127.0.0.1#@example.com": "127.0.0.1:80",
		"http://127.0.0.1?@example.com": "127.0.0.1:80",
		`http://127.0.0.1\@example.com`: refused,
		"http://example.com:0/":         refused,
		"http://example.com:/":          refused,
		"http://example.com:80:81/":     refused,
		"http:example.com/x":            refused,
		"http:/example.com/x":           refused,
		"http:///x":                     refused,
		"http://:80/":                   refused,
		"http://%31%32%37.0.0.1/":       refused,
		"http://127.0.0.1%00.a.example": refused,
		"http://[[::1]]/":               refused,
		"http://[::]/":                  "[::]:80", // an address, which the guard then refuses
		"http://0/":                     refused,
		"http://0x7f.0.0.1/":            refused,
		"http://017700000001/":          refused,
		"http://2130706433/":            refused,
		"http://127.1/":                 refused,
		"http://[::ffff:7f00:1]/":       "127.0.0.1:80",
	} {
		u, err := url.Parse(in)
		var e Endpoint
		if err == nil {
			e, err = FromURL(u)
		}
		if e.String() != want || (err == nil) != (want != refused) {
			t.Errorf("%q is %q, %v; want %q", in, e, err, want)
		}
	}
}

// numberLike reads text as the C library's inet_aton does: one to four numbers, decimal, octal or hexadecimal.
func numberLike(s string) bool {
	parts := strings.Split(s, ".")
	for _, part := range parts {
		if _, err := strconv.ParseUint(part, 0, 64); err != nil || strings.ContainsAny(part, "_+-") ||
			strings.ContainsAny(part, "oObB") && !strings.HasPrefix(strings.ToLower(part), "0x") {
			return false
		}
	}
	return len(parts) <= 4
}

// agrees fails when another reader would take the canonical form for another host or port.
func agrees(t *testing.T, e Endpoint) {
	t.Helper()
	host, port, err := net.SplitHostPort(e.String())
	if err != nil || port != strconv.Itoa(int(e.Port())) {
		t.Fatalf("net.SplitHostPort(%q) = %q, %q, %v", e, host, port, err)
	}
	a, err := netip.ParseAddr(host)
	if e.Host().IsAddr() {
		ap, ok := e.AddrPort()
		if err != nil || a != e.Host().Addr() || !ok || ap != netip.AddrPortFrom(a, e.Port()) || !net.ParseIP(host).Equal(a.AsSlice()) {
			t.Fatalf("%q would be dialled as %q, %v", e, host, err)
		}
	} else if err == nil || host != e.Host().Name() || net.ParseIP(host) != nil || numberLike(host) {
		t.Fatalf("the name %q would be dialled as the address %q", e, host)
	}
	u, err := url.Parse("http://" + e.String() + "/x")
	if err != nil || u.Host != e.String() || u.Hostname() != host || u.Port() != port || u.User != nil || u.Path != "/x" {
		t.Fatalf("net/url reads %q as %+v, %v", e, u, err)
	}
}

func endpoint(t *testing.T, h Host, port uint16) Endpoint {
	t.Helper()
	e, err := NewEndpoint(h, port)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// A host that is accepted is the one that net/url, the IDNA library and a dialer read, and what is canonical stays so.
func FuzzHostIsReadAlikeByAll(f *testing.F) {
	for _, s := range []string{
		"example.com", "EXAMPLE.com.", "①②⑦.0.0.1", "127。0。0。1", "bücher.de", "XN--BCHER-KVA.de", "[::1]", "[::ffff:1.2.3.4]", "1.2.3.4", "0x7f.1", "a_b.c", "0_1.2", "0b1", "0X0_0", "1e3", "faß.de", "a@b@127.0.0.1", "①.a",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := ParseHost(s)
		if err != nil {
			return
		}
		again, err := ParseHost(h.String())
		if err != nil || again != h || again.String() != h.String() {
			t.Fatalf("%q → %q → %q, %v", s, h, again, err)
		}
		agrees(t, endpoint(t, h, 8080))
		if strings.HasPrefix(s, "[") {
			return
		}
		if plain, err := idna.Lookup.ToASCII(s); err == nil && strings.TrimSuffix(strings.ToLower(plain), ".") != h.String() {
			t.Fatalf("%q → %q, and %q for the IDNA library", s, h, plain)
		}
	})
}

// The target of CONNECT, as net.SplitHostPort reads it.
func FuzzAuthorityIsReadAlikeByAll(f *testing.F) {
	for _, s := range []string{"example.com:443", "[::1]:80", "example.com:0", "example.com:", "a:1:2", "u@h:1", "EXAMPLE.com.:1", "[::1%lo]:1", "①②⑦.0.0.1:65535"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := ParseAuthority(s)
		if err != nil {
			return
		}
		agrees(t, e)
		host, port, err := net.SplitHostPort(s)
		if err != nil {
			t.Fatalf("net.SplitHostPort refuses %q, which is %q here: %v", s, e, err)
		}
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		if h, err := ParseHost(host); err != nil || h != e.Host() || port != strconv.Itoa(int(e.Port())) {
			t.Fatalf("%q is %q here, and %q, %q for net.SplitHostPort", s, e, host, port)
		}
	})
}

// A URL that is accepted leads where net/http would dial by it.
func FuzzURLIsReadAlikeByAll(f *testing.F) {
	for _, s := range []string{
		"http://example.com/", "https://[::1]:8443/x", "http://a@b@127.0.0.1/", "http:example.com/x", "http:///x", "http://example.com:0/", "http://example.com:/", "http://[::1%25lo]/", "http://①②⑦.0.0.1/",
		"http://127.0.0.1#@example.com/", `http://a\@b/`, "wss://BÜCHER.de.", "http://%61.example/", "//a.example/", "HTTP://EXAMPLE.COM", "http://[::ffff:7f00:1]/",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := url.Parse(s)
		if err != nil {
			return
		}
		e, err := FromURL(u)
		if err != nil {
			if !e.IsZero() {
				t.Fatalf("%q: an endpoint and an error", s)
			}
			return
		}
		agrees(t, e)
		if u.User != nil || u.Opaque != "" {
			t.Fatalf("%q accepted as %q", s, e)
		}
		host, port := u.Hostname(), u.Port()
		if port == "" {
			own, ok := DefaultPort(u.Scheme)
			if !ok {
				t.Fatalf("%q accepted with the scheme %q", s, u.Scheme)
			}
			port = strconv.Itoa(int(own))
		}
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		} else if plain, err := idna.Lookup.ToASCII(host); err == nil {
			// net/http does this before it dials.
			host = plain
		}
		dialled, err := ParseAuthority(host + ":" + port)
		if err != nil || dialled != e {
			t.Fatalf("%q is %q here, and would be dialled as %q, %v", s, e, host+":"+port, err)
		}
	})
}
