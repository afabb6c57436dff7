package vault

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Every node has a key file of its own, and the locks beside it: what one of them decides, another may have changed before it is written.
func TestNothingComesBackThatAnotherNodeHasReplacedOrDeleted(t *testing.T) {
	const tenant, domain = "default", "example.com"
	name := SecretName{Tenant: tenant, Service: "mail"}
	rules := func(ctx context.Context, v *Vault) error {
		return v.SetRules(ctx, tenant, domain, Rules{Scopes: []string{"few"}, MaxLeases: 7})
	}
	signedIn := func(ctx context.Context, v *Vault) error {
		return v.SetSignedIn(ctx, tenant, domain, SignedIn{Unwatched: true})
	}
	login := func(ctx context.Context, v *Vault) error {
		_, err := v.PutCookies(ctx, NewCookies{Tenant: tenant, Domain: domain, Cookies: jar("new")})
		return err
	}
	logout := func(ctx context.Context, v *Vault) error { return v.DeleteCookies(ctx, tenant, domain) }
	replace := func(ctx context.Context, v *Vault) error {
		return v.PutSecret(ctx, name, secret.New([]byte("new"+lengthening)))
	}
	remove := func(ctx context.Context, v *Vault) error { return v.DeleteSecret(ctx, name) }
	use := func(_ context.Context, v *Vault) error { _, err := secretOf(v, name); return err }
	declare := func(ctx context.Context, v *Vault) error { return v.BindDeclared(ctx) }
	rotate := func(ctx context.Context, v *Vault) error { _, err := v.Rotate(ctx); return err }
	nothing := func(context.Context, *Vault) error { return nil }
	type state struct {
		login, secret string
		leases        int
		unwatched     bool
	}
	for what, c := range map[string]struct {
		here, there func(context.Context, *Vault) error
		code        string
		want        state
	}{
		"rules, alone":                {rules, nothing, "", state{"old", "old", 7, false}},
		"rules, and a login":          {rules, login, "", state{"new", "old", 7, false}},
		"rules, of what is deleted":   {rules, logout, problem.NotFound, state{"", "old", 0, false}},
		"rules, and a page":           {rules, signedIn, "", state{"old", "old", 7, true}},
		"a page, and rules":           {signedIn, rules, "", state{"old", "old", 7, true}},
		"a login, and rules":          {login, rules, "", state{"new", "old", 7, false}},
		"a use, alone":                {use, nothing, "", state{"old", "old", 1, false}},
		"a use, and a new secret":     {use, replace, "", state{"old", "new", 1, false}},
		"a use of what is deleted":    {use, remove, problem.NotFound, state{"old", "", 1, false}},
		"a service, alone":            {declare, nothing, "", state{"old", "old", 1, false}},
		"a service, and a new secret": {declare, replace, "", state{"old", "new", 1, false}},
		"a rotation, alone":           {rotate, nothing, "", state{"old", "old", 1, false}},
		"a rotation, and a login":     {rotate, login, "", state{"new", "old", 1, false}},
		"a rotation, and rules":       {rotate, rules, "", state{"old", "old", 7, false}},
		"a rotation, and a logout":    {rotate, logout, "", state{"", "old", 0, false}},
	} {
		t.Run(what, func(t *testing.T) {
			w := newFixture(t)
			there := w.open()
			w.put(there, tenant, domain, "old")
			if err := there.PutSecret(t.Context(), name, secret.New([]byte("old"+lengthening))); err != nil {
				t.Fatal(err)
			}
			between := &meanwhile{Rows: w.db}
			o := w.options()
			o.Store, o.KeyFile = between, filepath.Join(t.TempDir(), "vault.key")
			writeFile(t, o.KeyFile, readFile(t, w.keyFile))
			here, err := Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			only := func(context.Context, SecretName) ([]Destination, error) { return []Destination{home}, nil }
			here.BindBy(only)
			there.BindBy(only)
			between.do = func() {
				if err := c.there(t.Context(), there); err != nil {
					t.Error(err)
				}
			}
			if err := c.here(t.Context(), here); problem.CodeOf(err) != c.code || c.code == "" && err != nil {
				t.Errorf("got %v, want %q", err, c.code)
			}
			if between.do != nil {
				t.Error("nothing was read, so nothing came between")
			}
			var got state
			if l, err := values(here, tenant, domain); err == nil {
				got.login = l[0]
			} else if problem.CodeOf(err) != problem.NotFound {
				t.Error(err)
			}
			if got.secret, err = secretOf(here, name); err != nil && problem.CodeOf(err) != problem.NotFound {
				t.Error(err)
			}
			if s, err := w.db.CookieSet(t.Context(), store.DefaultTenant, domain); err == nil {
				got.leases, got.unwatched = s.MaxLeases, s.SignedIn.Unwatched
			}
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
