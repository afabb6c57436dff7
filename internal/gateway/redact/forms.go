package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf16"
)

// forms are the ways in which a value appears, each as it stands in JSON and in JSON within a text of JSON.
func forms(value []byte) [][]byte {
	texts := []string{string(value)}
	texts = append(texts, urlForms(value)...)
	texts = append(texts, base64Forms(value)...)
	low := hex.EncodeToString(value)
	texts = append(texts, low, strings.ToUpper(low))

	var out [][]byte
	seen := make(map[string]bool)
	add := func(text string) {
		if len(text) >= Shortest && !seen[text] {
			seen[text] = true
			out = append(out, []byte(text))
		}
	}
	for _, text := range texts {
		add(text)
		for _, escaped := range jsonForms(text) {
			add(escaped)
			for _, twice := range jsonForms(escaped) {
				add(twice)
			}
		}
	}
	return out
}

// urlForms are how addresses and posted forms write a value: encoders differ in what they leave as it is.
func urlForms(value []byte) []string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	var out []string
	for _, plain := range []string{
		"-_.~",                // RFC 3986
		"-_.~$&+:=@",          // a part of a path
		"-_.*",                // posted forms
		"-_.!~*'()",           // encodeURIComponent
		"-_.!~*'();/?:@&=+$,", // encodeURI
	} {
		for _, format := range []string{"%%%02X", "%%%02x"} {
			var b strings.Builder
			for _, c := range value {
				if strings.IndexByte(letters, c) >= 0 || strings.IndexByte(plain, c) >= 0 {
					b.WriteByte(c)
				} else {
					fmt.Fprintf(&b, format, c)
				}
			}
			out = append(out, b.String())
		}
	}
	return append(out, url.QueryEscape(string(value)))
}

// base64Forms are the characters that only the value decides, for each number of bytes before it modulo three, in both
// alphabets.
func base64Forms(value []byte) []string {
	var out []string
	for before := range 3 {
		text := base64.RawStdEncoding.EncodeToString(append(make([]byte, before), value...))
		// 8 bits for each byte before the value, 6 for each character: those that others have a part in go.
		text = text[(before*8+5)/6 : (before+len(value))*8/6]
		out = append(out, text, strings.NewReplacer("+", "-", "/", "_").Replace(text))
	}
	return out
}

// special are the characters that some encoder of JSON escapes.
const special = "\"\\/<>&'+="

// jsonForms are how JSON writes a text: encoders must escape quotes, backslashes and control characters, and some do
// more, in capital or in small digits.
func jsonForms(text string) []string {
	if !strings.ContainsFunc(text, func(r rune) bool {
		return r < ' ' || r >= 0x7f || strings.ContainsRune(special, r)
	}) {
		return nil // there is one way to write it
	}
	var out []string
	for _, more := range []string{"", "/", "<", "<>", "<>&", "<>&'", "<>&'+="} {
		for _, format := range []string{`\u%04x`, `\u%04X`} {
			for _, ascii := range []bool{false, true} {
				out = append(out, jsonForm(text, more, format, ascii))
			}
		}
	}
	return out
}

func jsonForm(text, more, format string, ascii bool) string {
	var b bytes.Buffer
	for i, r := range text {
		switch {
		case strings.ContainsRune("\"\\\b\f\n\r\t", r):
			b.WriteByte('\\')
			b.WriteByte("\"\\bfnrt"[strings.IndexRune("\"\\\b\f\n\r\t", r)])
		case r == '/' && more == "/":
			b.WriteString(`\/`)
		case r < ' ' || r == 0x7f && ascii || r < 0x80 && r != '/' && strings.ContainsRune(more, r):
			fmt.Fprintf(&b, format, r)
		case r >= 0x80 && ascii:
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, format, unit)
			}
		case r == '\uFFFD':
			b.WriteByte(text[i]) // a byte that is no UTF-8 stays what it is
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
