package identity

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errPlanted = errors.New("planted")
	noon       = time.Date(2031, 5, 6, 12, 0, 0, 0, time.UTC)
	here       = netip.MustParseAddr("192.0.2.1")
	admin      = Principal{Kind: KindAdmin, ID: "admin", Name: "admin", Role: RoleAdmin, TokenID: "admin"}
)

// fixture is a Service over a real database with two tenants besides the default: acme and rival.
type fixture struct {
	*Service
	t        testing.TB
	clock    *testenv.Clock
	log      *audittest.Log
	adminKey string
}

type option func(*Options)

func newFixture(t testing.TB, options ...option) *fixture {
	t.Helper()
	dir := t.TempDir()
	db, err := sqlite.Open(context.Background(), filepath.Join(dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "admin.key")
	key, err := LoadAdminKey(path)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w := &fixture{t: t, clock: testenv.NewClock(noon), log: new(audittest.Log), adminKey: strings.TrimSpace(string(text))}
	o := Options{Store: db, Admin: key, Now: w.clock.Now, Audit: w.log, Recheck: DefaultRecheck, RateLimit: DefaultRateLimit()}
	for _, change := range options {
		change(&o)
	}
	if w.Service, err = Open(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	for _, tenant := range []string{"acme", "rival"} {
		if _, err := w.CreateTenant(context.Background(), admin, tenant, Policy{}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// another is a service of another process on the same database.
func (w *fixture) another() *Service {
	w.t.Helper()
	o := w.o
	o.Audit = new(audittest.Log)
	s, err := Open(context.Background(), o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.Close)
	return s
}

func (w *fixture) operator(tenant string, role Role) (Key, Operator, Principal) {
	w.t.Helper()
	key, o, err := w.CreateOperator(context.Background(), admin, NewOperator{Name: "someone", Tenant: tenant, Role: role, Life: NeverExpires})
	if err != nil {
		w.t.Fatal(err)
	}
	return key, o, w.mustBe(key)
}

func (w *fixture) agent(tenant, name string) (Key, Agent, Principal) {
	w.t.Helper()
	key, a, err := w.CreateAgent(context.Background(), admin, tenant, name, NeverExpires)
	if err != nil {
		w.t.Fatal(err)
	}
	return key, a, w.mustBe(key)
}

func (w *fixture) mustBe(key Key) Principal {
	w.t.Helper()
	p, err := w.Authenticate(context.Background(), key.Reveal(), here)
	if err != nil {
		w.t.Fatalf("the key is not good: %v", err)
	}
	return p
}

// refusedFor requires that a key is refused, in the words that every key is refused in, and why in the log.
func (w *fixture) refusedFor(key Key, reason string) {
	w.t.Helper()
	p, err := w.Authenticate(context.Background(), key.Reveal(), here)
	if problem.CodeOf(err) != problem.Unauthorized || p != (Principal{}) {
		w.t.Errorf("got %+v, %v", p, err)
		return
	}
	if err.Error() != notGood().Error() {
		w.t.Errorf("the answer tells more than that the key is not good: %v", err)
	}
	if e := w.log.Last(w.t); e.Action != "auth.refuse" || e.Result != "refused" || !audittest.Has(e, map[string]string{"reason": reason, "remote": here.String()}) {
		w.t.Errorf("recorded %+v, want the reason %s", e, reason)
	}
	if text := key.Reveal(); strings.Contains(fmt.Sprintf("%+v %+v", err, w.log.All()), text) {
		w.t.Error("the key is in the error or the log")
	}
	w.clock.Forward(w.o.RateLimit.Every) // so that a test may try often
}

// held is a connection that a test looks at.
type held struct {
	ctx     context.Context
	release func()
}

func (w *fixture) hold(p Principal) held {
	w.t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	w.t.Cleanup(func() { cancel(nil) })
	release, err := w.WatchValidity(context.Background(), p, cancel)
	if err != nil {
		w.t.Fatal(err)
	}
	return held{ctx, release}
}

func (h held) cut() bool { return problem.CodeOf(context.Cause(h.ctx)) == problem.Unauthorized }
