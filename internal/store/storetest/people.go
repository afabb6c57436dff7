package storetest

import (
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

func testTenants(t *testing.T, s store.Store) {
	ctx := t.Context()
	first, err := s.Tenant(ctx, store.DefaultTenant)
	must(t, err)
	if first.CreatedAt.IsZero() || first.ForbidOperatorMode || first.ForbidAccountPermissions {
		t.Errorf("the first tenant is %+v", first)
	}
	b := store.Tenant{ID: "b", CreatedAt: at(1), ForbidOperatorMode: true}
	a := store.Tenant{ID: "a", CreatedAt: at(2), ForbidAccountPermissions: true}
	must(t, s.CreateTenant(ctx, b))
	must(t, s.CreateTenant(ctx, a))
	check(t, "a tenant", b)(s.Tenant(ctx, "b"))
	check(t, "tenants", []store.Tenant{a, b, first})(s.ListTenants(ctx))
	wantError(t, "a second of the same ID", s.CreateTenant(ctx, store.Tenant{ID: "b", CreatedAt: at(3)}), store.ErrExists)

	must(t, s.UpdateTenant(ctx, b, store.Tenant{ID: "b"}))
	wantError(t, "an update of what it was before", s.UpdateTenant(ctx, b, b), store.ErrExists)
	check(t, "an updated tenant", store.Tenant{ID: "b", CreatedAt: at(1)})(s.Tenant(ctx, "b"))
	must(t, s.UpdateTenant(ctx, store.Tenant{ID: "b"}, store.Tenant{ID: "b", ForbidAccountPermissions: true}))
	wantError(t, "an update of the other setting as it was", s.UpdateTenant(ctx, store.Tenant{ID: "b"}, b), store.ErrExists)
	check(t, "the other setting", store.Tenant{ID: "b", CreatedAt: at(1), ForbidAccountPermissions: true})(s.Tenant(ctx, "b"))
	_, err = s.Tenant(ctx, "c")
	wantError(t, "no tenant", err, store.ErrNotFound)
	wantError(t, "update of no tenant", s.UpdateTenant(ctx, store.Tenant{ID: "c"}, store.Tenant{ID: "c"}), store.ErrExists)
}

func testOperators(t *testing.T, s store.Store) {
	ctx := t.Context()
	newTenant(t, s, "acme")
	root := store.Operator{ID: "o1", Name: "Root", Role: "admin", KeyHash: hash("k1"), KeyHint: "cj_op_ab", CreatedAt: at(2)}
	ann := store.Operator{ID: "o2", Name: "Ann", Tenant: "acme", Role: "viewer", KeyHash: hash("k2"), KeyHint: "cj_op_cd", CreatedAt: at(1), ExpiresAt: at(50)}
	must(t, s.CreateOperator(ctx, root))
	must(t, s.CreateOperator(ctx, ann))
	check(t, "by ID", root)(s.Operator(ctx, "o1"))
	check(t, "by key", ann)(s.OperatorByKey(ctx, hash("k2")))
	check(t, "all, the oldest first", []store.Operator{ann, root})(s.ListOperators(ctx, ""))
	check(t, "of a tenant", []store.Operator{ann})(s.ListOperators(ctx, "acme"))
	check(t, "of a tenant without", []store.Operator(nil))(s.ListOperators(ctx, "default"))

	again := root
	again.KeyHash = hash("k3")
	wantError(t, "the same ID", s.CreateOperator(ctx, again), store.ErrExists)
	again = ann
	again.ID = "o3"
	wantError(t, "the same key", s.CreateOperator(ctx, again), store.ErrExists)
	again.KeyHash, again.Tenant = hash("k3"), "nobody"
	wantError(t, "a tenant that does not exist", s.CreateOperator(ctx, again), store.ErrNotFound)

	must(t, s.RevokeOperator(ctx, "o2", at(7)))
	must(t, s.RevokeOperator(ctx, "o2", at(9)))
	ann.RevokedAt = at(7)
	check(t, "revoked, found all the same, with the first time", ann)(s.OperatorByKey(ctx, hash("k2")))
	wantError(t, "revoke nobody", s.RevokeOperator(ctx, "o9", at(7)), store.ErrNotFound)
	wantError(t, "revoke at no time", s.RevokeOperator(ctx, "o1", time.Time{}), store.ErrInvalid)
	_, err := s.Operator(ctx, "o9")
	wantError(t, "no ID", err, store.ErrNotFound)
	_, err = s.OperatorByKey(ctx, hash("k9"))
	wantError(t, "no key", err, store.ErrNotFound)
	_, err = s.OperatorByKey(ctx, nil)
	wantError(t, "an empty key", err, store.ErrNotFound)
}

func testAgents(t *testing.T, s store.Store) {
	ctx := t.Context()
	newTenant(t, s, "acme")
	b := newAgent(t, s, "a1", "acme", "bea")
	a := newAgent(t, s, "a2", "acme", "abe")
	other := newAgent(t, s, "a3", "default", "bea")
	check(t, "by name", b)(s.Agent(ctx, "acme", "bea"))
	check(t, "by ID", other)(s.AgentByID(ctx, "a3"))
	check(t, "of a tenant, by name", []store.Agent{a, b})(s.ListAgents(ctx, "acme"))
	check(t, "all", []store.Agent{a, b, other})(s.ListAgents(ctx, ""))

	wantError(t, "the same name", s.CreateAgent(ctx, store.Agent{ID: "a9", Tenant: "acme", Name: "bea", CreatedAt: at(1)}), store.ErrExists)
	wantError(t, "the same ID", s.CreateAgent(ctx, store.Agent{ID: "a1", Tenant: "acme", Name: "new", CreatedAt: at(1)}), store.ErrExists)
	wantError(t, "no such tenant", s.CreateAgent(ctx, store.Agent{ID: "a9", Tenant: "none", Name: "new", CreatedAt: at(1)}), store.ErrNotFound)

	must(t, s.RevokeAgent(ctx, "a1", at(5)))
	b.RevokedAt = at(5)
	check(t, "revoked", b)(s.AgentByID(ctx, "a1"))
	must(t, s.RevokeAgent(ctx, "a1", time.Time{}))
	b.RevokedAt = time.Time{}
	check(t, "taken back", b)(s.AgentByID(ctx, "a1"))
	wantError(t, "revoke nobody", s.RevokeAgent(ctx, "a9", at(5)), store.ErrNotFound)

	must(t, s.CreateToken(ctx, store.Token{ID: "t1", Agent: "a1", Hash: hash("t1"), CreatedAt: at(1)}))
	must(t, s.PutSecret(ctx, store.Secret{}, store.Secret{ID: "x1", Tenant: "acme", Agent: "a1", Service: "mail", Ciphertext: []byte("x"), CreatedAt: at(1)}))
	must(t, s.PutSecret(ctx, store.Secret{}, store.Secret{ID: "x2", Tenant: "acme", Service: "mail", Ciphertext: []byte("x"), CreatedAt: at(1)}))
	must(t, s.DeleteAgent(ctx, "a1"))
	wantError(t, "delete it again", s.DeleteAgent(ctx, "a1"), store.ErrNotFound)
	_, _, err := s.TokenByHash(ctx, hash("t1"))
	wantError(t, "the token of a removed agent", err, store.ErrNotFound)
	_, err = s.Secret(ctx, "acme", "a1", "mail")
	wantError(t, "the secret of a removed agent", err, store.ErrNotFound)
	if _, err := s.Secret(ctx, "acme", "", "mail"); err != nil {
		t.Errorf("the tenant's secret went with the agent: %v", err)
	}
	newAgent(t, s, "a4", "acme", "bea") // the name is free
}

func testTokens(t *testing.T, s store.Store) {
	ctx := t.Context()
	agent := newAgent(t, s, "a1", "default", "bea")
	old := store.Token{ID: "t1", Agent: "a1", Hash: hash("one"), Hint: "cj_agt_ab", CreatedAt: at(1), ExpiresAt: at(100)}
	fresh := store.Token{ID: "t2", Agent: "a1", Hash: hash("two"), CreatedAt: at(2)}
	must(t, s.CreateToken(ctx, fresh))
	must(t, s.CreateToken(ctx, old))
	check(t, "tokens, the oldest first", []store.Token{old, fresh})(s.ListTokens(ctx, "a1"))
	check(t, "tokens of nobody", []store.Token(nil))(s.ListTokens(ctx, "a9"))
	check(t, "tokens of all tenants", []store.Token{old, fresh})(s.ListTenantTokens(ctx, ""))
	check(t, "tokens of a tenant", []store.Token{old, fresh})(s.ListTenantTokens(ctx, "default"))
	check(t, "tokens of another tenant", []store.Token(nil))(s.ListTenantTokens(ctx, "other"))
	again := old
	again.ID = "t3"
	wantError(t, "the same hash", s.CreateToken(ctx, again), store.ErrExists)
	again.Hash, again.Agent = hash("three"), "a9"
	wantError(t, "no such agent", s.CreateToken(ctx, again), store.ErrNotFound)

	must(t, s.ExpireToken(ctx, "t1", at(50)))
	must(t, s.ExpireToken(ctx, "t1", at(70)))
	must(t, s.ExpireToken(ctx, "t2", at(60)))
	old.ExpiresAt, fresh.ExpiresAt = at(50), at(60)
	must(t, s.TouchToken(ctx, "t1", at(20)))
	must(t, s.TouchToken(ctx, "t1", at(10)))
	old.UsedAt = at(20)
	must(t, s.RevokeToken(ctx, "t1", at(30)))
	must(t, s.RevokeToken(ctx, "t1", at(40)))
	old.RevokedAt = at(30)
	token, owner, err := s.TokenByHash(ctx, hash("one"))
	must(t, err)
	same(t, "a revoked token: shortened once, used last, revoked first", token, old)
	same(t, "its agent", owner, agent)
	check(t, "both", []store.Token{old, fresh})(s.ListTokens(ctx, "a1"))

	_, _, err = s.TokenByHash(ctx, hash("nine"))
	wantError(t, "no such hash", err, store.ErrNotFound)
	for name, f := range map[string]func(string, time.Time) error{
		"revoke": func(id string, at time.Time) error { return s.RevokeToken(ctx, id, at) },
		"expire": func(id string, at time.Time) error { return s.ExpireToken(ctx, id, at) },
		"touch":  func(id string, at time.Time) error { return s.TouchToken(ctx, id, at) },
	} {
		wantError(t, name+" no token", f("t9", at(1)), store.ErrNotFound)
		wantError(t, name+" at no time", f("t1", time.Time{}), store.ErrInvalid)
	}
}
