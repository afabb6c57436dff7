package trawl

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// form is one way to encode values.
type form struct {
	name   string
	graphs func(value []byte) []graph
}

// forms are all of them. Where two write a value in the same way, the first is the one that a hit names. In those that
// escape characters any character may be escaped or not, because encoders differ in which they escape.
func forms() []form {
	return []form{
		{"raw", each(func(b []byte) []edge { return []edge{{1, string(b[:1])}} })},
		{"url", each(func(b []byte) []edge { return plainOr(b, hexByte("%", b[0], upper)) })},
		{"url-lower", each(func(b []byte) []edge { return plainOr(b, hexByte("%", b[0], lower)) })},
		{"url-plus", urlPlus},
		{"base64", base64Graphs},
		{"hex", each(func(b []byte) []edge { return texts(1, hexByte("", b[0], lower), hexByte("", b[0], upper)) })},
		{"json", each(jsonEscapes)},
		{"quoted", each(quotedEscapes)},
		{"utf-16le", each(utf16le)},
		{"html", each(htmlEscapes)},
		{"quoted-printable", each(quotedPrintable)},
		{"decimal", decimal},
	}
}

const (
	lower = "%02x"
	upper = "%02X"
)

func hexByte(prefix string, b byte, format string) string { return prefix + fmt.Sprintf(format, b) }

// each makes the graph from the ways to write what a rest of the value begins with. It asks once for each character.
func each(ways func(rest []byte) []edge) func([]byte) []graph {
	return func(value []byte) []graph {
		known := map[string][]edge{}
		g := make(graph, len(value))
		for i := range value {
			_, size := utf8.DecodeRune(value[i:])
			unit := string(value[i : i+size])
			if _, ok := known[unit]; !ok {
				known[unit] = ways([]byte(unit))
			}
			g[i] = known[unit]
		}
		return []graph{g}
	}
}

// texts are ways to write the next bytes.
func texts(takes int, texts ...string) []edge {
	out := make([]edge, 0, len(texts))
	seen := map[string]bool{}
	for _, t := range texts {
		if !seen[t] {
			seen[t] = true
			out = append(out, edge{takes, t})
		}
	}
	return out
}

// plainOr is the next byte as it is, or in other ways.
func plainOr(rest []byte, others ...string) []edge {
	return texts(1, append([]string{string(rest[:1])}, others...)...)
}

// character is the character beyond ASCII that the rest begins with.
func character(rest []byte) (r rune, size int, ok bool) {
	r, size = utf8.DecodeRune(rest)
	return r, size, size > 1
}

// urlPlus is the form of queries and of posted forms, which write a space as a plus sign.
func urlPlus(value []byte) []graph {
	if !bytes.Contains(value, []byte(" ")) {
		return nil
	}
	return each(func(rest []byte) []edge {
		if rest[0] == ' ' {
			return texts(1, "+")
		}
		return plainOr(rest, hexByte("%", rest[0], upper), hexByte("%", rest[0], lower))
	})(value)
}

// twice adds what becomes of escaped texts in a JSON string inside a JSON string.
func twice(escaped ...string) []string {
	double := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	for _, e := range escaped[:len(escaped):len(escaped)] {
		escaped = append(escaped, double.Replace(e))
	}
	return escaped
}

// jsonEscapes are those of RFC 8259, section 7. A byte beyond ASCII may also stand for the character of that number:
// JavaScript keeps binary data in strings so.
func jsonEscapes(rest []byte) []edge {
	b := rest[0]
	ways := twice(hexByte(`\u00`, b, lower), hexByte(`\u00`, b, upper))
	if at := strings.IndexByte("\b\f\n\r\t\"\\/", b); at >= 0 {
		ways = append(ways, twice(`\`+string(`bfnrt"\/`[at]))...)
	}
	edges := plainOr(rest, ways...)
	if r, size, ok := character(rest); ok {
		var low, up string
		for _, unit := range utf16.Encode([]rune{r}) {
			low += fmt.Sprintf(`\u%04x`, unit)
			up += fmt.Sprintf(`\u%04X`, unit)
		}
		edges = append(edges, texts(size, twice(low, up)...)...)
	}
	return edges
}

// quotedEscapes are those of source code, as fmt and slog write them, and the octal ones of the shell and of the kernel's
// tables.
func quotedEscapes(rest []byte) []edge {
	b := rest[0]
	ways := twice(hexByte(`\x`, b, lower), hexByte(`\x`, b, upper), fmt.Sprintf(`\%03o`, b))
	if at := strings.IndexByte("\a\b\f\n\r\t\v\"'\\", b); at >= 0 {
		ways = append(ways, twice(`\`+string("abfnrtv\"'\\"[at]))...)
	}
	edges := plainOr(rest, ways...)
	if r, size, ok := character(rest); ok {
		edges = append(edges, texts(size, twice(fmt.Sprintf(`\u%04x`, r), fmt.Sprintf(`\U%08x`, r))...)...)
	}
	return edges
}

// utf16le is what Windows, and Chromium in some of its files, keep texts in.
func utf16le(rest []byte) []edge {
	edges := texts(1, string([]byte{rest[0], 0}))
	if r, size, ok := character(rest); ok {
		var text []byte
		for _, unit := range utf16.Encode([]rune{r}) {
			text = append(text, byte(unit), byte(unit>>8))
		}
		edges = append(edges, edge{size, string(text)})
	}
	return edges
}

// htmlEscapes are the five characters that have a meaning in HTML by name, and all by number.
func htmlEscapes(rest []byte) []edge {
	edges := texts(1, string(rest[:1]))
	r, size := utf8.DecodeRune(rest)
	if r == utf8.RuneError && size == 1 {
		return edges
	}
	var ways []string
	for _, format := range []string{"&#%d;", "&#%03d;", "&#x%x;", "&#x%X;", "&#x%02x;", "&#x%02X;", "&#X%X;"} {
		ways = append(ways, fmt.Sprintf(format, r))
	}
	switch r {
	case '&':
		ways = append(ways, "&amp;")
	case '<':
		ways = append(ways, "&lt;")
	case '>':
		ways = append(ways, "&gt;")
	case '"':
		ways = append(ways, "&quot;")
	case '\'':
		ways = append(ways, "&apos;")
	}
	return append(edges, texts(size, ways...)...)
}

// quotedPrintable is RFC 2045, section 6.7, where a line may be broken before every byte and ends in CRLF.
func quotedPrintable(rest []byte) []edge {
	b := rest[0]
	ways := []string{string(rest[:1]), hexByte("=", b, upper), hexByte("=", b, lower)}
	if b == '\n' || b == '\r' {
		ways = append(ways, "\r\n")
	}
	for _, way := range ways[:len(ways):len(ways)] {
		ways = append(ways, "=\r\n"+way, "=\n"+way)
	}
	return texts(1, ways...)
}

// decimal is a list of numbers, as fmt prints bytes and JavaScript writes an array of them.
func decimal(value []byte) []graph {
	g := make(graph, len(value))
	for i, b := range value {
		number := fmt.Sprint(b)
		g[i] = texts(1, " "+number, ","+number, ", "+number)
		if i == 0 {
			g[i] = texts(1, number)
		}
	}
	return []graph{g}
}

// base64Graphs are the characters that only the value decides, for each number of bytes before it modulo three, in
// both alphabets. Lines may be broken anywhere, and the two characters that are no letters and digits may be escaped.
func base64Graphs(value []byte) []graph {
	var out []graph
	for before := range 3 {
		text := base64.RawStdEncoding.EncodeToString(append(make([]byte, before), value...))
		// 8 bits for each byte before the value, 6 for each character: the ones that others have a part in go.
		text = text[(before*8+5)/6 : (before+len(value))*8/6]
		out = append(out, base64Graph(text))
		if other := strings.NewReplacer("+", "-", "/", "_").Replace(text); other != text {
			out = append(out, base64Graph(other))
		}
	}
	return out
}

func base64Graph(text string) graph {
	g := make(graph, len(text))
	for i := range text {
		ways := []string{text[i : i+1]}
		switch text[i] {
		case '+':
			ways = append(ways, "%2B", "%2b", `\u002b`, `\u002B`, "&#43;")
		case '/':
			ways = append(ways, "%2F", "%2f", `\/`)
		}
		if i > 0 {
			for _, way := range ways[:len(ways):len(ways)] {
				ways = append(ways, "\n"+way, "\r\n"+way, `\n`+way, `\r\n`+way)
			}
		}
		g[i] = texts(1, ways...)
	}
	return g
}
