//go:build unix

package session

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/target"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/cdp/cdptest/shelf"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/testenv/property"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(shelf.Tests{M: m, Shelf: &browsers}) }

// dialShell starts a real headless shell and connects to it as a session does.
func dialShell(t testing.TB) *piped {
	t.Helper()
	process := cdptest.Shell(t)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	b, err := dial(ctx, &jail.Stdio{In: process.Commands, Out: process.Replies}, browser.DialogWait)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b.(*piped)
}

// emptyJar makes a context with nothing in it, and ends it afterwards.
func emptyJar(ctx context.Context, b *piped) (id string, end func() error, err error) {
	made, err := cdp.Do(ctx, b.conn.Browser(), target.CreateBrowserContext, target.CreateBrowserContextParams{})
	if err != nil {
		return "", nil, err
	}
	return string(made.BrowserContextID), func() error {
		_, err := cdp.Do(ctx, b.conn.Browser(), target.DisposeBrowserContext, target.DisposeBrowserContextParams(made))
		return err
	}, nil
}

// anyCookie draws a cookie of example.com that Chromium takes: of each kind that it tells from others.
func anyCookie(t *rapid.T) cookies.Cookie {
	value := rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[!-:<-~é€😀]([ -:<-~é€😀]{0,40}[!-:<-~é€😀])?`)).Draw(t, "value")
	host := rapid.SampledFrom([]string{"example.com", "www.example.com", "a.b.example.com"}).Draw(t, "host")
	c := cookies.Cookie{
		Name: rapid.StringMatching(`[a-zA-Z!#$%&'*+.^|~-][!-:<>-~]{0,12}`).Draw(t, "name"), Value: secret.New([]byte(value)),
		Domain: rapid.SampledFrom([]string{host, "." + host}).Draw(t, "domain"), Expires: cookies.Session, Session: true,
		Path:       rapid.SampledFrom([]string{"/", "/app", "/app/", "/a%20b", "//"}).Draw(t, "path"),
		HTTPOnly:   rapid.Bool().Draw(t, "httpOnly"),
		Secure:     rapid.Bool().Draw(t, "secure"),
		SameSite:   rapid.SampledFrom([]string{"", cookies.SameSiteLax, cookies.SameSiteStrict, cookies.SameSiteNone}).Draw(t, "sameSite"),
		Priority:   rapid.SampledFrom([]string{"Low", "Medium", "High"}).Draw(t, "priority"),
		SourcePort: rapid.SampledFrom([]int64{-1, 80, 443, 8443}).Draw(t, "port"),
	}
	if rapid.Bool().Draw(t, "persistent") {
		c.Expires = float64(time.Now().UnixMicro()+rapid.Int64Range(60_000_000, int64(399*24*time.Hour/time.Microsecond)).Draw(t, "expires")) / 1e6
		c.Session = false
	}
	switch rapid.IntRange(0, 4).Draw(t, "kind") {
	case 0:
		c.Name, c.Secure, c.Path, c.Domain = "__Host-"+c.Name, true, "/", host
	case 1:
		c.Name, c.Secure = "__Secure-"+c.Name, true
	case 2:
		c.Secure = true
		c.PartitionKey = &cookies.PartitionKey{
			TopLevelSite:         rapid.SampledFrom([]string{"https://example.org", "https://example.com"}).Draw(t, "site"),
			HasCrossSiteAncestor: rapid.Bool().Draw(t, "ancestor"),
		}
	}
	c.Secure = c.Secure || c.SameSite == cookies.SameSiteNone
	c.SourceScheme = cookies.SchemeNonSecure
	if c.Secure {
		c.SourceScheme = cookies.SchemeSecure
	}
	return c
}

// From the vault to Chromium's jar and back, a cookie stays what it is.
func TestVaultAndChromiumKeepEveryCookie(t *testing.T) {
	b := dialShell(t)
	a := &accounts{fixture: newFixture(t)}
	a.openStore(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	property.Check(t, func(rt *rapid.T) { // a hundred times, of some 10 ms
		drawn := rapid.SliceOfN(rapid.Custom(anyCookie), 1, 20).Draw(rt, "cookies")
		for n := range drawn {
			// Chromium keeps an insecure cookie from taking the place of a secure one; names apart keep all of them.
			drawn[n].Name += fmt.Sprint("-", n)
			drawn[n].Size = int64(len(drawn[n].Name) + drawn[n].Value.Len())
		}
		_, err := a.vault.PutCookies(ctx, vault.NewCookies{Tenant: store.DefaultTenant, Domain: "example.com", Cookies: drawn})
		if err != nil {
			rt.Fatal(err)
		}
		id, end, err := emptyJar(ctx, b)
		if err != nil {
			rt.Fatal(err)
		}
		err = a.vault.UseLogin(ctx, store.DefaultTenant, "example.com", func(l weblogin.Login) error {
			good, expired, err := sift(l.Cookies, "example.com", time.Now())
			if err != nil || len(expired) > 0 || len(good) != len(drawn) {
				return fmt.Errorf("%d of %d are good, %q have expired: %w", len(good), len(drawn), expired, err)
			}
			return put(ctx, b, id, []string{"example.com"}, good, time.Now())
		})
		if err != nil {
			rt.Fatal(err)
		}
		back, err := b.Cookies(ctx, id)
		if err != nil {
			rt.Fatal(err)
		}
		if d := cookies.Compare(drawn, back, time.Now()); len(d) > 0 || len(back) != len(drawn) {
			rt.Fatalf("%d became %d: %+v", len(drawn), len(back), d)
		}
		cookies.Sort(drawn)
		cookies.Sort(back)
		for n := range drawn {
			if math.Abs(drawn[n].Expires-back[n].Expires) < 1e-5 {
				back[n].Expires = drawn[n].Expires // a float of seconds is cut to microseconds on the way
			}
			if !drawn[n].Equal(back[n]) {
				rt.Fatalf("%s became %s", cookies.Encode(drawn[n:n+1]), cookies.Encode(back[n:n+1]))
			}
		}
		if err := end(); err != nil {
			rt.Fatal(err)
		}
	})
}

// The real browser is asked as the made-up one is: it refuses a list for one cookie, and that one is found.
func TestChromiumsBadCookieIsFound(t *testing.T) {
	b := dialShell(t)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	list := many(50)
	list[17].Name = "__Host-c17" // which demands one host alone
	err := put(ctx, b, "", []string{"example.com"}, list, time.Now())
	wantCode(t, err, problem.InjectionFailed)
	p, _ := problem.As(err)
	if p == nil || !strings.Contains(p.Message, "does not take __Host-c17 of .example.com") || strings.Contains(p.Message, ",") ||
		strings.Contains(fmt.Sprintf("%+v %+v", err, p.Details), planted) {
		t.Errorf("got %+v", err)
	}
	// And one that it drops without a word.
	list = many(50)
	list[18].Path = "/a b"
	err = put(ctx, b, "", []string{"example.com"}, list, time.Now())
	wantCode(t, err, problem.InjectionFailed)
	if p, _ := problem.As(err); p == nil || !strings.Contains(p.Message, "c18 of .example.com") || !strings.Contains(p.Message, "(dropped)") ||
		strings.Contains(p.Message, ",") {
		t.Errorf("got %+v", err)
	}
}
