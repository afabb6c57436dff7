package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shaky is a store that can be made to fail, and to give other entries than it has.
type shaky struct {
	Store
	mu     sync.Mutex
	fail   error
	failIn string // of one method; empty: of all that are listed here
	reads  int
	alter  func([]store.Entry) []store.Entry
}

func (s *shaky) failure(method string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if method == "EntriesRevision" {
		s.reads++
	}
	if s.failIn == "" || s.failIn == method {
		return s.fail
	}
	return nil
}

func (s *shaky) set(method string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failIn, s.fail = method, err
}

func (s *shaky) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

func (s *shaky) EntriesRevision(ctx context.Context) (int64, error) {
	if err := s.failure("EntriesRevision"); err != nil {
		return 0, err
	}
	return s.Store.EntriesRevision(ctx)
}

func (s *shaky) ListEntries(ctx context.Context, kind string) ([]store.Entry, error) {
	entries, err := s.Store.ListEntries(ctx, kind)
	if s.alter != nil {
		entries = s.alter(entries)
	}
	return entries, err
}

func (s *shaky) CreateEntry(ctx context.Context, e store.Entry) error {
	if err := s.failure("CreateEntry"); err != nil {
		return err
	}
	return s.Store.CreateEntry(ctx, e)
}

// records is the audit log, which can be made to refuse intents.
type records struct {
	*audit.Log
	fail error
}

func (r *records) Begin(ctx context.Context, i audit.Intent) (audit.Pending, error) {
	if r.fail != nil {
		return nil, r.fail
	}
	return r.Log.Begin(ctx, i)
}

type fixture struct {
	*Book
	t        testing.TB
	ctx      context.Context
	clock    *testenv.Clock
	db       *sqlite.DB
	store    *shaky
	log      *records
	options  Options
	who      *identity.Service
	admin    identity.Principal // of the installation
	operator identity.Principal // of acme
	viewer   identity.Principal // of acme
	stranger identity.Principal // the admin of beta
	bot      identity.Principal // agents of acme
	twin     identity.Principal
	spy      identity.Principal // an agent of beta
}

func newFixture(t testing.TB, change ...func(*Options)) *fixture {
	t.Helper()
	w := &fixture{t: t, ctx: t.Context(), clock: testenv.NewClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))}
	dir := t.TempDir()
	own := func(name string) string { return filepath.Join(dir, name) }
	w.must(os.MkdirAll(own("db"), 0o700))
	var err error
	w.db, err = sqlite.Open(w.ctx, own("db"))
	w.must(err)
	t.Cleanup(func() { w.must(w.db.Close()) })
	log, _ := audittest.Open(t, w.db)
	w.log = &records{Log: log}
	adminKey, err := identity.LoadAdminKey(own("admin.key"))
	w.must(err)
	w.who, err = identity.Open(w.ctx, identity.Options{Store: w.db, Admin: adminKey, Now: w.clock.Now, Recheck: time.Hour, RateLimit: identity.DefaultRateLimit(),
		Audit: w.log})
	w.must(err)
	t.Cleanup(w.who.Close)
	text, err := os.ReadFile(own("admin.key"))
	w.must(err)
	w.admin, err = w.who.Authenticate(w.ctx, strings.TrimSpace(string(text)), netip.Addr{})
	w.must(err)
	for _, p := range []struct {
		tenant string
		role   identity.Role
		into   *identity.Principal
	}{{"acme", identity.RoleOperator, &w.operator}, {"acme", identity.RoleViewer, &w.viewer}, {"beta", identity.RoleAdmin, &w.stranger}} {
		if _, err := w.db.Tenant(w.ctx, p.tenant); err != nil {
			_, err := w.who.CreateTenant(w.ctx, w.admin, p.tenant, identity.Policy{})
			w.must(err)
		}
		key, _, err := w.who.CreateOperator(w.ctx, w.admin, identity.NewOperator{Name: "x", Tenant: p.tenant, Role: p.role, Life: 1000 * time.Hour})
		w.must(err)
		*p.into, err = w.who.Authenticate(w.ctx, key.Reveal(), netip.Addr{})
		w.must(err)
	}
	for _, a := range []struct {
		tenant, name string
		into         *identity.Principal
	}{{"acme", "bot", &w.bot}, {"acme", "twin", &w.twin}, {"beta", "spy", &w.spy}} {
		key, _, err := w.who.CreateAgent(w.ctx, w.admin, a.tenant, a.name, 1000*time.Hour)
		w.must(err)
		*a.into, err = w.who.Authenticate(w.ctx, key.Reveal(), netip.Addr{})
		w.must(err)
	}
	w.store = &shaky{Store: w.db}
	w.options = Options{Store: w.store, Identity: w.who, Audit: w.log, Now: w.clock.Now, Recheck: time.Hour}
	for _, f := range change {
		f(&w.options)
	}
	w.Book = w.another()
	return w
}

// another is one more process.
func (w *fixture) another(change ...func(*Options)) *Book {
	w.t.Helper()
	o := w.options
	for _, f := range change {
		f(&o)
	}
	b, err := Open(w.ctx, o)
	w.must(err)
	w.t.Cleanup(b.Close)
	return b
}

func (w *fixture) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// agent is who a principal is to the gateway.
func agent(p identity.Principal) Who {
	return Who{Tenant: p.Tenant, Agent: p.ID, Base: policy.Only()}
}

func clean1(tenant, id, opener string) Who {
	return Who{Tenant: tenant, Session: id, Opener: opener, Base: policy.PublicWeb()}
}

func ask(host string, port uint16) policy.Request {
	return policy.Request{Scheme: policy.HTTPS, Host: hostport.MustParseHost(host), Port: port, Method: policy.Connect}
}

func get(host, path string) policy.Request {
	return policy.Request{Scheme: policy.HTTPS, Host: hostport.MustParseHost(host), Port: 443, Method: "GET", Path: path}
}

func (w *fixture) passes(b *Book, who Who, host string) bool {
	return b.View(who).Proxy().Decide(ask(host, 443)).Allowed
}

func (w *fixture) want(who Who, host string, allowed bool) {
	w.t.Helper()
	if d := w.View(who).Proxy().Decide(ask(host, 443)); d.Allowed != allowed {
		w.t.Errorf("%s: allowed %t, want %t: %s", host, d.Allowed, allowed, d.Reason)
	}
}

func rule(action policy.Action, host string) Rule {
	return Rule{Rule: policy.Rule{Action: action, Host: policy.MustParsePattern(host), Ports: policy.Ports(443)}}
}

func (r Rule) of(tenant, agent string) Rule {
	r.Tenant, r.Agent = tenant, agent
	return r
}

func (w *fixture) add(r Rule) Rule {
	w.t.Helper()
	out, err := w.AddRule(w.ctx, w.admin, r)
	w.must(err)
	return out
}

func service(name string) Service {
	return Service{Name: name, Upstream: Upstream{BaseURL: "https://api.example.com/v1"}, Allow: []Allowance{{}}, Inject: Injection{Type: InjectBearer}}
}

func provider(name string, wire Wire, models ...string) Provider {
	return Provider{Name: name, Upstream: Upstream{BaseURL: "https://" + name + ".example.com/v1"}, Wire: wire, Models: models}
}

func (w *fixture) wantCode(what string, err error, code string) {
	w.t.Helper()
	if got := problem.CodeOf(err); got != code {
		w.t.Errorf("%s: code %q, want %q: %v", what, got, code, err)
	}
}

// trail are the audit rows of an action, as text.
func (w *fixture) trail(action string) (out []string) {
	w.t.Helper()
	rows, err := w.db.ListAudit(w.ctx, store.AuditFilter{Action: action, Limit: 1000})
	w.must(err)
	for _, r := range rows {
		out = append(out, fmt.Sprintf("%s %s %s %s %s %s", r.Phase, r.Result, r.Tenant, r.Actor, r.Target, r.Detail))
	}
	return out
}

var errDown = errors.New("down")
