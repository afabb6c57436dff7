package policy

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/policy/hostport"
)

func shown(r Rule) string { return fmt.Sprint(r.Scheme, " ", r.Host, " ", r.Ports, " ", r.Path) }

func TestURLsAsPeopleWriteThem(t *testing.T) {
	for in, want := range map[string]string{
		"https://api.github.com/repos/**": "https api.github.com [443] /repos/**",
		"http://host:8080/x":              "http host [8080] /x",
		"HTTP://Host.:8080/x/":            "http host [8080] /x",
		"*.example.com":                   " *.example.com [80 443] ",
		"example.com":                     " example.com [80 443] ",
		"example.com:8443":                " example.com [8443] ",
		"example.com:8443/a/*":            " example.com [8443] /a/*",
		"example.com/a":                   " example.com [80 443] /a",
		"https://*.example.com":           "https *.example.com [443] ",
		"https://example.com/":            "https example.com [443] ",
		"https://example.com/**":          "https example.com [443] /**",
		"example.com/":                    " example.com [80 443] ",
		"ws://example.com":                "ws example.com [80] ",
		"wss://example.com/s":             "https example.com [443] /s",
		"*":                               " * [80 443] ",
		"https://*":                       "https * [443] ",
		"*:*":                             " * [*] ",
		"example.com:8000-8080":           " example.com [8000-8080] ",
		"[::1]:8080":                      " [::1] [8080] ",
		"https://[2001:DB8::1]/a":         "https [2001:db8::1] [443] /a",
		"https://bücher.example/é":        "https xn--bcher-kva.example [443] /%C3%A9",
		"http://①②⑦.0.0.1/":               "http 127.0.0.1 [80] ",
	} {
		r, err := ParseURL(in)
		if err != nil || shown(r) != want {
			t.Errorf("ParseURL(%q) = %q, %v; want %q", in, shown(r), err, want)
		}
		if r.Name != "" || r.Action != "" || r.Methods != nil || r.Address.IsValid() || r.Opaque {
			t.Errorf("ParseURL(%q) fills in more than it reads: %+v", in, r)
		}
	}
	for _, in := range []string{
		"", " ", "/", "/a", "//a.example/x", "://a.example", "https://", "https:///x", "http:example.com/x", "ftp://a.example", "file:///etc/passwd", "javascript:alert(1)", "mailto:a@b.example",
		"https://u@a.example/", "https://u:p@a.example/", "u@a.example", "https://a.example@b.example", "https://a@b@127.0.0.1/", "https://a.example/x?q=1", "https://a.example?q=1", "https://a.example#f", "https://a.example/x#f",
		"https://a.example:", "https://a.example:0", "https://a.example:080", "https://a.example:65536", "https://a.example:90-80", "https://a.example:+80", "https://a.example:80:80", "https://[::1%25lo]/", "https://::1/",
		"https://a.*.example", "https://*example.com", "https://**.example", "^https://a.example/.*$", "https://a.example/.*", "https://a.example/(a|b)", `https://a\.example/x`, `https://a.example\@b.example/`,
		"https://a.example//", "https://a.example/../x", "https://a.example/%2e%2e/x", "https://a.example/a%2fb", "https://a.example/**/x", "https://0x7f.1/", "https://127.1/", "https://a.example/ ", " https://a.example", "https://a.example/\n",
		"https://a%2eexample/", "https://*.1.2.3.4/", "https://" + strings.Repeat("a", 9000),
	} {
		if r, err := ParseURL(in); err == nil {
			t.Errorf("ParseURL(%q) = %q, want an error", in, shown(r))
		} else if r.Host != (Pattern{}) || r.Ports != nil || len(err.Error()) > 400 {
			t.Errorf("ParseURL(%.40q) = %+v with the error %.400q", in, r, err)
		}
	}
}

func TestRefusedURLsSayWhatIsWrong(t *testing.T) {
	for in, want := range map[string]string{
		"https://a.example?q=1": "query", "https://a.example/x?q=1": "query", "https://a.example#f": "fragment", "https://a.example/x#f": "fragment",
		"https://u@a.example/": "user name", "https://u:p@a.example/": "user name", "u:p@a.example": "user name",
		"https://a.example/.*": "%2A", "https://a.example/(a|b)": "regular expression", "ftp://a.example": "http, https or ws", "https://a.example/%2e%2e/": "dot segment",
	} {
		if _, err := ParseURL(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseURL(%q): %v, want a word about %q", in, err, want)
		}
	}
}

// Other readers of URLs must not understand a pattern in another way: a pattern without wildcards allows the very URL that
// it is, as net/url and hostport read it, and its canonical form is read back as the same.
func FuzzParseURL(f *testing.F) {
	for _, s := range []string{
		"https://api.github.com/repos/**", "http://host:8080/x", "*.example.com", "example.com:8443", "https://*.example.com/", "https://a%2fb/", "https://a@b@127.0.0.1/", "http:///x", "http:a/x",
		"https://①②⑦.0.0.1/", "https://[::1%25lo]/", "https://[::ffff:7f00:1]:1/%61", "ws://a.example/é", "*:*/**", "a:1-2", `https://a\b/`, "wss://EXAMPLE.com./;x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseURL(s)
		if err != nil {
			return
		}
		r.Name, r.Action = "x", Allow
		if err := Only(r).Validate(); err != nil {
			t.Fatalf("%q → %+v: %v", s, r, err)
		}
		back := r.Host.String() + ":" + r.Ports[0].String() + r.Path.String()
		if r.Scheme != "" {
			back = string(r.Scheme) + "://" + back
		}
		if again, err := ParseURL(back); err != nil || again.Host != r.Host || again.Path != r.Path || again.Scheme != r.Scheme || again.Ports[0] != r.Ports[0] {
			t.Fatalf("%q → %q → %q, %v", s, back, shown(again), err)
		}
		if r.Scheme == "" || strings.Contains(s, "*") || r.Ports[0].First != r.Ports[0].Last || strings.Contains(s, "-") {
			return
		}
		u, err := url.Parse(s)
		if err != nil {
			t.Fatalf("net/url does not read %q: %v", s, err)
		}
		e, err := hostport.FromURL(u)
		if err != nil {
			t.Fatalf("hostport does not read %q: %v", s, err)
		}
		req := Request{Scheme: r.Scheme, Host: e.Host(), Port: e.Port(), Method: "GET", Path: u.EscapedPath()}
		if req.Path == "" {
			req.Path = "/"
		}
		if d := Only(r).Decide(req); !d.Allowed {
			t.Fatalf("%q does not allow itself: %+v", s, d)
		}
	})
}

func TestTargetsAreReadAgain(t *testing.T) {
	for _, text := range []string{
		"example.com", "*.example.com", "*", "example.com:8443", "example.com:8000-8080", "example.com:*", "https://example.com", "https://example.com:8443/repos/**",
		"http://example.com", "http://example.com:443/x", "ws://example.com/x", "192.0.2.1", "[2001:db8::1]:8080",
	} {
		r, err := ParseURL(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Target(); got != text {
			t.Errorf("%q is written as %q", text, got)
		}
	}
}
