package cookies

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/testenv/property"
)

func TestRegistrableDomain(t *testing.T) {
	tests := []struct {
		host, want string
		err        error
	}{
		{"example.com", "example.com", nil},
		{"www.example.com", "example.com", nil},
		{"WWW.Example.COM", "example.com", nil},
		{"www.example.com.", "example.com", nil},
		{"a.b.example.co.uk", "example.co.uk", nil},
		{"bücher.example", "xn--bcher-kva.example", nil},
		{"www.xn--bcher-kva.example", "xn--bcher-kva.example", nil},
		{"user.github.io", "user.github.io", nil},
		{"site.test", "site.test", nil},
		{"www.ck", "www.ck", nil}, // an exception of the list
		{"a.b.ck", "a.b.ck", nil},

		{"com", "", ErrPublicSuffix},
		{"co.uk", "", ErrPublicSuffix},
		{"github.io", "", ErrPublicSuffix},
		{"localhost", "", ErrPublicSuffix},
		{"b.ck", "", ErrPublicSuffix},

		{"10.0.0.1", "", ErrAddress},
		{"10.1", "", ErrAddress},
		{"0x7f.1", "", ErrAddress},
		{"2130706433", "", ErrAddress},
		{"１２７.0.0.1", "", ErrAddress},
		{"[::1]", "", ErrAddress},
		{"::1", "", ErrAddress},
		{"fe80::1%eth0", "", ErrAddress},
		{"example.com:443", "", ErrAddress},

		{"", "", ErrHost},
		{".example.com", "", ErrHost},
		{"example.com..", "", ErrHost},
		{"*.example.com", "", ErrHost},
		{"exam ple.com", "", ErrHost},
		{"user@example.com", "", ErrHost},
		{"https://example.com", "", ErrAddress},
		{"example.com/x", "", ErrHost},
	}
	for _, tt := range tests {
		got, err := RegistrableDomain(tt.host)
		if got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%q: got %q, %v; want %q, %v", tt.host, got, err, tt.want, tt.err)
		}
	}
}

func TestRegistrableDomainOfItselfIsItself(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		host := rapid.StringMatching(`([a-z0-9]{1,5}\.){1,4}(com|co\.uk|github\.io|test|kawasaki\.jp)`).Draw(t, "host")
		domain, err := RegistrableDomain(host)
		if err != nil {
			return
		}
		if again, err := RegistrableDomain(domain); err != nil || again != domain {
			t.Fatalf("%s: %s, then %s, %v", host, domain, again, err)
		}
		if sub, err := RegistrableDomain("x." + host); err != nil || sub != domain {
			t.Fatalf("a sub-domain of %s belongs to %s, %v", host, sub, err)
		}
	})
}

func TestMatchesIsAnchored(t *testing.T) {
	domains := []string{"example.com", "user.github.io"}
	for domain, want := range map[string]bool{
		"example.com": true, ".example.com": true, "www.example.com": true, ".a.b.example.com": true, "user.github.io": true,
		"notexample.com": false, ".notexample.com": false, "example.com.evil.test": false, "example.co": false, "com": false,
		".com": false, "": false, ".": false, "example.com.": false, "EXAMPLE.com": false, "..example.com": false,
		"github.io": false, "other.github.io": false, "10.0.0.1": false, "evil.test/example.com": false, "example.com:80": false,
	} {
		if got := Matches(plain(func(c *Cookie) { c.Domain = domain }), domains); got != want {
			t.Errorf("%q: got %v", domain, got)
		}
	}
	if Matches(plain(nil), nil) {
		t.Error("no domains match a cookie")
	}
	chosen, others := Select([]Cookie{plain(nil), plain(func(c *Cookie) { c.Domain = "other.test" })}, []string{"example.test"})
	if len(chosen) != 1 || others != 1 {
		t.Errorf("selected %v, and %d others", chosen, others)
	}
}
