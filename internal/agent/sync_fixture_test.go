package agent

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

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/vault"
)

// mortal is a database whose program can be killed at every change: step is called before and after.
type mortal struct {
	*sqlite.DB
	step func(op string) error
}

func (m *mortal) around(op string, do func() error) error {
	if err := m.step(op); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return m.step("after " + op)
}

func (m *mortal) CreateEntry(ctx context.Context, e store.Entry) error {
	return m.around("create entry", func() error { return m.DB.CreateEntry(ctx, e) })
}

func (m *mortal) UpdateEntry(ctx context.Context, e store.Entry) error {
	return m.around("update entry", func() error { return m.DB.UpdateEntry(ctx, e) })
}

func (m *mortal) DeleteEntry(ctx context.Context, id string) error {
	return m.around("delete entry", func() error { return m.DB.DeleteEntry(ctx, id) })
}

func (m *mortal) CreateAgent(ctx context.Context, a store.Agent) error {
	return m.around("create agent", func() error { return m.DB.CreateAgent(ctx, a) })
}

func (m *mortal) DeleteAgent(ctx context.Context, id string) error {
	return m.around("delete agent", func() error { return m.DB.DeleteAgent(ctx, id) })
}

func (m *mortal) CreateToken(ctx context.Context, t store.Token) error {
	return m.around("create token", func() error { return m.DB.CreateToken(ctx, t) })
}

func (m *mortal) ExpireToken(ctx context.Context, id string, at time.Time) error {
	return m.around("expire token", func() error { return m.DB.ExpireToken(ctx, id, at) })
}

// gate is a gateway that is a map.
type gate struct {
	mu      sync.Mutex
	callers map[netip.Addr]gateway.Caller
	stuck   bool // nothing is forgotten
}

func (g *gate) Admit(addr netip.Addr, who gateway.Caller) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, taken := g.callers[addr]; taken {
		return gateway.ErrAdmitted
	}
	g.callers[addr] = who
	return nil
}

func (g *gate) Forget(addr netip.Addr, jail string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stuck {
		return errors.New("stuck")
	}
	if jail == "" || g.callers[addr].Jail == jail {
		delete(g.callers, addr)
	}
	return nil
}

func (g *gate) at(addr netip.Addr) (gateway.Caller, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	who, ok := g.callers[addr]
	return who, ok
}

// noSessions are none that could have an account.
type noSessions struct{ credential.Sessions }

func (noSessions) EndPermitted(string, grant.Access) int { return 0 }

// noDriver makes no jails.
type noDriver struct{ Driver }

// land is an installation with everything but jails.
type land struct {
	*Service
	t      testing.TB
	ctx    context.Context
	dir    string
	mu     sync.Mutex
	now    time.Time
	db     *mortal
	log    *audit.Log
	keeper *memoryKeeper
	gate   *gate
	who    *identity.Service
	book   *egress.Book
	// accounts are real, with a vault that is empty; there are no sessions.
	accounts *credential.Service
	vault    *vault.Vault
	admin    identity.Principal
	life     func() // ends the program
	// killAt counts the steps until the program is killed; below zero it lives.
	killAt int
	steps  int
	change func(*Options)
}

var errKilled = errors.New("killed")

func newLand(t testing.TB, change ...func(*Options)) *land {
	t.Helper()
	l := &land{t: t, ctx: context.Background(), dir: t.TempDir(), now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), killAt: -1,
		keeper: newMemoryKeeper(), gate: &gate{callers: map[netip.Addr]gateway.Caller{}}}
	l.change = func(o *Options) {
		for _, f := range change {
			f(o)
		}
	}
	l.keeper.step = l.step
	l.must(os.MkdirAll(filepath.Join(l.dir, "db"), 0o700))
	db, err := sqlite.Open(l.ctx, filepath.Join(l.dir, "db"))
	l.must(err)
	t.Cleanup(func() { l.must(db.Close()) })
	l.db = &mortal{DB: db, step: l.step}
	l.log, _ = audittest.Open(t, db)
	l.begin()
	t.Cleanup(func() { l.life() })
	return l
}

func (l *land) clock() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

func (l *land) forward(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = l.now.Add(d)
}

// step is one at which the program may be killed. A killed one does nothing more.
func (l *land) step(string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.steps++
	if l.killAt < 0 {
		return nil
	}
	if l.killAt == 0 {
		return errKilled
	}
	l.killAt--
	return nil
}

func (l *land) kill(at int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.killAt = at
}

// begin starts the program, on whatever an earlier one has left.
func (l *land) begin() {
	l.t.Helper()
	if l.life != nil {
		l.life()
	}
	l.kill(-1)
	adminKey, err := identity.LoadAdminKey(filepath.Join(l.dir, "admin.key"))
	l.must(err)
	l.who, err = identity.Open(l.ctx, identity.Options{Store: l.db, Admin: adminKey, Now: l.clock, Recheck: time.Hour, RateLimit: identity.DefaultRateLimit(),
		Audit: l.log})
	l.must(err)
	text, err := os.ReadFile(filepath.Join(l.dir, "admin.key"))
	l.must(err)
	l.admin, err = l.who.Authenticate(l.ctx, strings.TrimSpace(string(text)), netip.Addr{})
	l.must(err)
	l.book, err = egress.Open(l.ctx, egress.Options{Store: l.db, Identity: l.who, Audit: l.log, Now: l.clock, Recheck: time.Hour})
	l.must(err)
	l.vault, err = vault.Open(l.ctx, vault.Options{KeyFile: filepath.Join(l.dir, "vault.key"), Store: l.db.DB, Now: l.clock})
	l.must(err)
	keyring, err := grant.OpenKeyring(filepath.Join(l.dir, "grants.key"), l.clock)
	l.must(err)
	grants, err := grant.New(grant.Options{Store: l.db, Keys: keyring, Installation: "test", RegistrableDomain: cookies.RegistrableDomain,
		Limits: grant.DefaultLimits(), Now: l.clock, Audit: l.log})
	l.must(err)
	l.accounts, err = credential.New(credential.Options{Vault: l.vault, Grants: grants, Keyring: keyring, Identity: l.who, Audit: l.log, Sessions: noSessions{}, Now: l.clock})
	l.must(err)
	d := config.Default()
	d.Agents.WorkspaceRoots, d.Agents.JailRoots = []string{"/srv/bots", "/srv/workspaces"}, []string{"/srv/jails"}
	o := Options{Keeper: l.keeper, Driver: noDriver{}, Gateway: l.gate, Identity: l.who, Book: l.book, Accounts: l.accounts, Store: l.db, Audit: l.log, Agents: d.Agents, Docker: d.Docker,
		Default: DriverLinux, GatewayURL: "http://gateway:3000", Node: "n1", Servers: func(context.Context, string) ([]string, error) { return []string{"files"}, nil },
		Dir: filepath.Join(l.dir, "programs"), Now: l.clock, Quotas: d.Quotas, MaxAgents: 1000, Disk: func() (int64, error) { return 100 << 30, nil },
		Volumes: func(context.Context) (map[string]int64, error) { return nil, nil }}
	l.change(&o)
	l.Service, err = New(o)
	l.must(err)
	service := l.Service
	l.life = func() {
		l.must(service.Close(l.ctx))
		l.book.Close()
		l.who.Close()
	}
}

func (l *land) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// operator is one of a tenant, which is made if it is missing.
func (l *land) operator(tenant string, role identity.Role) identity.Principal {
	l.t.Helper()
	if _, err := l.db.Tenant(l.ctx, tenant); err != nil {
		_, err := l.who.CreateTenant(l.ctx, l.admin, tenant, identity.Policy{})
		l.must(err)
	}
	key, _, err := l.who.CreateOperator(l.ctx, l.admin, identity.NewOperator{Name: "x", Tenant: tenant, Role: role, Life: time.Hour})
	l.must(err)
	by, err := l.who.Authenticate(l.ctx, key.Reveal(), netip.Addr{})
	l.must(err)
	return by
}

// sync syncs a file of the admin's in the tenant default.
func (l *land) sync(text string, change ...func(*SyncRequest)) (Plan, error) {
	r := SyncRequest{Source: "clawbots.yml", Text: text, Dir: "/srv/bots/team"}
	for _, f := range change {
		f(&r)
	}
	return l.Sync(l.ctx, l.admin, r, nil)
}

// declare declares one agent as it is.
func (l *land) declare(a clawbots.Agent, replace bool) (Plan, error) {
	return l.Declare(l.ctx, l.admin, "", func() (clawbots.Agent, error) { return a, nil }, replace, nil)
}

func prune(r *SyncRequest)  { r.Prune = true }
func dryRun(r *SyncRequest) { r.DryRun = true }

// want checks what a plan does, in short: "create dev-bot", "unchanged a".
func (l *land) want(what string, p Plan, err error, steps ...string) {
	l.t.Helper()
	if err != nil {
		l.t.Errorf("%s: %v", what, err)
	}
	var are []string
	for _, s := range p.Steps {
		are = append(are, string(s.Verb)+" "+s.Name)
	}
	if got, want := strings.Join(are, ", "), strings.Join(steps, ", "); got != want {
		l.t.Errorf("%s: %s; want %s\n%+v", what, got, want, p.Steps)
	}
}

func (l *land) wantCode(what string, err error, code string) {
	l.t.Helper()
	if got := problem.CodeOf(err); got != code {
		l.t.Errorf("%s: code %q, want %q: %v", what, got, code, err)
	}
}

// bearer is who a token is.
func (l *land) bearer(token string) (identity.Principal, error) {
	return l.who.Authenticate(l.ctx, token, netip.Addr{})
}

func why(p Plan, name string) string {
	for _, s := range p.Steps {
		if s.Name == name {
			return strings.Join(s.Why, "; ")
		}
	}
	return fmt.Sprintf("no step for %s", name)
}
