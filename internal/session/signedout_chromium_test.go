//go:build unix

package session

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session/signedout"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/internal/vault"
)

const (
	signInForm = `<form action=/login method=post><input name=email type=email><input name=password type=password><button>Continue</button></form>`
	otherForm  = `<form><input name=name><textarea name=comment></textarea><button>Send</button></form>`
	menu       = `<nav><a href=/>Home</a> <div style="display:none"><a href=/logout>Log out</a></div></nav>`
)

// kind is one kind of site: what it shows at a path while it knows the account, and what afterwards.
type kind struct {
	path  string
	in    http.HandlerFunc
	out   http.HandlerFunc
	at    map[string]http.HandlerFunc // other pages that it has afterwards
	wants signedout.Reason
	how   vault.SignedIn
}

func html(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(status)
		fmt.Fprint(w, "<!doctype html><title>A site</title><body>"+body)
	}
}

func to(address string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, address, http.StatusFound) }
}

func at(path string, page http.HandlerFunc) map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{path: page}
}

// setting answers with cookies before the page.
func setting(page http.HandlerFunc, lines ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, line := range lines {
			w.Header().Add("Set-Cookie", line)
		}
		page(w, r)
	}
}

// script runs after a moment.
func script(code string) string {
	return "<script>setTimeout(() => { " + code + " }, 400)</script>"
}

// forgetful are sites that forget the login. Each is of a domain of its own, such as form.example.
func forgetful() map[string]kind {
	inbox := html(200, menu+"<h1>Inbox</h1>")
	bare := html(200, "<h1>Orders</h1>"+otherForm) // nothing on it says that somebody is signed in
	return map[string]kind{
		"form":       {path: "/inbox", in: inbox, out: to("/login?next=/inbox"), at: at("/login", html(200, signInForm)), wants: signedout.LoginPage},
		"inplace":    {path: "/inbox", in: bare, out: html(200, "<h1>Welcome back</h1>"+signInForm), wants: signedout.LoginPage},
		"sso":        {path: "/inbox", in: inbox, out: to("http://id.idp.test/authorize?client_id=1&redirect_uri=http://sso.example/back"), wants: signedout.LoginPage},
		"ssorefused": {path: "/inbox", in: bare, out: to("http://closed.test/login?from=here"), wants: signedout.LoginPage},
		"spa":        {path: "/app", in: bare, out: html(200, "<h1>Loading</h1><div id=root></div>"+script("root.innerHTML = `"+signInForm+"`")), wants: signedout.LoginPage},
		"later":      {path: "/app", in: bare, out: html(200, script("location = '/account/login'")), at: at("/account/login", html(200, signInForm)), wants: signedout.LoginPage},
		"hash":       {path: "/", in: bare, out: html(200, script("location.hash = '/login'; document.body.innerHTML = '<input type=email><button>Next</button>'")), wants: signedout.LoginPage},
		"soft":       {path: "/", in: bare, out: setting(html(200, "<h1>News</h1><a href=/login>Sign in</a>"), "sid=; Max-Age=0; Domain=soft.example; Path=/"), wants: signedout.Deleted},
		"mfa": {path: "/inbox", in: inbox, out: to("/login/challenge"), at: at("/login/challenge",
			html(200, "<p>We sent you a code</p><form><input name=code inputmode=numeric autocomplete=one-time-code maxlength=6></form>")), wants: signedout.SecondFactor},
		"remember": {path: "/inbox", in: inbox, out: to("/users/sign_in"), at: at("/users/sign_in", html(200,
			`<form><input name=login value="ann@remember.example"><input type=password name=p value=prefilled><label><input type=checkbox checked> Remember me</label></form>`)), wants: signedout.LoginPage},
		"unauthorized": {path: "/", in: bare, out: html(401, "Unauthorized"), wants: signedout.Refused},
		"forbidden":    {path: "/start/", in: bare, out: html(403, "Forbidden"), wants: signedout.Refused, how: vault.SignedIn{Page: "http://forbidden.example/start"}},
		"identifier": {path: "/inbox", in: inbox, out: to("/signin/identifier"), at: at("/signin/identifier",
			html(200, `<form><input type=email autocomplete=username><button>Next</button></form>`)), wants: signedout.LoginPage},
		"passkey": {path: "/inbox", in: inbox, out: to("/signin"), at: at("/signin", html(200, `<button>Sign in with a passkey</button>`)), wants: signedout.LoginPage},
		"german":  {path: "/", in: inbox, out: to("/anmelden"), at: at("/anmelden", html(200, `<form><label>Benutzername <input></label><label>Kennwort <input type=password></label></form>`)), wants: signedout.LoginPage},
		"frame":   {path: "/app", in: bare, out: html(200, `<iframe width=500 height=300 srcdoc='`+signInForm+`'></iframe>`), wants: signedout.LoginPage},
		"again":   {path: "/orders", in: bare, out: html(200, `<p>Welcome back, Ann</p><form><input type=password name=p></form>`), wants: signedout.Password},
		"marker":  {path: "/home", in: html(200, "<b class=avatar>Ann</b>"), out: html(200, "<h1>Welcome, guest</h1>"), wants: signedout.MarkerGone, how: vault.SignedIn{Page: "http://marker.example/home", Marker: ".avatar"}},
	}
}

// lasting are sites that go on knowing the account, and look as if they did not.
func lasting() map[string]kind {
	bare := html(200, "<h1>Orders</h1>"+otherForm)
	password := func(fields string) http.HandlerFunc { return html(200, "<form>"+fields+"<button>Save</button></form>") }
	return map[string]kind{
		"banner":      {path: "/", in: bare, out: html(200, "<h1>News</h1><dialog open><h2>Your choice</h2><form action=/consent><input type=email placeholder='Email (optional)'><button>Accept all</button><a href=/login>Sign in to keep your choice</a></form></dialog>")},
		"paywall":     {path: "/article", in: bare, out: html(200, "<h2>Subscribe to read on</h2><p>Already a subscriber?</p>"+signInForm)},
		"paid":        {path: "/article", in: bare, out: html(402, signInForm)},
		"captcha":     {path: "/", in: bare, out: html(403, "<h1>One moment</h1><p>Verify you are human</p><iframe src=/captcha/frame width=300 height=80></iframe>")},
		"rate":        {path: "/", in: bare, out: html(429, "Too many requests. <a href=/login>Log in</a>"+signInForm)},
		"maintenance": {path: "/", in: bare, out: html(503, "<h1>Back soon</h1>"+signInForm)},
		"away":        {path: "/", in: html(200, "<b class=avatar>Ann</b>"), out: html(200, "<h1>Scheduled maintenance</h1>"), how: vault.SignedIn{Marker: ".avatar"}},
		"waf":         {path: "/", in: bare, out: html(403, "<h1>Access denied</h1><p>Your request was blocked. Incident ID: 1f-22</p>")},
		"change":      {path: "/settings/password", in: bare, out: password("<input type=password name=current><input type=password name=new><input type=password name=repeat>")},
		"delete":      {path: "/settings/delete", in: bare, out: password("<label>Your user name <input name=user></label><input type=password name=password>")},
		"admin":       {path: "/admin/users/new", in: bare, out: password("<input name=email type=email><input type=password name=password><select><option>Editor</select>")},
		"sudo":        {path: "/sudo", in: bare, out: html(200, menu+"<p>Confirm it is you</p><form><input name=login value=ann><input type=password></form>")},
		"mail":        {path: "/settings/mail", in: bare, out: password("<input name=host><input name=user><input type=password name=password>")},
		"register":    {path: "/join", in: bare, out: password("<input name=email type=email><input type=password autocomplete=new-password>")},
		"setup":       {path: "/settings/two-factor", in: bare, out: html(200, "<p>Scan the picture</p><form><input name=otp autocomplete=one-time-code></form>")},
		"rotated":     {path: "/", in: bare, out: setting(bare, "sid=; Max-Age=0; Domain=rotated.example; Path=/", "session2=new; HttpOnly; Path=/")},
		"flash":       {path: "/", in: bare, out: setting(bare, "flash=; Max-Age=0; Domain=flash.example; Path=/")},
		"unwatched":   {path: "/", in: bare, out: to("/login"), at: at("/login", html(200, signInForm)), how: vault.SignedIn{Unwatched: true}},
	}
}

// openWeb is a session of an agent with an account on each site, and the sites, which forget the accounts when they are told to.
func openWeb(t *testing.T, kinds map[string]kind, access grant.Access) (a *accounts, id string, forget *atomic.Bool) {
	t.Helper()
	forget = new(atomic.Bool)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, found := strings.CutSuffix(r.Host, ".example")
		k := kinds[name]
		switch page := k.at[r.URL.Path]; {
		case r.Host == "id.idp.test" || r.Host == "news.test" && r.URL.Path == "/login":
			html(200, signInForm)(w, r)
		case r.Host == "closed.test": // as the gateway refuses a host in plain HTTP
			html(403, "closed.test is not one of the hosts that the grant allows")(w, r)
		case !found || r.URL.Path != k.path && page == nil:
			http.NotFound(w, r)
		case page != nil:
			page(w, r)
		case forget.Load():
			k.out(w, r)
		default:
			k.in(w, r)
		}
	}))
	t.Cleanup(web.Close)
	a = &accounts{fixture: newFixture(t), logged: &testenv.Buffer{}}
	a.openStore(t)
	o := a.options(func(o *Options) {
		o.Accounts = Accounts{Grants: steppedGrants{a}, Vault: steppedVault{a}, Leases: steppedLeases{a}, Node: "node"}
		o.Connect = func(ctx context.Context, _ *jail.Stdio) (Browser, error) { return dialThrough(ctx, t, web) }
		began := time.Now()
		o.Now = func() time.Time { return began.Add(5 * time.Since(began)) } // pages have their time to settle sooner
	})
	var err error
	if a.s, err = New(o); err != nil {
		t.Fatal(err)
	}
	// As long as it is, with more looks at the beginning.
	a.s.lookAfter = []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond, 1600 * time.Millisecond, 3900 * time.Millisecond}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := a.s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	var domains []string
	for name, k := range kinds {
		domain := name + ".example"
		domains = append(domains, domain)
		plain := func(name string) cookies.Cookie {
			c := cookie(name, "."+domain)
			c.Secure, c.SourceScheme, c.SourcePort = false, cookies.SchemeNonSecure, 80
			return c
		}
		a.set(t, store.DefaultTenant, domain, 1, plain("sid"), plain("flash"))
		if err := a.vault.SetSignedIn(t.Context(), store.DefaultTenant, domain, k.how); err != nil {
			t.Fatal(err)
		}
	}
	token, _ := a.issue(t, func(r *grant.Request) { r.Domains, r.Access = domains, access })
	request := wanting(token, domains...)
	request.Access = string(access)
	opened, err := a.s.Open(t.Context(), admin, request)
	if err != nil {
		t.Fatal(err)
	}
	return a, opened.ID, forget
}

// TestALoginThatIsGoneIsNoticed visits each kind of site while it knows the account, and when it has forgotten it.
func TestALoginThatIsGoneIsNoticed(t *testing.T) {
	kinds := forgetful()
	a, id, forget := openWeb(t, kinds, grant.AccessTools)
	goes := func(name string) error {
		_, err := a.s.Drive(t.Context(), admin, id, browser.Navigate{URL: "http://" + name + ".example" + kinds[name].path})
		return err
	}
	for name := range kinds {
		if err := goes(name); err != nil {
			t.Errorf("%s, signed in: %v", name, err)
		}
	}
	if asked := a.asked(t, id); len(asked) != 0 {
		t.Fatalf("from the start it says %+v", asked)
	}
	forget.Store(true)
	for name, k := range kinds {
		seen := func() (reason string) {
			for _, f := range a.asked(t, id) {
				if f.Domain == name+".example" {
					reason = f.Reason
				}
			}
			return reason
		}
		err := goes(name)
		if late := problem.CodeOf(err) != problem.LoginNeeded; late && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		testenv.Eventually(t, 20*time.Second, func() bool { return seen() != "" }, "%s is not noticed", name)
		if seen() != string(k.wants) {
			t.Errorf("%s is noticed by %s, not by %s", name, seen(), k.wants)
		}
		// A request for the page gets no page; requests that have nothing to do with it go on.
		for _, op := range []browser.Operation{browser.Snapshot{}, browser.Screenshot{}, browser.Act{Kind: "press", Key: "a"}} {
			_, err = a.s.Drive(t.Context(), admin, id, op)
			wantCode(t, err, problem.LoginNeeded)
		}
		if p, ok := problem.As(err); !ok || p.Details["domain"] != name+".example" || p.Details["reason"] != string(k.wants) || p.Hint == "" {
			t.Errorf("%s: %+v", name, p)
		}
		if _, err := a.s.Drive(t.Context(), admin, id, browser.Tabs{}); err != nil {
			t.Errorf("%s: list the tabs: %v", name, err)
		}
		if set, err := a.vault.Cookies(t.Context(), store.DefaultTenant, name+".example"); err != nil || set.SignedOutBy != string(k.wants) {
			t.Errorf("%s has %+v, %v", name, set, err)
		}
	}
	// The site knows the account again, as after a maintenance that looked like the end.
	forget.Store(false)
	if err := goes("form"); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(a.asked(t, id), func(f Refresh) bool { return f.Domain == "form.example" }) {
		t.Error("an account that is signed in again is said to be signed out")
	}
	if set, err := a.vault.Cookies(t.Context(), store.DefaultTenant, "form.example"); err != nil || set.SignedOutBy != "" {
		t.Errorf("it has %+v, %v", set, err)
	}
}

// TestALoginThatLooksGoneIsKept visits sites that know the account, and look as if they did not.
func TestALoginThatLooksGoneIsKept(t *testing.T) {
	kinds := lasting()
	a, id, forget := openWeb(t, kinds, grant.AccessTools)
	for _, gone := range []bool{false, true} {
		forget.Store(gone)
		for name, k := range kinds {
			if _, err := a.s.Drive(t.Context(), admin, id, browser.Navigate{URL: "http://" + name + ".example" + k.path}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if name == "away" && gone { // as long as a page has to show what it is going to show
				testenv.Eventually(t, 20*time.Second, func() bool {
					a.s.mu.Lock()
					watch := a.s.sessions[id].watch
					a.s.mu.Unlock()
					watch.mu.Lock()
					defer watch.mu.Unlock()
					v := watch.visits[accountPage{store.DefaultTenant, "away.example", "away.example/"}]
					return !v.at.IsZero() && a.s.Now().Sub(v.at) > settleTime
				}, "it does not settle")
			}
			if _, err := a.s.Drive(t.Context(), admin, id, browser.Snapshot{}); err != nil {
				t.Errorf("%s: look: %v", name, err)
			}
		}
	}
	// The page of somebody else asks somebody else.
	if _, err := a.s.Drive(t.Context(), admin, id, browser.Navigate{URL: "http://news.test/login"}); err != nil {
		t.Errorf("the page of a stranger: %v", err)
	}
	if asked := a.asked(t, id); len(asked) != 0 {
		t.Errorf("it says %+v", asked)
	}
}

// TestALoginThatIsGoneIsNoticedBehindADevToolsClient looks at what a client does, which asks nobody.
func TestALoginThatIsGoneIsNoticedBehindADevToolsClient(t *testing.T) {
	kinds := map[string]kind{"spa": forgetful()["spa"], "form": forgetful()["form"]}
	a, id, forget := openWeb(t, kinds, grant.AccessCDP)
	attached, err := a.s.Attach(t.Context(), admin, id)
	if err != nil {
		t.Fatal(err)
	}
	defer attached.Close()
	client := &commander{Devtools: attached}
	page := client.page(t)
	goes := func(name string) {
		client.call(t, page, "Page.navigate", map[string]any{"url": "http://" + name + ".example" + kinds[name].path})
	}
	for name := range kinds {
		goes(name)
	}
	testenv.Eventually(t, 20*time.Second, func() bool {
		a.s.mu.Lock()
		defer a.s.mu.Unlock()
		return len(a.s.visits) > 0
	}, "nobody looks at the page")
	if asked := a.asked(t, id); len(asked) != 0 {
		t.Fatalf("from the start it says %+v", asked)
	}
	forget.Store(true)
	for name := range kinds {
		goes(name)
		testenv.Eventually(t, 20*time.Second, func() bool {
			return slices.ContainsFunc(a.asked(t, id), func(f Refresh) bool { return f.Domain == name+".example" })
		}, "%s is not noticed", name)
	}
}

// TestTheLoginWalkProposesHowToSeeTheLoginLater looks at the page that a person has logged in to.
func TestTheLoginWalkProposesHowToSeeTheLoginLater(t *testing.T) {
	inbox := html(200, `<h1>Inbox</h1><form action="/logout" method=post><button>Log out</button></form>`)
	kinds := map[string]kind{"form": {path: "/inbox", in: inbox, out: to("/login"), at: at("/login", html(200, signInForm))}}
	a, id, forget := openWeb(t, kinds, grant.AccessTools)
	a.s.mu.Lock()
	s := a.s.sessions[id]
	s.plan.refresh = "form.example" // the browser of a session to log in with has policies, which this one has not
	b := s.instance.browser
	a.s.mu.Unlock()
	proposes := func(address string, want vault.SignedIn) {
		t.Helper()
		if _, err := b.Navigate(t.Context(), address); err != nil {
			t.Fatal(err)
		}
		if got := a.s.shows(t.Context(), s, b); got != want {
			t.Errorf("at %s it proposes %+v", address, got)
		}
	}
	forget.Store(true)
	proposes("http://form.example/inbox", vault.SignedIn{})
	proposes("http://form.example/nowhere", vault.SignedIn{})
	proposes("http://news.test/", vault.SignedIn{})
	forget.Store(false)
	proposes("http://form.example/inbox?from=login#top", vault.SignedIn{Page: "http://form.example/inbox", Marker: `form[action="/logout"]`})
}
