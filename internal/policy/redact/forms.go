package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
)

// forms are what a value becomes where all of it is encoded at once, and the value itself: each is a [text], so that its letters
// may be escaped. They come in order, each once.
func forms(value []byte) [][]byte {
	out := [][]byte{slices.Clone(value), reversed(value)}
	out = base64Forms(out, value)
	out = fileForms(out, value)
	low := hex.AppendEncode(nil, value)
	out = unique(append(out, low))
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

// fileForms are how a browser and clawjail write a value into the name of a file: what no name may have becomes _. One of
// which too little is left would be found in ordinary names.
func fileForms(out [][]byte, value []byte) [][]byte {
	for _, set := range []string{`<>:"|?*`, `<>:"|?*/\`, `<>:"|?*/\~`} {
		left := len(value)
		form := bytes.Clone(value)
		for i, c := range value {
			if strings.IndexByte(set, c) >= 0 {
				form[i] = '_'
				left--
			}
		}
		if left >= Shortest && left < len(value) {
			out = append(out, form)
		}
	}
	return out
}
