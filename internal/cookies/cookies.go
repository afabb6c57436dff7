// Package cookies knows what a browser's cookie is: its fields, whom it belongs to, whether Chromium will take it, and
// whether it did.
//
// A [Cookie] has the shape in which the DevTools Protocol returns it, and keeps fields that it does not know: what was
// read from one browser goes into another one unchanged, with its partition, priority and source. Values are of a type
// that prints as "[redacted]"; they leave the package only through [Encode], [Params] and the value's own method.
//
// The package is pure: no files, no network, no clock. Package cookiefile below it reads the files that browsers and
// tools keep cookies in.
package cookies

import (
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/base/texts"
)

// Bounds of one list of cookies. Chromium itself keeps at most 3300 cookies in a jar, of at most 4096 bytes each.
const (
	MaxCookies = 4000
	MaxBytes   = 32 << 20
)

// Session is the expiry of a cookie that lives as long as the browser.
const Session = -1

// Values of SameSite and of SourceScheme.
const (
	SameSiteStrict = "Strict"
	SameSiteLax    = "Lax"
	SameSiteNone   = "None"

	SchemeUnset     = "Unset"
	SchemeNonSecure = "NonSecure"
	SchemeSecure    = "Secure"
)

// Cookie is Network.Cookie of the DevTools Protocol. A field that a source does not know is left empty and is not
// written.
type Cookie struct {
	Name  string
	Value secret.Value
	// Domain starts with a dot when the cookie is for sub-domains as well; without one it is for this host only.
	Domain string
	Path   string
	// Expires is in seconds since 1970, with a fraction; [Session] for session cookies. It is infinite when the
	// browser could not write it as a number.
	Expires  float64
	Size     int64
	HTTPOnly bool
	Secure   bool
	Session  bool
	SameSite string // Strict, Lax, None; empty: not specified
	Priority string // Low, Medium, High
	// SourceScheme and SourcePort say where the cookie was set. The port is -1 when it is unspecified.
	SourceScheme string
	SourcePort   int64
	// PartitionKey is nil for a cookie without partition (CHIPS).
	PartitionKey       *PartitionKey
	PartitionKeyOpaque bool

	// extra are fields of a protocol newer than this package: name → JSON. They may hold anything, so nothing
	// prints them.
	extra map[string]jsontext.Value
}

// PartitionKey is the site whose pages a partitioned cookie belongs to.
type PartitionKey struct {
	TopLevelSite         string // "https://example.com"
	HasCrossSiteAncestor bool
}

// Host is the domain without the dot in front.
func (c Cookie) Host() string { return strings.TrimPrefix(c.Domain, ".") }

// HostOnly says that the cookie is not for sub-domains.
func (c Cookie) HostOnly() bool { return !strings.HasPrefix(c.Domain, ".") }

// Persistent says that the cookie has an expiry.
func (c Cookie) Persistent() bool { return c.Expires != Session }

// ExpiresAt is the expiry as a time; zero for a session cookie, and for an expiry that no time can hold.
func (c Cookie) ExpiresAt() time.Time {
	// Year 9999, beyond which times are not written any more.
	if !c.Persistent() || math.IsNaN(c.Expires) || math.Abs(c.Expires) > 253402300799 {
		return time.Time{}
	}
	whole, fraction := math.Modf(c.Expires)
	return time.Unix(int64(whole), int64(fraction*1e9)).UTC()
}

// Expired says that the cookie's time is over. Chromium does not set such a cookie, and does not say so.
func (c Cookie) Expired(now time.Time) bool {
	return c.Persistent() && c.Expires <= seconds(now)
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// ID is what a jar has one of.
func (c Cookie) ID() ID {
	id := ID{Name: c.Name, Domain: c.Domain, Path: c.Path}
	if c.PartitionKey != nil {
		id.TopLevelSite, id.HasCrossSiteAncestor = c.PartitionKey.TopLevelSite, c.PartitionKey.HasCrossSiteAncestor
	}
	return id
}

// ID names one cookie of a jar. It holds no value and is safe to show.
type ID struct {
	Name   string `json:"name"`
	Domain string `json:"domain"`
	Path   string `json:"path,omitempty"`
	// TopLevelSite and HasCrossSiteAncestor are of the partition; empty when it has none.
	TopLevelSite         string `json:"top_level_site,omitempty"`
	HasCrossSiteAncestor bool   `json:"has_cross_site_ancestor,omitempty"`
}

// String is for people: the name, and where the cookie belongs.
func (id ID) String() string {
	text := Printable(id.Name) + " of " + Printable(id.Domain) + Printable(id.Path)
	if id.TopLevelSite != "" {
		text += " in " + Printable(id.TopLevelSite)
	}
	return text
}

// Printable makes a name out of a file fit for a terminal: quoted if it has anything but plain characters, and cut.
func Printable(s string) string {
	cut := texts.Clip(s, 80)
	for _, r := range cut {
		if r < ' ' || r == '"' || r > '~' && r != '…' {
			return fmt.Sprintf("%+q", cut)
		}
	}
	return cut
}

// String is the cookie's [ID] with the value redacted.
func (c Cookie) String() string { return c.ID().String() + " = " + secret.Redacted }

// Format writes [Cookie.String], whatever the verb.
func (c Cookie) Format(w fmt.State, _ rune) {
	// The writers of fmt do not fail.
	_, _ = io.WriteString(w, c.String())
}

// GoString is [Cookie.String].
func (c Cookie) GoString() string { return c.String() }

// LogValue is [Cookie.String].
func (c Cookie) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Clone copies a cookie together with its value.
func (c Cookie) Clone() Cookie {
	c.Value = secret.Own(c.Value.Append(nil))
	if c.PartitionKey != nil {
		key := *c.PartitionKey
		c.PartitionKey = &key
	}
	extra := c.extra
	c.extra = nil
	for name, raw := range extra {
		c.setExtra(name, raw)
	}
	return c
}

func (c *Cookie) setExtra(name string, raw jsontext.Value) {
	if c.extra == nil {
		c.extra = map[string]jsontext.Value{}
	}
	c.extra[name] = raw.Clone()
}

// Equal says that two cookies are the same in every field, those that this package does not know included.
func (c Cookie) Equal(other Cookie) bool {
	samePartition := (c.PartitionKey == nil) == (other.PartitionKey == nil) &&
		(c.PartitionKey == nil || *c.PartitionKey == *other.PartitionKey)
	if !samePartition || len(c.extra) != len(other.extra) || !c.Value.Equal(other.Value) {
		return false
	}
	for name, raw := range c.extra {
		if theirs, ok := other.extra[name]; !ok || string(theirs) != string(raw) {
			return false
		}
	}
	return c.Name == other.Name && c.Domain == other.Domain && c.Path == other.Path && c.Expires == other.Expires &&
		c.Size == other.Size && c.HTTPOnly == other.HTTPOnly && c.Secure == other.Secure && c.Session == other.Session &&
		c.SameSite == other.SameSite && c.Priority == other.Priority && c.SourceScheme == other.SourceScheme &&
		c.SourcePort == other.SourcePort && c.PartitionKeyOpaque == other.PartitionKeyOpaque
}

// Wipe overwrites the values of cookies, and what they have in fields that this package does not know.
func Wipe(list []Cookie) {
	for _, c := range list {
		c.Value.Wipe()
		for _, raw := range c.extra {
			clear(raw)
		}
	}
}

// FirstExpiry is the earliest expiry of the persistent cookies; zero when there are none.
func FirstExpiry(list []Cookie) time.Time {
	var first time.Time
	for _, c := range list {
		if at := c.ExpiresAt(); !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

// Sort orders cookies by domain, name, path and partition: the order of listings.
func Sort(list []Cookie) {
	slices.SortStableFunc(list, func(a, b Cookie) int { return compareIDs(a.ID(), b.ID()) })
}

func compareIDs(a, b ID) int {
	for _, pair := range [][2]string{
		{strings.TrimPrefix(a.Domain, "."), strings.TrimPrefix(b.Domain, ".")}, {a.Name, b.Name}, {a.Path, b.Path},
		{a.TopLevelSite, b.TopLevelSite}, {a.Domain, b.Domain},
	} {
		if order := strings.Compare(pair[0], pair[1]); order != 0 {
			return order
		}
	}
	return 0
}
