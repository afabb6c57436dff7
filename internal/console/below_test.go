package console

import (
	"context"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/identity/signin"
)

var (
	// addressed are the attributes in which a browser or a script of the console looks for an address.
	addressed = regexp.MustCompile(`\s(href|src|action|formaction|hx-get|hx-post|data-back|data-events|data-live|data-merge)="([^"#]+)`)
	// absolute is a text of a script that begins as an address on this server does.
	absolute = regexp.MustCompile("[\"'`]/(console|v1|static|mcp)\\b")
	imported = regexp.MustCompile(`(?:from|import) '\./([a-z-]+\.js)'`)
)

// below is a console behind a proxy that serves it below /jail, and a browser's client of it. A request to the proxy
// outside of that path is an error.
type below struct {
	t      *testing.T
	origin string
	client *http.Client
}

func newBelow(t *testing.T, w *fixture, takesAway bool) *below {
	t.Helper()
	b := &below{t: t}
	var backend *url.URL
	proxy := http.Handler(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(backend)
		r.Out.Host = r.In.Host
	}})
	if takesAway {
		proxy = http.StripPrefix("/jail", proxy)
	}
	mux := http.NewServeMux()
	mux.Handle("/jail/", proxy)
	mux.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s %s is outside", r.Method, r.URL) })
	front := httptest.NewServer(mux)
	t.Cleanup(front.Close)
	b.origin = front.URL
	// The same console, at the address that is known now.
	o := w.Options
	o.Config.PublicURL, o.BehindProxy = front.URL+"/jail", []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	w.Console = c
	back := httptest.NewServer(api.Below("/jail", c))
	t.Cleanup(back.Close)
	if backend, err = url.Parse(back.URL); err != nil {
		t.Fatal(err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b.client = &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(b.client.CloseIdleConnections)
	return b
}

// ask is what a page of the console asks for. Where it leads to is below the path.
func (b *below) ask(method, path string, form url.Values, part ...bool) page {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.origin+path, strings.NewReader(form.Encode()))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("Accept", "text/html")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if slices.Contains(part, true) {
		r.Header.Set("HX-Request", "true")
		r.Header.Set("HX-Current-URL", b.origin+"/jail/console/agents")
	}
	response, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		b.t.Fatalf("%s: %v", path, err)
	}
	_ = response.Body.Close() // it is read
	p := page{status: response.StatusCode, body: string(text), header: response.Header, location: response.Header.Get("Location")}
	if p.location != "" && !strings.HasPrefix(p.location, "/jail/") {
		b.t.Errorf("%s %s leads to %s", method, path, p.location)
	}
	for _, c := range response.Cookies() {
		if c.Path != "/jail/console" {
			b.t.Errorf("%s %s: the cookie %s is for %s", method, path, c.Name, c.Path)
		}
	}
	return p
}

func TestBelowThePathOfAProxyNothingLeadsOutOfIt(t *testing.T) {
	for name, takesAway := range map[string]bool{"a proxy that takes the path away": true, "a proxy that leaves it": false} {
		t.Run(name, func(t *testing.T) {
			w, _ := realSignIns(t)
			furnish(w)
			b := newBelow(t, w, takesAway)
			if p := b.ask(http.MethodGet, "/jail/console/agents", nil); p.location != "/jail/console/sign-in?next=%2Fconsole%2Fagents" {
				t.Fatalf("who is not signed in is led to %q", p.location)
			}
			p := b.ask(http.MethodPost, "/jail/console/sign-in", url.Values{"key": {w.keys["admin"]}, "next": {"/console/agents"}})
			if p.status != http.StatusSeeOther || p.location != "/jail/console/agents" {
				t.Fatalf("signing in is answered %d, to %q\n%s", p.status, p.location, p.body)
			}
			for _, leads := range []string{"/jail/console/theme", "/jail/console/audit/verify"} {
				b.ask(http.MethodPost, leads, url.Values{"theme": {"dark"}, "back": {"/console/agents"}})
			}
			if menu := b.ask(http.MethodGet, "/jail/console/menu", nil, true).body; !strings.Contains(menu, `<a href="/jail/console/agents" aria-current="page">`) {
				t.Errorf("the menu does not know its page:\n%s", menu)
			}
			pages, kinds := b.walk()
			if pages < 60 {
				t.Errorf("only %d pages", pages)
			}
			for _, kind := range []string{"href", "src", "action", "hx-get", "data-events", "data-live"} {
				if kinds[kind] == 0 {
					t.Errorf("no page has an address in %s: nothing was tried", kind)
				}
			}
			if p := b.ask(http.MethodPost, "/jail/console/sign-out", nil); p.location != "/jail/console/" {
				t.Errorf("signing out leads to %q", p.location)
			}
			if p := b.ask(http.MethodGet, "/jail/console/agents", nil); p.status != http.StatusSeeOther {
				t.Errorf("who has signed out is answered %d", p.status)
			}
		})
	}
}

// walk asks for all that pages and scripts lead to, from the first page on.
func (b *below) walk() (pages int, kinds map[string]int) {
	kinds = map[string]int{}
	seen := map[string]bool{"/jail/console/": true}
	next := []string{"/jail/console/"}
	parts := map[string]bool{} // what scripts put into a page
	add := func(to string) {
		if !seen[to] && len(seen) < 800 {
			seen[to] = true
			next = append(next, to)
		}
	}
	for ; len(next) > 0; next = next[1:] {
		p := b.ask(http.MethodGet, next[0], nil, parts[next[0]])
		switch kind := p.header.Get("Content-Type"); {
		case strings.HasPrefix(kind, "text/html"):
			pages++
		case strings.HasPrefix(kind, "text/javascript") && !strings.HasSuffix(next[0], "/htmx.js"):
			if p.status != http.StatusOK {
				b.t.Errorf("%s is answered %d", next[0], p.status)
			}
			if found := absolute.FindString(p.body); found != "" {
				b.t.Errorf("%s has the address %s", next[0], found)
			}
			for _, match := range imported.FindAllStringSubmatch(p.body, -1) {
				add(next[0][:strings.LastIndex(next[0], "/")+1] + match[1])
			}
			continue
		default:
			continue
		}
		if p.location != "" {
			add(p.location)
			continue // browsers do not show this page
		}
		for _, match := range addressed.FindAllStringSubmatch(p.body, -1) {
			kind, to := match[1], html.UnescapeString(match[2])
			kinds[kind]++
			switch {
			case strings.HasPrefix(to, "?"), strings.HasPrefix(to, "https://"), strings.HasPrefix(to, "data:"):
			case !strings.HasPrefix(to, "/jail/console/"):
				b.t.Errorf("%s: %s leads to %s", next[0], kind, to)
			case kind == "href" && !away.MatchString(strings.TrimPrefix(to, "/jail")), kind == "src":
				add(to)
			case kind == "hx-get":
				parts[to] = true
				add(to)
			}
		}
	}
	return pages, kinds
}

// An origin has no path, and what people copy has one.
func TestBelowAPathPasskeysHaveAnOriginAndCopiesAnAddress(t *testing.T) {
	w := newFixture(t, func(o *Options) {
		o.Config.PublicURL, o.BehindProxy = "https://example.com/jail", []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}
	})
	var from signin.From
	w.SignIn = &seenFrom{SignIns: w.signIns, from: &from}
	proxied := func(r *http.Request) {
		r.Host, r.RemoteAddr = "example.com", "192.0.2.1:1"
		r.Header.Set("X-Forwarded-Proto", "https")
		r.AddCookie(&http.Cookie{Name: w.cookieName(r), Value: "admin"})
	}
	if w.send("", http.MethodPost, "/console/sign-in/passkey/begin", nil, proxied); from.Origin != "https://example.com" {
		t.Errorf("the origin is %q", from.Origin)
	}
	for _, test := range []struct{ by, want string }{{"proxy", "CLAWJAIL_URL=https://example.com/jail\n"}, {"direct", "CLAWJAIL_URL=http://localhost:18780\n"}} {
		change := proxied
		if test.by == "direct" {
			change = func(r *http.Request) { r.AddCookie(&http.Cookie{Name: w.cookieName(r), Value: "admin"}) }
		}
		form := url.Values{"name": {"by-" + test.by}, "tenant": {"acme"}, "role": {string(identity.RoleViewer)}, "life": {(24 * time.Hour).String()}}
		if p := w.send("", http.MethodPost, "/console/settings/people", form, change); !strings.Contains(p.body, test.want) {
			t.Errorf("by %s: %d, no %q\n%s", test.by, p.status, test.want, p.body)
		}
	}
}

type seenFrom struct {
	SignIns
	from *signin.From
}

func (s *seenFrom) BeginSignIn(_ context.Context, from signin.From) ([]byte, string, error) {
	*s.from = from
	return []byte("{}"), "c", nil
}
