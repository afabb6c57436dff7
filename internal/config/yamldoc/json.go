package yamldoc

import (
	"bytes"
	"fmt"
)

// OfJSON makes YAML of JSON. Nearly all of it is: but JSON takes characters as they are that are none in YAML, or end a line
// there (https://yaml.org/spec/1.2.2/#51-character-set). In JSON they can only be in a text.
func OfJSON(text []byte) []byte {
	var out bytes.Buffer
	for _, r := range string(text) {
		if Unprintable(r) {
			fmt.Fprintf(&out, `\u%04x`, r)
		} else {
			out.WriteRune(r)
		}
	}
	return out.Bytes()
}

// Unprintable says whether a character of a text that JSON takes has to be escaped in YAML.
func Unprintable(r rune) bool {
	return r >= 0x7f && r <= 0x9f || r == '\u2028' || r == '\u2029' || r == '\ufeff' || r == '\ufffe' || r == '\uffff'
}
