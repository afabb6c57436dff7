package weblogin

import (
	"encoding/json"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
)

// Encode writes a login with its values in the clear; the caller wipes the bytes after use, with clear. Without storage
// it is the list of cookies, as earlier versions wrote it. Otherwise what [Peek] reads comes first.
func Encode(l Login) []byte {
	list := cookies.Encode(l.Cookies)
	if len(l.Origins) == 0 {
		return list
	}
	defer clear(list)
	// An OriginInfo has nothing that cannot be encoded.
	infos, _ := json.Marshal(Describe(l.Origins))
	b := make([]byte, 0, len(list)+len(infos)+room(l.Origins)+64)
	b = append(append(b, `{"cookies":`...), list...)
	b = append(append(b, `,"storage":`...), infos...)
	return append(appendOrigins(append(b, `,"origins":`...), l.Origins), '}')
}

// EncodeOrigins writes origins as a storage state of Playwright has them, with their values in the clear. The caller wipes
// the bytes after use, with clear.
func EncodeOrigins(list []Origin) []byte {
	return appendOrigins(make([]byte, 0, room(list)), list)
}

func appendOrigins(b []byte, list []Origin) []byte {
	b = append(b, '[')
	for n, o := range list {
		b = append(quote(append(comma(b, n), `{"origin":`...), o.Origin), `,"localStorage":[`...)
		for n, item := range o.Local {
			b = append(quote(append(comma(b, n), `{"name":`...), item.Name), `,"value":`...)
			b = append(quoteSecret(b, item.Value), '}')
		}
		b = append(b, ']')
		if len(o.Databases) > 0 {
			b = append(b, `,"indexedDB":[`...)
			for n, d := range o.Databases {
				// The function returns no error.
				_ = d.JSON.Use(func(raw []byte) error { b = append(comma(b, n), raw...); return nil })
			}
			b = append(b, ']')
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

func comma(b []byte, n int) []byte {
	if n > 0 {
		b = append(b, ',')
	}
	return b
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

// room is at least how many bytes a list takes, so that the buffer is not grown: growing leaves copies of values behind.
func room(list []Origin) int {
	n := 2
	for _, o := range list {
		n += 64 + quoted(o.Origin)
		for _, item := range o.Local {
			n += 32 + quoted(item.Name)
			// The function returns no error.
			_ = item.Value.Use(func(value []byte) error { n += quoted(value); return nil })
		}
		for _, d := range o.Databases {
			n += 16 + d.JSON.Len()
		}
	}
	return n
}

// quoted is at least how long a string is as JSON.
func quoted[T ~[]byte | ~string](s T) int {
	n := 2
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ' || c == '"' || c == '\\' || c == 0x7f:
			n += 6 // \u0000
		case c >= 0x80:
			n += 3 // one that is not UTF-8
		default:
			n++
		}
	}
	return n
}
