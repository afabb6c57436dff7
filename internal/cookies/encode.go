package cookies

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/base/secret"
)

// field writes one field of the protocol's object, unless the source did not have it.
type field struct {
	name  string
	write func(b []byte, c *Cookie) []byte // returns b itself to leave the field out
	// param says that Storage.setCookies takes the field too.
	param bool
}

// fields of Network.Cookie in the protocol's order.
func fields() []field {
	text := func(get func(*Cookie) string) func([]byte, *Cookie) []byte {
		return func(b []byte, c *Cookie) []byte { return quote(b, get(c)) }
	}
	optional := func(get func(*Cookie) string) func([]byte, *Cookie) []byte {
		return func(b []byte, c *Cookie) []byte {
			if get(c) == "" {
				return b
			}
			return quote(b, get(c))
		}
	}
	flag := func(get func(*Cookie) bool) func([]byte, *Cookie) []byte {
		return func(b []byte, c *Cookie) []byte { return strconv.AppendBool(b, get(c)) }
	}
	return []field{
		{"name", text(func(c *Cookie) string { return c.Name }), true},
		{"value", func(b []byte, c *Cookie) []byte { return quoteSecret(b, c.Value) }, true},
		{"domain", text(func(c *Cookie) string { return c.Domain }), true},
		{"path", text(func(c *Cookie) string { return c.Path }), true},
		{"expires", func(b []byte, c *Cookie) []byte { return number(b, c.Expires) }, true},
		{"size", func(b []byte, c *Cookie) []byte {
			if c.Size == 0 {
				return b
			}
			return strconv.AppendInt(b, c.Size, 10)
		}, false},
		{"httpOnly", flag(func(c *Cookie) bool { return c.HTTPOnly }), true},
		{"secure", flag(func(c *Cookie) bool { return c.Secure }), true},
		{"session", flag(func(c *Cookie) bool { return c.Session }), false},
		{"sameSite", optional(func(c *Cookie) string { return c.SameSite }), true},
		{"priority", optional(func(c *Cookie) string { return c.Priority }), true},
		{"sourceScheme", optional(func(c *Cookie) string { return c.SourceScheme }), true},
		{"sourcePort", func(b []byte, c *Cookie) []byte {
			if c.SourcePort == 0 {
				return b
			}
			return strconv.AppendInt(b, c.SourcePort, 10)
		}, true},
		{"partitionKey", func(b []byte, c *Cookie) []byte {
			if c.PartitionKey == nil {
				return b
			}
			b = append(b, `{"topLevelSite":`...)
			b = quote(b, c.PartitionKey.TopLevelSite)
			b = append(b, `,"hasCrossSiteAncestor":`...)
			return append(strconv.AppendBool(b, c.PartitionKey.HasCrossSiteAncestor), '}')
		}, true},
		{"partitionKeyOpaque", func(b []byte, c *Cookie) []byte {
			if !c.PartitionKeyOpaque {
				return b
			}
			return append(b, "true"...)
		}, false},
	}
}

// quote appends a string as JSON; bytes that are not UTF-8 become U+FFFD, as in every JSON.
func quote[T ~[]byte | ~string](b []byte, s T) []byte {
	// The only error says that something was replaced.
	out, _ := jsontext.AppendQuote(b, s)
	return out
}

func quoteSecret(b []byte, v secret.Value) []byte {
	// The function returns no error.
	_ = v.Use(func(value []byte) error { b = quote(b, value); return nil })
	return b
}

// number appends a float in its shortest form; null stands for what JSON has no number for, as in the protocol.
func number(b []byte, f float64) []byte {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return append(b, "null"...)
	}
	return strconv.AppendFloat(b, f, 'f', -1, 64)
}

// appendCookie appends one cookie as a JSON object.
func appendCookie(b []byte, c *Cookie, list []field, params bool) []byte {
	b = append(b, '{')
	start := len(b)
	for _, f := range list {
		if params && !f.param {
			continue
		}
		before := len(b)
		if before > start {
			b = append(b, ',')
		}
		b = append(quote(b, f.name), ':')
		out := f.write(b, c)
		if len(out) == len(b) {
			out = b[:before]
		}
		b = out
	}
	if !params {
		for _, name := range slices.Sorted(maps.Keys(c.extra)) {
			b = append(quote(append(b, ','), name), ':')
			b = append(b, c.extra[name]...)
		}
	}
	return append(b, '}')
}

// room is about how many bytes a list takes, so that the buffer is not grown: growing leaves copies of values behind.
func room(list []Cookie) int {
	n := 2
	for i := range list {
		c := &list[i]
		// A byte may take six: \u0000.
		n += 512 + 6*(len(c.Name)+c.Value.Len()+len(c.Domain)+len(c.Path)+len(c.SameSite)+len(c.Priority)+len(c.SourceScheme))
		if c.PartitionKey != nil {
			n += 6 * len(c.PartitionKey.TopLevelSite)
		}
		for name, raw := range c.extra {
			n += 6*len(name) + len(raw) + 4
		}
	}
	return n
}

// Encode writes cookies as the protocol's JSON array, with their values in the clear. The caller wipes the bytes after
// use, with clear.
func Encode(list []Cookie) []byte { return encode(list, false) }

func encode(list []Cookie, params bool) []byte {
	b, all := make([]byte, 0, room(list)), fields()
	b = append(b, '[')
	for i := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendCookie(b, &list[i], all, params)
	}
	return append(b, ']')
}

// MarshalJSON writes the cookie with its value redacted and without the fields that this package does not know.
// [Encode] is for those who need the value.
func (c Cookie) MarshalJSON() ([]byte, error) {
	c.Value, c.extra = secret.New([]byte(secret.Redacted)), nil
	return appendCookie(nil, &c, fields(), false), nil
}

// Params writes cookies as the list of CookieParam that Storage.setCookies takes, with their values in the clear. The
// caller wipes the bytes after use, with clear.
//
// There is no url: with one, Chromium would make the cookie secure and give it another source. The dot of the domain
// stays as it is, an expiry of -1 makes a session cookie, and a partition is an object.
func Params(list []Cookie) json.RawMessage { return encode(list, true) }

var errForm = errors.New("it is not in the form of the DevTools Protocol")

// formError says which field is wrong, and never what is in it.
func formError(name, want string) error {
	return fmt.Errorf("field %s is not %s: %w", Printable(name), want, errForm)
}
