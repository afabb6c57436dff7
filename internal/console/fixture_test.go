package console

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/identity/signin"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/servicetest"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hostile is in every name and text that somebody else chooses.
const hostile = `<img src=x onerror="document.title='got'">`

// fixture is a console on the real services and a database, with two tenants. Of sessions and agents there are fakes.
type fixture struct {
	*Console
	t        testing.TB
	ctx      context.Context
	identity *identity.Service
	accounts *credential.Service
	book     *egress.Book
	log      *audit.Log
	db       *sqlite.DB
	sessions *fakeSessions
	agents   *fakeAgents
	signIns  *fakeSignIns
	machine  health.Machine
	stored   time.Duration                 // how long ago the vault stores what it is given
	burning  error                         // why nobody can say how it is
	written  *strings.Builder              // the operator's log
	keys     map[string]string             // admin, acme admin, acme operator, acme viewer, beta admin, …
	who      map[string]identity.Principal // the same
	admin    identity.Principal
}

// signedOut has a session see that a site asks to log in to an account.
func (w *fixture) signedOut(tenant, domain string) {
	w.t.Helper()
	now := time.Now()
	w.must(w.db.MarkSignedOut(w.ctx, tenant, domain, store.SignedOut{Opened: now.Add(time.Minute), At: now, By: session.ReasonLogin}))
}

func newFixture(t testing.TB, change ...func(*Options)) *fixture {
	t.Helper()
	ctx := t.Context()
	w := &fixture{t: t, ctx: ctx, keys: map[string]string{}, who: map[string]identity.Principal{}, written: &strings.Builder{}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	closing := func(end func() error) {
		t.Cleanup(func() {
			if err := end(); err != nil {
				t.Error(err)
			}
		})
	}
	s := servicetest.New(t, servicetest.Options{VaultNow: func() time.Time { return time.Now().Add(-w.stored) }})
	db := s.DB
	w.db, w.log, w.identity, w.admin, w.keys["admin"] = db, s.Log, s.Identity, s.Admin, s.AdminKey
	var err error
	w.who["admin"] = w.admin
	w.sessions = &fakeSessions{authority: w.identity}
	w.agents = &fakeAgents{authority: w.identity}
	w.accounts, err = credential.New(credential.Options{Vault: s.Vault, Grants: s.Grants, Keyring: s.Keyring, Identity: w.identity, Audit: w.log,
		Sessions: w.sessions, Now: time.Now})
	must(err)
	w.book, err = egress.Open(ctx, egress.Options{Store: db, Identity: w.identity, Audit: w.log, Now: time.Now, Recheck: time.Hour, Accounts: w.accounts})
	must(err)
	closing(func() error { w.book.Close(); return nil })
	for _, tenant := range []string{"acme", "beta"} {
		_, err := w.identity.CreateTenant(ctx, w.admin, tenant, identity.Policy{})
		must(err)
		for _, role := range []identity.Role{identity.RoleViewer, identity.RoleOperator, identity.RoleAdmin} {
			key, _, err := w.identity.CreateOperator(ctx, w.admin, identity.NewOperator{Name: string(role), Tenant: tenant, Role: role, Life: identity.NeverExpires})
			must(err)
			name := tenant + " " + string(role)
			w.keys[name] = key.Reveal()
			w.who[name], err = w.identity.Authenticate(ctx, key.Reveal(), netip.Addr{})
			must(err)
		}
	}
	w.signIns = &fakeSignIns{w: w}
	w.machine = health.Machine{Reachable: true, Jails: 3, Load: 0.42, Cores: 2, MemoryTotal: 24 << 30, MemoryFree: 20 << 30, DiskTotal: 100 << 30, DiskFree: 60 << 30,
		Templates: []health.Template{{Name: "browser", Digest: "sha256:abcdef", BuiltAt: time.Now().Add(-time.Hour)}}}
	doing, err := health.New(health.Options{Divided: config.Default().Quotas, Held: []quota.Look{quota.Always(w.sessions.Held)}, Sessions: w.sessions, Identity: w.identity, Accounts: w.accounts, Requests: w.book, Agents: w.agents, Now: time.Now,
		Machine: func(context.Context) (health.Machine, error) { return w.machine, w.burning }, Audit: w.log.Status, Database: db, DatabaseKind: "embedded",
		Log: slog.New(slog.NewTextHandler(w.written, nil))})
	must(err)
	o := Options{
		Sessions: w.sessions, Identity: w.identity, Credentials: w.accounts, Egress: w.book, Agents: w.agents, Audit: w.log, Rows: db,
		Verify: func(ctx context.Context) (audit.Report, error) { return audit.Verify(ctx, db, nil, s.LogKey.Keys()) },
		SignIn: w.signIns,
		Health: doing,
		Config: config.Default(), Version: "v1.2.3",
		Log: slog.New(slog.NewTextHandler(w.written, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range change {
		f(&o)
	}
	w.Console, err = New(o)
	must(err)
	return w
}

// page is what a request by somebody (a name in w.who; empty is nobody) is answered: its status, its body, and where it leads to.
type page struct {
	status   int
	body     string
	header   http.Header
	location string
}

func (w *fixture) get(who, path string) page { return w.send(who, http.MethodGet, path, nil) }

// post sends a form as a page of the console does.
func (w *fixture) post(who, path string, pairs ...string) page {
	return w.send(who, http.MethodPost, path, blank(pairs...).Values)
}

func (w *fixture) send(who, method, path string, values url.Values, change ...func(*http.Request)) page {
	w.t.Helper()
	out := httptest.NewRecorder()
	w.ServeHTTP(out, w.request(who, method, path, values, change...))
	return page{status: out.Code, body: out.Body.String(), header: out.Header(), location: out.Header().Get("Location")}
}

func (w *fixture) request(who, method, path string, values url.Values, change ...func(*http.Request)) *http.Request {
	r := httptest.NewRequest(method, "http://localhost:18780"+path, strings.NewReader(values.Encode()))
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 18780}))
	r.Header.Set("Accept", "text/html")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if who != "" {
		r.AddCookie(&http.Cookie{Name: w.cookieName(r), Value: who})
	}
	for _, f := range change {
		f(r)
	}
	return r
}

// follow is get of where a page leads to, with what it left to be said.
func (w *fixture) follow(who string, p page) page {
	if p.location == "" {
		return p // it leads nowhere: it is the answer
	}
	return w.send(who, http.MethodGet, p.location, nil, func(r *http.Request) {
		for _, c := range (&http.Response{Header: p.header}).Cookies() {
			r.AddCookie(c)
		}
	})
}

// fakeSignIns takes the name of a principal as its cookie.
type fakeSignIns struct {
	SignIns
	w *fixture
}

func (f *fakeSignIns) Who(_ context.Context, cookie string) (identity.Principal, signin.SignIn, error) {
	by, ok := f.w.who[cookie]
	if !ok {
		return identity.Principal{}, signin.SignIn{}, problem.New(problem.Unauthorized, "sign in", "nobody is signed in")
	}
	return by, signin.SignIn{ID: "si_" + cookie, Actor: by.Actor(), Name: by.Name, Tenant: by.Tenant, Method: "key", CreatedAt: time.Now(), UsedAt: time.Now(),
		ExpiresAt: time.Now().Add(time.Hour), Current: true}, nil
}

func (f *fakeSignIns) WatchValidity(ctx context.Context, by identity.Principal, _ signin.SignIn, cancel context.CancelCauseFunc) (func(), error) {
	return f.w.identity.WatchValidity(ctx, by, cancel)
}

func (f *fakeSignIns) List(_ context.Context, _ identity.Principal, in signin.SignIn) ([]signin.SignIn, error) {
	return []signin.SignIn{in}, nil
}

func (f *fakeSignIns) Passkeys(context.Context, identity.Principal) ([]signin.Passkey, error) {
	return nil, nil
}
