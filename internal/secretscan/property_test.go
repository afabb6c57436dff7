package secretscan

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/testenv/property"
)

// values are any that can be looked for, binary ones and texts.
func values() *rapid.Generator[string] {
	binary := rapid.Map(rapid.SliceOfN(rapid.Byte(), 8, 64), func(b []byte) string { return string(b) })
	marks := rapid.StringOfN(rapid.RuneFrom([]rune(`aZ09+/=%&<>"'\ ;:_-~.,{}`)), 8, 64, 64)
	texts := rapid.StringN(8, 64, 64)
	return rapid.OneOf(binary, marks, texts)
}

// escaped writes some characters as they are and others in one of the ways that the encoder has. The first is for bytes,
// the second, if any, for characters.
func escaped(t *rapid.T, value string, byByte, byCharacter func(string) []string) string {
	var out strings.Builder
	for rest := value; rest != ""; {
		r, size := utf8.DecodeRuneInString(rest)
		valid := r != utf8.RuneError || size > 1
		if byCharacter == nil || !valid || !rapid.Bool().Draw(t, "whole character") {
			size = 1
		}
		ways := byByte
		if size > 1 {
			ways = byCharacter
		}
		if rapid.Bool().Draw(t, "escape") {
			out.WriteString(rapid.SampledFrom(ways(rest[:size])).Draw(t, "way"))
		} else {
			out.WriteString(rest[:size])
		}
		rest = rest[size:]
	}
	return out.String()
}

func formats(formats ...string) func(string) []string {
	return func(b string) []string {
		var out []string
		for _, f := range formats {
			out = append(out, fmt.Sprintf(f, b[0]))
		}
		return out
	}
}

// TestAnyValueInAnyFormAnywhereIsFound encodes with the standard library where it has an encoder, not with the tables
// under test.
func TestAnyValueInAnyFormAnywhereIsFound(t *testing.T) {
	// An encoder gives what stands for prefix, value and suffix, or nothing where it does not apply.
	type encoder func(t *rapid.T, prefix, value, suffix string) string
	plain := func(encode func(string) string) encoder {
		return func(_ *rapid.T, prefix, value, suffix string) string { return prefix + encode(value) + suffix }
	}
	forText := func(encode func(string) string) encoder {
		return func(_ *rapid.T, prefix, value, suffix string) string {
			if !utf8.ValidString(value) {
				return ""
			}
			return prefix + encode(value) + suffix
		}
	}
	for name, encode := range map[string]encoder{
		"raw":   plain(func(v string) string { return v }),
		"query": plain(url.QueryEscape),
		"path":  plain(url.PathEscape),
		"lower": func(t *rapid.T, prefix, value, suffix string) string {
			return prefix + escaped(t, value, formats("%%%02x"), nil) + suffix
		},
		"some of it in a URL": func(t *rapid.T, prefix, value, suffix string) string {
			return prefix + escaped(t, value, formats("%%%02X"), nil) + suffix
		},
		"whole URL": func(_ *rapid.T, prefix, value, suffix string) string { return url.QueryEscape(prefix + value + suffix) },
		"base64": func(_ *rapid.T, prefix, value, suffix string) string {
			return base64.StdEncoding.EncodeToString([]byte(prefix + value + suffix))
		},
		"base64 for URLs": func(_ *rapid.T, prefix, value, suffix string) string {
			return base64.RawURLEncoding.EncodeToString([]byte(prefix + value + suffix))
		},
		"base64 in lines": func(t *rapid.T, prefix, value, suffix string) string {
			text := base64.StdEncoding.EncodeToString([]byte(prefix + value + suffix))
			width := rapid.SampledFrom([]int{64, 76}).Draw(t, "width")
			var lines []string
			for line := range slices.Chunk([]byte(text), width) {
				lines = append(lines, string(line))
			}
			return strings.Join(lines, rapid.SampledFrom([]string{"\n", "\r\n"}).Draw(t, "end of line"))
		},
		"hex":  plain(func(v string) string { return hex.EncodeToString([]byte(v)) }),
		"HEX":  plain(func(v string) string { return fmt.Sprintf("%X", v) }),
		"JSON": forText(func(v string) string { return jsonText(t, v) }),
		"JSON in JSON": forText(func(v string) string {
			return jsonText(t, map[string]string{"inner": jsonText(t, map[string]string{"v": v})})
		}),
		"JSON in ASCII": forText(func(v string) string {
			var out strings.Builder
			for _, unit := range utf16.Encode([]rune(v)) {
				if unit < utf8.RuneSelf {
					text := jsonText(t, string(rune(unit)))
					out.WriteString(text[1 : len(text)-1])
				} else {
					fmt.Fprintf(&out, `\u%04x`, unit)
				}
			}
			return out.String()
		}),
		"some of it in JSON": func(t *rapid.T, prefix, value, suffix string) string {
			return prefix + escaped(t, value, formats(`\u%04x`, `\u%04X`), func(c string) []string {
				text, err := json.Marshal(c)
				if err != nil {
					t.Fatal(err)
				}
				return []string{string(text[1 : len(text)-1])}
			}) + suffix
		},
		"quoted":         plain(strconv.Quote),
		"quoted ASCII":   plain(strconv.QuoteToASCII),
		"printed by %+q": plain(func(v string) string { return fmt.Sprintf("%+q", []byte(v)) }),
		"octal": func(t *rapid.T, prefix, value, suffix string) string {
			return prefix + escaped(t, value, formats(`\%03o`), nil) + suffix
		},
		"UTF-16": forText(func(v string) string {
			if text := utf16Text(v); len(text) >= shortest {
				return text
			}
			return v
		}),
		"HTML": plain(html.EscapeString),
		"some of it in HTML": func(t *rapid.T, prefix, value, suffix string) string {
			if !utf8.ValidString(value) {
				return ""
			}
			byCharacter := func(c string) []string {
				r, _ := utf8.DecodeRuneInString(c)
				return []string{fmt.Sprintf("&#%d;", r), fmt.Sprintf("&#x%x;", r), fmt.Sprintf("&#x%X;", r)}
			}
			byByte := func(b string) []string {
				if b[0] >= utf8.RuneSelf {
					return []string{b}
				}
				return byCharacter(b)
			}
			return prefix + escaped(t, value, byByte, byCharacter) + suffix
		},
		"quoted-printable": func(_ *rapid.T, prefix, value, suffix string) string {
			if strings.ContainsAny(value, "\r\n") {
				return "" // the encoder changes ends of lines before it encodes
			}
			return printable(t, prefix+value+suffix)
		},
		"decimal": plain(func(v string) string { return fmt.Sprint([]byte(v)) }),
	} {
		t.Run(name, func(t *testing.T) {
			applied := 0
			property.Check(t, func(t *rapid.T) {
				value := values().Draw(t, "value")
				around := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
				data := encode(t, around.Draw(t, "prefix"), value, around.Draw(t, "suffix"))
				if data == "" {
					return
				}
				applied++
				s, err := newSet(map[string]string{"one": value})
				if err != nil {
					t.Fatal(err)
				}
				if hits := s.In("", []byte(data)); len(hits) == 0 {
					t.Fatalf("%q is not found in %q", value, data)
				}
			})
			if applied == 0 {
				t.Error("no value was tried")
			}
		})
	}
}

// TestTheFirstTwoBytesMissNothing compares with a search that tries every text at every offset, in data that is full of pieces of
// values.
func TestTheFirstTwoBytesMissNothing(t *testing.T) {
	found := 0
	property.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.RuneFrom([]rune(`ab%+/2F4161\u0=`)), 8, 12, -1)
		values := map[string]string{"one": text.Draw(t, "first"), "two": text.Draw(t, "second")}
		s, err := newSet(values)
		if err != nil {
			t.Fatal(err)
		}
		data := ""
		for range rapid.IntRange(1, 8).Draw(t, "pieces") {
			v := values[rapid.SampledFrom([]string{"one", "two"}).Draw(t, "which")]
			piece := rapid.SampledFrom([]string{
				v, url.QueryEscape(v), base64.StdEncoding.EncodeToString([]byte(v)), fmt.Sprintf("%x", v), fmt.Sprint([]byte(v)),
				utf16Text(v), `\u0061`, "%", "=\r\n", "\n",
			}).Draw(t, "piece")
			data += piece[:rapid.IntRange(1, len(piece)).Draw(t, "of it")]
		}
		want := map[Hit]bool{}
		for at := range data {
			for _, text := range slices.Concat(slices.Collect(maps.Values(s.by))...) {
				if reads([]byte(data[at:]), text.text, nil) {
					want[Hit{text.name, text.form, ""}] = true
				}
			}
		}
		got := map[Hit]bool{}
		for _, hit := range s.In("", []byte(data)) {
			got[hit] = true
		}
		found += len(want)
		if !maps.Equal(got, want) {
			t.Fatalf("in %q: %v, want %v", data, got, want)
		}
	})
	if found == 0 {
		t.Error("no data had a value in it")
	}
}
