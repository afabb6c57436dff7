//go:build unix

package browser

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
)

// planted is in every value of these tests, and may be in no error.
const planted = "value-of-"

// cookie is one that nothing is wrong with, and that a test changes.
func cookie(name string, change ...func(c *cookies.Cookie)) cookies.Cookie {
	c := cookies.Cookie{
		Name: name, Domain: ".example.test", Path: "/", Expires: cookies.Session, Session: true, Secure: true, HTTPOnly: true,
		SameSite: cookies.SameSiteLax, Priority: "Medium", SourceScheme: cookies.SchemeSecure, SourcePort: 443,
	}
	setValue(&c, planted+name)
	for _, f := range change {
		f(&c)
	}
	return c
}

// setValue sets the value, and with it the size, which the browser counts.
func setValue(c *cookies.Cookie, value string) {
	c.Value, c.Size = secret.New([]byte(value)), int64(len(c.Name)+len(value))
}

func value(v string) func(c *cookies.Cookie) { return func(c *cookies.Cookie) { setValue(c, v) } }

func hostOnly(c *cookies.Cookie) { c.Domain = "example.test" }

func insecure(c *cookies.Cookie) {
	c.Secure, c.SourceScheme, c.SourcePort = false, cookies.SchemeNonSecure, 80
}

func sameSite(s string) func(c *cookies.Cookie) { return func(c *cookies.Cookie) { c.SameSite = s } }

func priority(p string) func(c *cookies.Cookie) { return func(c *cookies.Cookie) { c.Priority = p } }

func inPartition(site string, ancestor bool) func(c *cookies.Cookie) {
	return func(c *cookies.Cookie) {
		c.PartitionKey = &cookies.PartitionKey{TopLevelSite: site, HasCrossSiteAncestor: ancestor}
	}
}

func expiring(in time.Duration) func(c *cookies.Cookie) {
	return func(c *cookies.Cookie) {
		c.Expires, c.Session = float64(time.Now().Add(in).Unix()), false
	}
}

// jar has one cookie of each kind that a browser tells from others.
func jar() []cookies.Cookie {
	return []cookies.Cookie{
		cookie("session"), cookie("day", expiring(24*time.Hour)), cookie("longest", expiring(400*24*time.Hour-2*time.Hour)),
		cookie("both"), cookie("both", hostOnly), cookie("below", func(c *cookies.Cookie) { c.Domain, c.Path = "a.b.example.test", "/app/" }),
		cookie("__Host-a", hostOnly), cookie("__Secure-a"),
		cookie("chips", inPartition("https://other.test", true)), cookie("chips", inPartition("https://example.test", false)), cookie("chips"),
		cookie("__Host-chips", hostOnly, inPartition("https://third.test", true), sameSite(cookies.SameSiteNone)),
		cookie("unspecified", sameSite("")), cookie("strict", sameSite(cookies.SameSiteStrict)), cookie("none", sameSite(cookies.SameSiteNone)),
		cookie("low", priority("Low")), cookie("high", priority("High")),
		cookie("insecure", insecure), cookie("unset", func(c *cookies.Cookie) { c.SourceScheme, c.SourcePort = cookies.SchemeUnset, -1 }),
		cookie("port", func(c *cookies.Cookie) { c.SourcePort = 8443 }), cookie("scripts", func(c *cookies.Cookie) { c.HTTPOnly = false }),
		cookie("empty", value("")), cookie("quoted", value(`"a, b\c"`)), cookie("equals", value("a=b==")), cookie("umlaut", value("ü😀")),
		cookie("longest-value", func(c *cookies.Cookie) { setValue(c, strings.Repeat("v", 4096-len(c.Name))) }),
	}
}

func mustSet(t *testing.T, b *Browser, id string, list []cookies.Cookie) {
	t.Helper()
	if err := b.SetCookies(within(t, 10*time.Second), id, list); err != nil {
		t.Fatal(err)
	}
}

func mustGet(t *testing.T, b *Browser, id string) []cookies.Cookie {
	t.Helper()
	list, err := b.Cookies(within(t, 10*time.Second), id)
	if err != nil {
		t.Fatal(err)
	}
	cookies.Sort(list)
	return list
}

// newContext makes a context beside the default one.
func newContext(t *testing.T, b *Browser) string {
	t.Helper()
	made, err := cdp.Do(within(t, 10*time.Second), b.conn.Browser(), target.CreateBrowserContext, target.CreateBrowserContextParams{})
	if err != nil {
		t.Fatal(err)
	}
	return string(made.BrowserContextID)
}

func TestCookiesComeBackAsTheyWereSet(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, deadAddress(t))
		set := jar()
		for _, c := range set {
			if err := cookies.Validate(c); err != nil {
				t.Fatalf("the test's own cookie: %v", err)
			}
		}
		mustSet(t, b, "", set)
		first := mustGet(t, b, "")
		cookies.Sort(set)
		if len(first) != len(set) {
			t.Fatalf("%d became %d: %v", len(set), len(first), cookies.Compare(set, first, time.Now()))
		}
		for n, c := range set {
			if !c.Equal(first[n]) {
				t.Errorf("%s became %s", cookies.Encode(set[n:n+1]), cookies.Encode(first[n:n+1]))
			}
		}
		// Cookies of one jar go into another one, and are the same there.
		id := newContext(t, b)
		mustSet(t, b, id, first)
		if again := mustGet(t, b, id); !slices.EqualFunc(first, again, cookies.Cookie.Equal) {
			t.Errorf("the second jar has %s", cookies.Encode(again))
		}
	})
}

func TestExpiryIsBroughtForwardTo400Days(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, deadAddress(t))
		far := []cookies.Cookie{cookie("far", expiring(3*365*24*time.Hour))}
		mustSet(t, b, "", far)
		got := mustGet(t, b, "")
		if len(got) != 1 || got[0].Expires >= far[0].Expires || len(cookies.Compare(far, got, time.Now())) != 0 {
			t.Fatalf("got %v, %v", got, cookies.Compare(far, got, time.Now()))
		}
		mustSet(t, b, "", got)
		if again := mustGet(t, b, ""); !again[0].Equal(got[0]) {
			t.Errorf("set again, %s became %s", cookies.Encode(got), cookies.Encode(again))
		}
	})
}

func TestEveryContextHasItsOwnJar(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, deadAddress(t))
		contexts := func() []string {
			t.Helper()
			list, err := b.Contexts(within(t, 10*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			return list
		}
		if list := contexts(); len(list) != 0 {
			t.Errorf("a new browser has %q", list)
		}
		one, two := newContext(t, b), newContext(t, b)
		list, want := contexts(), []string{one, two}
		slices.Sort(list)
		slices.Sort(want)
		if !slices.Equal(list, want) {
			t.Errorf("the contexts are %q, want %q", list, want)
		}
		mustSet(t, b, "", []cookies.Cookie{cookie("default")})
		mustSet(t, b, one, []cookies.Cookie{cookie("one")})
		for id, name := range map[string]string{"": "default", one: "one", two: ""} {
			names := ""
			for _, c := range mustGet(t, b, id) {
				names += c.Name
			}
			if names != name {
				t.Errorf("context %q has %q, want %q", id, names, name)
			}
		}
	})
}

// A context that is gone is no fault of the cookies: nobody should look for the bad one among them.
func TestContextThatIsNotThere(t *testing.T) {
	b := open(t, Shell, deadAddress(t))
	err := b.SetCookies(within(t, 10*time.Second), "0123456789ABCDEF", []cookies.Cookie{cookie("a")})
	if problem.CodeOf(err) != problem.Conflict || strings.Contains(err.Error(), planted) {
		t.Errorf("setting says %v", err)
	}
	if list, err := b.Cookies(within(t, 10*time.Second), "0123456789ABCDEF"); err == nil {
		t.Errorf("reading gives %v", list)
	}
}

// These are what Chromium does with a cookie that is not valid.
const (
	refuses = "refuses it"
	drops   = "drops it"
	changes = "changes it"
	takes   = "takes it"
)

func TestBadCookieIsNamedBadAndItsValueIsNotTold(t *testing.T) {
	raw := func(f func(c *cookies.Cookie)) cookies.Cookie { return cookie("bad", f) }
	tests := map[cookies.Reason]map[string]cookies.Cookie{
		cookies.BadName: {
			refuses: raw(func(c *cookies.Cookie) { c.Name = "a;b" }),
		},
		cookies.BadValue:     {refuses: raw(value(planted + "a;b"))},
		cookies.BadDomain:    {refuses: raw(func(c *cookies.Cookie) { c.Domain = "..example.test" }), drops: raw(func(c *cookies.Cookie) { c.Domain = "Example.test" })},
		cookies.PublicSuffix: {drops: raw(func(c *cookies.Cookie) { c.Domain = ".com" }), takes: raw(func(c *cookies.Cookie) { c.Domain = "com" })},
		cookies.BadPath:      {refuses: raw(func(c *cookies.Cookie) { c.Path = "x" }), drops: raw(func(c *cookies.Cookie) { c.Path = "/a b" })},
		cookies.TooLong:      {refuses: raw(value(planted + strings.Repeat("v", 4097)))},
		cookies.BadExpiry: {
			refuses: raw(func(c *cookies.Cookie) { c.Expires, c.Session = math.Inf(1), false }),
			drops:   raw(func(c *cookies.Cookie) { c.Expires, c.Session = 0, false }),
		},
		cookies.BadField: {
			refuses: raw(func(c *cookies.Cookie) { c.SourcePort = 65536 }),
			changes: raw(sameSite("no_restriction")),
		},
		cookies.InsecureSameSite:  {drops: raw(func(c *cookies.Cookie) { insecure(c); c.SameSite = cookies.SameSiteNone })},
		cookies.InsecurePartition: {refuses: raw(func(c *cookies.Cookie) { insecure(c); inPartition("https://other.test", true)(c) })},
		cookies.BadPartition:      {drops: raw(inPartition("https://www.other.test", true))},
		cookies.InsecureSource:    {refuses: raw(func(c *cookies.Cookie) { c.SourceScheme = cookies.SchemeNonSecure })},
		cookies.BadPrefix:         {refuses: cookie("__Host-bad")},
	}
	anyBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, deadAddress(t))
		for reason, kinds := range tests {
			for want, c := range kinds {
				var invalid *cookies.InvalidError
				if err := cookies.Validate(c); !asInvalid(err, &invalid) || invalid.Reason != reason {
					t.Errorf("%s, %s: Validate says %v", reason, want, err)
				}
				// In a context of its own, so that nothing of the others is in the way.
				id := newContext(t, b)
				got := takes
				if err := b.SetCookies(within(t, 10*time.Second), id, []cookies.Cookie{cookie("good"), c}); err != nil {
					got = refuses
					p, _ := problem.As(err)
					if p == nil || p.Code != problem.BadCookie || strings.Contains(fmt.Sprintf("%v %+v %#v %+v", err, err, p, p.Details), planted) {
						t.Errorf("%s: the error is %+v", reason, err)
					}
					if left := mustGet(t, b, id); len(left) != 0 {
						t.Errorf("%s: of a list with a bad cookie, %d were set", reason, len(left))
					}
				} else if d := cookies.Compare([]cookies.Cookie{c}, mustGet(t, b, id), time.Now()); len(d) == 1 && d[0].Dropped {
					got = drops
				} else if len(d) == 1 {
					got = changes
				}
				if got != want {
					t.Errorf("%s: Chromium %s, want that it %s", reason, got, want)
				}
			}
		}
	})
}

func asInvalid(err error, into **cookies.InvalidError) bool {
	invalid, ok := err.(*cookies.InvalidError)
	*into = invalid
	return ok
}

func TestCookiesOfABrowserThatIsGone(t *testing.T) {
	conn, process, _ := launch(t, Shell, deadAddress(t))
	b, err := Open(within(t, 20*time.Second), conn)
	if err != nil {
		t.Fatal(err)
	}
	process.Kill()
	<-b.Done()
	for name, do := range map[string]func(ctx context.Context) error{
		"contexts": func(ctx context.Context) error { _, err := b.Contexts(ctx); return err },
		"get":      func(ctx context.Context) error { _, err := b.Cookies(ctx, ""); return err },
		"set":      func(ctx context.Context) error { return b.SetCookies(ctx, "", []cookies.Cookie{cookie("a")}) },
		"sign in":  func(ctx context.Context) error { _, err := b.SignIn(ctx, "", "a"); return err },
	} {
		if err := do(within(t, 5*time.Second)); problem.CodeOf(err) != problem.BrowserExited {
			t.Errorf("%s: %v", name, err)
		}
	}
}
