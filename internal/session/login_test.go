package session

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session/signedout"
	"github.com/clawjail/clawjail/internal/store"
)

func exampleLogin() config.Login {
	return config.Login{Domain: "example.com", URLs: []string{"https://*.example.com/login*", "https://sso.example.net/a.b?to=*"}, Selector: "form#login"}
}

// asked are the accounts of which a session says that its site asked to log in.
func (a *accounts) asked(t *testing.T, id string) []Refresh {
	t.Helper()
	out, err := a.s.Get(t.Context(), admin, id)
	if err != nil {
		t.Fatal(err)
	}
	return out.NeedsRefresh
}

func TestPageThatAsksToLogInIsNoticed(t *testing.T) {
	tests := map[string]struct {
		url, leads string // where a page leads to
		has        string // what the page has
		asks       bool
	}{
		"an address of the list":              {"https://www.example.com/login?next=/", "", "", true},
		"an address of another domain":        {"https://sso.example.net/a.b?to=example", "", "", true},
		"a page that leads to one":            {"https://www.example.com/inbox", "https://accounts.example.com/login", "", true},
		"a page with the form":                {"https://www.example.com/inbox", "", "form#login", true},
		"the domain itself with the form":     {"https://example.com/", "", "form#login", true},
		"upper case with the form":            {"https://WWW.Example.COM/", "", "form#login", true},
		"any other page":                      {"https://www.example.com/inbox", "", "form#search", false},
		"the address as a part of another":    {"https://evil.test/?u=https://www.example.com/login", "", "", false},
		"a dot is a dot":                      {"https://sso.example.net/axb?to=example", "", "", false},
		"the form of a site of somebody else": {"https://example.org/", "", "form#login", false},
		"the form of a look-alike":            {"https://evil-example.com/", "", "form#login", false},
		"a page without an address":           {"about:blank", "", "form#login", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			withAccounts(t, withLogins(exampleLogin()), func(t *testing.T, a *accounts) {
				a.set(t, store.DefaultTenant, "example.com", 1)
				out := a.mustOpenOperator(t)
				if len(out.NeedsRefresh) != 0 {
					t.Fatalf("from the start it says %+v", out.NeedsRefresh)
				}
				b := a.browserOf(out)
				b.has = test.has
				if test.leads != "" {
					b.redirect = map[string]string{test.url: test.leads}
				}
				for range 2 { // it is said once
					_, err := visit(a.s, t.Context(), admin, out.ID, test.url, 0)
					if test.asks {
						wantCode(t, err, problem.LoginNeeded)
					} else if err != nil {
						t.Fatal(err)
					}
				}
				asked, events := a.asked(t, out.ID), a.steps("event session.needs_refresh failed example.com")
				if !test.asks {
					if len(asked) != 0 || len(events) != 0 {
						t.Errorf("it says %+v, %q", asked, events)
					}
					return
				}
				if len(asked) != 1 || asked[0].Domain != "example.com" || asked[0].Reason != ReasonLogin || asked[0].At.IsZero() {
					t.Errorf("it says %+v", asked)
				}
				if len(events) != 1 || !strings.Contains(events[0], `"reason":"login_page"`) {
					t.Errorf("the events are %q", events)
				}
				// It is known when the session is gone.
				a.mustClose(t, out.ID)
				if set, err := a.vault.Cookies(t.Context(), store.DefaultTenant, "example.com"); err != nil || set.SignedOutBy != ReasonLogin || !set.SignedOutAt.Equal(asked[0].At) {
					t.Errorf("the account has %+v, %v", set, err)
				}
			})
		})
	}
}

func TestPatternsOfAddresses(t *testing.T) {
	for _, test := range []struct {
		pattern, address string
		matches          bool
	}{
		{"https://*.example.com/login*", "https://a.b.example.com/login/2?x=/y", true},
		{"https://*.example.com/login*", "https://evil.test/a.example.com/login", false},
		{"https://*.example.com/login*", "https://evil.test?a.example.com/login", false},
		{"https://*.example.com/login*", "https://evil.test#a.example.com/login", false},
		{"https://example.com/*/login", "https://example.com/de/app/login", true},
		{"https://login.example.com*", "https://login.example.com/any?x", true},
		{"https://login.example.com", "https://login.example.com/", false},
		{"*://example.com/in", "http://example.com/in", true},
		{"*/signin*", "https://example.com/signin", true},
		{"https://example.com/a+b(c)", "https://example.com/a+b(c)", true},
		{"https://example.com/a+b(c)", "https://example.com/aabc", false},
	} {
		if got := addresses(test.pattern).MatchString(test.address); got != test.matches {
			t.Errorf("%s matches %s: %v", test.pattern, test.address, got)
		}
	}
}

// A page can change by itself, or by what its user does; who takes a picture of it looks at it too.
func TestLoginIsNoticedWithAScreenshot(t *testing.T) {
	withAccounts(t, withLogins(exampleLogin()), func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		out := a.mustOpenOperator(t)
		b := a.browserOf(out)
		b.mu.Lock()
		b.at = "https://www.example.com/login"
		b.mu.Unlock()
		_, err := photograph(a.s, t.Context(), admin, out.ID)
		wantCode(t, err, problem.LoginNeeded)
		if asked := a.asked(t, out.ID); len(asked) != 1 {
			t.Errorf("it says %+v", asked)
		}
	})
}

func TestLoginIsNoticedAlsoWhenThePageDidNotLoad(t *testing.T) {
	withAccounts(t, withLogins(exampleLogin()), func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		out := a.mustOpenOperator(t)
		b := a.browserOf(out)
		b.mu.Lock()
		b.at = "https://www.example.com/login"
		b.mu.Unlock()
		_, err := visit(a.s, t.Context(), admin, out.ID, "slow", time.Second)
		wantCode(t, err, problem.LoginNeeded)
		if asked := a.asked(t, out.ID); len(asked) != 1 {
			t.Errorf("it says %+v", asked)
		}
	})
}

func TestCleanSessionNeedsNoRefresh(t *testing.T) {
	withAccounts(t, withLogins(exampleLogin()), func(t *testing.T, a *accounts) {
		out, err := a.s.Open(t.Context(), admin, OpenRequest{})
		if err != nil {
			t.Fatal(err)
		}
		a.browserOf(out).has = "form#login"
		if _, err := visit(a.s, t.Context(), admin, out.ID, "https://www.example.com/login", 0); err != nil {
			t.Fatal(err)
		}
		if asked := a.asked(t, out.ID); len(asked) != 0 || len(a.steps("event session.needs_refresh")) != 0 {
			t.Errorf("it says %+v", asked)
		}
	})
}

// A session has the accounts that it asked for; a login of another one is not its business.
func TestLoginOfAnAccountThatTheSessionHasNotIsNotNoticed(t *testing.T) {
	withAccounts(t, withLogins(exampleLogin()), func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, two, 1)
		token, _ := a.issue(t, inBothDomains)
		out, err := a.s.Open(t.Context(), admin, wanting(token, two))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := visit(a.s, t.Context(), admin, out.ID, "https://www.example.com/login", 0); err != nil {
			t.Fatal(err)
		}
		if asked := a.asked(t, out.ID); len(asked) != 0 {
			t.Errorf("it says %+v", asked)
		}
	})
}

// Where a tab comes from decides whose login is gone when it shows a sign-in of another domain. A look that comes while the browser is
// about to leave a page counts for that page, and other tabs count for themselves.
func TestATabComesFromWhereItWasOrWasSent(t *testing.T) {
	const sso, one, other = "https://sso.test/authorize", "https://example.com/", "https://" + two + "/"
	type step struct {
		tab, shows string
		unseen     bool   // it is not looked at
		sent       string // an address, before the tab shows that
		opens      bool   // in a new tab
		done       bool   // the operation has ended well
		asks       string // the account whose login is gone
	}
	for name, steps := range map[string][]step{
		"the page that it leaves does not count":     {{tab: "a", shows: one}, {tab: "a", sent: other, shows: one}, {tab: "a", shows: sso, asks: two}},
		"nor one that was not looked at":             {{tab: "a", shows: one, unseen: true}, {tab: "a", sent: other, shows: one}, {tab: "a", shows: sso, asks: two}},
		"it arrives, and is sent from there":         {{tab: "a", sent: other, shows: other, done: true}, {tab: "a", shows: sso, asks: two}},
		"it goes elsewhere by itself":                {{tab: "a", sent: other, shows: other}, {tab: "a", shows: one}, {tab: "a", shows: sso, asks: "example.com"}},
		"another tab was at another account":         {{tab: "a", sent: one, shows: one}, {tab: "b", sent: other, shows: other}, {tab: "a", shows: sso, asks: "example.com"}},
		"another tab shows a new page on the way":    {{tab: "a", shows: one}, {tab: "a", sent: other, shows: one, unseen: true}, {tab: "b", shows: one}, {tab: "a", shows: sso, asks: two}},
		"another tab was sent to a part of its page": {{tab: "a", shows: one}, {tab: "b", shows: other}, {tab: "b", sent: other + "#x", shows: other, done: true}, {tab: "a", shows: sso, asks: "example.com"}},
		"a tab that is opened":                       {{tab: "a", shows: one}, {tab: "b", opens: true, sent: other, shows: sso, asks: two}},
		"a tab that is opened, after a look at one":  {{tab: "a", shows: one}, {tab: "a", opens: true, sent: other, shows: one}, {tab: "b", shows: sso, asks: two}},
		"a tab that a page opens":                    {{tab: "a", sent: other, shows: other}, {tab: "b", shows: sso, asks: two}},
		"it comes from no account":                   {{tab: "a", sent: "https://elsewhere.test/", shows: "https://elsewhere.test/"}, {tab: "a", shows: sso}},
	} {
		t.Run(name, func(t *testing.T) {
			withAccounts(t, nil, func(t *testing.T, a *accounts) {
				a.set(t, store.DefaultTenant, "example.com", 1)
				a.set(t, store.DefaultTenant, two, 1)
				token, _ := a.issue(t, inBothDomains)
				out, err := a.s.Open(t.Context(), admin, wanting(token, "example.com", two))
				if err != nil {
					t.Fatal(err)
				}
				a.s.mu.Lock()
				s := a.s.sessions[out.ID]
				a.s.mu.Unlock()
				b := a.browserOf(out)
				shown := map[string]string{}
				show := func(tab string) {
					b.mu.Lock()
					defer b.mu.Unlock()
					b.at, b.passwords = shown[tab], 0
					if b.at == sso {
						b.passwords = 1
					}
				}
				for n, step := range steps {
					arrived := func() {}
					if step.sent != "" {
						show(step.tab)
						var op browser.Operation = browser.Navigate{TargetID: step.tab, URL: step.sent}
						if step.opens {
							op = browser.OpenTab{URL: step.sent}
						}
						arrived = s.watch.heads(b, op, s.plan.domains)
					}
					shown[step.tab] = step.shows
					if step.unseen {
						continue
					}
					show(step.tab)
					got := ""
					if asks := a.s.look(t.Context(), s, b, step.tab); asks != nil {
						got = asks.Domain
					}
					if got != step.asks {
						t.Errorf("step %d: %q asks to log in, not %q", n, got, step.asks)
					}
					if step.done {
						arrived()
					}
				}
			})
		})
	}
}

// The fields that a page showed are known in later sessions, whose browsers give their documents the same names.
func TestAPasswordFieldIsNewWhereAnEarlierSessionSawNone(t *testing.T) {
	const page = "https://www.example.com/home"
	for name, test := range map[string]struct {
		first, second int // fields for a password
		asks          bool
	}{
		"none and one": {0, 1, true},
		"one and one":  {1, 1, false},
		"none twice":   {0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			withAccounts(t, nil, func(t *testing.T, a *accounts) {
				a.set(t, store.DefaultTenant, "example.com", 1)
				var out Session
				for _, passwords := range []int{test.first, test.second} {
					if out.ID != "" {
						a.mustClose(t, out.ID)
					}
					out = a.mustOpenOperator(t)
					a.browserOf(out).passwords = passwords
					_, err := visit(a.s, t.Context(), admin, out.ID, page, 0)
					if err != nil && problem.CodeOf(err) != problem.LoginNeeded {
						t.Fatal(err)
					}
				}
				asked := a.asked(t, out.ID)
				if len(asked) > 0 != test.asks || test.asks && asked[0].Reason != string(signedout.Password) {
					t.Errorf("it says %+v", asked)
				}
			})
		})
	}
}

// Sessions that look in turn at one page have a visit each: a field that comes later is no news.
func TestTwoSessionsVisitAPageAtOnce(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 2)
		var r [2]*session
		var b [2]*fakeBrowser
		for n := range r {
			out := a.mustOpenOperator(t)
			a.s.mu.Lock()
			r[n] = a.s.sessions[out.ID]
			a.s.mu.Unlock()
			b[n] = a.browserOf(out)
			b[n].at = "https://www.example.com/home"
		}
		now := time.Now()
		a.s.Now = func() time.Time { return now }
		for range 3 {
			for n := range r {
				a.s.look(t.Context(), r[n], b[n], "")
			}
			now = now.Add(settleTime)
		}
		b[0].passwords = 1
		if asks := a.s.look(t.Context(), r[0], b[0], ""); asks != nil {
			t.Errorf("it says %+v", asks)
		}
		b[0].at = "https://www.example.com/home?again" // another document of the page
		if asks := a.s.look(t.Context(), r[0], b[0], ""); asks != nil {
			t.Errorf("after a page with a field it says %+v", asks)
		}
	})
}

func probing() config.Login {
	l := exampleLogin()
	l.ProbeURL = "https://www.example.com/home"
	return l
}

func TestAccountIsProbedBeforeTheSessionIsReady(t *testing.T) {
	for name, leads := range map[string]string{"logged in": "", "logged out": "https://www.example.com/login"} {
		t.Run(name, func(t *testing.T) {
			withAccounts(t, withLogins(probing()), func(t *testing.T, a *accounts) {
				a.set(t, store.DefaultTenant, "example.com", 1)
				if leads != "" {
					a.prepare = func(b *fakeBrowser) { b.redirect = map[string]string{probing().ProbeURL: leads} }
				}
				out := a.mustOpenOperator(t)
				if logged := leads == ""; len(out.NeedsRefresh) == 0 != logged || !logged && out.NeedsRefresh[0].Reason != ReasonLogin {
					t.Errorf("it says %+v", out.NeedsRefresh)
				}
				b := a.browserOf(out)
				if !slices.Equal(b.visits, []string{probing().ProbeURL, blankPage}) || b.at != blankPage {
					t.Errorf("it was at %q, and is at %s", b.visits, b.at)
				}
				a.inOrder(t, "outcome session.inject ok", "intent session.use default admin "+probing().ProbeURL, "navigate",
					"outcome session.use ok", "outcome session.open_operator ok")
			})
		})
	}
}

func TestSiteThatIsAwayIsNoReasonToRefuseItsSession(t *testing.T) {
	withAccounts(t, withLogins(probing()), func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		a.failOnce("navigate", problem.New(problem.NavigationFailed, "", "it is away"))
		out := a.mustOpenOperator(t)
		if len(out.NeedsRefresh) != 0 || a.browserOf(out).at != blankPage {
			t.Errorf("it says %+v, and is at %s", out.NeedsRefresh, a.browserOf(out).at)
		}
		a.inOrder(t, "outcome session.use failed", "outcome session.open_operator ok")
	})
}

// The page of the probe is one of the operator's: it must not be what the session begins with.
func TestPageOfTheProbeIsLeftOrThereIsNoSession(t *testing.T) {
	withAccounts(t, withLogins(probing()), func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		token, _ := a.issue(t)
		a.failing("navigate", problem.New(problem.NavigationFailed, "", "nothing loads"))
		a.refused(t, admin, wanting(token), problem.NavigationFailed)
		a.free(t, store.DefaultTenant, "example.com")
	})
}

// The last moment of a probe is one at which a caller may leave, and a browser may end.
func TestSessionIsNotReadyOnThePageOfItsProbe(t *testing.T) {
	tests := map[string]struct {
		end  func(a *accounts, b *fakeBrowser, cancel context.CancelFunc)
		code string
	}{
		"the caller left":   {func(_ *accounts, _ *fakeBrowser, cancel context.CancelFunc) { cancel() }, problem.Canceled},
		"the browser ended": {func(_ *accounts, b *fakeBrowser, _ context.CancelFunc) { _ = b.Close() }, problem.Internal},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			withAccounts(t, withLogins(probing()), func(t *testing.T, a *accounts) {
				a.set(t, store.DefaultTenant, "example.com", 1)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				a.prepare = func(b *fakeBrowser) {
					step := b.step
					b.step = func(name string) error {
						if name == "navigate" {
							test.end(a, b, cancel)
						}
						return step(name)
					}
				}
				token, _ := a.issue(t)
				_, err := a.s.Open(ctx, admin, wanting(token))
				wantCode(t, err, test.code)
				a.nothingLeft(t)
				a.free(t, store.DefaultTenant, "example.com")
			})
		})
	}
}

func TestProbeThatIsNotRecordedIsNotMade(t *testing.T) {
	withAccounts(t, withLogins(probing()), func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		a.failing("record session.use", errPlanted)
		out := a.mustOpenOperator(t)
		if visits := a.browserOf(out).visits; slices.Contains(visits, probing().ProbeURL) {
			t.Errorf("the browser was at %q", visits)
		}
	})
}
