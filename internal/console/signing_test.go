package console

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/identity/signin"
)

// realSignIns is a fixture in which people sign in for real.
func realSignIns(t *testing.T) (*fixture, *signin.Service) {
	t.Helper()
	var s *signin.Service
	w := newFixture(t, func(o *Options) {
		var err error
		s, err = signin.Open(t.Context(), signin.Options{Store: o.Rows.(signin.Store), Identity: o.Identity.(*identity.Service), Idle: time.Hour, Life: time.Hour, Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		o.SignIn = s
	})
	return w, s
}

// with gives a request the cookies that an answer left.
func with(p page) func(*http.Request) {
	return func(r *http.Request) {
		for _, c := range (&http.Response{Header: p.header}).Cookies() {
			r.AddCookie(c)
		}
	}
}

func theCookie(t *testing.T, p page) *http.Cookie {
	t.Helper()
	for _, c := range (&http.Response{Header: p.header}).Cookies() {
		if strings.HasSuffix(c.Name, "clawjail-18780") {
			return c
		}
	}
	t.Fatalf("no cookie: %d %v", p.status, p.header)
	return nil
}

func TestSigningInWithAKeyLeadsOnAndIsForThisPathAlone(t *testing.T) {
	w, _ := realSignIns(t)
	if p := w.get("", "/console/sign-in?next=/console/agents"); p.status != http.StatusOK || !strings.Contains(p.body, `value="/console/agents"`) {
		t.Fatalf("%d\n%s", p.status, p.body)
	}
	p := w.post("", "/console/sign-in", "key", w.keys["acme operator"], "next", "/console/agents")
	if p.status != http.StatusSeeOther || p.location != "/console/agents" {
		t.Fatalf("%d to %q\n%s", p.status, p.location, p.body)
	}
	c := theCookie(t, p)
	if c.Path != "/console" || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure || c.Expires.Before(time.Now().Add(50*time.Minute)) {
		t.Errorf("%+v", c)
	}
	if p := w.send("", http.MethodGet, "/console/", nil, with(p)); p.status != http.StatusOK || !strings.Contains(p.body, "operator of acme") {
		t.Errorf("%d\n%s", p.status, p.body)
	}
	// A person who is signed in is led on.
	if p := w.send("", http.MethodGet, "/console/sign-in?code=x&next=/console/audit", nil, with(p)); p.status != http.StatusSeeOther || p.location != "/console/audit" {
		t.Errorf("%d to %q", p.status, p.location)
	}
}

func TestAKeyThatIsNotGoodIsToldBesideTheFieldAndNotShownAgain(t *testing.T) {
	w, _ := realSignIns(t)
	p := w.post("", "/console/sign-in", "key", "cjop_not-a-key", "next", "/console/agents")
	if p.status != http.StatusUnauthorized || !strings.Contains(p.body, `id="f-key-wrong"`) || !strings.Contains(p.body, `value="/console/agents"`) {
		t.Errorf("%d\n%s", p.status, p.body)
	}
	if strings.Contains(p.body, "cjop_not-a-key") || strings.Contains(w.written.String(), "cjop_not-a-key") {
		t.Error("the key that was typed is shown, or logged")
	}
	if p := w.post("", "/console/sign-in", "key", " "); p.status != http.StatusUnprocessableEntity || !strings.Contains(p.body, "write your key") {
		t.Errorf("%d\n%s", p.status, p.body)
	}
	if p := w.get("", "/console/"); p.status != http.StatusSeeOther {
		t.Errorf("%d", p.status)
	}
}

// Who is not signed in sends no more than what is free, so that they take no room of others.
func TestTheFormOfAStrangerIsSmall(t *testing.T) {
	w, _ := realSignIns(t)
	for size, want := range map[int]int{maxFormSignedOut - 100: http.StatusSeeOther, maxFormSignedOut: http.StatusBadRequest} {
		p := w.post("", "/console/sign-in", "key", w.keys["acme operator"], "filling", strings.Repeat("x", size))
		if p.status != want {
			t.Errorf("a form of %d bytes is answered with %d, want %d", size, p.status, want)
		}
	}
	w = newFixture(t)
	if p := w.post("acme operator", "/console/theme", "theme", "dark", "filling", strings.Repeat("x", maxFormSignedOut)); p.status != http.StatusSeeOther {
		t.Errorf("the form of somebody who is signed in is answered with %d", p.status)
	}
}

func TestWhoGuessesKeysHasToWait(t *testing.T) {
	w, _ := realSignIns(t)
	for range identity.DefaultRateLimit().Burst {
		w.post("", "/console/sign-in", "key", "wrong")
	}
	p := w.post("", "/console/sign-in", "key", w.keys["admin"])
	wait, err := strconv.Atoi(p.header.Get("Retry-After"))
	if every := int(identity.DefaultRateLimit().Every / time.Second); p.status != http.StatusTooManyRequests || err != nil || wait < 1 || wait > every || !strings.Contains(p.body, `id="f-key-wrong"`) {
		t.Errorf("%d, Retry-After %q\n%s", p.status, p.header.Get("Retry-After"), p.body)
	}
}

func TestALinkIsUsedUpByItsButtonAloneAndOnce(t *testing.T) {
	w, s := realSignIns(t)
	link, err := s.NewLink(t.Context(), w.who["acme admin"])
	if err != nil {
		t.Fatal(err)
	}
	at := "/console/sign-in?" + url.Values{"code": {link.Code}, "next": {"/console/refresh/s_1"}}.Encode()
	for range 3 { // whatever looks at links, before the person does
		if p := w.get("", at); p.status != http.StatusOK || !strings.Contains(p.body, `name="code" value="`+link.Code+`"`) || len(p.header["Set-Cookie"]) > 0 {
			t.Fatalf("%d\n%s", p.status, p.body)
		}
	}
	p := w.post("", "/console/sign-in", "code", link.Code, "next", "/console/refresh/s_1")
	if p.status != http.StatusSeeOther || p.location != "/console/refresh/s_1" {
		t.Fatalf("%d to %q\n%s", p.status, p.location, p.body)
	}
	theCookie(t, p)
	again := w.post("", "/console/sign-in", "code", link.Code)
	if again.status != http.StatusUnauthorized || strings.Contains(again.body, link.Code) || !strings.Contains(again.body, `name="key"`) || len(again.header["Set-Cookie"]) > 0 {
		t.Errorf("%d\n%s", again.status, again.body)
	}
}

func TestSigningInLeadsToNoOtherSite(t *testing.T) {
	w, _ := realSignIns(t)
	for _, next := range []string{"https://evil.test/console/", "//evil.test/console/", `/\evil.test`, "/v1/sessions", "/console/../v1", "javascript:alert(1)", "/consoles", "/console/sign-in?next=/x", "\x00"} {
		p := w.post("", "/console/sign-in", "key", w.keys["admin"], "next", next)
		if p.status == http.StatusSeeOther && p.location != "/console/" || p.status != http.StatusSeeOther && next != "\x00" {
			t.Errorf("%q leads to %d %q", next, p.status, p.location)
		}
	}
}

func TestAPageOfAnotherSiteSignsNobodyIn(t *testing.T) {
	w, _ := realSignIns(t)
	p := w.send("", http.MethodPost, "/console/sign-in", url.Values{"key": {w.keys["admin"]}}, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") })
	if p.status != http.StatusForbidden || len(p.header["Set-Cookie"]) > 0 {
		t.Errorf("%d %v", p.status, p.header)
	}
}

func TestSigningOutEndsTheSignIn(t *testing.T) {
	w, _ := realSignIns(t)
	in := w.post("", "/console/sign-in", "key", w.keys["admin"])
	out := w.send("", http.MethodPost, "/console/sign-out", nil, with(in))
	if out.status != http.StatusSeeOther || theCookie(t, out).MaxAge >= 0 {
		t.Errorf("%d %v", out.status, out.header)
	}
	if p := w.send("", http.MethodGet, "/console/", nil, with(in)); p.status != http.StatusSeeOther || !strings.HasPrefix(p.location, signInPath) {
		t.Errorf("the old cookie: %d to %q", p.status, p.location)
	}
	if p := w.send("", http.MethodGet, signInPath, nil, with(out)); !strings.Contains(p.body, "You are signed out.") {
		t.Error(p.body)
	}
}

func TestColoursAreKeptForThisPathAlone(t *testing.T) {
	w := newFixture(t)
	for choice, shown := range map[string]string{"dark": ` data-theme="dark"`, "light": ` data-theme="light"`, "auto": `<html lang="en">`, hostile: `<html lang="en">`} {
		p := w.post("acme viewer", "/console/theme", "theme", choice, "back", "/console/audit")
		if p.status != http.StatusSeeOther || p.location != "/console/audit" {
			t.Fatalf("%d to %q", p.status, p.location)
		}
		if got := w.follow("acme viewer", p); !strings.Contains(got.body, shown) {
			t.Errorf("%s: %s", choice, got.body[:100])
		}
	}
}

func TestAPasskeyIsAskedForAsBrowsersAreToldInJSON(t *testing.T) {
	w, _ := realSignIns(t)
	var begun struct {
		Options struct {
			PublicKey struct{ Challenge, RPID string }
		}
		Challenge string
	}
	p := w.post("", "/console/sign-in/passkey/begin")
	if err := json.Unmarshal([]byte(p.body), &begun); err != nil || p.status != http.StatusOK {
		t.Fatalf("%d %v\n%s", p.status, err, p.body)
	}
	if begun.Challenge == "" || begun.Options.PublicKey.Challenge == "" || begun.Options.PublicKey.RPID != "localhost" {
		t.Errorf("%s", p.body)
	}
	in := w.post("", "/console/sign-in", "key", w.keys["acme operator"])
	if p := w.send("", http.MethodPost, "/console/settings/passkeys/begin", nil, with(in)); p.status != http.StatusOK || !strings.Contains(p.body, `"user"`) {
		t.Errorf("%d\n%s", p.status, p.body)
	}
	for _, body := range []string{"", "{", `{"challenge":"none","response":{}}`, strings.Repeat("x", maxFormSignedOut+1)} {
		for _, path := range []string{"/console/sign-in/passkey", "/console/settings/passkeys/finish"} {
			p := w.sendBody(path, body, with(in))
			if p.status < 400 || p.status >= 500 || !strings.Contains(p.body, `"problem":`) || len(p.header["Set-Cookie"]) > 0 {
				t.Errorf("%s with %.30q: %d %s", path, body, p.status, p.body)
			}
		}
	}
}

// Passkeys of a host are good at all of its ports. Another user's server on this machine could ask for one, and hand on here
// what was signed for its own page.
func TestAPasskeyThatWasSignedForAnotherPortIsNotTaken(t *testing.T) {
	w, _ := realSignIns(t)
	in := w.post("", "/console/sign-in", "key", w.keys["acme operator"])
	for _, test := range []struct {
		host  string
		proxy bool
		want  int
	}{
		{"localhost:18780", false, http.StatusOK}, {"localhost:9999", false, http.StatusBadRequest}, {"localhost", false, http.StatusBadRequest},
		{"console.example.com", true, http.StatusOK}, {"console.example.com", false, http.StatusBadRequest},
		{"console.example.com:443", true, http.StatusOK}, {"console.example.com:9999", true, http.StatusBadRequest}, {"other.example.com", true, http.StatusBadRequest},
	} {
		w.BehindProxy = nil
		if test.proxy {
			w.BehindProxy = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} // where requests of httptest come from
			w.Config.PublicURL = "https://console.example.com"
		}
		for _, path := range []string{"/console/sign-in/passkey/begin", "/console/settings/passkeys/begin"} {
			p := w.send("", http.MethodPost, path, nil, func(r *http.Request) {
				r.Host = test.host
				r.Header.Set("X-Forwarded-Proto", "https")
				r.AddCookie(&http.Cookie{Name: w.cookieName(r), Value: theCookie(t, in).Value})
			})
			if p.status != test.want || (p.status == http.StatusOK) != strings.Contains(p.body, `"challenge"`) {
				t.Errorf("%s of %s, by a proxy: %v: %d %s", path, test.host, test.proxy, p.status, p.body)
			}
		}
	}
}

// sendBody sends what a script sends.
func (w *fixture) sendBody(path, body string, change ...func(*http.Request)) page {
	return w.send("", http.MethodPost, path, nil, append(change, func(r *http.Request) {
		r.Header.Set("Content-Type", "application/json")
		r.Body = readCloser{strings.NewReader(body)}
	})...)
}

type readCloser struct{ *strings.Reader }

func (readCloser) Close() error { return nil }

// somePasskeys has passkeys that are only described.
type somePasskeys struct {
	*fakeSignIns
	all     []signin.Passkey
	removed string
}

func (s *somePasskeys) Passkeys(context.Context, identity.Principal) ([]signin.Passkey, error) {
	return s.all, nil
}
func (s *somePasskeys) RemovePasskey(_ context.Context, _ identity.Principal, id string) error {
	s.removed = id
	return nil
}

func TestPasskeysAreListedAndRemoved(t *testing.T) {
	s := &somePasskeys{all: []signin.Passkey{{ID: "pk_1", Name: hostile, Host: "localhost", CreatedAt: time.Now()}}}
	w := newFixture(t, func(o *Options) { s.fakeSignIns = o.SignIn.(*fakeSignIns); o.SignIn = s })
	p := w.get("acme operator", "/console/settings/people")
	if p.status != http.StatusOK || strings.Contains(p.body, hostile) || !strings.Contains(p.body, "onerror=&#34;") || !strings.Contains(p.body, `name="id" value="pk_1"`) {
		t.Errorf("%d\n%s", p.status, p.body)
	}
	p = w.post("acme operator", "/console/settings/passkeys/remove", "id", "pk_1", "back", "/console/settings/people")
	if p.status != http.StatusSeeOther || p.location != "/console/settings/people" || s.removed != "pk_1" {
		t.Errorf("%d to %q, removed %q", p.status, p.location, s.removed)
	}
}
