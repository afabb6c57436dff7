package vault

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/store"
)

// No tenant takes the places and the bytes of the vault from the others. Stored values can be replaced all the same.
func TestNoTenantTakesTheRoomOfTheVault(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	v.room = room{quotas: config.Quotas{Tenant: 80, Agent: 50}, tenants: func() int { return 2 }, accounts: 10, secrets: 10, bytes: 1 << 20}
	account := func(tenant, domain string, bytes int) error {
		_, err := v.PutCookies(t.Context(), NewCookies{Tenant: tenant, Domain: domain, Rules: &Rules{MaxLeases: 1},
			EgressDomains: nil, Cookies: many(domain, bytes)})
		return err
	}
	put := func(agent, service string) error {
		return v.PutSecret(t.Context(), SecretName{Tenant: store.DefaultTenant, Agent: agent, Service: service}, secret.New([]byte("value"+lengthening)), home)
	}
	until := func(what string, want int, code string, put func(n int) error) {
		t.Helper()
		for n := 0; ; n++ {
			err := put(n)
			if err == nil && n <= want {
				continue
			}
			if n != want || problem.CodeOf(err) != code {
				t.Errorf("%s: after %d: %v, want %s after %d", what, n, err, code, want)
			}
			return
		}
	}
	until("accounts", 8, problem.PoolExhausted, func(n int) error { return account(store.DefaultTenant, fmt.Sprintf("a%d.example", n), 1) })
	until("secrets of an agent", 4, problem.PoolExhausted, func(n int) error { return put(w.agent, fmt.Sprintf("s%d", n)) })
	until("secrets", 4, problem.PoolExhausted, func(n int) error { return put("", fmt.Sprintf("s%d", n)) })
	until("bytes", 12, problem.DiskFull, func(n int) error {
		return account(store.DefaultTenant, "a0.example", (n+1)*64<<10)
	})
	for what, err := range map[string]error{
		"a smaller one in its place": account(store.DefaultTenant, "a0.example", 10),
		"a secret in its place":      put("", "s0"),
		"another tenant's":           account("other", "a.example", 64<<10),
		"another tenant's second":    account("other", "b.example", 64<<10),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, a := range v.Held(t.Context())(quota.Holder{Tenant: "other"}) {
		if a.Kind.Name == quota.Accounts().Name && a.Held != (quota.Held{All: 10, Tenant: 2, Agent: 2}) {
			t.Errorf("%+v", a.Held)
		}
	}
}

// many are cookies with so many bytes in their values, at least.
func many(domain string, bytes int) (out []cookies.Cookie) {
	for n := 0; len(out) == 0 || bytes > 0; n++ {
		size := min(max(bytes, 1), 4000)
		out = append(out, cookie(fmt.Sprint("c", n), strings.Repeat("x", size), "."+domain))
		bytes -= size
	}
	return out
}

// A start reads no entry: with what it would hold of them, a tenant could keep everybody from starting.
func TestOpeningReadsNoEntry(t *testing.T) {
	w := newFixture(t)
	w.put(w.open(), "other", "a.example", "one")
	o := w.options()
	o.Store = &unread{Rows: w.db, t: t}
	v, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := v.Status(t.Context()); err != nil || len(s.Keys) != 1 || s.Keys[0].CookieSets != 1 || s.Unreadable != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// unread fails the test when entries are listed with their content.
type unread struct {
	Rows
	t *testing.T
}

func (u *unread) ListCookieSets(ctx context.Context, tenant string) ([]store.CookieSet, error) {
	u.t.Error("all cookie sets are read")
	return u.Rows.ListCookieSets(ctx, tenant)
}

func (u *unread) ListSecrets(ctx context.Context, tenant string) ([]store.Secret, error) {
	u.t.Error("all secrets are read")
	return u.Rows.ListSecrets(ctx, tenant)
}
