package console

import (
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

func TestEveryAnswerShutsItselfIn(t *testing.T) {
	w := newFixture(t)
	want := map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; " +
			"form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
		"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "same-origin", "Cache-Control": "no-store",
		"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
	}
	for name, p := range map[string]page{
		"a page":            w.get("admin", "/console/"),
		"signing in":        w.get("", "/console/sign-in"),
		"a shared view":     w.get("", "/console/watch"),
		"nothing":           w.get("admin", "/console/nothing"),
		"nobody":            w.get("", "/console/audit"),
		"what is refused":   w.post("acme viewer", "/console/sessions", "browser", "shell"),
		"a page of another": w.send("admin", http.MethodPost, "/console/sessions", nil, foreign),
	} {
		for header, value := range want {
			if got := p.header.Get(header); got != value {
				t.Errorf("%s (%d): %s is %q", name, p.status, header, got)
			}
		}
	}
}

// foreign is a request that a page of another site makes.
func foreign(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }

func TestPagesOfOthersChangeNothing(t *testing.T) {
	w := newFixture(t)
	for name, change := range map[string]func(*http.Request){
		"another site": foreign,
		"another port": func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") },
		"a browser that is old": func(r *http.Request) {
			r.Header.Del("Sec-Fetch-Site")
			r.Header.Set("Origin", "http://localhost:18781")
		},
	} {
		p := w.send("admin", http.MethodPost, "/console/settings/tenants", url.Values{"id": {"made"}}, change)
		if p.status != http.StatusForbidden || !strings.Contains(p.body, "the page of another site") {
			t.Errorf("%s: %d", name, p.status)
		}
	}
	made := func() bool {
		all, err := w.identity.Tenants(w.ctx, w.admin)
		if err != nil {
			t.Fatal(err)
		}
		for _, tenant := range all {
			if tenant.ID == "made" {
				return true
			}
		}
		return false
	}
	if made() {
		t.Error("a page of another site has made a tenant")
	}
	if p := w.post("admin", "/console/settings/tenants", "id", "made"); !made() {
		t.Errorf("the console's own page has made none: %d to %q", p.status, p.location)
	}
}

func TestTheCookieIsForTLSAloneWhereThereIsTLS(t *testing.T) {
	forwarded := func(r *http.Request) {
		r.RemoteAddr = "192.0.2.7:1000"
		r.Header.Set("X-Forwarded-Proto", "https")
	}
	for name, test := range map[string]struct {
		proxies []netip.Prefix
		change  func(*http.Request)
		secure  bool
	}{
		"by a proxy with TLS":      {[]netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")}, forwarded, true},
		"by somebody who says so":  {nil, forwarded, false},
		"by a proxy that does not": {[]netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")}, func(r *http.Request) { r.RemoteAddr = "192.0.2.7:1000" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := realSignIns(t)
			w.BehindProxy = test.proxies
			p := w.send("", http.MethodPost, "/console/sign-in", url.Values{"key": {w.keys["admin"]}}, test.change)
			if c := theCookie(t, p); c.Secure != test.secure {
				t.Errorf("the cookie is Secure: %t", c.Secure)
			}
		})
	}
}

// No neighbour of the console's address, whose cookies a browser sends there as well, signs anybody in as themselves.
func TestNobodyElseCanHaveSetTheCookieOfASignIn(t *testing.T) {
	for _, want := range []struct {
		tls               bool
		below, name, path string
	}{{true, "", "__Host-clawjail-default", "/"}, {true, "/jail", "__Secure-clawjail-default", "/jail/console"}, {false, "", "clawjail-default", "/console"}} {
		w, _ := realSignIns(t)
		w.path = want.below
		w.BehindProxy = []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")}
		send := func(path string, form url.Values, cookie, value string) (page, map[string]*http.Cookie) {
			p := w.send("", http.MethodPost, path, form, func(r *http.Request) {
				r.Host, r.RemoteAddr = "console.example.com", "192.0.2.7:1000"
				if want.tls {
					r.Header.Set("X-Forwarded-Proto", "https")
				}
				r.AddCookie(&http.Cookie{Name: cookie, Value: value})
			})
			got := map[string]*http.Cookie{}
			for _, c := range (&http.Response{Header: p.header}).Cookies() {
				got[c.Name] = c
			}
			return p, got
		}
		_, got := send("/console/sign-in", url.Values{"key": {w.keys["admin"]}}, "x", "")
		in := got[want.name]
		if in == nil || in.Path != want.path || in.Domain != "" || in.Secure != want.tls {
			t.Fatalf("the cookies are %v, want %v", got, want)
		}
		p, _ := send("/console/theme", nil, "clawjail-default", in.Value) // as anybody can have set it
		if signedIn := p.status == http.StatusSeeOther; signedIn == want.tls {
			t.Errorf("%s: a cookie of anybody's is answered with %d", want.name, p.status)
		}
		_, got = send("/console/sign-out", nil, want.name, in.Value)
		if out, told := got[want.name], got[want.name+"-told"]; out == nil || out.MaxAge >= 0 || out.Path != want.path || told == nil || told.Path != want.path {
			t.Errorf("%s: signing out leaves %v", want.name, got)
		}
	}
}

func TestEveryPageIsRead(t *testing.T) {
	all, err := (&Console{}).pageTemplates()
	if err != nil || len(all) < 20 {
		t.Fatalf("%d pages, %v", len(all), err)
	}
	for name, read := range all {
		page, err := read()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if page.Lookup("content") == nil || page.Lookup("layout") == nil {
			t.Errorf("%s has no content, or no layout", name)
		}
	}
}

// inPage finds code and styles in a template: scripts without an address, styles, and attributes that run.
var inPage = regexp.MustCompile(`(?i)<script(?:\s[^>]*)?>[^<]|<style|\sstyle=|\son[a-z]+=["'{]|javascript:|hx-on`)

func TestNoPageHasCodeOrStylesInIt(t *testing.T) {
	read := 0
	err := fs.WalkDir(pageFiles, "pages", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := pageFiles.ReadFile(name)
		read++
		for _, found := range inPage.FindAllString(string(text), -1) {
			t.Errorf("%s has %q", name, found)
		}
		return err
	})
	if err != nil || read < 20 {
		t.Fatalf("%d pages were read, %v", read, err)
	}
	for _, planted := range []string{`<script>go()</script>`, `<p style="x">`, `<a onclick="go()">`, `<style>`, `<a href="javascript:go()">`} {
		if !inPage.MatchString(planted) {
			t.Errorf("%s is not found", planted)
		}
	}
	if inPage.MatchString(`<script src="{{file "live.js"}}" type="module"></script><p>on = "x"</p>`) {
		t.Error("a script with an address is found")
	}
}
