package texts

import (
	"strings"
	"testing"
	"time"
)

func TestTextsAreBoundedAndHarmless(t *testing.T) {
	for name, tt := range map[string]struct{ got, want string }{
		"clip: short":           {Clip("abc", 3), "abc"},
		"clip: long":            {Clip("abcd", 3), "abc…"},
		"clip: within a letter": {Clip("aöb", 2), "a…"},
		"clip: behind a letter": {Clip("aöb", 3), "aö…"},
		"clip: not UTF-8":       {Clip("a\xffbcd", 4), "abc…"},
		"fit: short":            {Fit("äöü", 3), "äöü"},
		"fit: long":             {Fit("äöüß", 3), "äö…"},
		"quote: short":          {Quote("a\"\x1b\n", 9), `"a\"\x1b\n"`},
		"quote: long":           {Quote("abcd", 3), `"abc…"`},
		"printable: nothing":    {Printable("a ö…\ufffd", ' '), "a ö…\ufffd"},
		"printable: replaced":   {Printable("a\x1b[\u202eb\n", ' '), "a [ b "},
		"printable: left out":   {Printable("a\x1bb\u00a0", -1), "ab"},
		"all of them":           {Quote(Fit(Printable("\t"+strings.Repeat("ö", 9), '?'), 4), 5), `"?öö…"`},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %q, want %q", name, tt.got, tt.want)
		}
	}
}

func TestADurationMayBeInDays(t *testing.T) {
	for text, want := range map[string]time.Duration{"30d": 720 * time.Hour, "0d": 0, "1h30m": 90 * time.Minute, "-1s": -time.Second, "100000d": 2_400_000 * time.Hour} {
		if got, err := Duration(text); err != nil || got != want {
			t.Errorf("%s is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "d", "-1d", "1.5d", "1d12h", "3", "100001d", "99999999999d", "30 d"} {
		if got, err := Duration(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}
