package secretscan

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"html"
	"strings"
	"unicode/utf16"
)

// encoding is a value as a whole in other bytes.
type encoding struct{ form, text string }

// encodings are those of a value, itself among them. Of base64 they are the characters that only the value decides, for each
// number of bytes before it modulo three; as numbers it is as fmt and JavaScript print bytes.
func encodings(value string) []encoding {
	var wide []byte
	for _, unit := range utf16.Encode([]rune(value)) {
		wide = binary.LittleEndian.AppendUint16(wide, unit)
	}
	out := []encoding{
		{"text", value}, {"text", strings.ReplaceAll(value, " ", "+")}, {"utf-16le", string(wide)},
		{"hex", fmt.Sprintf("%x", value)}, {"hex", fmt.Sprintf("%X", value)},
	}
	for before := range 3 {
		all := base64.RawStdEncoding.EncodeToString([]byte("xxx"[:before] + value))
		all = all[(before*8+5)/6 : (before+len(value))*8/6]
		for _, text := range []string{all, strings.NewReplacer("+", "-", "/", "_").Replace(all)} {
			out = append(out, encoding{"base64", text}, encoding{"base64", text[1:]}) // the line may end after the first
		}
	}
	for _, between := range []string{" ", ",", ", "} {
		numbers := strings.Trim(fmt.Sprint([]byte(value)), "[]")
		out = append(out, encoding{"decimal", strings.ReplaceAll(numbers, " ", between)})
	}
	return out
}

const (
	// escapes are what those begin with that stand for a character, and ends break lines.
	escapes, ends = `%=&\`, "\r\n"
	// maxEscaped is the most bytes that are written for one, with a broken line before it.
	maxEscaped = 16
)

// isMark says whether a byte may stand for something else.
func isMark(b byte) bool { return strings.IndexByte(escapes+ends, b) >= 0 }

// reads says whether data begins with a text, of which any character may be escaped. tried, which may be nil, has the lengths
// of rests that were compared already and differ.
func reads(data []byte, text string, tried map[[2]int]bool) bool {
	for ; text != ""; data, text = data[1:], text[1:] {
		if len(data) == 0 {
			return false
		}
		if isMark(data[0]) {
			break
		}
		if data[0] != text[0] {
			return false
		}
	}
	rest := [2]int{len(data), len(text)}
	if text == "" || tried[rest] {
		return text == ""
	}
	agrees := false
	readings(data, func(part string, size int) {
		if !agrees && strings.HasPrefix(text, part) {
			if tried == nil {
				tried = map[[2]int]bool{}
			}
			agrees = reads(data[size:], text[len(part):], tried)
			tried[rest] = true
		}
	})
	return agrees
}

// readings calls found with everything that the start of data may stand for, and with how many of its bytes do: itself; what it
// is an escape of in a URL, in quoted-printable, HTML, JSON, JSON in JSON, source code or a table of the kernel; and
// nothing, if it breaks a line, escaped or not.
func readings(data []byte, found func(part string, size int)) {
	found(string(data[:1]), 1)
	// A number is that of a character, or of a byte: JavaScript keeps binary data in strings.
	number := func(of rune, size int) {
		found(string(of), size)
		if of < 256 {
			found(string([]byte{byte(of)}), size)
		}
	}
	switch data[0] {
	case '\r', '\n':
		found("", 1)
	case '%', '=':
		if n, ok := digits(data, 1, 2, 16); ok {
			number(n, 3)
		}
		if line := bytes.TrimPrefix(data[1:], []byte("\r")); data[0] == '=' && bytes.HasPrefix(line, []byte("\n")) {
			found("", len(data)-len(line)+1)
		}
	case '&':
		size := bytes.IndexByte(data[:min(len(data), 12)], ';') + 1
		if n, ok := digits(data, 2, size-3, 10); ok && data[1] == '#' {
			number(n, size)
		} else if n, ok := digits(data, 3, size-4, 16); ok && data[1] == '#' {
			number(n, size)
		} else if size > 0 {
			found(html.UnescapeString(string(data[:size])), size)
		}
	case '\\':
		for at := 1; at <= 3 && at < len(data) && data[at-1] == '\\'; at++ { // in JSON in JSON there are more backslashes
			if short := strings.IndexByte(`abfnrtv"'/\`, data[at]); short >= 0 {
				found("\a\b\f\n\r\t\v\"'/\\"[short:short+1], at+1)
			}
			switch data[at] {
			case 'n', 'r':
				found("", at+1)
			case 'x':
				if n, ok := digits(data, at+1, 2, 16); ok {
					number(n, at+3)
				}
			case 'u':
				n, ok := digits(data, at+1, 4, 16)
				if low, second := digits(data, 2*at+6, 4, 16); second && utf16.IsSurrogate(n) {
					number(utf16.DecodeRune(n, low), 2*at+10)
				} else if ok {
					number(n, at+5)
				}
			case 'U':
				if n, ok := digits(data, at+1, 8, 16); ok {
					number(n, at+9)
				}
			default:
				if n, ok := digits(data, at, 3, 8); ok {
					number(n, at+3)
				}
			}
		}
	}
}

// digits is the number that stands in data.
func digits(data []byte, at, length, base int) (number rune, ok bool) {
	if length < 1 || at+length > len(data) {
		return 0, false
	}
	for _, c := range data[at : at+length] {
		digit := strings.IndexByte("0123456789abcdefABCDEF", c)
		if digit >= 16 {
			digit -= 6
		}
		if digit < 0 || digit >= base {
			return 0, false
		}
		number = number*rune(base) + rune(digit)
	}
	return number, true
}
