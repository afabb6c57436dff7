package storetest

import (
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

// testInvalidRows: every method that takes a row asks the row whether it is valid, and keeps nothing of one that is
// not. Valid rows are tested with the rows themselves.
func testInvalidRows(t *testing.T, s store.Store) {
	ctx := t.Context()
	newAgent(t, s, "a1", "default", "bea")
	g := grant("g1", "default")
	g.ExpiresAt = time.Time{}
	row := auditRow("n1", 1)
	row.Hash = row.Hash[:31]
	row2 := auditRow("n1", 1)
	row2.Target = "a\x00b"
	for what, err := range map[string]error{
		"tenant":     s.CreateTenant(ctx, store.Tenant{ID: "A", CreatedAt: at(0)}),
		"operator":   s.CreateOperator(ctx, store.Operator{ID: "o1", Role: "viewer", KeyHash: hash("k"), CreatedAt: at(0)}),
		"agent":      s.CreateAgent(ctx, store.Agent{ID: "a9", Tenant: "default", Name: "../x", CreatedAt: at(0)}),
		"token":      s.CreateToken(ctx, store.Token{ID: "t1", Agent: "a1", Hash: []byte("short"), CreatedAt: at(0)}),
		"cookie set": s.PutCookieSet(ctx, store.CookieSet{}, store.CookieSet{ID: "c1", Tenant: "default", Domain: "a.example", CreatedAt: at(0)}),
		"secret":     s.PutSecret(ctx, store.Secret{}, store.Secret{ID: "x1", Tenant: "default", Service: "\xff", CreatedAt: at(0)}),
		"grant":      s.CreateGrant(ctx, g),
		"sign-in":    s.CreateSignIn(ctx, store.SignIn{ID: "i1", Hash: hash("c"), Method: "key", CreatedAt: at(0), UsedAt: at(0), ExpiresAt: at(1)}),
		"passkey":    s.CreatePasskey(ctx, store.Passkey{ID: "p1", Owner: admin, Name: "n", Host: "h", Credential: []byte("c"), Handle: []byte("h"), CreatedAt: at(0)}),
		"audit row":  s.AppendAudit(ctx, []store.AuditRow{row}),
		"audit text": s.AppendAudit(ctx, []store.AuditRow{row2}),
	} {
		wantError(t, what, err, store.ErrInvalid)
	}
	check(t, "grants", []store.Grant(nil))(s.ListGrants(ctx, ""))
	check(t, "nodes", []string(nil))(s.AuditNodes(ctx))
	check(t, "sign-ins", []store.SignIn(nil))(s.ListSignIns(ctx, store.SignInFilter{Limit: 9}))
	check(t, "passkeys", []store.Passkey(nil))(s.ListPasskeys(ctx, admin))
	check(t, "cookies", []store.CookieSet(nil))(s.ListCookieSets(ctx, ""))
}
