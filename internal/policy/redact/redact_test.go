package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/testenv/property"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func encoded(t testing.TB, value any) string {
	t.Helper()
	out, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// samples are values with all that encoders treat in different ways.
func samples() []string {
	return []string{
		"sid-8f3a91c2d4", "12345678", `q"uo\te<d>/&'+=~ x`, "grüße-aus-köln", "line\nbreak\tand\x01more",
		"a/b+c==/d+e/f+g//", strings.Repeat("long", 200),
	}
}

func TestAValueIsFoundInEveryListedEncoding(t *testing.T) {
	for _, value := range samples() {
		v := New([]byte(value))
		withinText := encoded(t, map[string]string{"token": value})
		for name, text := range map[string]string{
			"plain":             value,
			"in a query":        "https://x.test/?t=" + url.QueryEscape(value),
			"in a path":         "https://x.test/" + url.PathEscape(value),
			"in a posted form":  url.Values{"t": {value}}.Encode(),
			"base64, first":     base64.StdEncoding.EncodeToString([]byte(value)),
			"base64, second":    base64.StdEncoding.EncodeToString([]byte("x" + value)),
			"base64, third":     base64.URLEncoding.EncodeToString([]byte("xy" + value + "z")),
			"hexadecimal":       hex.EncodeToString([]byte(value)),
			"large hexadecimal": strings.ToUpper(hex.EncodeToString([]byte(value))),
			"json in a text":    withinText,
		} {
			raw := encoded(t, map[string]any{"a": 1, "value": "before " + text + " after", "z": nil})
			got := v.JSON([]byte(raw))
			if !json.Valid(got) {
				t.Errorf("%q, %s: %s is no JSON", value, name, got)
			}
			if !bytes.Contains(got, []byte(Mark)) {
				t.Errorf("%.40q, %s: not found in %.200s", value, name, raw)
			}
			if same := New([]byte("another-value")).JSON([]byte(raw)); string(same) != raw {
				t.Errorf("%.40q, %s: found by another value", value, name)
			}
		}
	}
}

// Encoders differ in the letters that they escape, and a text may have passed through several.
func TestAValueIsFoundInEveryMixtureOfEscapes(t *testing.T) {
	v := New([]byte(`it's(a)*t&b/c`))
	for _, text := range []string{
		`it%27s(a)*t%26b%2Fc`, `it's%28a%29*t%26b%2fc`, `it's(a)%2At&b%2Fc`, `it\u0027s(a)*t%26b\/c`, `it&#39;s(a)*t&amp;b%2Fc`, `it%27s(a)*t\u0026amp;b/c`,
		`it\\u0027s%28a)*t\u0026b\\/c`, `IT%27S(A)*T%26B/C`,
	} {
		if got := v.Text("<" + text + ">"); got != "<"+Mark+">" {
			t.Errorf("%s becomes %s", text, got)
		}
	}
	for _, text := range []string{`it%28s(a)*t%26b%2Fc`, `it%27s(a)*t%26b%2F`, `it%27s(a)*t%2`, `%27s(a)*t%26b%2Fc`, `it%2527s(a)*t&b/c`} {
		if got := v.Text(text); got != text {
			t.Errorf("%s becomes %s", text, got)
		}
	}
	property.CheckFew(t, func(t *rapid.T) {
		value := secretValues().Draw(t, "value")
		mixed := mixture(t, value)
		v := New([]byte(value))
		if got := v.Text(mixed); !strings.Contains(got, Mark) || len(strings.ReplaceAll(got, Mark, "")) > 0 {
			t.Fatalf("%q, written %q, becomes %q", value, mixed, got)
		}
		checkStream(t, v, mixed[:rapid.IntRange(0, len(mixed)).Draw(t, "cut")]+mixed+"x", rapid.SliceOfN(rapid.IntRange(1, 20), 0, 4).Draw(t, "sizes"))
	})
}

// JSON doubles backslashes, and JSON within JSON doubles them again.
func TestRunsOfBackslashesAreFoundHoweverOftenTheyWereDoubled(t *testing.T) {
	for n := 1; n <= 40; n++ {
		value := "token" + strings.Repeat(`\`, n) + "end"
		text := value
		for range 3 {
			if got := New([]byte(value)).Text("<" + text + ">"); got != "<"+Mark+">" {
				t.Errorf("%d backslashes, written as %d: %s", n, strings.Count(text, `\`), got)
			}
			text = strings.ReplaceAll(text, `\`, `\\`)
		}
	}
}

// mixture writes each letter of a value as one of those does who escape it.
func mixture(t *rapid.T, value string) string {
	asJSON := func(s string) string {
		out, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(out[1 : len(out)-1])
	}
	ways := []func(string) string{
		func(s string) string { return s }, url.PathEscape, url.QueryEscape, html.EscapeString, asJSON,
		func(s string) string { return strings.ToLower(url.QueryEscape(s)) },
		func(s string) string { return asJSON(asJSON(s)) },
		func(s string) string { return asJSON(html.EscapeString(s)) },
	}
	var b strings.Builder
	for _, r := range value {
		b.WriteString(rapid.SampledFrom(ways).Draw(t, "way")(string(r)))
	}
	return b.String()
}

func TestWhatStandsAroundAValueStays(t *testing.T) {
	v := New([]byte("sid-8f3a91c2d4"), []byte("c2d4-tail-of-it"), []byte("12345678"), []byte("nothing-here"))
	for in, want := range map[string]string{
		`{"a":"<sid-8f3a91c2d4>","b":[1,2.5e3,true]}`:       `{"a":"<[redacted]>","b":[1,2.5e3,true]}`,
		`{"sid-8f3a91c2d4":"x"}`:                            `{"[redacted]":"x"}`,
		`{"a":"sid-8f3a91c2d4-tail-of-it!"}`:                `{"a":"[redacted]!"}`,
		`{"a":"sid-8f3a91c2d4, sid-8f3a91c2d4"}`:            `{"a":"[redacted], [redacted]"}`,
		`{"n":12345678,"m":-123456789.5,"o":1234567}`:       `{"n":"[redacted]","m":"[redacted]","o":1234567}`,
		`{"a":"\nothing-here \\nothing-here \"x\" \u00e9"}`: `{"a":"[redacted] \\[redacted] \"x\" \u00e9"}`,
		`{"a":"sid-8f3a91c2d"}`:                             `{"a":"sid-8f3a91c2d"}`,
	} {
		if got := string(v.JSON([]byte(in))); got != want {
			t.Errorf("%s\n gives %s\n   not %s", in, got, want)
		}
	}
	if got := v.Text(`no page at "https://x/sid-8f3a91c2d4"`); got != `no page at "https://x/[redacted]"` {
		t.Error(got)
	}
}

func TestTheDocumentItselfIsNotChanged(t *testing.T) {
	v := New([]byte("sid-8f3a91c2d4"))
	raw := []byte(`{"a":"sid-8f3a91c2d4"}`)
	before := bytes.Clone(raw)
	v.JSON(raw)
	if diff := cmp.Diff(before, raw); diff != "" {
		t.Error(diff)
	}
}

func TestShortValuesAreLeftOut(t *testing.T) {
	v := New([]byte("short"), []byte("long-enough"))
	if v.Skipped() != 1 {
		t.Errorf("%d were skipped", v.Skipped())
	}
	if got := v.Text("a short text"); got != "a short text" {
		t.Error(got)
	}
	var none *Values
	if none.Text("x") != "x" || string(none.JSON([]byte(`{}`))) != `{}` || none.Skipped() != 0 {
		t.Error("no values are not nothing to find")
	}
	none.Wipe()
}

func TestValuesAreNotPrinted(t *testing.T) {
	const secret = "sid-8f3a91c2d4"
	v := New([]byte(secret))
	texts := []string{v.String(), encoded(t, v), encoded(t, map[string]*Values{"v": v})}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		texts = append(texts, fmt.Sprintf(verb, v), fmt.Sprintf(verb, struct{ V *Values }{v}))
	}
	for _, text := range texts {
		if !strings.Contains(text, Mark) && !strings.Contains(text, "0x") || strings.Contains(text, "sid") ||
			strings.Contains(text, hex.EncodeToString([]byte(secret))) {
			t.Errorf("prints as %s", text)
		}
	}
}

func TestWipedValuesAreGone(t *testing.T) {
	v := New([]byte("sid-8f3a91c2d4"))
	patterns := v.finder.patterns
	v.Wipe()
	for _, p := range patterns {
		if len(bytes.Trim(p, "\x00")) > 0 {
			t.Errorf("%q is still there", p)
		}
	}
	if got := v.Text("sid-8f3a91c2d4"); got != "sid-8f3a91c2d4" {
		t.Error("a wiped value is found")
	}
	v.Wipe()
}

// FuzzJSON: what comes out is JSON, without the value wherever a decoder sees one.
func FuzzJSON(f *testing.F) {
	for _, value := range samples() {
		f.Add(value, []byte(encoded(f, []any{"a" + value, value + value, 12345678, value[:7]})))
	}
	f.Add("12345678", []byte(`{"a":-1234567890.5E+7,"b":[12345678]}`))
	f.Add("e9bcdefgh", []byte(`{"a":"\u00e9bcdefgh \\u00e9bcdefgh"}`))
	f.Fuzz(func(t *testing.T, value string, raw []byte) {
		if !json.Valid(raw) || len(value) < Shortest || strings.Contains(Mark, value) {
			return
		}
		got := New([]byte(value)).JSON(raw)
		if !json.Valid(got) {
			t.Fatalf("%s became %s", raw, got)
		}
		if bytes.Contains(got, []byte(value)) && !strings.ContainsAny(value, `",:{}[]`) && !strings.Contains(string(got), Mark) {
			t.Fatalf("%q is in %s", value, got)
		}
	})
}

// BenchmarkJSON is what a message costs that has none of twenty values: a reply of one kilobyte, and a picture.
func BenchmarkJSON(b *testing.B) {
	var values [][]byte
	for i := range 20 {
		values = append(values, fmt.Appendf(nil, "value-%d-8f3a91c2d4e5f60718293a4b", i))
	}
	v := New(values...)
	picture := make([]byte, 700<<10)
	for i := range picture {
		picture[i] = byte(i * i >> 3 * 7)
	}
	for name, text := range map[string]string{
		"1kB":  strings.Repeat(`the quick brown fox, `, 48),
		"1MB":  base64.StdEncoding.EncodeToString(picture),
		"hits": strings.Repeat("value-7-8f3a91c2d4e5f60718293a4b ", 30),
	} {
		raw := []byte(encoded(b, map[string]string{"data": text}))
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				v.JSON(raw)
			}
		})
	}
}
