package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// accounts is a fixture with a real database, vault and issuer of grants. Each of their calls is a step of the fixture, so
// that it can be seen in the log, fail and wait.
type accounts struct {
	*fixture
	s      *Service
	db     *sqlite.DB
	vault  *vault.Vault
	issuer *grant.Issuer
	logged *testenv.Buffer   // what the service has logged
	stores []weblogin.Origin // of the accounts that are set
	// alters is what somebody does to a login between the vault and the session; nil: nothing.
	alters func(*weblogin.Login)
}

// planted is in every cookie value of these tests, and may be nowhere else.
const planted = "value-of-"

// other is a tenant beside the default one.
const other = "other"

var errPlanted = errors.New("planted")

// withAccounts is inBubble with accounts. At the end no value may have been written anywhere.
func withAccounts(t *testing.T, change func(*Options), test func(t *testing.T, a *accounts)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &accounts{fixture: newFixture(t), logged: &testenv.Buffer{}}
		a.openStore(t)
		o := a.options(func(o *Options) {
			o.Accounts = Accounts{Grants: steppedGrants{a}, Vault: steppedVault{a}, Leases: steppedLeases{a}, Node: "node"}
			o.Log = slog.New(slog.NewJSONHandler(a.logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		if change != nil {
			change(&o)
		}
		var err error
		if a.s, err = New(o); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		// Deferred, so that a test that gives up leaves nothing running in its bubble, which would end all tests.
		defer a.end(t)
		test(t, a)
	})
}

func (a *accounts) end(t *testing.T) {
	if err := a.s.Shutdown(t.Context()); err != nil {
		t.Errorf("shut down: %v", err)
	}
	a.nothingLeft(t)
	a.mu.Lock()
	defer a.mu.Unlock()
	if said := strings.Join(a.log, "\n") + a.logged.String(); strings.Contains(said, planted) {
		t.Errorf("a value was written down:\n%s", said)
	}
}

func (a *accounts) openStore(t testing.TB) {
	t.Helper()
	db, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	a.db = db
	for _, tenant := range []string{store.DefaultTenant, other} {
		if err := db.CreateTenant(t.Context(), store.Tenant{ID: tenant, CreatedAt: time.Now()}); err != nil && !errors.Is(err, store.ErrExists) {
			t.Fatal(err)
		}
	}
	if a.vault, err = vault.Open(t.Context(), vault.Options{KeyFile: filepath.Join(t.TempDir(), "vault.key"), Store: db, Now: time.Now}); err != nil {
		t.Fatal(err)
	}
	a.issuer = a.newIssuer(t)
}

// newIssuer has a key of its own: what another one has issued is no grant for it.
func (a *accounts) newIssuer(t testing.TB) *grant.Issuer {
	t.Helper()
	keys, err := grant.OpenKeyring(filepath.Join(t.TempDir(), "grant.keys"), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := grant.New(grant.Options{Store: a.db, Keys: keys, Installation: "ab12", RegistrableDomain: cookies.RegistrableDomain,
		Limits: grant.DefaultLimits(), Now: time.Now, Audit: new(audittest.Log)})
	if err != nil {
		t.Fatal(err)
	}
	return issuer
}

type steppedGrants struct{ a *accounts }

func (g steppedGrants) Verify(ctx context.Context, token grant.Token, want grant.Want) (grant.Grant, error) {
	if err := g.a.step(ctx, "verify grant"); err != nil {
		return grant.Grant{}, err
	}
	return g.a.issuer.Verify(ctx, token, want)
}

func (g steppedGrants) Use(ctx context.Context, token grant.Token, want grant.Want) (grant.Grant, error) {
	if err := g.a.step(ctx, "use grant"); err != nil {
		return grant.Grant{}, err
	}
	return g.a.issuer.Use(ctx, token, want)
}

func (g steppedGrants) Permitted(ctx context.Context, want grant.Want) (grant.Standing, error) {
	if err := g.a.step(ctx, "permitted"); err != nil {
		return grant.Standing{}, err
	}
	return g.a.issuer.Permitted(ctx, want)
}

func (g steppedGrants) UsePermissions(ctx context.Context, s grant.Standing, want grant.Want) (grant.Grant, error) {
	if err := g.a.step(ctx, "use permissions"); err != nil {
		return grant.Grant{}, err
	}
	return g.a.issuer.UsePermissions(ctx, s, want)
}

func (g steppedGrants) PermissionStands(ctx context.Context, id string, access grant.Access) (bool, error) {
	if err := g.a.step(ctx, "permission stands"); err != nil {
		return false, err
	}
	return g.a.issuer.PermissionStands(ctx, id, access)
}

type steppedVault struct{ a *accounts }

func (v steppedVault) Cookies(ctx context.Context, tenant, domain string) (vault.CookieSet, error) {
	if err := v.a.step(ctx, "describe cookies"); err != nil {
		return vault.CookieSet{}, err
	}
	return v.a.vault.Cookies(ctx, tenant, domain)
}

func (v steppedVault) UseLogin(ctx context.Context, tenant, domain string, use func(weblogin.Login) error) error {
	if err := v.a.step(ctx, "decrypt cookies"); err != nil {
		return err
	}
	return v.a.vault.UseLogin(ctx, tenant, domain, func(l weblogin.Login) error {
		if v.a.alters != nil {
			v.a.alters(&l)
		}
		return use(l)
	})
}

type steppedLeases struct{ a *accounts }

// LeaseCookieSets does its work before it fails, as when the answer of a database is lost.
func (l steppedLeases) LeaseCookieSets(ctx context.Context, lease store.Lease, domains []string) ([]string, error) {
	busy, err := l.a.db.LeaseCookieSets(ctx, lease, domains)
	if lost := l.a.step(ctx, "lease"); lost != nil {
		return nil, lost
	}
	return busy, err
}

func (l steppedLeases) ReleaseLeases(ctx context.Context, session string) error {
	if err := l.a.step(ctx, "release"); err != nil {
		return err
	}
	return l.a.db.ReleaseLeases(ctx, session)
}

func (l steppedLeases) MarkInjected(ctx context.Context, tenant, domain string, at time.Time) error {
	if err := l.a.step(ctx, "mark injected"); err != nil {
		return err
	}
	return l.a.db.MarkInjected(ctx, tenant, domain, at)
}

func (l steppedLeases) MarkSignedOut(ctx context.Context, tenant, domain string, m store.SignedOut) error {
	if err := l.a.step(ctx, "mark signed out"); err != nil {
		return err
	}
	return l.a.db.MarkSignedOut(ctx, tenant, domain, m)
}

// cookie is one that Chromium takes; its value is planted.
func cookie(name, domain string) cookies.Cookie {
	return cookies.Cookie{
		Name: name, Value: secret.New([]byte(planted + name)), Domain: domain, Path: "/", Expires: cookies.Session, Session: true,
		Secure: true, HTTPOnly: true, SameSite: cookies.SameSiteLax, Priority: "Medium", SourceScheme: cookies.SchemeSecure, SourcePort: 443,
	}
}

// until gives a cookie a life.
func until(c cookies.Cookie, life time.Duration) cookies.Cookie {
	c.Expires, c.Session = float64(time.Now().Add(life).Unix()), false
	return c
}

// set stores cookies of one domain, for tools and for cdp.
func (a *accounts) set(t testing.TB, tenant, domain string, maxLeases int, list ...cookies.Cookie) {
	t.Helper()
	a.setScoped(t, tenant, domain, maxLeases, []string{"tools", "cdp"}, list...)
}

func (a *accounts) setScoped(t testing.TB, tenant, domain string, maxLeases int, scopes []string, list ...cookies.Cookie) {
	t.Helper()
	if len(list) == 0 {
		list = []cookies.Cookie{cookie("sid", "."+domain), cookie("host", "www."+domain)}
	}
	_, err := a.vault.PutCookies(t.Context(), vault.NewCookies{Tenant: tenant, Domain: domain, Cookies: list, Origins: a.stores,
		Rules: &vault.Rules{Scopes: scopes, MaxLeases: maxLeases}})
	if err != nil {
		t.Fatal(err)
	}
}

// issue makes a grant for example.com that a test changes.
func (a *accounts) issue(t testing.TB, change ...func(*grant.Request)) (grant.Token, string) {
	t.Helper()
	r := grant.Request{Tenant: store.DefaultTenant, Operator: "operator:o1", Domains: []string{"example.com"}, TTL: 10 * time.Minute}
	for _, c := range change {
		c(&r)
	}
	token, g, err := a.issuer.Issue(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return token, g.ID
}

func (a *accounts) stateOf(t testing.TB, id string) string {
	t.Helper()
	g, err := a.db.Grant(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return grant.State(g, time.Now())
}

// wanting is the request of an operator session.
func wanting(token grant.Token, domains ...string) OpenRequest {
	if len(domains) == 0 {
		domains = []string{"example.com"}
	}
	return OpenRequest{CredentialMode: ModeOperator, Grant: token, Domains: domains}
}

// mustOpenOperator opens an operator session on example.com with a new grant.
func (a *accounts) mustOpenOperator(t testing.TB) Session {
	t.Helper()
	token, _ := a.issue(t)
	out, err := a.s.Open(t.Context(), admin, wanting(token))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return out
}

// mustClose closes a session and waits until nothing of it is left.
func (a *accounts) mustClose(t testing.TB, id string) Session {
	t.Helper()
	if _, err := a.s.Close(t.Context(), admin, id); err != nil {
		t.Fatal(err)
	}
	out, err := a.s.WaitGone(t.Context(), admin, id)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// refused opens a session, which must not work, and requires that nothing of it is left: no jail, and no lease on an
// account for one session. The error names no value.
func (a *accounts) refused(t testing.TB, by identity.Principal, r OpenRequest, code string) error {
	t.Helper()
	before, _ := a.left()
	_, err := a.s.Open(t.Context(), by, r)
	if err == nil {
		t.Fatal("it was opened")
	}
	if got := problem.CodeOf(err); got != code {
		t.Errorf("the code is %q, want %q: %v", got, code, err)
	}
	if after, _ := a.left(); after != before {
		t.Errorf("%d jails became %d", before, after)
	}
	said := fmt.Sprintf("%v %+v %#v", err, err, err)
	if p, ok := problem.As(err); ok {
		said += fmt.Sprintf("%+v", p.Details)
	}
	if strings.Contains(said, planted) || !r.Grant.IsZero() && strings.Contains(said, r.Grant.Reveal()) {
		t.Errorf("the error has a value or the grant in it: %s", said)
	}
	return err
}

// free requires that the only lease of an account can be had.
func (a *accounts) free(t testing.TB, tenant, domain string) {
	t.Helper()
	if a.busy(t, tenant, domain) {
		t.Errorf("the account of %s is leased", domain)
	}
}

func (a *accounts) busy(t testing.TB, tenant, domain string) bool {
	t.Helper()
	busy, err := a.db.LeaseCookieSets(t.Context(), store.Lease{Tenant: tenant, Session: "s_probe", Node: "probe", At: time.Now(),
		ExpiresAt: time.Now().Add(time.Hour)}, []string{domain})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.db.ReleaseLeases(t.Context(), "s_probe"); err != nil {
		t.Fatal(err)
	}
	return len(busy) > 0
}

func (a *accounts) browserOf(out Session) *fakeBrowser { return a.all()[jail.Name(out.Jail)].browser }

// steps are the lines of the log that begin with one of the words, in order.
func (a *accounts) steps(words ...string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for _, line := range a.log {
		if slices.ContainsFunc(words, func(word string) bool { return strings.HasPrefix(line, word) }) {
			out = append(out, line)
		}
	}
	return out
}

// inOrder requires that lines beginning with these words are in the log one after the other.
func (a *accounts) inOrder(t testing.TB, words ...string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	at := 0
	for _, word := range words {
		found := slices.IndexFunc(a.log[at:], func(line string) bool { return strings.HasPrefix(line, word) })
		if found < 0 {
			t.Errorf("%q does not come where it should, in\n%s", word, strings.Join(a.log, "\n"))
			return
		}
		at += found + 1
	}
}

// Principals of the tests that are about who does what.
func operatorOf(tenant, id string) identity.Principal {
	return identity.Principal{Kind: identity.KindOperator, ID: id, Tenant: tenant, Role: identity.RoleOperator, TokenID: id}
}

func agentIn(tenant, id string) identity.Principal {
	return identity.Principal{Kind: identity.KindAgent, ID: id, Tenant: tenant, TokenID: "token-" + id}
}

// withLogins says how pages of example.com ask to log in.
func withLogins(list ...config.Login) func(*Options) {
	return func(o *Options) { o.Accounts.Logins = list }
}
