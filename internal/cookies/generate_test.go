package cookies

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/base/secret"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// epoch is a moment that tests agree upon.
var epoch = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

// plain is a cookie that nothing is wrong with, and that a test changes.
func plain(change func(c *Cookie)) Cookie {
	c := Cookie{
		Name: "sid", Value: secret.New([]byte("value-of-sid")), Domain: ".example.test", Path: "/", Expires: Session,
		Session: true, Secure: true, HTTPOnly: true, SameSite: SameSiteLax, Priority: "Medium",
		SourceScheme: SchemeSecure, SourcePort: 443, Size: 15,
	}
	if change != nil {
		change(&c)
	}
	return c
}

// valid draws cookies as Chromium's jar has them: with and without partition, prefix, dot, expiry, SameSite and source.
func valid(now time.Time) *rapid.Generator[Cookie] {
	text := rapid.StringMatching(`[!-:<-~é€😀]([ -:<-~é€😀]{0,30}[!-:<-~é€😀])?`)
	return rapid.Custom(func(t *rapid.T) Cookie {
		name := strings.ReplaceAll(rapid.StringMatching(`[!-:<>-~]{1,12}`).Draw(t, "name"), "=", "-")
		if strings.HasPrefix(name, "__") {
			name = "a" + name
		}
		value := rapid.OneOf(rapid.Just(""), text).Draw(t, "value")
		host := rapid.SampledFrom([]string{"example.test", "www.example.test", "a.b.example.test", "user.github.io", "x.co.uk"}).Draw(t, "host")
		c := Cookie{
			Name: name, Value: secret.New([]byte(value)), Domain: host, Expires: Session, Session: true,
			Path:     rapid.SampledFrom([]string{"/", "/app", "/app/", "/a%20b", "//", "/~x!$&'()*+,=:@"}).Draw(t, "path"),
			HTTPOnly: rapid.Bool().Draw(t, "httpOnly"),
			Secure:   rapid.Bool().Draw(t, "secure"),
			SameSite: rapid.SampledFrom([]string{"", SameSiteLax, SameSiteStrict, SameSiteNone}).Draw(t, "sameSite"),
			Priority: rapid.SampledFrom([]string{"Low", "Medium", "High"}).Draw(t, "priority"),
		}
		if rapid.Bool().Draw(t, "for sub-domains") {
			c.Domain = "." + host
		}
		if rapid.Bool().Draw(t, "persistent") {
			micro := rapid.Int64Range(60_000_000, int64(399*24*time.Hour/time.Microsecond)).Draw(t, "expires")
			c.Expires, c.Session = float64(now.UnixMicro()+micro)/1e6, false
		}
		source := rapid.SampledFrom([]string{SchemeSecure, SchemeNonSecure, SchemeUnset}).Draw(t, "source")
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			c.Name, c.Secure, c.Path, c.Domain = "__Host-"+name, true, "/", host
		case 1:
			c.Name, c.Secure = "__Secure-"+name, true
		case 2:
			c.Name, c.Secure, c.HTTPOnly, c.Path, c.Domain = "__Host-Http-"+name, true, true, "/", host
		case 3:
			c.Secure = true
			c.PartitionKey = &PartitionKey{
				TopLevelSite:         rapid.SampledFrom([]string{"https://other.test", "https://example.test", "https://localhost"}).Draw(t, "site"),
				HasCrossSiteAncestor: rapid.Bool().Draw(t, "ancestor"),
			}
		}
		c.Secure = c.Secure || c.SameSite == SameSiteNone
		if c.Secure && source == SchemeNonSecure {
			source = SchemeSecure
		}
		c.SourceScheme = source
		c.SourcePort = map[string]int64{SchemeSecure: 443, SchemeNonSecure: 80, SchemeUnset: -1}[source]
		if rapid.Bool().Draw(t, "another port") {
			c.SourcePort = rapid.Int64Range(1, 65535).Draw(t, "port")
		}
		c.Size = int64(len(c.Name) + len(value))
		return c
	})
}

// jarOf draws the cookies of one jar: no two have the same ID.
func jarOf(now time.Time) *rapid.Generator[[]Cookie] {
	return rapid.Custom(func(t *rapid.T) []Cookie {
		list := rapid.SliceOfNDistinct(valid(now), 0, 30, Cookie.ID).Draw(t, "jar")
		// Chromium lets a cookie take another one's place although it belongs to other partitions or paths in
		// some cases of Secure ("leave secure cookies alone"); names apart keep every cookie in.
		for i := range list {
			list[i].Name += fmt.Sprint("-", i)
			list[i].Size = int64(len(list[i].Name) + list[i].Value.Len())
		}
		return list
	})
}
