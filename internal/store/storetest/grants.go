package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

func testGrants(t *testing.T, s store.Store) {
	ctx := t.Context()
	newTenant(t, s, "acme")
	first, second, other := grant("g1", "acme"), grant("g2", "acme"), grant("g3", "default")
	second.IssuedAt, second.Domains, second.EgressDomains, second.Origin = at(1), []string{"a.example"}, nil, ""
	for _, g := range []store.Grant{first, second, other} {
		must(t, s.CreateGrant(ctx, g))
	}
	check(t, "a grant", first)(s.Grant(ctx, "g1"))
	check(t, "of a tenant, the newest first", []store.Grant{second, first})(s.ListGrants(ctx, "acme"))
	check(t, "all", []store.Grant{second, other, first})(s.ListGrants(ctx, ""))
	wantError(t, "the same ID", s.CreateGrant(ctx, first), store.ErrExists)
	wantError(t, "no such tenant", s.CreateGrant(ctx, grant("g9", "none")), store.ErrNotFound)

	must(t, s.RevokeGrant(ctx, "g1", "ann", at(5)))
	must(t, s.RevokeGrant(ctx, "g1", "bob", at(6)))
	first.RevokedAt, first.RevokedBy = at(5), "ann"
	check(t, "revoked, the first time", first)(s.Grant(ctx, "g1"))
	wantError(t, "revoke none", s.RevokeGrant(ctx, "g9", "ann", at(5)), store.ErrNotFound)
	wantError(t, "revoke at no time", s.RevokeGrant(ctx, "g2", "ann", time.Time{}), store.ErrInvalid)
	_, err := s.Grant(ctx, "g9")
	wantError(t, "no grant", err, store.ErrNotFound)
	_, _, err = s.UseGrant(ctx, "g9", "acme", "s1", at(20))
	wantError(t, "use no grant", err, store.ErrNotFound)
	_, _, err = s.UseGrant(ctx, "g2", "acme", "s1", time.Time{})
	wantError(t, "use at no time", err, store.ErrInvalid)

	second.ExpiresAt = at(100) // as all of them
	check(t, "expired before they expire", 0)(s.DeleteGrantsBefore(ctx, at(100)))
	check(t, "expired", 3)(s.DeleteGrantsBefore(ctx, at(100).Add(time.Microsecond)))
	check(t, "grants", []store.Grant(nil))(s.ListGrants(ctx, ""))
}

func testGrantLife(t *testing.T, s store.Store) {
	ctx := t.Context()
	newTenant(t, s, "acme")
	tick := time.Microsecond
	for i, tt := range []struct {
		name   string
		tenant string
		now    time.Time
		before func(id string) error
		used   bool
	}{
		{"in time", "default", at(50), nil, true},
		{"at the first moment", "default", at(10), nil, true},
		{"a moment too early", "default", at(10).Add(-tick), nil, false},
		{"at the last moment", "default", at(100).Add(-tick), nil, true},
		{"a moment too late", "default", at(100), nil, false},
		{"another tenant", "acme", at(50), nil, false},
		{"no tenant", "", at(50), nil, false},
		{"revoked", "default", at(50), func(id string) error { return s.RevokeGrant(ctx, id, "ann", at(20)) }, false},
		{"used", "default", at(50), func(id string) error {
			_, _, err := s.UseGrant(ctx, id, "default", "earlier", at(20))
			return err
		}, false},
	} {
		g := grant(fmt.Sprint("g", i), "default")
		must(t, s.CreateGrant(ctx, g))
		if tt.before != nil {
			must(t, tt.before(g.ID))
		}
		want, err := s.Grant(ctx, g.ID)
		must(t, err)
		if tt.used {
			want.UsedAt, want.UsedBy = tt.now, "s1"
		}
		got, used, err := s.UseGrant(ctx, g.ID, tt.tenant, "s1", tt.now)
		must(t, err)
		if used != tt.used {
			t.Errorf("%s: used %v", tt.name, used)
		}
		same(t, tt.name+": what it returns", got, want)
		check(t, tt.name+": what is kept", want)(s.Grant(ctx, g.ID))
		if _, again, err := s.UseGrant(ctx, g.ID, "default", "s2", at(50)); err != nil || again && tt.used {
			t.Errorf("%s: used again %v, %v", tt.name, again, err)
		}
	}
}

// testGrantRace: of 64 sessions that use a grant at the same moment, one does, and its name is in the row.
func testGrantRace(t *testing.T, s store.Store) { grantRace(t, []store.Store{s}) }

func grantRace(t *testing.T, nodes []store.Store) {
	ctx := t.Context()
	for round := range 5 {
		id := fmt.Sprint("race", round)
		must(t, nodes[0].CreateGrant(ctx, grant(id, "default")))
		var won counter
		sessions := make([]string, 64)
		race(len(sessions), func(i int) {
			session := fmt.Sprint("s", i)
			g, used, err := nodes[i%len(nodes)].UseGrant(ctx, id, "default", session, at(20))
			if err != nil {
				t.Error(err)
			}
			if used {
				won.add()
			}
			sessions[i] = g.UsedBy
			if used != (g.UsedBy == session) {
				t.Errorf("used %v, and the row says %q to %q", used, g.UsedBy, session)
			}
		})
		won.want(t, "sessions that used the grant", 1)
		for _, session := range sessions {
			if session == "" || session != sessions[0] {
				t.Fatalf("round %d: some see %q in the row, some %q", round, sessions[0], session)
			}
		}
	}
}
