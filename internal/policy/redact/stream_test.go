package redact

import (
	"bytes"
	"encoding/hex"
	"errors"
	"html"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

// pieces is a source that gives what is sent in pieces of its own choice.
type pieces struct {
	rest  []byte
	sizes []int // used in turn
	turn  int
	end   error
}

func (s *pieces) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, s.end
	}
	size := len(s.rest)
	if len(s.sizes) > 0 {
		size = min(size, s.sizes[s.turn%len(s.sizes)])
		s.turn++
	}
	n := copy(p[:min(size, len(p))], s.rest)
	s.rest = s.rest[n:]
	if len(s.rest) == 0 && s.turn%2 == 0 {
		return n, s.end // with the last bytes, as a source may
	}
	return n, nil
}

func stream(t rapid.TB, v *Values, text string, sizes []int, o StreamOptions) (string, error) {
	t.Helper()
	out, err := io.ReadAll(v.NewReader(&pieces{rest: []byte(text), sizes: sizes, end: io.EOF}, o))
	return string(out), err
}

// secretValues draws values: random ones, those of samples, and those that overlap with themselves.
func secretValues() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[a-zA-Z0-9_\-]{8,40}`),
		rapid.StringMatching(`[a-z"\\/+=<&' é\n]{8,20}`),
		rapid.StringMatching(`(ab|aba){4,9}`),
		rapid.StringMatching(`a{8,12}b?`),
		rapid.SampledFrom(samples()[:6]),
	)
}

// marksLook says whether a mark could be taken for a form, or a part of one.
func marksLook(v *Values) bool {
	for _, p := range v.finder.patterns {
		if bytes.ContainsAny(p, "[]") || strings.Contains(Mark, string(p)) {
			return true
		}
	}
	return false
}

// placed draws a text with forms, beginnings of forms and other things in it.
func placed(t *rapid.T, v *Values) string {
	var b strings.Builder
	for range rapid.IntRange(0, 8).Draw(t, "parts") {
		form := string(rapid.SampledFrom(v.finder.patterns).Draw(t, "form"))
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			b.WriteString(form)
		case 1:
			b.WriteString(form[:rapid.IntRange(0, len(form)).Draw(t, "cut")])
		case 2:
			b.WriteString(rapid.StringN(0, 12, -1).Draw(t, "other"))
		default:
			b.WriteString(strings.Repeat(rapid.SampledFrom([]string{"\n\n", "a", "data: ", "%2"}).Draw(t, "filler"), rapid.IntRange(1, 50).Draw(t, "times")))
		}
	}
	return b.String()
}

func checkStream(t rapid.TB, v *Values, text string, sizes []int) {
	t.Helper()
	got, err := stream(t, v, text, sizes, StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := v.Text(text); got != want {
		t.Fatalf("in pieces of %v\n%q gives\n%q, as a whole\n%q", sizes, text, got, want)
	}
	hit := v.finder.next([]byte(text), 0)
	if hit < 0 && got != text {
		t.Fatalf("%q without a value became %q", text, got)
	}
	if !marksLook(v) {
		for _, p := range v.finder.patterns {
			if strings.Contains(got, string(p)) {
				t.Fatalf("%q is in %q", p, got)
			}
		}
	}

	before, err := stream(t, v, text, sizes, StreamOptions{Block: true})
	switch {
	case hit < 0 && (err != nil || before != text):
		t.Fatalf("blocked %q without a value: %v", text, err)
	case hit >= 0 && (!errors.Is(err, ErrFound) || !strings.HasPrefix(text[:hit], before)):
		t.Fatalf("%q was passed on of %q, with %v", before, text, err)
	}
}

func TestStreamsAreRedactedLikeWholeTexts(t *testing.T) {
	property.CheckFew(t, func(t *rapid.T) {
		var values [][]byte
		for range rapid.IntRange(1, 3).Draw(t, "values") {
			values = append(values, []byte(secretValues().Draw(t, "value")))
		}
		v := New(values...)
		sizes := rapid.SliceOfN(rapid.IntRange(1, 40), 0, 6).Draw(t, "sizes")
		checkStream(t, v, placed(t, v), sizes)
	})
}

func FuzzStream(f *testing.F) {
	for _, value := range samples()[:6] {
		f.Add(value, "before "+value+value[:7]+" after "+value, uint8(1), uint8(7))
	}
	f.Add("aaaaaaaab", strings.Repeat("a", 40)+"b", uint8(1), uint8(1))
	f.Add("abababab", "abababababab", uint8(3), uint8(0))
	f.Fuzz(func(t *testing.T, value, text string, one, other uint8) {
		if len(value) < Shortest || len(value) > 1000 {
			return
		}
		checkStream(t, New([]byte(value)), text, []int{int(one) + 1, int(other) + 1})
	})
}

func TestOneByteAtATimeIsNoWayAround(t *testing.T) {
	const value = "ghp_16C7e42F292c6912E771"
	v := New([]byte(value))
	src := iotest.OneByteReader(strings.NewReader("token=" + value + "&" + value[:20]))
	out, err := io.ReadAll(iotest.OneByteReader(v.NewReader(src, StreamOptions{})))
	if want := "token=[redacted]&" + value[:20]; err != nil || string(out) != want {
		t.Errorf("got %q, %v; not %q", out, err, want)
	}
}

// TestNothingWaitsBehindTheEndOfALine reads from a source that never says more than was sent, and would wait forever for the
// next read.
func TestNothingWaitsBehindTheEndOfALine(t *testing.T) {
	v := New([]byte("ghp_16C7e42F292c6912E771"))
	for sent, want := range map[string]string{
		"data: {\"n\":1}\n\n":                      "data: {\"n\":1}\n\n",
		"data: ghp_16C7e42F292c6912E771\n":         "data: [redacted]\n",
		"data: ghp_16C7e42F292c6912E77\n\n":        "data: ghp_16C7e42F292c6912E77\n\n",
		"one\ntwo":                                 "one\n",
		"ghp_16C7e42F292c6912E771\rghp_16C7e42F":   "[redacted]\r",
		strings.Repeat("x", 100_000):               strings.Repeat("x", 100_000-63),
		strings.Repeat("x", 100_000) + "\n\n":      strings.Repeat("x", 100_000) + "\n\n",
		strings.Repeat("x", 100) + "\n" + "ghp_16": strings.Repeat("x", 100) + "\n",
	} {
		silence := errors.New("silence")
		out, err := io.ReadAll(v.NewReader(&pieces{rest: []byte(sent), end: silence}, StreamOptions{}))
		if !errors.Is(err, silence) || string(out) != want {
			t.Errorf("of %.40q came %.40q, %v", sent, out, err)
		}
	}
}

// arriving is what arrives of a text, read by read, with how it ends.
func arriving(t rapid.TB, v *Values, text string, sizes []int, o StreamOptions) (got []string) {
	t.Helper()
	r := v.NewReader(&pieces{rest: []byte(text), sizes: sizes, end: io.EOF}, o)
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		got = append(got, string(buf[:n]))
		if err != nil {
			return append(got, err.Error())
		}
	}
}

// A client that chooses a text and sees in which pieces it arrives, and which messages are masked, learns nothing of a value but its
// length, roughly: a text that begins like the value arrives as for any other value.
func TestWhatIsHeldBackDoesNotTellTheValue(t *testing.T) {
	const known = "eyJhbGci" // what is known of a value may be used, and says nothing of the rest
	property.CheckFew(t, func(t *rapid.T) {
		draw := rapid.StringMatching(`[a-zA-Z0-9_\-]{24}`)
		one, other := known+draw.Draw(t, "one"), known+draw.Draw(t, "other")
		var b strings.Builder
		for range rapid.IntRange(0, 6).Draw(t, "parts") {
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				b.WriteString(one[:rapid.IntRange(0, len(one)-1).Draw(t, "cut")])
			case 1:
				b.WriteString(hex.EncodeToString([]byte(one))[:rapid.IntRange(0, len(one)).Draw(t, "digits")])
			case 2:
				b.WriteString(rapid.StringN(0, 12, -1).Draw(t, "other text"))
			default:
				b.WriteString(strings.Repeat(rapid.SampledFrom([]string{"\n\n", "a", "data: ", "~"}).Draw(t, "filler"), rapid.IntRange(1, 90).Draw(t, "times")))
			}
		}
		text := b.String()
		is, isNot := New([]byte(one)), New([]byte(other))
		if is.Has(text) || isNot.Has(text) {
			return // a whole value shows
		}
		sizes := rapid.SliceOfN(rapid.IntRange(1, 80), 0, 6).Draw(t, "sizes")
		for _, o := range []StreamOptions{{}, {Block: true}} {
			if a, b := arriving(t, is, text, sizes, o), arriving(t, isNot, text, sizes, o); !slices.Equal(a, b) {
				t.Fatalf("%q arrives as %q, and with another value as %q", text, a, b)
			}
		}
		if a, b := is.CutText(text), isNot.CutText(text); a != b {
			t.Fatalf("%q is cut to %q, and with another value to %q", text, a, b)
		}
		for _, forget := range []bool{false, true} {
			if a, b := is.NewMessages().Next([]byte(text), forget), isNot.NewMessages().Next([]byte(text), forget); string(a) != string(b) {
				t.Fatalf("a message %q becomes %q, and with another value %q", text, a, b)
			}
		}
	})
}

// A value that comes in messages is shown for less than Shortest bytes, however it is written and divided.
func TestAValueInMessagesIsNotShown(t *testing.T) {
	const value = "Qo7<v>&K'4=m|2^R33CEJN27"
	for _, text := range []string{value, strings.ToUpper(value), url.QueryEscape(value), html.EscapeString(value), "Qo7%3Cv>&amp;K%274=m%7C2^R33CEJN27"} {
		for size := 1; size < 12; size++ {
			m := New([]byte(value)).NewMessages()
			got := ""
			for rest := "before " + text + " after"; rest != ""; {
				n := min(size, len(rest))
				got += string(m.Next([]byte(rest[:n]), false))
				rest = rest[n:]
			}
			if shown := strings.ReplaceAll(got, Mark, ""); !strings.HasPrefix(got, "before ") || len(shown) > len("before ")+2*Shortest {
				t.Errorf("%s in messages of %d is shown as %s", text, size, got)
			}
		}
	}
}

func TestWhatWasHeldIsNotPassedOnWhenTheSourceFails(t *testing.T) {
	const value = "ghp_16C7e42F292c6912E771"
	broken := errors.New("broken")
	out, err := io.ReadAll(New([]byte(value)).NewReader(&pieces{rest: []byte("a\n" + value[:23]), end: broken}, StreamOptions{}))
	if !errors.Is(err, broken) || string(out) != "a\n" {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := io.ReadAll(New([]byte(value)).NewReader(silent{}, StreamOptions{})); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a source that says nothing gives %v", err)
	}
}

type silent struct{}

func (silent) Read([]byte) (int, error) { return 0, nil }

func TestAStreamEndsWhenItsValuesAreWiped(t *testing.T) {
	const value = "ghp_16C7e42F292c6912E771"
	v := New([]byte(value))
	src := &pieces{rest: []byte("first\n" + value), sizes: []int{6}, end: io.EOF}
	r := v.NewReader(src, StreamOptions{})
	if n, err := r.Read(make([]byte, 100)); n != 6 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	v.Wipe()
	if out, err := io.ReadAll(r); !errors.Is(err, ErrWiped) || len(out) > 0 {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := io.ReadAll(v.NewReader(strings.NewReader(value), StreamOptions{})); !errors.Is(err, ErrWiped) || len(out) > 0 {
		t.Errorf("%q, %v", out, err)
	}
	if v.Empty() || !v.Wiped() {
		t.Error("wiped values count as none")
	}
}

// TestHitsThatWaitAreNotGivenAfterAWipe: one read finds several values, a wipe comes between two of them.
func TestHitsThatWaitAreNotGivenAfterAWipe(t *testing.T) {
	const value = "ghp_16C7e42F292c6912E771"
	v := New([]byte(value))
	r := v.NewReader(strings.NewReader("a"+value+"b"+value+"c"), StreamOptions{})
	if n, err := r.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	v.Wipe()
	if out, err := io.ReadAll(r); !errors.Is(err, ErrWiped) || strings.Contains(string(out), value) {
		t.Errorf("%q, %v", out, err)
	}
}

func TestWithoutValuesTheSourceIsReadItself(t *testing.T) {
	src := strings.NewReader("x")
	var none *Values
	for _, v := range []*Values{none, New(), New([]byte("short"))} {
		if got := v.NewReader(src, StreamOptions{}); got != io.Reader(src) {
			t.Errorf("%T stands before a source that has nothing to lose", got)
		}
		if !v.Empty() || v.Wiped() {
			t.Error("no values are not empty")
		}
	}
}

// TestMemoryOfAStreamIsBounded reads 8 MiB that are one long beginning of a value after another: eight times what it may take.
func TestMemoryOfAStreamIsBounded(t *testing.T) {
	const size = 8 << 20
	value := strings.Repeat("long", 1000)
	v := New([]byte(value))
	src := io.LimitReader(&again{text: value[:3999] + "."}, size)
	r := v.NewReader(src, StreamOptions{})
	var n int64
	var err error
	used := testenv.Allocated(func() { n, err = io.CopyBuffer(writerOnly{}, r, make([]byte, 512)) })
	if n != size || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if used > 1<<20 {
		t.Errorf("took %d bytes in all", used)
	}
	if limit := largestBuffer + v.finder.longest; cap(r.(*reader).buf) > limit {
		t.Errorf("holds %d bytes, more than %d", cap(r.(*reader).buf), limit)
	}
}

// again says a text over and over.
type again struct {
	text string
	at   int
}

func (a *again) Read(p []byte) (n int, _ error) {
	for n < len(p) {
		some := copy(p[n:], a.text[a.at:])
		n, a.at = n+some, (a.at+some)%len(a.text)
	}
	return n, nil
}

type writerOnly struct{}

func (writerOnly) Write(p []byte) (int, error) { return len(p), nil }

func TestTheCaseOfLettersDoesNotCount(t *testing.T) {
	v := New([]byte("ghp_16C7e42F/+"))
	for _, text := range []string{"GHP_16C7E42F/+", "ghp_16c7e42f/+", "gHp_16C7e42f%2f%2B", "GHP_16C7E42F%2F%2b", "6768705f31364337653432462F2b"} {
		if got := v.Text("a " + text + " b"); got != "a "+Mark+" b" {
			t.Errorf("%s: %s", text, got)
		}
		if got := string(v.JSON([]byte(`["` + text + `"]`))); got != `["`+Mark+`"]` {
			t.Errorf("%s: %s", text, got)
		}
		for size := range 5 {
			got, err := stream(t, v, "a "+text+" b", []int{size + 1}, StreamOptions{})
			if err != nil || got != "a "+Mark+" b" {
				t.Errorf("%s in pieces of %d: %s, %v", text, size+1, got, err)
			}
		}
	}
	// Only letters have two cases.
	if other := "gHp\x7f16C7e42F/+"; v.Text(other) != other || v.Text("GHP_16C7E42F\x0f+") != "GHP_16C7E42F\x0f+" {
		t.Error("other characters that differ in the same bit are taken for the same")
	}
}

func TestNamesAreComparedWithoutCase(t *testing.T) {
	v := New([]byte("ghp_16C7e42F"))
	for name, want := range map[string]bool{
		"X-Ghp_16c7E42f": true, "x-GHP_16C7E42F-y": true, "X-Ghp_16c7": false, "Content-Security-Policy": false,
		"X-6768705F31364337653432": false, "X-6768705F313643376534324600": true,
	} {
		if got := v.Has(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	var none *Values
	if none.Has("Content-Security-Policy") || New().Has("Content-Security-Policy") {
		t.Error("no values are in a name")
	}
}

func TestPagesAndReversedValuesAreFound(t *testing.T) {
	v := New([]byte(`p'ss"w<rd&1`))
	for _, text := range []string{
		"p&#39;ss&#34;w&lt;rd&amp;1", "p&#x27;ss&quot;w&lt;rd&amp;1", "p&#039;ss&quot;w&lt;rd&amp;1", "p&apos;ss&quot;w&lt;rd&amp;1",
		`p'ss"w&lt;rd&amp;1`, `p\u0026#39;ss\u0026#34;w\u0026lt;rd\u0026amp;1`, `1&dr<w"ss'p`,
	} {
		if got := v.Text("a " + text + " b"); !strings.HasPrefix(got, "a "+Mark) || !strings.HasSuffix(got, " b") {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// BenchmarkStream is a megabyte of ordinary text without the one secret, next to what the standard library offers for
// whole texts.
func BenchmarkStream(b *testing.B) {
	text := []byte(strings.Repeat(`{"id":1296269,"name":"Hello-World","private":false,"url":"https://api.example.com/repos/x"},`, 1<<20/92))
	for name, value := range credentials() {
		v := New([]byte(value))
		buffer := make([]byte, 32<<10)
		b.Run("redact/"+name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = io.CopyBuffer(writerOnly{}, v.NewReader(&pieces{rest: text, end: io.EOF}, StreamOptions{}), buffer)
			}
		})
	}
	v := New([]byte(credentials()["token"]))
	var pairs []string
	for _, p := range v.finder.patterns {
		pairs = append(pairs, string(p), Mark)
	}
	b.Run("strings.Replacer", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		replacer := strings.NewReplacer(pairs...)
		whole := string(text)
		for b.Loop() {
			replacer.Replace(whole)
		}
	})
	b.Run("bytes.Contains", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			for _, p := range v.finder.patterns {
				bytes.Contains(text, p)
			}
		}
	})
	b.Run("bare copy", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		buffer := make([]byte, 32<<10)
		for b.Loop() {
			_, _ = io.CopyBuffer(writerOnly{}, &pieces{rest: text, end: io.EOF}, buffer)
		}
	})
	b.Run("tokens of 20 bytes", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		buffer := make([]byte, 32<<10)
		for b.Loop() {
			_, _ = io.CopyBuffer(writerOnly{}, v.NewReader(&pieces{rest: text, sizes: []int{20}, end: io.EOF}, StreamOptions{}), buffer)
		}
	})
}
