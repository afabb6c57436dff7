package secretscan

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"mime/quotedprintable"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf16"
)

func jsonText(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func printable(t testing.TB, text string) string {
	t.Helper()
	var out strings.Builder
	w := quotedprintable.NewWriter(&out)
	_, err := w.Write([]byte(text))
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func utf16Text(text string) string {
	var out []byte
	for _, unit := range utf16.Encode([]rune(text)) {
		out = append(out, byte(unit), byte(unit>>8))
	}
	return string(out)
}

// TestAValueIsFoundInEveryEncoding has texts of encoders, in which another value is not found, and in most of which the value itself is
// not.
func TestAValueIsFoundInEveryEncoding(t *testing.T) {
	std, alphabet := base64.StdEncoding.EncodeToString, base64.URLEncoding.EncodeToString
	const marked = "a/b=c+d?e&f~g"
	const binary = "\xfb\xff\xbe\x00\x01\x02\x03\xfe\xff\xef"
	for _, test := range []struct{ name, value, text, form string }{
		{"as it is", marked, marked, "text"},
		{"query", marked, url.QueryEscape(marked), "text"},
		{"path", "a b/c;d,e%f", url.PathEscape("a b/c;d,e%f"), "text"},
		{"lower case", marked, strings.ToLower(url.QueryEscape(marked)), "text"},
		{"all of it", "abcdefgh", "%61%62%63%64%65%66%67%68", "text"},
		{"plus", "a b/c d=e f", url.QueryEscape("a b/c d=e f"), "text"},
		{"base64", "\x00" + marked, std([]byte("\x00" + marked)), "base64"},
		{"base64, second place", marked, std([]byte("x" + marked + "y")), "base64"},
		{"base64, third place", marked, std([]byte("xy" + marked + "z")), "base64"},
		{"base64, marks", binary, std([]byte(binary)), "base64"},
		{"base64 for URLs", binary, alphabet([]byte(binary)), "base64"},
		{"base64 in a URL", binary, url.QueryEscape(std([]byte(binary))), "base64"},
		{"base64 in HTML", binary, strings.ReplaceAll(std([]byte(binary)), "+", "&#43;"), "base64"},
		{"base64 in lines", marked, std([]byte(marked))[:10] + "\r\n" + std([]byte(marked))[10:], "base64"},
		{"base64 in lines, after the first", marked, std([]byte(marked))[:1] + "\n" + std([]byte(marked))[1:], "base64"},
		{"base64 in lines in JSON", marked, jsonText(t, std([]byte(marked))[:10]+"\r\n"+std([]byte(marked))[10:]), "base64"},
		{"base64 in JSON by PHP", binary, strings.ReplaceAll(std([]byte(binary)), "/", `\/`), "base64"},
		{"hex", marked, hex.EncodeToString([]byte(marked)), "hex"},
		{"upper hex", marked, strings.ToUpper(hex.EncodeToString([]byte(marked))), "hex"},
		{"JSON", "a<b>c&d\"e\\f", jsonText(t, "a<b>c&d\"e\\f"), "text"},
		{"JSON, upper", "a<b>c&d>e", `a\u003Cb\u003Ec\u0026d\u003Ee`, "text"},
		{"JSON, slashes", "a/b/c/d/e", `a\/b\/c\/d\/e`, "text"},
		{"JSON, characters", "grüße, 世界 😀", `gr\u00fc\u00dfe, \u4e16\u754c \ud83d\ude00`, "text"},
		{"JSON, bytes as characters", "a\xe9\xffbcdefg", "a\\u00e9\\u00FFbcdefg", "text"},
		{"JSON in JSON", "a<b>c&d<e\n\"\\x", jsonText(t, jsonText(t, "a<b>c&d<e\n\"\\x")), "text"},
		{"JSON in JSON, characters", "grüße, 😀", `gr\\u00fc\\u00dfe, \\ud83d\\ude00`, "text"},
		{"Go", "a\x01b\x7fc\x00d\xffefg", strconv.Quote("a\x01b\x7fc\x00d\xffefg"), "text"},
		{"Go, characters", "grüße, 😀\a\v", strconv.QuoteToASCII("grüße, 😀\a\v"), "text"},
		{"octal", "a b\tc\nd\\efg", `a\040b\011c\012d\134efg`, "text"},
		{"UTF-16", "grüße, 世界 😀", utf16Text("grüße, 世界 😀"), "utf-16le"},
		{"HTML", "a<b>c&d\"e'f", html.EscapeString("a<b>c&d\"e'f"), "text"},
		{"HTML by name", "a<b>c&d\"e'f", "a&lt;b&gt;c&amp;d&quot;e&apos;f", "text"},
		{"HTML by number", "a<bü😀cdef'g", "a&#x3C;b&#252;&#X1f600;cdef&#039;g", "text"},
		{"quoted-printable", "a=b=c=d=ü", printable(t, "a=b=c=d=ü"), "text"},
		{"quoted-printable in lines", "a=bcdefghi", printable(t, strings.Repeat("x", 70)+"a=bcdefghi"), "text"},
		{"quoted-printable, its own lines", "one line\nand two", "one line\r\nand=20=\ntwo", "text"},
		{"mixed", marked, `a%2Fb&#61;c\u002bd?e&amp;f=7eg`, "text"},
		{"bytes by fmt", marked, fmt.Sprint([]byte(marked)), "decimal"},
		{"bytes by JavaScript", "01234567", "[48,49,50,51,52,53,54,55]", "decimal"},
		{"bytes in JSON by Python", "01234567", "[48, 49, 50, 51, 52, 53, 54, 55]", "decimal"},
	} {
		data := []byte("<" + test.text + ">")
		want := []Hit{{"one", test.form, "here"}}
		if hits := New(t, map[string]string{"one": test.value, "two": test.value[1:] + "."}).In("here", data); !slices.Equal(hits, want) {
			t.Errorf("%s: in %q there is %v", test.name, data, hits)
		}
		if test.name != "as it is" && strings.Contains(test.text, test.value) {
			t.Errorf("%s: %q has the value as it is", test.name, test.text)
		}
	}
}

func TestWhatIsFoundByChanceIsNotSought(t *testing.T) {
	s := New(t, map[string]string{"three": "世界人", "four": "世界人民"})
	if hits := s.In("", []byte(utf16Text("世界人"))); len(hits) > 0 {
		t.Errorf("six bytes are found: %v", hits)
	}
	if hits := s.In("", []byte(utf16Text("世界人民"))); len(hits) != 1 || hits[0].Name != "four" {
		t.Errorf("eight bytes give %v", hits)
	}
	for _, values := range []map[string]string{nil, {"one": "1234567"}, {"one": ""}, {"one": "12345678", "two": "short"}} {
		if _, err := newSet(values); err == nil {
			t.Errorf("a search for %q is made", values)
		}
	}
}

func TestEachFormOfAPlaceIsReportedOnce(t *testing.T) {
	s := New(t, map[string]string{"one": "a/b/c/d/e", "inner": "/b/c/d/e-"})
	data := strings.Repeat("-a/b/c/d/e-a%2Fb%2Fc%2Fd%2Fe-"+fmt.Sprintf("%x", "a/b/c/d/e"), 100)
	want := []Hit{{"one", "text", "x"}, {"inner", "text", "x"}, {"one", "hex", "x"}}
	if hits := s.In("x", []byte(data)); !slices.Equal(hits, want) {
		t.Errorf("found %v, want %v", hits, want)
	}
}

// TestValuesAcrossChunksAreFound puts a long form at every offset around the end of the first chunk, and shows that what is searched
// again is what finds it.
func TestValuesAcrossChunksAreFound(t *testing.T) {
	var text strings.Builder
	for _, b := range []byte("a/b c=d&e%f+g") {
		fmt.Fprintf(&text, "%%%02X", b)
	}
	s := New(t, map[string]string{"one": "a/b c=d&e%f+g"})
	careless := *s
	careless.longest = shortest
	missed := 0
	for at := chunk - text.Len(); at < chunk+2; at++ {
		data := slices.Concat(bytes.Repeat([]byte{'.'}, at), []byte(text.String()), bytes.Repeat([]byte{'.'}, s.longest))
		if hits, err := s.reader(s.buffer(), "", iotest.HalfReader(bytes.NewReader(data))); err != nil || len(hits) != 1 {
			t.Fatalf("at %d: found %v, error %v", at, hits, err)
		}
		if hits, err := careless.reader(careless.buffer(), "", bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		} else if len(hits) == 0 {
			missed++
		}
	}
	if missed == 0 {
		t.Error("without that nothing is missed: the values do not lie across chunks")
	}
	broken := errors.New("broken")
	hits, err := s.reader(s.buffer(), "", io.MultiReader(strings.NewReader(text.String()), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) || len(hits) != 1 {
		t.Errorf("of a reader that fails: %v, error %v", hits, err)
	}
}
