package texts

import (
	"bytes"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/testenv/property"
)

func TestTailKeepsTheEnd(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		var kept Tail
		var all []byte
		for n := range rapid.IntRange(0, 8).Draw(t, "writes") {
			p := bytes.Repeat([]byte{byte('a' + n)}, rapid.IntRange(0, TailBytes*3/2).Draw(t, "size"))
			if n, err := kept.Write(p); n != len(p) || err != nil {
				t.Fatalf("%d of %d bytes are written, %v", n, len(p), err)
			}
			all = append(all, p...)
		}
		if got := kept.String(); got != string(all[max(0, len(all)-TailBytes):]) || cap(kept.data) > 2*TailBytes {
			t.Errorf("%d bytes are kept of %d", len(got), len(all))
		}
	})
}

func TestTailShowsTheLastLines(t *testing.T) {
	var kept Tail
	for _, s := range []string{"one\n\n  two\t \r\n", " \nthr", "ee\x1b[2J\xff\n", strings.Repeat("4", 30)} {
		_, _ = kept.Write([]byte(s))
	}
	if got, want := strings.Join(kept.Lines(3, 12), "|"), "  two|three\uFFFD[2J\uFFFD|44444444444…"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func FuzzTailLinesAreHarmless(f *testing.F) {
	f.Add("one\x1b[2Jtwo\r\nthree\xff\n\u202eevil\n" + strings.Repeat("long ", 1000))
	f.Fuzz(func(t *testing.T, text string) {
		var kept Tail
		_, _ = kept.Write([]byte(text))
		lines := kept.Lines(20, 300)
		if len(lines) > 20 {
			t.Errorf("%d lines", len(lines))
		}
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); n > 300 {
				t.Errorf("a line has %d characters", n)
			}
			for _, c := range line {
				if !unicode.IsPrint(c) {
					t.Errorf("%q has the character %U", line, c)
				}
			}
		}
	})
}
