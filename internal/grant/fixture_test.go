package grant

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errPlanted = errors.New("planted")
	noon       = time.Date(2031, 5, 6, 12, 0, 0, 123456000, time.UTC)
)

// fixture is an Issuer over a real database, with what a test changes about it.
type fixture struct {
	*Issuer
	t     testing.TB
	clock *testenv.Clock
	store store.Store
	keys  *Keyring
	log   *audittest.Log
}

func openStore(t testing.TB, dir string) store.Store {
	t.Helper()
	db, err := sqlite.Open(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, tenant := range []string{store.DefaultTenant, "other"} {
		if err := db.CreateTenant(context.Background(), store.Tenant{ID: tenant, CreatedAt: noon}); err != nil && !errors.Is(err, store.ErrExists) {
			t.Fatal(err)
		}
	}
	return db
}

func (w *fixture) options() Options {
	return Options{
		Store: w.store, Keys: w.keys, Installation: "ab12", RegistrableDomain: cookies.RegistrableDomain,
		Limits: DefaultLimits(), Now: w.clock.Now, Audit: w.log,
	}
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	w := &fixture{t: t, clock: testenv.NewClock(noon), log: new(audittest.Log), store: openStore(t, t.TempDir())}
	var err error
	if w.keys, err = OpenKeyring(filepath.Join(t.TempDir(), "grant.keys"), w.clock.Now); err != nil {
		t.Fatal(err)
	}
	if w.Issuer, err = New(w.options()); err != nil {
		t.Fatal(err)
	}
	return w
}

// request and want fit each other; a test changes one thing.
func request() Request {
	return Request{Tenant: store.DefaultTenant, Operator: "operator:o1", Domains: []string{"example.com"}, TTL: time.Minute}
}

func want() Want {
	return Want{Tenant: store.DefaultTenant, Session: "s_1", Domains: []string{"example.com"}, Access: AccessTools, Actor: "agent:a1"}
}

func (w *fixture) issue(change ...func(*Request)) (Token, Grant) {
	w.t.Helper()
	r := request()
	for _, c := range change {
		c(&r)
	}
	token, g, err := w.Issue(context.Background(), r)
	if err != nil {
		w.t.Fatal(err)
	}
	return token, g
}

// refusal requires a code, and that the token is nowhere in what is said or recorded.
func (w *fixture) refusal(token Token, want Want, code string) {
	w.t.Helper()
	for name, call := range map[string]func(context.Context, Token, Want) (Grant, error){"Verify": w.Verify, "Use": w.Use} {
		g, err := call(context.Background(), token, want)
		if got := problem.CodeOf(err); got != code {
			w.t.Errorf("%s: got %q (%v), want %q", name, got, err, code)
			continue
		}
		if g.ID != "" {
			w.t.Errorf("%s: the refusal comes with a grant", name)
		}
		p, _ := problem.As(err)
		if p.Message == "" || p.Hint == "" {
			w.t.Errorf("%s: %s has no message or no hint", name, code)
		}
		said := fmt.Sprintf("%v %+v %#v %v", err, p, p.Details, w.log.All())
		if text := token.Reveal(); text != "" && strings.Contains(said, text) {
			w.t.Errorf("%s: the token is in %s", name, said)
		}
		if e := w.log.Last(w.t); e.Action != "grant.refuse" || e.Result != "refused" || !strings.Contains(e.Detail.String(), fmt.Sprintf(`"code":%q`, code)) {
			w.t.Errorf("%s: the refusal was not recorded: %+v", name, e)
		}
	}
}

func (w *fixture) works(token Token, want Want) {
	w.t.Helper()
	if _, err := w.Verify(context.Background(), token, want); err != nil {
		w.t.Errorf("Verify: %v", err)
	}
	if _, err := w.Use(context.Background(), token, want); err != nil {
		w.t.Errorf("Use: %v", err)
	}
}
