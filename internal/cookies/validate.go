package cookies

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/policy/hostport"
)

// Reason says why a cookie is not valid.
type Reason string

// The reasons. Chromium 156 answers each of them with an error for the whole batch, except where it is said what else
// it does.
const (
	BadName      Reason = "bad_name"
	BadValue     Reason = "bad_value"
	BadDomain    Reason = "bad_domain"
	PublicSuffix Reason = "public_suffix" // Chromium makes a cookie of the suffix
	BadPath      Reason = "bad_path"
	TooLong      Reason = "too_long"
	BadExpiry    Reason = "bad_expiry" // Chromium sets nothing and says nothing
	BadField     Reason = "bad_field"  // Chromium takes it for "not specified"
	// SameSite=None without Secure: Chromium sets nothing and says nothing.
	InsecureSameSite  Reason = "insecure_same_site"
	InsecurePartition Reason = "insecure_partition"
	BadPartition      Reason = "bad_partition"
	InsecureSource    Reason = "insecure_source"
	BadPrefix         Reason = "bad_prefix"
)

// Sizes that Chromium enforces.
const (
	maxNameAndValue = 4096
	maxAttribute    = 1024
)

// InvalidError is a cookie that Chromium would refuse, drop or change. Its text has no value.
type InvalidError struct {
	Cookie ID
	Reason Reason
	Text   string // what is wrong, after "the cookie …"
}

func (e *InvalidError) Error() string { return e.Cookie.String() + ": " + e.Text }

// rule is one thing that may be wrong. broken is asked in the order of the table.
type rule struct {
	reason Reason
	text   string
	broken func(c *Cookie) bool
}

func rules() []rule {
	return []rule{
		{BadName, "the name has a character that cookies cannot have, or spaces around it",
			func(c *Cookie) bool { return badText(c.Name, "=") }},
		{BadName, "there is neither a name nor a value", func(c *Cookie) bool { return c.Name == "" && c.Value.Len() == 0 }},
		{BadValue, "there is a = in the value, and no name before it", func(c *Cookie) bool { return c.Name == "" && hasEquals(c.Value) }},
		{BadValue, "the value has a character that cookies cannot have, or spaces around it", badValue},
		{TooLong, "name and value have more than 4096 bytes together",
			func(c *Cookie) bool { return len(c.Name)+c.Value.Len() > maxNameAndValue }},
		{BadDomain, "there is no domain", func(c *Cookie) bool { return c.Domain == "" }},
		{PublicSuffix, "the domain is a public suffix, under which anybody can register",
			func(c *Cookie) bool { _, err := domainOf(*c); return errors.Is(err, ErrPublicSuffix) }},
		{BadDomain, "the domain is an IP address", func(c *Cookie) bool { _, err := domainOf(*c); return errors.Is(err, ErrAddress) }},
		{BadDomain, "the domain is not a host name in lower case", func(c *Cookie) bool { _, err := domainOf(*c); return err != nil }},
		{BadPath, "the path does not start with /", func(c *Cookie) bool { return !strings.HasPrefix(c.Path, "/") }},
		{BadPath, "the path is not in the form that Chromium gives to paths", func(c *Cookie) bool { return !canonicalPath(c.Path) }},
		{TooLong, "domain or path have more than 1024 bytes",
			func(c *Cookie) bool { return len(c.Path) > maxAttribute || len(c.Domain) > maxAttribute }},
		{BadExpiry, "the expiry is neither a time nor -1",
			func(c *Cookie) bool { return c.Persistent() && !(c.Expires > 0 && !math.IsInf(c.Expires, 1)) }},
		{BadField, "sameSite is not Strict, Lax or None",
			func(c *Cookie) bool { return !oneOf(c.SameSite, SameSiteStrict, SameSiteLax, SameSiteNone) }},
		{BadField, "priority is not Low, Medium or High",
			func(c *Cookie) bool { return !oneOf(c.Priority, "Low", "Medium", "High") }},
		{BadField, "sourceScheme is not Unset, NonSecure or Secure",
			func(c *Cookie) bool { return !oneOf(c.SourceScheme, SchemeUnset, SchemeNonSecure, SchemeSecure) }},
		{BadField, "sourcePort is not a port", func(c *Cookie) bool { return c.SourcePort < -1 || c.SourcePort > 65535 }},
		{InsecureSameSite, "it has SameSite=None and is not Secure",
			func(c *Cookie) bool { return c.SameSite == SameSiteNone && !c.Secure }},
		{InsecureSource, "it is Secure and was set by a source that is not",
			func(c *Cookie) bool { return c.Secure && c.SourceScheme == SchemeNonSecure }},
		{BadPartition, "it belongs to an opaque partition, which cannot be made again",
			func(c *Cookie) bool { return c.PartitionKeyOpaque }},
		{BadPartition, "its partition is not a site such as https://example.com",
			func(c *Cookie) bool { return c.PartitionKey != nil && !site(c.PartitionKey.TopLevelSite) }},
		{InsecurePartition, "it is partitioned and not Secure", func(c *Cookie) bool { return c.PartitionKey != nil && !c.Secure }},
		{BadPrefix, "its name's prefix demands Secure", func(c *Cookie) bool { return prefix(c) != "" && !c.Secure }},
		{BadPrefix, "its name's prefix demands one host alone, and the path /", func(c *Cookie) bool {
			return strings.HasPrefix(prefix(c), "__host-") && (!c.HostOnly() || c.Path != "/")
		}},
		{BadPrefix, "its name's prefix demands HttpOnly", func(c *Cookie) bool {
			return strings.HasSuffix(prefix(c), "http-") && !c.HTTPOnly
		}},
	}
}

// Validate says why Chromium would refuse a cookie, drop it silently or change it; nil if it would take it as it is.
// An expired cookie is not invalid, see [Cookie.Expired]. The error is an *[InvalidError].
func Validate(c Cookie) error {
	for _, r := range rules() {
		if r.broken(&c) {
			return &InvalidError{Cookie: c.ID(), Reason: r.reason, Text: r.text}
		}
	}
	return nil
}

func oneOf(s string, known ...string) bool {
	return s == "" || slices.Contains(known, s)
}

// badText finds what ends a name, a path or an attribute in a Set-Cookie header, and what Chromium trims.
func badText[T ~string | ~[]byte](s T, more string) bool {
	for i := range len(s) {
		b := s[i]
		if b < ' ' || b == 0x7f || b == ';' || strings.IndexByte(more, b) >= 0 {
			return true
		}
	}
	return len(s) > 0 && (s[0] == ' ' || s[len(s)-1] == ' ')
}

func badValue(c *Cookie) bool {
	bad := false
	// The function returns no error.
	_ = c.Value.Use(func(value []byte) error { bad = badText(value, ""); return nil })
	return bad
}

func hasEquals(v secret.Value) bool {
	found := false
	// The function returns no error.
	_ = v.Use(func(value []byte) error { found = bytes.IndexByte(value, '=') >= 0; return nil })
	return found
}

// canonicalPath says whether Storage.setCookies leaves a path as it is. A Set-Cookie header may bring others into a
// jar; set again, they would be escaped or shortened, and be other cookies.
func canonicalPath(path string) bool {
	for i := range len(path) {
		if b := path[i]; b <= ' ' || b >= 0x7f || strings.IndexByte("\"#;<>?\\^`{|}", b) >= 0 {
			return false
		}
	}
	for segment := range strings.SplitSeq(path, "/") {
		switch strings.ReplaceAll(strings.ToLower(segment), "%2e", ".") {
		case ".", "..":
			return false
		}
	}
	return true
}

// prefix is the prefix of the name that browsers enforce, in lower case. They do not tell cases apart
// (RFC 6265bis §4.1.3; __Http- and __Host-Http- since Chromium 140).
func prefix(c *Cookie) string {
	for _, p := range []string{"__host-http-", "__http-", "__host-", "__secure-"} {
		if len(c.Name) >= len(p) && strings.EqualFold(c.Name[:len(p)], p) {
			return p
		}
	}
	return ""
}

// site says whether a text is a site as Chromium writes it: scheme and registrable domain, without a port; or a host
// that has no registrable domain.
func site(s string) bool {
	scheme, host, ok := strings.Cut(s, "://")
	if !ok || scheme != "https" && scheme != "http" {
		return false
	}
	parsed, err := hostport.ParseHost(host)
	if err != nil || parsed.String() != host {
		return false
	}
	domain, err := RegistrableDomain(host)
	return err != nil || domain == host
}
