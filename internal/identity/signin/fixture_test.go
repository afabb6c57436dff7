package signin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errPlanted = errors.New("planted")
	here       = From{Remote: netip.MustParseAddr("192.0.2.1"), UserAgent: "Firefox", Origin: "http://localhost:18780"}
)

// failing is a store in which something does not work.
type failing struct {
	Store
	remove, touch error
	hang          atomic.Bool // looking one up waits until its context ends
}

func (f *failing) SignIn(ctx context.Context, id string) (store.SignIn, error) {
	if f.hang.Load() {
		<-ctx.Done()
		return store.SignIn{}, ctx.Err()
	}
	return f.Store.SignIn(ctx, id)
}

func (f *failing) DeleteSignIn(ctx context.Context, id string) error {
	if f.remove != nil {
		return f.remove
	}
	return f.Store.DeleteSignIn(ctx, id)
}

func (f *failing) TouchSignIn(ctx context.Context, id string, at time.Time) error {
	if f.touch != nil {
		return f.touch
	}
	return f.Store.TouchSignIn(ctx, id, at)
}

// fixture is a Service over a real database, with the tenants acme and rival.
type fixture struct {
	*Service
	t        testing.TB
	identity *identity.Service
	log      *audittest.Log
	db       *sqlite.DB
	broken   *failing
	admin    identity.Principal
	adminKey string
	keys     string // where the admin's key is
}

const (
	idle = 2 * time.Hour
	life = 12 * time.Hour
)

// newFixture makes one. Inside a bubble of synctest the time is the bubble's. end must be called there.
func newFixture(t testing.TB) (w *fixture, end func()) {
	t.Helper()
	dir := t.TempDir()
	db, err := sqlite.Open(context.Background(), filepath.Join(dir, "db"))
	if err != nil {
		t.Fatal(err)
	}
	w = &fixture{t: t, log: new(audittest.Log), db: db, broken: &failing{Store: db}, keys: filepath.Join(dir, "admin.key")}
	w.open(idle, life)
	for _, tenant := range []string{"acme", "rival"} {
		if _, err := w.identity.CreateTenant(context.Background(), w.admin, tenant, identity.Policy{}); err != nil {
			t.Fatal(err)
		}
	}
	return w, func() {
		w.close()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

// open starts the services, as a process does.
func (w *fixture) open(idle, life time.Duration) {
	w.t.Helper()
	ctx := context.Background()
	key, err := identity.LoadAdminKey(w.keys)
	if err != nil {
		w.t.Fatal(err)
	}
	text, err := os.ReadFile(w.keys)
	if err != nil {
		w.t.Fatal(err)
	}
	w.adminKey = strings.TrimSpace(string(text))
	w.identity, err = identity.Open(ctx, identity.Options{Store: w.db, Admin: key, Now: time.Now, Audit: w.log, Recheck: time.Second, RateLimit: identity.DefaultRateLimit()})
	if err != nil {
		w.t.Fatal(err)
	}
	if w.admin, err = w.identity.Authenticate(ctx, w.adminKey, netip.Addr{}); err != nil {
		w.t.Fatal(err)
	}
	if w.Service, err = Open(ctx, Options{Store: w.broken, Identity: w.identity, Idle: idle, Life: life, Now: time.Now}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *fixture) close() {
	w.Close()
	w.identity.Close()
}

func (w *fixture) operator(tenant string, role identity.Role, life time.Duration) (key string, p identity.Principal) {
	w.t.Helper()
	k, _, err := w.identity.CreateOperator(context.Background(), w.admin, identity.NewOperator{Name: "ann", Tenant: tenant, Role: role, Life: life})
	if err != nil {
		w.t.Fatal(err)
	}
	if p, err = w.identity.Authenticate(context.Background(), k.Reveal(), netip.Addr{}); err != nil {
		w.t.Fatal(err)
	}
	return k.Reveal(), p
}

func (w *fixture) signIn(key string) (cookie string, in SignIn) {
	w.t.Helper()
	cookie, in, err := w.WithKey(context.Background(), key, here)
	if err != nil {
		w.t.Fatal(err)
	}
	return cookie, in
}

func (w *fixture) in(cookie string, want identity.Principal) SignIn {
	w.t.Helper()
	p, in, err := w.Who(context.Background(), cookie)
	if err != nil || p != want {
		w.t.Fatalf("the cookie is %+v's, %v; want %+v", p, err, want)
	}
	return in
}

func (w *fixture) out(what, cookie string) {
	w.t.Helper()
	p, in, err := w.Who(context.Background(), cookie)
	if problem.CodeOf(err) != problem.Unauthorized || p != (identity.Principal{}) || in != (SignIn{}) {
		w.t.Errorf("%s: the cookie is %+v's, %v", what, p, err)
	}
}

// watched is a connection that a test looks at.
type watched struct {
	ctx     context.Context
	release func()
}

func (w *fixture) hold(by identity.Principal, in SignIn) watched {
	w.t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	release, err := w.WatchValidity(context.Background(), by, in, cancel)
	if err != nil {
		w.t.Fatal(err)
	}
	return watched{ctx, func() { release(); cancel(nil) }}
}

func (h watched) cut() bool { return problem.CodeOf(context.Cause(h.ctx)) == problem.Unauthorized }

// hasNothingOf requires that a secret is in no row, no record and no error.
func (w *fixture) hasNothingOf(secret string, more ...any) {
	w.t.Helper()
	rows, err := w.db.ListSignIns(context.Background(), store.SignInFilter{Limit: 99})
	if err != nil {
		w.t.Fatal(err)
	}
	said := fmt.Sprintf("%+v %s %+v %+v", rows, rows, w.log.All(), more)
	for _, row := range rows {
		said += string(row.Hash)
	}
	if strings.Contains(said, secret) || strings.Contains(said, secret[len(secret)-20:]) {
		w.t.Errorf("a secret is in a row, a record or an answer: %s", said)
	}
}

var _ Store = store.Store(nil)
