package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// forms are the ways in which a value appears, each as it stands in JSON and in JSON within a text of JSON. They come
// in order, each once.
func forms(value []byte) [][]byte {
	browsers := browserForms([][]byte{slices.Clone(value)}, value)
	texts := urlForms(slices.Clone(browsers), value)
	texts = base64Forms(texts, value)
	low := hex.AppendEncode(nil, value)
	texts = unique(append(fileForms(texts, value), low, bytes.ToUpper(low)))

	once := texts
	for _, text := range texts {
		once = jsonForms(once, text)
	}
	once = unique(once)
	out := once
	for _, text := range once {
		if bytes.IndexByte(text, '\\') >= 0 {
			out = jsonForms(out, text)
		}
	}
	var pages [][]byte
	for _, text := range unique(browsers) {
		pages = htmlForms(pages, text)
	}
	out = append(out, pages...)
	for _, text := range pages {
		out = jsonForms(out, text)
	}
	out = unique(append(out, reversed(value)))
	return slices.DeleteFunc(out, func(form []byte) bool { return len(form) < Shortest })
}

func unique(texts [][]byte) [][]byte {
	slices.SortFunc(texts, bytes.Compare)
	return slices.CompactFunc(texts, bytes.Equal)
}

func reversed(value []byte) []byte {
	out := slices.Clone(value)
	slices.Reverse(out)
	return out
}

const (
	lowDigits  = "0123456789abcdef"
	highDigits = "0123456789ABCDEF"
)

// isPlain says whether every encoder of URLs leaves the byte as it is.
func isPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
}

// urlForms are how addresses and posted forms write a value: encoders differ in what they leave as it is.
func urlForms(out [][]byte, value []byte) [][]byte {
	if !slices.ContainsFunc(value, func(c byte) bool { return !isPlain(c) }) {
		return out // there is one way to write it
	}
	for _, set := range []struct{ kept, space string }{
		{"~", "%20"},                 // RFC 3986
		{"~$&+:=@", "%20"},           // a part of a path
		{"*", "%20"},                 // posted forms
		{"*", "+"},                   // the same, as browsers post them
		{"~", "+"},                   // queries
		{"!~*'()", "%20"},            // encodeURIComponent
		{"!~*'();/?:@&=+$,#", "%20"}, // encodeURI
	} {
		for _, digits := range []string{highDigits, lowDigits} {
			text := make([]byte, 0, 3*len(value))
			for _, c := range value {
				switch {
				case isPlain(c) || strings.IndexByte(set.kept, c) >= 0:
					text = append(text, c)
				case c == ' ':
					text = append(text, set.space...)
				default:
					text = append(text, '%', digits[c>>4], digits[c&15])
				}
			}
			out = append(out, text)
		}
	}
	return out
}

// base64Forms are the characters that only the value decides, for each number of bytes before it modulo three, in both
// alphabets.
func base64Forms(out [][]byte, value []byte) [][]byte {
	padded := append(make([]byte, 2, 2+len(value)), value...)
	for before := range 3 {
		text := base64.RawStdEncoding.AppendEncode(nil, padded[2-before:])
		// 8 bits for each byte before the value, 6 for each character: those that others have a part in go.
		text = text[(before*8+5)/6 : (before+len(value))*8/6]
		out = append(out, text)
		if bytes.ContainsAny(text, "+/") {
			other := slices.Clone(text)
			for i, c := range other {
				switch c {
				case '+':
					other[i] = '-'
				case '/':
					other[i] = '_'
				}
			}
			out = append(out, other)
		}
	}
	return out
}

// htmlForms are how pages write a value: encoders differ in the quotes, and some leave < and > in attributes.
func htmlForms(out [][]byte, value []byte) [][]byte {
	if !bytes.ContainsAny(value, `<>&'"`) {
		return out
	}
	for _, names := range [][5]string{
		{"&amp;", "&lt;", "&gt;", "'", `"`}, {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"},
		{"&amp;", "&lt;", "&gt;", "&#39;", "&quot;"}, {"&amp;", "&lt;", "&gt;", "&#x27;", "&quot;"},
		{"&amp;", "&lt;", "&gt;", "&#039;", "&quot;"}, {"&amp;", "&lt;", "&gt;", "&apos;", "&quot;"},
		{"&amp;", "&lt;", "&gt;", "'", "&quot;"}, {"&amp;", "<", ">", "'", "&quot;"}, {"&amp;", "&lt;", ">", "'", "&quot;"},
		{"&amp;", "&lt;", ">", "'", `"`},
		{"&#38;", "&#60;", "&#62;", "&#39;", "&#34;"}, {"&#x26;", "&#x3c;", "&#x3e;", "&#x27;", "&#x22;"},
	} {
		escape := strings.NewReplacer("&", names[0], "<", names[1], ">", names[2], "'", names[3], `"`, names[4])
		out = append(out, []byte(escape.Replace(string(value))))
	}
	return out
}

// escapes is what an encoder of JSON escapes that need not be: the bits are those of optional, and of more.
type escapes uint8

// optional are the characters that some encoders of JSON escape, in the order of their bits; nonASCII stands for all
// that is beyond ASCII, and for DEL.
const (
	optional            = "/<>&'+="
	nonASCII    escapes = 1 << 7
	shortEscape         = "\"\\\b\f\n\r\t"
)

// jsonForms are how JSON writes a text: encoders must escape quotes, backslashes and control characters, and some do
// more, in capital or in small digits. What is the same as the text is left out.
func jsonForms(out [][]byte, text []byte) [][]byte {
	var present escapes
	must := false
	for _, c := range text {
		switch {
		case c < ' ' || c == '"' || c == '\\':
			must = true
		case c >= 0x7f:
			present |= nonASCII
		default:
			if i := strings.IndexByte(optional, c); i >= 0 {
				present |= 1 << i
			}
		}
	}
	if present == 0 && !must {
		return out // there is one way to write it
	}
	var done [2 * 7]escapes
	n := 0
	for _, set := range []escapes{
		// Nothing; / as in PHP; then <, >, & as in Go, ', and += as in .NET, each with those before it.
		0, 0b1, 0b10, 0b110, 0b1110, 0b11110, 0b1111110,
		// The same with ASCII only, as Python does it.
		nonASCII, nonASCII | 0b1, nonASCII | 0b10, nonASCII | 0b110, nonASCII | 0b1110, nonASCII | 0b11110,
		nonASCII | 0b1111110,
	} {
		set &= present
		if slices.Contains(done[:n], set) {
			continue
		}
		done[n], n = set, n+1
		if set == 0 && !must {
			continue // the text as it is
		}
		form, letters := jsonForm(text, set, lowDigits)
		out = append(out, form)
		if letters {
			form, _ = jsonForm(text, set, highDigits)
			out = append(out, form)
		}
	}
	return out
}

// jsonForm writes a text; letters says whether digits beyond nine were needed.
func jsonForm(text []byte, set escapes, digits string) (out []byte, letters bool) {
	out = make([]byte, 0, len(text)+len(text)/4+16)
	unicode := func(unit uint16) {
		out = append(out, '\\', 'u')
		for shift := 12; shift >= 0; shift -= 4 {
			digit := unit >> shift & 15
			letters = letters || digit > 9
			out = append(out, digits[digit])
		}
	}
	for i := 0; i < len(text); {
		c := text[i]
		if c < utf8.RuneSelf {
			i++
			at := strings.IndexByte(optional, c)
			switch short := strings.IndexByte(shortEscape, c); {
			case short >= 0:
				out = append(out, '\\', "\"\\bfnrt"[short])
			case c == '/' && set&1 != 0:
				out = append(out, '\\', '/')
			case c < ' ' || c == 0x7f && set&nonASCII != 0 || at > 0 && set&(1<<at) != 0:
				unicode(uint16(c))
			default:
				out = append(out, c)
			}
			continue
		}
		r, size := utf8.DecodeRune(text[i:])
		if set&nonASCII != 0 {
			// A byte that is no UTF-8 becomes U+FFFD here; elsewhere it stays what it is.
			for _, unit := range utf16.AppendRune(nil, r) {
				unicode(unit)
			}
		} else {
			out = append(out, text[i:i+size]...)
		}
		i += size
	}
	return out, letters
}
