package trawl

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"mime/quotedprintable"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf16"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newTestSet(t testing.TB, needles ...Needle) *Set {
	t.Helper()
	s, err := NewSet(needles...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func one(value string) Needle { return Needle{"one", []byte(value)} }

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
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
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

// TestEveryFormIsFoundByItsGenerator asks each form alone: a text is found by the forms that are listed and by no other,
// so that without them it is not found.
func TestEveryFormIsFoundByItsGenerator(t *testing.T) {
	covered := map[string]bool{}
	std, alphabet := base64.StdEncoding.EncodeToString, base64.URLEncoding.EncodeToString
	const marked = "a/b=c+d?e&f~g"
	const binary = "\xfb\xff\xbe\x00\x01\x02\x03\xfe\xff\xef"
	for _, test := range []struct{ name, value, text, forms string }{
		{"as it is", marked, marked, "raw url url-lower json quoted html quoted-printable"},
		{"query", marked, url.QueryEscape(marked), "url"},
		{"path", "a b/c;d,e%f", url.PathEscape("a b/c;d,e%f"), "url"},
		{"lower case", marked, strings.ToLower(url.QueryEscape(marked)), "url-lower"},
		{"all of it", "abcdefgh", "%61%62%63%64%65%66%67%68", "url url-lower"},
		{"plus", "a b/c d=e f", url.QueryEscape("a b/c d=e f"), "url-plus"},
		{"base64", "\x00" + marked, std([]byte("\x00" + marked)), "base64"},
		{"base64, second place", marked, std([]byte("x" + marked + "y")), "base64"},
		{"base64, third place", marked, std([]byte("xy" + marked + "z")), "base64"},
		{"base64, marks", binary, std([]byte(binary)), "base64"},
		{"base64 for URLs", binary, alphabet([]byte(binary)), "base64"},
		{"base64 in a URL", binary, url.QueryEscape(std([]byte(binary))), "base64"},
		{"base64 in lines", marked, std([]byte(marked))[:10] + "\r\n" + std([]byte(marked))[10:], "base64"},
		{"base64 in JSON by PHP", binary, strings.ReplaceAll(std([]byte(binary)), "/", `\/`), "base64"},
		{"hex", marked, hex.EncodeToString([]byte(marked)), "hex"},
		{"upper hex", marked, strings.ToUpper(hex.EncodeToString([]byte(marked))), "hex"},
		{"JSON", "a<b>c&d\"e\\f", jsonText(t, "a<b>c&d\"e\\f"), "json"},
		{"JSON, upper", "a<b>c&d>e", `a\u003Cb\u003Ec\u0026d\u003Ee`, "json"},
		{"JSON, slashes", "a/b/c/d/e", `a\/b\/c\/d\/e`, "json"},
		{"JSON, characters", "grüße, 世界 😀", `gr\u00fc\u00dfe, \u4e16\u754c \ud83d\ude00`, "json"},
		{"JSON, bytes as characters", "a\xe9\xffbcdefg", "a\\u00e9\\u00FFbcdefg", "json"},
		{"JSON in JSON", "a<b>c&d<e\n", jsonText(t, jsonText(t, "a<b>c&d<e\n")), "json"},
		{"Go", "a\x01b\x7fc\x00defg", strconv.Quote("a\x01b\x7fc\x00defg"), "quoted"},
		{"octal", "a b\tc\nd\\efg", `a\040b\011c\012d\134efg`, "quoted"},
		{"UTF-16", "grüße, 世界 😀", utf16Text("grüße, 世界 😀"), "utf-16le"},
		{"HTML", "a<b>c&d\"e'f", html.EscapeString("a<b>c&d\"e'f"), "html"},
		{"HTML by number", "a<bü😀cdef", "a&#x3C;b&#252;&#x1f600;cdef", "html"},
		{"quoted-printable", "a=b=c=d=ü", printable(t, "a=b=c=d=ü"), "quoted-printable"},
		{"quoted-printable in lines", "a=bcdefghi", printable(t, strings.Repeat("x", 70)+"a=bcdefghi"), "quoted-printable"},
		{"bytes by fmt", marked, fmt.Sprint([]byte(marked)), "decimal"},
		{"bytes by JavaScript", "01234567", "[48,49,50,51,52,53,54,55]", "decimal"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var found []string
			for _, f := range forms() {
				s, err := newSet([]form{f}, []Needle{one(test.value)})
				if err != nil {
					t.Fatal(err)
				}
				if hits := s.In("", []byte("<"+test.text+">")); len(hits) > 0 {
					found = append(found, f.name)
				}
			}
			want := strings.Fields(test.forms)
			if !slices.Equal(found, want) {
				t.Fatalf("%q is found by %q, want %q", test.text, found, want)
			}
			covered[want[0]] = true
			// All together, the first one is named.
			hits := newTestSet(t, one(test.value)).In("here", []byte("<"+test.text+">"))
			if len(hits) != 1 || hits[0].Form != want[0] || hits[0].Needle != "one" || hits[0].Where != "here" {
				t.Errorf("found %v, want one hit in the form %s", hits, want[0])
			}
			others := slices.DeleteFunc(forms(), func(f form) bool { return slices.Contains(want, f.name) })
			without, err := newSet(others, []Needle{one(test.value)})
			if err != nil {
				t.Fatal(err)
			}
			if hits := without.In("", []byte("<"+test.text+">")); len(hits) > 0 {
				t.Errorf("without %q there is still %v", want, hits)
			}
		})
	}
	for _, f := range forms() {
		if !covered[f.name] {
			t.Errorf("no text is found by the form %s first", f.name)
		}
	}
}

func TestUTF16ShorterThanAValueMayBeIsNotSought(t *testing.T) {
	s := newTestSet(t, one("世界人"), Needle{"four", []byte("世界人民")})
	if hits := s.In("", []byte(utf16Text("世界人"))); len(hits) > 0 {
		t.Errorf("six bytes are found: %v", hits)
	}
	if hits := s.In("", []byte(utf16Text("世界人民"))); len(hits) != 1 || hits[0].Needle != "four" {
		t.Errorf("eight bytes give %v", hits)
	}
}

func TestValuesThatCannotBeSearchedForAreRefused(t *testing.T) {
	many := make([]Needle, MaxNeedles+1)
	for i := range many {
		many[i] = Needle{fmt.Sprint(i), []byte(fmt.Sprintf("value %d of many", i))}
	}
	for name, needles := range map[string][]Needle{
		"none":            nil,
		"short":           {{"a", []byte("1234567")}},
		"long":            {{"a", []byte(strings.Repeat("0123456789", MaxValue/10+1))}},
		"of few bytes":    {{"a", []byte("ababababc")}},
		"without a name":  {{"", []byte("the value itself")}},
		"named as one":    {{"a", []byte("first value")}, {"a", []byte("second value")}},
		"named as itself": {{"the value itself", []byte("the value itself")}},
		"too many":        many,
	} {
		s, err := NewSet(needles...)
		if err == nil || s != nil && len(s.variants) > 0 {
			t.Errorf("%s: accepted, or no error", name)
			continue
		}
		for _, n := range needles {
			if len(n.Value) > 0 && strings.Contains(err.Error(), string(n.Value)) {
				t.Errorf("%s: the error shows the value", name)
			}
		}
	}
	if _, err := NewSet(many[:MaxNeedles]...); err != nil {
		t.Errorf("as many values as allowed: %v", err)
	}
	if _, err := NewSet(Needle{"least", []byte("12341234")}, Needle{"most", bytes.Repeat([]byte("01234567"), MaxValue/8)}); err != nil {
		t.Errorf("values as short and as long as allowed: %v", err)
	}
}

func TestValuesAreNotPrinted(t *testing.T) {
	const value = "the-value/itself"
	n := one(value)
	s := newTestSet(t, n)
	var out bytes.Buffer
	for _, logger := range []*slog.Logger{slog.New(slog.NewTextHandler(&out, nil)), slog.New(slog.NewJSONHandler(&out, nil))} {
		logger.Info("x", "needle", n, "set", s)
	}
	fmt.Fprintf(&out, "%v %+v %#v %s %q %x %v %+v %#v %+v", n, n, n, n, n, n, s, s, s, *s)
	fmt.Fprint(&out, jsonText(t, []any{n, s}))
	path := url.PathEscape(value)
	hits := append(s.In("folder/"+value+"/"+path, []byte(value)), s.Any("row of "+value, value)...)
	if len(hits) != 3 {
		t.Fatalf("found %v", hits)
	}
	fmt.Fprint(&out, hits, jsonText(t, hits))
	if hits := s.In("", out.Bytes()); len(hits) > 0 {
		t.Errorf("printed: %v", hits)
	}
	if got := fmt.Sprintf("%v %+v %s %v", s, s, s, *s); got != strings.TrimSpace(strings.Repeat("trawl for 1 values ", 4)) {
		t.Errorf("a set prints as %q", got)
	}
	if want := "folder/[one]/[one]"; hits[0].Where != want {
		t.Errorf("where is %q, want %q", hits[0].Where, want)
	}
}

func TestEachFormOfAPlaceIsReportedOnce(t *testing.T) {
	s := newTestSet(t, one("a/b/c/d/e"), Needle{"two", []byte("second value")})
	data := strings.Repeat("-a/b/c/d/e-a%2Fb%2Fc%2Fd%2Fe-second value", 1000)
	hits, err := s.Reader("x", strings.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	want := []Hit{{"one", "raw", "x", 1}, {"one", "url", "x", 11}, {"two", "raw", "x", 29}}
	if !slices.Equal(hits, want) {
		t.Errorf("found %v, want %v", hits, want)
	}
}

func TestValuesOverlap(t *testing.T) {
	s := newTestSet(t, one("abcdefgh"), Needle{"inner", []byte("bcdefghi")}, Needle{"same", []byte("abcdefgh")})
	hits := s.In("", []byte("abcdefghi"))
	want := []Hit{{"one", "raw", "", 0}, {"same", "raw", "", 0}, {"inner", "raw", "", 1}}
	if !slices.Equal(hits, want) {
		t.Errorf("found %v, want %v", hits, want)
	}
	if got := s.clean("x-abcdefghi-abcdefgh-y"); got != "x-[one]-[one]-y" {
		t.Errorf("cleaned: %q", got)
	}
}

// TestValuesAcrossChunksAreFound puts a long form at every offset around the end of the first chunk, and shows that the
// overlap is what finds it.
func TestValuesAcrossChunksAreFound(t *testing.T) {
	const value = "a/b c=d&e%f+g"
	var text strings.Builder
	for _, b := range []byte(value) {
		fmt.Fprintf(&text, "%%%02X", b)
	}
	s := newTestSet(t, one(value))
	careless := *s
	careless.longest = window
	missed := 0
	for at := chunk - 2*text.Len(); at < chunk+s.longest+2*text.Len(); at++ {
		data := append(bytes.Repeat([]byte{'.'}, at), text.String()...)
		data = append(data, bytes.Repeat([]byte{'.'}, s.longest)...)
		hits, err := s.Reader("", bytes.NewReader(data))
		if err != nil || len(hits) != 1 || hits[0].Offset != int64(at) {
			t.Fatalf("at %d: found %v, error %v", at, hits, err)
		}
		st := stream{set: s}
		for piece := range slices.Chunk(data, 100_003) {
			if n, err := st.Write(piece); n != len(piece) || err != nil {
				t.Fatalf("write: %d, %v", n, err)
			}
		}
		if hits := st.found(); len(hits) != 1 || hits[0].Offset != int64(at) {
			t.Fatalf("written, at %d: found %v", at, hits)
		}
		if hits, err := careless.Reader("", bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		} else if len(hits) == 0 {
			missed++
		}
	}
	if missed == 0 {
		t.Error("without overlap nothing is missed: the values do not lie across chunks")
	}
}

func TestReadersThatFailOrStallEnd(t *testing.T) {
	s := newTestSet(t, one("the value itself"))
	broken := errors.New("broken")
	hits, err := s.Reader("", io.MultiReader(strings.NewReader("xx the value itself"), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) || len(hits) != 1 {
		t.Errorf("found %v, error %v", hits, err)
	}
	if _, err := s.Reader("", stalled{}); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a reader that gives nothing: %v", err)
	}
	for _, r := range []io.Reader{
		iotest.OneByteReader(strings.NewReader("xx the value itself")), iotest.DataErrReader(strings.NewReader("the value itself")),
	} {
		if hits, err := s.Reader("", r); err != nil || len(hits) != 1 {
			t.Errorf("found %v, error %v", hits, err)
		}
	}
}

type stalled struct{}

func (stalled) Read([]byte) (int, error) { return 0, nil }

func TestRowsAreSearchedAsJSONAndAsPrinted(t *testing.T) {
	const value = "a<value>&more"
	s := newTestSet(t, one(value))
	type row struct {
		Text   string
		hidden string
		Bytes  []byte
		Inner  *row
		Fn     func() `json:"-"`
	}
	for name, test := range map[string]struct {
		v    any
		want []string
	}{
		"text":     {row{Text: value}, []string{"raw", "json"}},
		"hidden":   {row{hidden: value}, []string{"raw"}},
		"bytes":    {row{Bytes: []byte(value)}, []string{"decimal", "base64"}},
		"pointer":  {row{Inner: &row{Text: value}}, []string{"json"}},
		"no JSON":  {map[string]any{"f": func() {}, "v": value}, []string{"raw"}},
		"error":    {fmt.Errorf("wrapped: %w", errors.New(value)), []string{"raw"}},
		"nothing":  {row{Text: "a harmless text"}, nil},
		"nil":      {nil, nil},
		"raw JSON": {json.RawMessage(`{"v":"a\u003cvalue\u003e\u0026more"}`), []string{"json"}},
	} {
		var found []string
		for _, h := range s.Any("row 7", test.v) {
			found = append(found, h.Form)
			if !strings.HasPrefix(h.Where, "row 7") {
				t.Errorf("%s: where is %q", name, h.Where)
			}
		}
		if !slices.Equal(found, test.want) {
			t.Errorf("%s: found as %q, want %q", name, found, test.want)
		}
	}
}

func TestStatsAddUp(t *testing.T) {

	a := Stats{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
	if sum := a.Add(a); sum != (Stats{2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}) {
		t.Errorf("1 and 1 are %+v", sum)
	}
}
