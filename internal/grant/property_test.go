package grant

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

// node is one process of an installation: its own database handle and its own view of the key file.
type node struct {
	db *sqlite.DB
	*Issuer
}

// installation is two nodes over one database, and what a test knows to be true about its grants.
type installation struct {
	dir    string
	clock  *testenv.Clock
	nodes  [2]*node
	grants []*model
	purged time.Time
}

// model is a grant as it should be.
type model struct {
	token         Token
	row           Grant
	keyUntil      time.Time // when its key verifies no longer; zero while the key signs
	used, revoked bool
	successes     int
}

// failer is what the two kinds of test have in common.
type failer interface{ Fatal(args ...any) }

func (in *installation) start(t failer, n int) {
	ctx := context.Background()
	db, err := sqlite.Open(ctx, in.dir)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := OpenKeyring(filepath.Join(in.dir, "grant.keys"), in.clock.Now)
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := New(Options{
		Store: db, Keys: keys, Installation: "ab12", RegistrableDomain: cookies.RegistrableDomain, Limits: DefaultLimits(),
		Now: in.clock.Now, Audit: new(audittest.Log),
	})
	if err != nil {
		t.Fatal(err)
	}
	in.nodes[n] = &node{db, issuer}
}

func (in *installation) stop(t failer, n int) {
	if err := in.nodes[n].db.Close(); err != nil {
		t.Fatal(err)
	}
}

// expected is the code that the documented order of checks gives; empty for a success.
func (in *installation) expected(m *model, want Want) string {
	now := in.clock.Now()
	switch {
	case !m.keyUntil.IsZero() && !now.Before(m.keyUntil):
		return problem.GrantInvalid
	case m.row.ExpiresAt.Before(in.purged):
		return problem.GrantExpired
	case want.Tenant != m.row.Tenant:
		return problem.GrantWrongTenant
	case m.revoked:
		return problem.GrantRevoked
	case m.used:
		return problem.GrantUsed
	case !now.Before(m.row.ExpiresAt):
		return problem.GrantExpired
	case m.row.Origin != "" && m.row.Origin != want.Caller:
		return problem.GrantWrongOrigin
	case want.Domains[0] != m.row.Domains[0], want.Access == AccessCDP && m.row.Access != "cdp":
		return problem.GrantScope
	}
	return ""
}

func TestWhateverHappensAGrantIsUsedAtMostOnceAndForWhatItIsFor(t *testing.T) {
	ctx := context.Background()
	in := &installation{dir: t.TempDir(), clock: testenv.NewClock(noon)}
	for n := range in.nodes {
		in.start(t, n)
		defer func() { in.stop(t, n) }()
	}
	if err := in.nodes[0].db.CreateTenant(ctx, store.Tenant{ID: "other", CreatedAt: noon}); err != nil {
		t.Fatal(err)
	}
	property.Check(t, func(t *rapid.T) {
		in.grants, in.purged = nil, time.Time{}
		tenants := rapid.SampledFrom([]string{store.DefaultTenant, "other"})
		domains := rapid.SampledFrom([]string{"example.com", "example.org"})
		access := rapid.SampledFrom([]Access{AccessTools, AccessCDP})
		callers := rapid.SampledFrom([]string{"", "s_a", "s_b"})
		some := func(t *rapid.T) (*node, *model) {
			if len(in.grants) == 0 {
				t.Skip("no grants yet")
			}
			return in.nodes[rapid.IntRange(0, 1).Draw(t, "node")], in.grants[rapid.IntRange(0, len(in.grants)-1).Draw(t, "grant")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"issue": func(t *rapid.T) {
				token, row, err := in.nodes[rapid.IntRange(0, 1).Draw(t, "node")].Issue(ctx, Request{
					Tenant: tenants.Draw(t, "tenant"), Operator: "operator:o1", Domains: []string{domains.Draw(t, "domain")},
					Access: access.Draw(t, "access"), Origin: callers.Draw(t, "origin"),
					TTL: time.Duration(rapid.IntRange(1, 24*60).Draw(t, "minutes")) * time.Minute,
				})
				if err != nil {
					t.Fatal(err)
				}
				in.grants = append(in.grants, &model{token: token, row: row})
			},
			"use": func(t *rapid.T) {
				n, m := some(t)
				want := Want{
					Tenant: m.row.Tenant, Session: "s_1", Caller: m.row.Origin,
					Domains: []string{m.row.Domains[0]}, Access: Access(m.row.Access),
				}
				switch rapid.IntRange(0, 6).Draw(t, "wrong") { // mostly right
				case 0:
					want.Tenant = tenants.Draw(t, "tenant")
				case 1:
					want.Caller = callers.Draw(t, "caller")
				case 2:
					want.Domains[0] = domains.Draw(t, "domain")
				case 3:
					want.Access = access.Draw(t, "access")
				}
				expected := in.expected(m, want)
				call := n.Use
				if rapid.Bool().Draw(t, "only verify") {
					call = n.Verify
				} else if expected == "" {
					m.used = true
					m.successes++
				}
				if _, err := call(ctx, m.token, want); problem.CodeOf(err) != expected {
					t.Fatalf("got %v, want %q", err, expected)
				}
			},
			"revoke": func(t *rapid.T) {
				n, m := some(t)
				_, err := n.Revoke(ctx, m.row.Tenant, m.row.ID, "operator:o1")
				if m.row.ExpiresAt.Before(in.purged) {
					if problem.CodeOf(err) != problem.NotFound {
						t.Fatalf("purged: %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				m.revoked = true
			},
			"wait": func(t *rapid.T) {
				in.clock.Forward(time.Duration(rapid.IntRange(1, 12*60).Draw(t, "minutes")) * time.Minute)
			},
			"wait long": func(t *rapid.T) { in.clock.Forward(DefaultLimits().Keep) },
			"purge": func(t *rapid.T) {
				if _, err := in.nodes[0].Tidy(ctx); err != nil {
					t.Fatal(err)
				}
				in.purged = in.clock.Now().Add(-DefaultLimits().Keep)
			},
			"restart": func(t *rapid.T) {
				n := rapid.IntRange(0, 1).Draw(t, "node")
				in.stop(t, n)
				in.start(t, n)
			},
			"rotate": func(t *rapid.T) {
				if _, err := in.nodes[rapid.IntRange(0, 1).Draw(t, "node")].o.Keys.Rotate(); err != nil {
					t.Fatal(err)
				}
				for _, m := range in.grants {
					if m.keyUntil.IsZero() {
						m.keyUntil = in.clock.Now().Add(MaxTTL + retiring).Truncate(time.Second)
					}
				}
			},
			"": func(t *rapid.T) {
				for _, m := range in.grants {
					if m.successes > 1 {
						t.Fatalf("grant %s was used %d times", m.row.ID, m.successes)
					}
				}
			},
		})
	})
}

// race lets 64 sessions use one grant at the same moment, on two nodes, and requires one winner.
func TestOfSixtyFourSessionsOneGetsTheGrant(t *testing.T) {
	for round := range 5 {
		w := newFixture(t)
		dir := t.TempDir()
		a, b := openStore(t, dir), openStore(t, dir)
		issuers := make([]*Issuer, 2)
		for n, db := range []store.Store{a, b} {
			o := w.options()
			o.Store = db
			var err error
			if issuers[n], err = New(o); err != nil {
				t.Fatal(err)
			}
		}
		token, g, err := issuers[0].Issue(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		const sessions = 64
		var won atomic.Int32
		var winner atomic.Value
		var refused [sessions]error
		start := make(chan struct{})
		var wg sync.WaitGroup
		for n := range sessions {
			wg.Go(func() {
				<-start
				mine := want()
				mine.Session = fmt.Sprintf("s_%d", n)
				_, err := issuers[n%2].Use(context.Background(), token, mine)
				if err == nil {
					won.Add(1)
					winner.Store(mine.Session)
				}
				refused[n] = err
			})
		}
		close(start)
		wg.Wait()
		if won.Load() != 1 {
			t.Errorf("round %d: %d winners", round, won.Load())
		}
		for _, err := range refused {
			if err != nil && problem.CodeOf(err) != problem.GrantUsed {
				t.Errorf("a loser is told %v", err)
			}
		}
		if row, err := b.Grant(t.Context(), g.ID); err != nil || row.UsedBy != winner.Load() {
			t.Errorf("the row says %q, %v; the winner is %v", row.UsedBy, err, winner.Load())
		}
	}
}
