package session

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// storing is an origin with entries: names and values in turn.
func storing(origin string, pairs ...string) weblogin.Origin {
	o := weblogin.Origin{Origin: origin}
	for n := 0; n+1 < len(pairs); n += 2 {
		o.Local = append(o.Local, weblogin.Item{Name: pairs[n], Value: secret.New([]byte(pairs[n+1]))})
	}
	return o
}

func TestOperatorSessionHasWhatPagesHadStored(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.stores = []weblogin.Origin{storing("https://app.example.com", "token", planted+"token"), storing("https://example.com", "a", planted+"a", "b", "")}
		a.set(t, store.DefaultTenant, "example.com", 1)
		a.prepare = func(b *fakeBrowser) { b.jar = map[string][]cookies.Cookie{"context-1": nil} }
		out := a.mustOpenOperator(t)
		if out.Injected != 2 || out.Storage != 2 {
			t.Errorf("opened %+v", out)
		}
		for _, id := range []string{"", "context-1"} {
			got := a.browserOf(out).stored[id]
			if bad := append(weblogin.Compare(a.stores, got), weblogin.Compare(got, a.stores)...); len(bad) > 0 || len(got) != 2 {
				t.Errorf("context %q has %v: %q", id, got, bad)
			}
		}
		a.inOrder(t, "intent session.inject", "decrypt cookies", "set cookies", "get cookies", "set storage", "outcome session.inject ok")
		if trail := strings.Join(a.steps("outcome session.inject"), ""); !strings.Contains(trail, `"origin_count":2`) {
			t.Errorf("the record is %s", trail)
		}
		a.s.mu.Lock()
		values := a.s.sessions[out.ID].values
		a.s.mu.Unlock()
		if got := values.Text("it says " + planted + "token here"); got != "it says [redacted] here" {
			t.Errorf("an answer is %q", got)
		}
	})
}

func TestBrowserThatDoesNotKeepTheStorageGetsNoSession(t *testing.T) {
	tests := map[string]struct {
		keeps func(weblogin.Origin) (weblogin.Origin, error)
		code  string
		says  string
	}{
		"it refuses it": {func(weblogin.Origin) (weblogin.Origin, error) {
			return weblogin.Origin{}, problem.New(problem.BadStorage, "", "the browser does not take what is stored for https://app.example.com")
		}, problem.InjectionFailed, "does not take what is stored for https://app.example.com"},
		"it drops an entry":  {func(o weblogin.Origin) (weblogin.Origin, error) { o.Local = nil; return o, nil }, problem.InjectionFailed, "https://app.example.com (an entry is missing)"},
		"it changes a value": {func(o weblogin.Origin) (weblogin.Origin, error) { return storing(o.Origin, "token", planted), nil }, problem.InjectionFailed, "(a value is another one)"},
		"it had an entry before": {func(o weblogin.Origin) (weblogin.Origin, error) {
			return storing(o.Origin, "token", planted+"token", "x", planted), nil
		}, problem.InjectionFailed, "(it had entries before)"},
		"it opens another": {func(o weblogin.Origin) (weblogin.Origin, error) { o.Origin = "https://example.com"; return o, nil }, problem.InjectionFailed, "https://app.example.com (nothing)"},
		"it dies": {func(weblogin.Origin) (weblogin.Origin, error) {
			return weblogin.Origin{}, problem.New(problem.BrowserExited, "", "the pipe is closed")
		}, problem.BrowserExited, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			withAccounts(t, nil, func(t *testing.T, a *accounts) {
				a.stores = []weblogin.Origin{storing("https://app.example.com", "token", planted+"token")}
				a.set(t, store.DefaultTenant, "example.com", 1)
				a.prepare = func(b *fakeBrowser) { b.keeps = test.keeps }
				token, _ := a.issue(t)
				err := a.refused(t, admin, wanting(token), test.code)
				if p, _ := problem.As(err); !strings.Contains(err.Error(), test.says) || test.code == problem.InjectionFailed && p.Hint == "" {
					t.Errorf("it is %+v", err)
				}
				a.nothingLeft(t)
				a.free(t, store.DefaultTenant, "example.com")
			})
		})
	}
}

// Storage that the vault refuses to store is not believed either when it comes out of it.
func TestStorageThatIsNotOfItsAccountIsNotPutIn(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		a.alters = func(l *weblogin.Login) {
			l.Origins = []weblogin.Origin{storing("https://example.org", "token", planted)}
		}
		token, _ := a.issue(t)
		a.refused(t, admin, wanting(token), problem.BadStorage)
		if n := a.count("set cookies") + a.count("set storage"); n > 0 {
			t.Errorf("something was put in %d times", n)
		}
		// The control: one of the domain is.
		a.alters = func(l *weblogin.Login) {
			l.Origins = []weblogin.Origin{storing("https://www.example.com", "token", planted)}
		}
		if out := a.mustOpenOperator(t); out.Storage != 1 {
			t.Errorf("opened %+v", out)
		}
	})
}

// Some sites keep a login in storage alone. It has no expiry that is known.
func TestAccountWithStorageAloneIsUsed(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		put := func(list ...cookies.Cookie) {
			_, err := a.vault.PutCookies(t.Context(), vault.NewCookies{Tenant: store.DefaultTenant, Domain: "example.com", Cookies: list,
				Origins: []weblogin.Origin{storing("https://example.com", "token", planted)}, Rules: &vault.Rules{Scopes: []string{"tools"}, MaxLeases: 1}})
			if err != nil {
				t.Fatal(err)
			}
		}
		put()
		out := a.mustOpenOperator(t)
		if out.Injected != 0 || out.Storage != 1 || len(out.NeedsRefresh) > 0 {
			t.Errorf("opened %+v", out)
		}
		a.mustClose(t, out.ID)
		put(until(cookie("ads", ".example.com"), time.Minute))
		time.Sleep(time.Hour)
		if out := a.mustOpenOperator(t); out.Injected != 0 || out.Storage != 1 || !slices.Equal(out.NeedsRefresh[0].Cookies, []string{"ads"}) {
			t.Errorf("opened %+v", out)
		}
	})
}
