package session

import (
	"bytes"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/testenv/property"
)

func TestTailKeepsTheEnd(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		var kept tail
		var all []byte
		for n := range rapid.IntRange(0, 8).Draw(t, "writes") {
			p := bytes.Repeat([]byte{byte('a' + n)}, rapid.IntRange(0, tailBytes*3/2).Draw(t, "size"))
			kept.write(p)
			all = append(all, p...)
		}
		if got := kept.bytes(); !bytes.Equal(got, all[max(0, len(all)-tailBytes):]) || cap(kept.data) > 2*tailBytes {
			t.Errorf("%d bytes are kept of %d", len(got), len(all))
		}
	})
}

func FuzzTailLinesAreHarmless(f *testing.F) {
	f.Add("one\x1b[2Jtwo\r\nthree\xff\n\u202eevil\n" + strings.Repeat("long ", 1000))
	f.Fuzz(func(t *testing.T, text string) {
		var kept tail
		kept.write([]byte(text))
		lines := kept.lines()
		if len(lines) > shownLines {
			t.Errorf("%d lines", len(lines))
		}
		for _, line := range lines {
			if n := len([]rune(line)); n > shownWidth+1 {
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
