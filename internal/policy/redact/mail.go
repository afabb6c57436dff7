package redact

import (
	"bytes"
	"encoding/hex"
)

// Mail replaces values in a page that a browser has saved as one file (MHTML, RFC 2557), whose texts are quoted-printable
// and whose other parts are base64 over several lines.
//
// Nothing is taken for granted about how the file is divided: it is looked through as it is, as if all of it were
// quoted-printable, and without its line breaks.
func (v *Values) Mail(text string) string {
	if v == nil || len(text) < Shortest {
		return text
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.finder == nil {
		return text
	}
	raw := []byte(text)
	spans := v.finder.all(raw)
	for _, decode := range []func(raw []byte) view{quotedPrintable, joined} {
		seen := decode(raw)
		for _, hit := range v.finder.all(seen.text) {
			spans = append(spans, seen.place(hit))
		}
	}
	if len(spans) == 0 {
		return text
	}
	return string(marked(raw, merged(spans)))
}

// view is a text that was decoded, with where each byte of it starts, and how many stand there for it.
type view struct {
	text   []byte
	from   []uint32 // a message of the browser's is shorter than 4 GB
	widths []uint8
}

func newView(size int) view {
	return view{make([]byte, 0, size), make([]uint32, 0, size), make([]uint8, 0, size)}
}

func (v *view) add(c byte, from, width int) {
	v.text, v.from, v.widths = append(v.text, c), append(v.from, uint32(from)), append(v.widths, uint8(width))
}

// place is where a part of the text stands in what was decoded.
func (v *view) place(s span) span {
	last := s.end - 1
	return span{int(v.from[s.start]), int(v.from[last]) + int(v.widths[last])}
}

// wordBreak is what stands between two words of a title that has other letters than those of ASCII (RFC 2047).
var wordBreak = []byte("?=\r\n =?utf-8?q?")

// quotedPrintable decodes all of a text (RFC 2045, section 6.7).
func quotedPrintable(raw []byte) view {
	v := newView(len(raw))
	for i := 0; i < len(raw); {
		rest := raw[i:]
		var c [1]byte
		switch {
		case rest[0] == '?' && starts(rest, wordBreak):
			i += len(wordBreak)
		case rest[0] != '=':
			v.add(rest[0], i, 1)
			i++
		case bytes.HasPrefix(rest, []byte("=\r\n")):
			i += 3
		case len(rest) > 2 && isHex(rest[1:3], c[:]):
			v.add(c[0], i, 3)
			i += 3
		default:
			v.add('=', i, 1)
			i++
		}
	}
	return v
}

func isHex(digits, out []byte) bool {
	_, err := hex.Decode(out, digits)
	return err == nil
}

// joined is a text without its line breaks.
func joined(raw []byte) view {
	v := newView(len(raw))
	for i, c := range raw {
		if c != '\r' && c != '\n' {
			v.add(c, i, 1)
		}
	}
	return v
}
