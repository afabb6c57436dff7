package browser

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestCheckURL(t *testing.T) {
	for raw, want := range map[string]string{
		"http://example.com":               "http://example.com",
		" https://example.com/a?b=c#d \n":  "https://example.com/a?b=c#d",
		"HTTPS://example.com/":             "https://example.com/",
		"http://127.0.0.1:8080/x":          "http://127.0.0.1:8080/x",
		"http://[::1]/":                    "http://[::1]/",
		"http://bücher.example/":           "http://b%C3%BCcher.example/",
		"about:blank":                      "about:blank",
		"http://169.254.169.254/":          "http://169.254.169.254/", // the gateway refuses it, with its own reason
		"http://example.com/?u=http://a@b": "http://example.com/?u=http://a@b",
	} {
		if got, err := CheckURL(raw); err != nil || got != want {
			t.Errorf("%q: got %q, %v", raw, got, err)
		}
	}
	for _, raw := range []string{
		"", " ", "example.com", "//example.com", "/path", "http:", "http://", "http:///x", "https://:443/", "http:example.com",
		"file:///etc/passwd", "FILE:///etc/passwd", "view-source:http://example.com", "chrome://settings", "devtools://x",
		"javascript:alert(1)", "data:text/html,x", "blob:http://x/y", "about:settings", "about:blank#x", "ftp://example.com",
		"chrome-extension://x/y", "filesystem:http://x/y", "ws://example.com", "http://user@example.com", "http://user:secret@example.com/",
		"http://exa mple.com", "http://example.com/\x00", "http://example.com/a\nb", "http:\\\\example.com", "http://a\\@b/",
		"http://example.com:99999999x/", "http://" + strings.Repeat("a", maxURL),
	} {
		got, err := CheckURL(raw)
		if problem.CodeOf(err) != problem.BadURL {
			t.Errorf("%.80q: got %q, %v", raw, got, err)
			continue
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("the password is in the error: %v", err)
		}
	}
}

// FuzzCheckURL: what passes is http, https or about:blank, has a host and no user, and passes unchanged again.
func FuzzCheckURL(f *testing.F) {
	for _, seed := range []string{"http://example.com/a?b#c", "about:blank", "HTTPS://a@b/", "http:\\\\a", "http://%41/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := CheckURL(raw)
		if err != nil {
			if problem.CodeOf(err) != problem.BadURL {
				t.Fatalf("%q: %v", raw, err)
			}
			return
		}
		if got != blank && !strings.HasPrefix(got, "http://") && !strings.HasPrefix(got, "https://") {
			t.Fatalf("%q passed as %q", raw, got)
		}
		if again, err := CheckURL(got); err != nil || again != got {
			t.Fatalf("%q became %q and then %q, %v", raw, got, again, err)
		}
	})
}

func TestBoundedCutsBetweenCharacters(t *testing.T) {
	text := strings.Repeat("ü€😀", 10)
	for maximum := range len(text) + 2 {
		got := bounded(text, maximum)
		if len(got) > maximum || !utf8.ValidString(got) || !strings.HasPrefix(text, got) || len(got) < min(maximum, len(text))-3 {
			t.Errorf("%d: %q", maximum, got)
		}
	}
	if got := bounded("a\xffb", 10); got != "a\uFFFDb" {
		t.Errorf("got %q", got)
	}
}
