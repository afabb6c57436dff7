package cookies

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/base/secret"
)

// verdict is one cookie and what is wrong with it.
type verdict struct {
	name   string
	change func(c *Cookie)
	reason Reason // empty: nothing
	// chromium is what Chromium does with it: "takes it", "refuses it", "drops it", "changes it"; empty for what
	// follows from reason: it takes what is valid, and refuses the rest.
	chromium string
}

func insecure(c *Cookie) {
	c.Secure, c.SourceScheme, c.SourcePort = false, SchemeNonSecure, 80
}

func verdicts() []verdict {
	long := func(n int) func(c *Cookie) {
		return func(c *Cookie) { c.Value = secret.New([]byte(strings.Repeat("v", n-len(c.Name)))) }
	}
	value := func(v string) func(c *Cookie) { return func(c *Cookie) { c.Value = secret.New([]byte(v)) } }
	name := func(s string) func(c *Cookie) { return func(c *Cookie) { c.Name = s } }
	nameless := func(v string) func(c *Cookie) {
		return func(c *Cookie) { c.Name, c.Value = "", secret.New([]byte(v)) }
	}
	domain := func(s string) func(c *Cookie) { return func(c *Cookie) { c.Domain = s } }
	path := func(s string) func(c *Cookie) { return func(c *Cookie) { c.Path = s } }
	expires := func(f float64) func(c *Cookie) { return func(c *Cookie) { c.Expires, c.Session = f, f == Session } }
	partition := func(site string) func(c *Cookie) {
		return func(c *Cookie) { c.PartitionKey = &PartitionKey{TopLevelSite: site, HasCrossSiteAncestor: true} }
	}
	host := func(s string) func(c *Cookie) {
		return func(c *Cookie) { c.Name, c.Domain = s, "example.test" }
	}
	also := func(changes ...func(c *Cookie)) func(c *Cookie) {
		return func(c *Cookie) {
			for _, change := range changes {
				change(c)
			}
		}
	}
	notHTTPOnly := func(c *Cookie) { c.HTTPOnly = false }
	none := func(c *Cookie) { c.SameSite = SameSiteNone }
	return []verdict{
		{"domain cookie", nil, "", ""},
		{"host-only cookie", domain("example.test"), "", ""},
		{"insecure cookie", insecure, "", ""},
		{"space inside", also(name("a b"), value("a b")), "", ""},
		{"not ASCII", also(name("ä"), value("ü😀")), "", ""},
		{"quotes and commas", value(`"a,b\c"`), "", ""},
		{"empty value", value(""), "", ""},
		{"no name", nameless("v"), "", ""},
		{"equals in the value", value("a=b"), "", ""},

		{"nothing at all", nameless(""), BadName, ""},
		{"equals without a name", nameless("a=b"), BadValue, ""},
		{"semicolon in the name", name("a;b"), BadName, ""},
		{"equals in the name", name("a=b"), BadName, ""},
		{"control character in the name", name("a\x01"), BadName, ""},
		{"tab in the name", name("a\tb"), BadName, ""},
		{"space before the name", name(" a"), BadName, ""},
		{"semicolon in the value", value("a;b"), BadValue, ""},
		{"line break in the value", value("a\r\nb"), BadValue, ""},
		{"tab in the value", value("a\tb"), BadValue, ""},
		{"DEL in the value", value("a\x7f"), BadValue, ""},
		{"space after the value", value("a "), BadValue, ""},

		{"4096 bytes", long(4096), "", ""},
		{"4097 bytes", long(4097), TooLong, ""},
		{"value of 4097 bytes", value(strings.Repeat("v", 4097)), TooLong, ""},

		{"no domain", domain(""), BadDomain, ""},
		{"public suffix", domain("com"), PublicSuffix, "takes it"},
		{"public suffix with a dot", domain(".com"), PublicSuffix, "drops it"},
		{"private suffix", domain("github.io"), PublicSuffix, "takes it"},
		{"IP address", domain("10.0.0.1"), BadDomain, "takes it"},
		{"IPv6 address", domain("[::1]"), BadDomain, "takes it"},
		{"upper case", domain("Example.test"), BadDomain, "drops it"},
		{"trailing dot", domain("example.test."), BadDomain, "takes it"},
		{"two dots", domain("..example.test"), BadDomain, ""},
		{"Unicode", domain(".exämple.test"), BadDomain, "drops it"},
		{"Punycode", domain(".xn--exmple-cua.test"), "", ""},

		{"no path", path(""), BadPath, "drops it"},
		{"path without a slash", path("x"), BadPath, ""},
		{"path with every character that stays", path("/!$%&'()*+,-./:=@[]_~//a%20%zz"), "", ""},
		{"path with a space", path("/a b"), BadPath, "drops it"},
		{"path with an umlaut", path("/ä"), BadPath, "drops it"},
		{"path with a query", path("/a?b"), BadPath, "drops it"},
		{"path with braces", path("/{a}"), BadPath, "drops it"},
		{"path with a semicolon", path("/a;b"), BadPath, ""},
		{"path with dots", path("/a/../b"), BadPath, "drops it"},
		{"path with escaped dots", path("/a/%2E./b"), BadPath, "drops it"},
		{"path of 1024 bytes", path("/" + strings.Repeat("a", 1023)), "", ""},
		{"path of 1025 bytes", path("/" + strings.Repeat("a", 1024)), TooLong, ""},

		{"session cookie", expires(Session), "", ""},
		{"expiry 0", expires(0), BadExpiry, "drops it"},
		{"expiry below 0", expires(-2), BadExpiry, "changes it"},
		{"infinite expiry", expires(math.Inf(1)), BadExpiry, ""},
		{"expiry that is no number", expires(math.NaN()), BadExpiry, ""},

		{"SameSite=None and Secure", none, "", ""},
		{"SameSite=None and not Secure", also(none, insecure), InsecureSameSite, "drops it"},
		{"SameSite unknown", func(c *Cookie) { c.SameSite = "no_restriction" }, BadField, "changes it"},
		{"SameSite missing", func(c *Cookie) { c.SameSite = "" }, "", ""},
		{"priority unknown", func(c *Cookie) { c.Priority = "Huge" }, BadField, "changes it"},
		{"source scheme unknown", func(c *Cookie) { c.SourceScheme = "Odd" }, BadField, ""},
		{"source port too large", func(c *Cookie) { c.SourcePort = 65536 }, BadField, ""},
		{"source unset", func(c *Cookie) { c.SourceScheme, c.SourcePort = SchemeUnset, -1 }, "", ""},
		{"source missing", func(c *Cookie) { c.SourceScheme, c.SourcePort, c.Priority = "", 0, "" }, "", ""},
		{"source not secure", func(c *Cookie) { c.SourceScheme = SchemeNonSecure }, InsecureSource, ""},

		{"__Secure-", name("__Secure-a"), "", ""},
		{"__Secure- and not Secure", also(name("__Secure-a"), insecure), BadPrefix, ""},
		{"__SECURE- and not Secure", also(name("__SECURE-a"), insecure), BadPrefix, ""},
		{"__Host-", host("__Host-a"), "", ""},
		{"__Host- with a dot", name("__Host-a"), BadPrefix, ""},
		{"__host- with a path", also(host("__host-a"), path("/x")), BadPrefix, ""},
		{"__Host- and not Secure", also(host("__Host-a"), insecure), BadPrefix, ""},
		{"__Http-", name("__Http-a"), "", ""},
		{"__Http- for scripts", also(name("__Http-a"), notHTTPOnly), BadPrefix, ""},
		{"__Host-Http-", host("__Host-Http-a"), "", ""},
		{"__Host-Http- for scripts", also(host("__Host-Http-a"), notHTTPOnly), BadPrefix, ""},
		{"__Host-Http- with a dot", name("__Host-Http-a"), BadPrefix, ""},

		{"partitioned", partition("https://other.test"), "", ""},
		{"partitioned below a host without domain", partition("https://localhost"), "", ""},
		{"partitioned below an address", partition("https://[::1]"), "", ""},
		{"partitioned and not Secure", also(partition("https://other.test"), insecure), InsecurePartition, ""},
		{"partitioned below a sub-domain", partition("https://www.other.test"), BadPartition, "drops it"},
		{"partitioned below a port", partition("https://other.test:8443"), BadPartition, "drops it"},
		{"partitioned below nothing", partition(""), BadPartition, "drops it"},
		{"partitioned below a slash", partition("https://other.test/"), BadPartition, "drops it"},
		{"partitioned below another scheme", partition("ftp://other.test"), BadPartition, "takes it"},
		{"opaque partition", func(c *Cookie) { c.PartitionKeyOpaque = true }, BadPartition, "takes it"},
	}
}

func TestValidate(t *testing.T) {
	decided := map[string]bool{}
	for _, tt := range verdicts() {
		c := plain(tt.change)
		err := Validate(c)
		var invalid *InvalidError
		if errors.As(err, &invalid) {
			decided[invalid.Text] = true
			if invalid.Reason != tt.reason {
				t.Errorf("%s: %s (%v), want %s", tt.name, invalid.Reason, err, tt.reason)
			}
			if invalid.Cookie != c.ID() {
				t.Errorf("%s: the error is about %v", tt.name, invalid.Cookie)
			}
		} else if err != nil || tt.reason != "" {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.reason)
		}
		if value := string(c.Value.Append(nil)); err != nil && len(value) > 4 && strings.Contains(err.Error(), value) {
			t.Errorf("%s: the error shows the value: %v", tt.name, err)
		}
	}
	// Every rule is the first to object to a cookie of the table: without it that cookie would pass, or be given
	// another reason.
	for _, r := range rules() {
		if !decided[r.text] {
			t.Errorf("nothing in the table breaks the rule %q first", r.text)
		}
	}
}

func TestDeviceBoundCookiesAreKnownByName(t *testing.T) {
	tests := []struct {
		name, domain string
		want         bool
	}{
		{"__Secure-1PSIDTS", ".google.com", true}, {"__Secure-3PSIDTS", ".google.co.uk", true}, {"SIDTS", ".youtube.com", true},
		{"SIDTS", ".example.test", false}, {"SIDTS", ".google.evil.test", false}, {"SIDTS", ".notgoogle.com", false},
		{"SID", ".google.com", false}, {"__Secure-1PSID", ".google.com", false}, {"SIDTS", "", false},
	}
	for _, tt := range tests {
		if got := DeviceBound(plain(func(c *Cookie) { c.Name, c.Domain = tt.name, tt.domain })); got != tt.want {
			t.Errorf("%s of %s: got %v", tt.name, tt.domain, got)
		}
	}
}

func BenchmarkValidate50(b *testing.B) {
	c := plain(nil)
	for b.Loop() {
		for range 50 {
			if err := Validate(c); err != nil {
				b.Fatal(err)
			}
		}
	}
}
