package session

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func inBothDomains(r *grant.Request) { r.Domains = []string{"example.com", two} }

// many are n cookies of example.com: c0, c1 and so on.
func many(n int) []cookies.Cookie {
	out := make([]cookies.Cookie, n)
	for i := range out {
		out[i] = cookie(fmt.Sprint("c", i), ".example.com")
	}
	return out
}

func hasNamed(list []cookies.Cookie, name string) bool {
	return slices.ContainsFunc(list, func(c cookies.Cookie) bool { return c.Name == name })
}

// refusing is a browser that refuses every list with one of some cookies in it, as Chromium does: without a name.
func refusing(names ...string) func([]cookies.Cookie) ([]cookies.Cookie, error) {
	return func(list []cookies.Cookie) ([]cookies.Cookie, error) {
		for _, name := range names {
			if hasNamed(list, name) {
				return nil, problem.New(problem.BadCookie, "", "the browser does not take the cookies")
			}
		}
		return list, nil
	}
}

func TestBrowserThatDoesNotTakeTheCookiesGetsNoSession(t *testing.T) {
	tests := map[string]struct {
		takes func([]cookies.Cookie) ([]cookies.Cookie, error)
		code  string
		says  []string
		// limit is how often the browser may be asked.
		limit int
	}{
		"it refuses one": {refusing("c17"), problem.InjectionFailed, []string{"c17 of .example.com", "does not take"}, 2 + 2*6},
		"it refuses two": {refusing("c3", "c44"), problem.InjectionFailed, []string{"c3 of .example.com", "c44 of .example.com"}, 2 + 4*6},
		"it refuses some together": {func(list []cookies.Cookie) ([]cookies.Cookie, error) {
			if len(list) == 50 {
				return nil, problem.New(problem.BadCookie, "", "too many")
			}
			return list, nil
		}, problem.InjectionFailed, []string{"together"}, 4},
		"it drops one": {func(list []cookies.Cookie) ([]cookies.Cookie, error) {
			return slices.DeleteFunc(slices.Clone(list), func(c cookies.Cookie) bool { return c.Name == "c17" }), nil
		}, problem.InjectionFailed, []string{"c17 of .example.com", "dropped"}, 1},
		"it changes one": {func(list []cookies.Cookie) ([]cookies.Cookie, error) {
			out := slices.Clone(list)
			out[17].SameSite = ""
			return out, nil
		}, problem.InjectionFailed, []string{"c17 of .example.com", "changed sameSite"}, 1},
		"it changes a value": {func(list []cookies.Cookie) ([]cookies.Cookie, error) {
			out := slices.Clone(list)
			out[17].Value = out[18].Value
			return out, nil
		}, problem.InjectionFailed, []string{"c17 of .example.com", "changed value"}, 1},
		"it had a cookie before": {func(list []cookies.Cookie) ([]cookies.Cookie, error) {
			return append(slices.Clone(list), cookie("stranger", ".example.org")), nil
		}, problem.InjectionFailed, []string{"stranger of .example.org", "before"}, 1},
		"it takes none": {func([]cookies.Cookie) ([]cookies.Cookie, error) { return nil, nil }, problem.InjectionFailed,
			[]string{"c0 of .example.com", "and 40 more"}, 1},
		"it does not answer": {func([]cookies.Cookie) ([]cookies.Cookie, error) {
			return nil, problem.New(problem.BrowserExited, "", "the pipe is closed")
		}, problem.BrowserExited, nil, 1},
		"it fails": {func([]cookies.Cookie) ([]cookies.Cookie, error) { return nil, errors.New("no answer") }, problem.Internal, nil, 1},
		"it dies while the bad one is looked for": {func(list []cookies.Cookie) ([]cookies.Cookie, error) {
			if len(list) == 50 {
				return nil, problem.New(problem.BadCookie, "", "bad")
			}
			return nil, problem.New(problem.BrowserExited, "", "the pipe is closed")
		}, problem.BrowserExited, nil, 3},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			withAccounts(t, nil, func(t *testing.T, a *accounts) {
				a.set(t, store.DefaultTenant, "example.com", 1, many(50)...)
				a.prepare = func(b *fakeBrowser) { b.takes = test.takes }
				token, id := a.issue(t)
				err := a.refused(t, admin, wanting(token), test.code)
				for _, says := range test.says {
					if !strings.Contains(err.Error(), says) {
						t.Errorf("%q is not in %v", says, err)
					}
				}
				if p, ok := problem.As(err); ok && strings.Contains(p.Message, "c4 of") && name == "it refuses one" {
					t.Errorf("a good cookie is named: %v", err)
				}
				if n := a.count("set cookies"); n == 0 || n > test.limit {
					t.Errorf("the browser was asked %d times, at most %d are enough", n, test.limit)
				}
				a.nothingLeft(t)
				a.inOrder(t, "outcome session.inject failed", "outcome session.open_operator failed", "ending session.close", "destroy")
				for _, line := range a.steps("outcome session.inject", "outcome session.open_operator") {
					if !strings.Contains(line, `"code":"`+test.code+`"`) {
						t.Errorf("the record says %s", line)
					}
				}
				if state := a.stateOf(t, id); state != "used" {
					t.Errorf("the grant is %s", state)
				}
				all, _ := a.s.List(t.Context(), admin, "", true)
				if len(all) != 1 || all[0].State != StateFailed || all[0].Injected != 0 || strings.Contains(all[0].Ended.Message, planted) {
					t.Errorf("it is listed as %+v", all)
				}
				a.free(t, store.DefaultTenant, "example.com")
			})
		})
	}
}

// The worst that can be: the browser refuses all of as many cookies as there may be.
func TestFindingBadCookiesIsBounded(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1, many(cookies.MaxCookies)...)
		a.prepare = func(b *fakeBrowser) {
			b.takes = func([]cookies.Cookie) ([]cookies.Cookie, error) {
				return nil, problem.New(problem.BadCookie, "", "the browser does not take the cookies")
			}
		}
		token, _ := a.issue(t)
		err := a.refused(t, admin, wanting(token), problem.InjectionFailed)
		p, _ := problem.As(err)
		if named, ok := p.Details["cookies"].([]string); !ok || len(named) != maxNamed || !strings.Contains(p.Message, "more") {
			t.Errorf("it names %v", p.Details["cookies"])
		}
		if n, limit := a.count("set cookies"), 100; n > limit { // 10 named ones and one more, 12 halvings
			t.Errorf("the browser was asked %d times", n)
		}
	})
}

// A cookie that the vault refuses to store is not believed either when it comes out of it.
func TestCookieThatIsNotOfItsAccountIsNotInjected(t *testing.T) {
	bad := cookie("bad", ".example.com")
	bad.SameSite, bad.Secure, bad.SourceScheme = cookies.SameSiteNone, false, cookies.SchemeUnset
	for name, c := range map[string]cookies.Cookie{
		"of another domain":              cookie("x", "."+two),
		"of a domain that looks like it": cookie("x", ".evil-example.com"),
		"not valid":                      bad,
	} {
		t.Run(name, func(t *testing.T) {
			good, expired, err := sift([]cookies.Cookie{cookie("sid", ".example.com"), c}, "example.com", time.Now())
			wantCode(t, err, problem.BadCookie)
			if good != nil || expired != nil || strings.Contains(fmt.Sprintf("%+v", err), planted) {
				t.Errorf("%d are good, %d expired: %v", len(good), len(expired), err)
			}
		})
	}
	both := []cookies.Cookie{cookie("sid", ".example.com"), cookie("host", "www.example.com")}
	if good, _, err := sift(both, "example.com", time.Now()); err != nil || len(good) != 2 {
		t.Errorf("of good ones %d are good, %v", len(good), err)
	}
}

// A context that refuses is as bad as the default one.
func TestEveryContextIsComparedAfterwards(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		calls := 0
		a.prepare = func(b *fakeBrowser) {
			b.jar = map[string][]cookies.Cookie{"context-1": nil}
			b.takes = func(list []cookies.Cookie) ([]cookies.Cookie, error) {
				if calls++; calls == 2 {
					return list[:1], nil
				}
				return list, nil
			}
		}
		token, _ := a.issue(t)
		a.refused(t, admin, wanting(token), problem.InjectionFailed)
		if calls != 2 {
			t.Errorf("cookies were set %d times", calls)
		}
	})
}

// That an account was used is told to people; a session does not depend on it.
func TestInjectionThatIsNotMarkedIsAnInjection(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		a.failing("mark injected", errPlanted)
		if out := a.mustOpenOperator(t); out.Injected != 2 || !strings.Contains(a.logged.String(), "mark an account") {
			t.Errorf("%d were injected; the log is %s", out.Injected, a.logged)
		}
	})
}
