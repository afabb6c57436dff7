//go:build unix

package session

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// realLooking are 50 cookies as a jar of some months has them: tokens, preferences and counters, of the domain and of
// hosts below it.
func realLooking() []cookies.Cookie {
	var out []cookies.Cookie
	for n := range 50 {
		c := cookie(fmt.Sprintf("%s_%d", []string{"_ga", "session", "csrf", "pref", "__Secure-id"}[n%5], n),
			[]string{".example.com", "www.example.com", "accounts.example.com"}[n%3])
		value := ""
		for len(value) < []int{20, 40, 60, 200, 900}[n%5] {
			value += rand.Text()
		}
		c.Value, c.HTTPOnly = secret.New([]byte(value)), n%2 == 0
		if n%4 != 0 {
			c = until(c, time.Duration(n+1)*24*time.Hour)
		}
		if n%10 == 9 {
			c.PartitionKey, c.SameSite = &cookies.PartitionKey{TopLevelSite: "https://example.org"}, cookies.SameSiteNone
		}
		out = append(out, c)
	}
	return out
}

// BenchmarkInject50 is what an operator session waits for between a browser that answers and one that is logged in: 50
// cookies decrypted, validated, set in a real headless shell, read back and compared. Beside it, ms-set-median is what
// the browser itself takes to be told the same cookies, by Storage.setCookies alone.
func BenchmarkInject50(b *testing.B) {
	shell := dialShell(b)
	a := &accounts{fixture: newFixture(nil)}
	a.openStore(b)
	list := realLooking()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if _, err := a.vault.PutCookies(ctx, vault.NewCookies{Tenant: store.DefaultTenant, Domain: "example.com", Cookies: list}); err != nil {
		b.Fatal(err)
	}
	var injections, sets []time.Duration
	for b.Loop() {
		b.StopTimer()
		id, end, err := emptyJar(ctx, shell)
		if err != nil {
			b.Fatal(err)
		}
		plain, endPlain, err := emptyJar(ctx, shell)
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		if err := shell.SetCookies(ctx, plain, list); err != nil {
			b.Fatal(err)
		}
		sets = append(sets, time.Since(began))
		b.StartTimer()
		began = time.Now()
		err = a.vault.UseLogin(ctx, store.DefaultTenant, "example.com", func(stored weblogin.Login) error {
			good, _, err := sift(stored.Cookies, "example.com", time.Now())
			if err != nil {
				return err
			}
			return put(ctx, shell, id, []string{"example.com"}, good, time.Now())
		})
		injections = append(injections, time.Since(began))
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		for _, f := range []func() error{end, endPlain} {
			if err := f(); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
	}
	b.ReportMetric(median(injections), "ms-median")
	b.ReportMetric(median(sets), "ms-set-median")
}

// stores is what a page of an application has stored after some months: 20 entries of localStorage, and a database of 200
// records.
func stores(b *testing.B) []weblogin.Origin {
	b.Helper()
	o := weblogin.Origin{Origin: "https://app.example.com"}
	for n := range 20 {
		o.Local = append(o.Local, weblogin.Item{Name: fmt.Sprint("entry-", n), Value: secret.New([]byte(strings.Repeat(rand.Text(), []int{1, 2, 10, 40}[n%4])))})
	}
	var records []string
	for n := range 200 {
		records = append(records, fmt.Sprintf(`{"value":{"id":%d,"token":%q,"user":{"name":"ann","roles":["a","b"]},"at":1764279000000}}`, n, rand.Text()))
	}
	d, err := weblogin.DecodeOrigin([]byte(`{"origin":"x","indexedDB":[{"name":"app","version":3,"stores":[{"name":"s","keyPath":"id","autoIncrement":false,
		"indexes":[{"name":"token","keyPath":"token","multiEntry":false,"unique":true}],"records":[` + strings.Join(records, ",") + `]}]}]}`))
	if err != nil {
		b.Fatal(err)
	}
	o.Databases = d.Databases
	return []weblogin.Origin{o}
}

// BenchmarkInjectLogin is BenchmarkInject50 for an account that has storage, too. ms-unprepared-median is without the page that
// is opened ahead, and ms-cookies-median an account with the cookies alone, in the same run.
func BenchmarkInjectLogin(b *testing.B) {
	shell := dialShell(b)
	a := &accounts{fixture: newFixture(nil)}
	a.openStore(b)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for domain, origins := range map[string][]weblogin.Origin{"example.com": stores(b), "example.org": nil} {
		list := realLooking()
		for n := range list {
			list[n].Domain = strings.Replace(list[n].Domain, "example.com", domain, 1)
		}
		if _, err := a.vault.PutCookies(ctx, vault.NewCookies{Tenant: store.DefaultTenant, Domain: domain, Cookies: list, Origins: origins}); err != nil {
			b.Fatal(err)
		}
	}
	inject := func(domain string, prepared bool) time.Duration {
		id, end, err := emptyJar(ctx, shell)
		if err != nil {
			b.Fatal(err)
		}
		if prepared {
			shell.Prepare(id, "https://app.example.com")
			time.Sleep(200 * time.Millisecond) // until it is open, which only its user is told
		}
		began := time.Now()
		err = a.vault.UseLogin(ctx, store.DefaultTenant, domain, func(l weblogin.Login) error {
			good, _, err := sift(l.Cookies, domain, time.Now())
			if err != nil {
				return err
			}
			l.Cookies = good
			return putLogin(ctx, shell, id, []string{domain}, l, time.Now())
		})
		took := time.Since(began)
		if err := errors.Join(err, end()); err != nil {
			b.Fatal(err)
		}
		return took
	}
	var whole, cold, alone []time.Duration
	for b.Loop() {
		whole, cold, alone = append(whole, inject("example.com", true)), append(cold, inject("example.com", false)), append(alone, inject("example.org", false))
	}
	b.ReportMetric(median(whole), "ms-median")
	b.ReportMetric(median(cold), "ms-unprepared-median")
	b.ReportMetric(median(alone), "ms-cookies-median")
}

func median(list []time.Duration) float64 {
	slices.Sort(list)
	return milliseconds(list[len(list)/2])
}
