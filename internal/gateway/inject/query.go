package inject

import (
	"net/url"
	"strings"
)

// WithoutParameter removes a parameter from a query, in every spelling: other cases and escapes of the name, the forms
// name[] and name[x], and after a semicolon, which some servers read like an ampersand. The rest stays as it was written.
func WithoutParameter(query, name string) string {
	var kept []string
	for part := range strings.SplitSeq(query, "&") {
		if !strings.Contains(part, ";") {
			if !names(part, name) {
				kept = append(kept, part)
			}
			continue
		}
		var pieces []string
		for piece := range strings.SplitSeq(part, ";") {
			if !names(piece, name) {
				pieces = append(pieces, piece)
			}
		}
		if len(pieces) > 0 {
			kept = append(kept, strings.Join(pieces, ";"))
		}
	}
	return strings.Join(kept, "&")
}

// names says whether a part of a query is the parameter.
func names(part, name string) bool {
	key, _, _ := strings.Cut(part, "=")
	key = unescaped(key)
	key, _, _ = strings.Cut(key, "[")
	return strings.EqualFold(strings.Trim(key, " "), name)
}

// unescaped decodes what can be decoded and leaves the rest, as lenient servers do.
func unescaped(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '+':
			b.WriteByte(' ')
		case s[i] == '%' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]):
			b.WriteByte(fromHex(s[i+1])<<4 | fromHex(s[i+2]))
			i += 2
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func fromHex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c <= 'F':
		return c - 'A' + 10
	default:
		return c - 'a' + 10
	}
}

func withParameter(query, name string, value []byte) string {
	part := name + "=" + url.QueryEscape(string(value))
	if query == "" {
		return part
	}
	return query + "&" + part
}

// PlainQuery is a query in which every byte may stand in a request line: blanks, control characters and what is not
// ASCII are written as escapes.
func PlainQuery(query string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(query) {
		if c := query[i]; c <= ' ' || c >= 0x7f || c == '#' {
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
