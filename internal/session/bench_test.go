//go:build unix

package session

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/vault/secret"
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
	a := &accounts{world: newWorld(nil)}
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

func median(list []time.Duration) float64 {
	slices.Sort(list)
	return milliseconds(list[len(list)/2])
}
