package identity

import (
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func TestAgentNames(t *testing.T) {
	w := newFixture(t)
	for _, name := range []string{"", "Bot", "bot_1", "bot.1", "böt", "bot/..", strings.Repeat("b", 41), "bot\x00"} {
		if _, _, err := w.CreateAgent(t.Context(), admin, "acme", name, NeverExpires); problem.CodeOf(err) != problem.BadName {
			t.Errorf("%q: got %v", name, err)
		}
	}
	for _, name := range []string{"b", "bot-1", strings.Repeat("b", 40)} {
		w.agent("acme", name)
	}
	if _, _, err := w.CreateAgent(t.Context(), admin, "acme", "bot-1", NeverExpires); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("a second one of the name: %v", err)
	} else if p, _ := problem.As(err); !strings.HasSuffix(p.Hint, "clawjail agent token rotate bot-1 --tenant acme") { // its token may be lost, and not its permissions
		t.Errorf("the hint about a second one: %q", p.Hint)
	}
	if e := w.log.Last(t); e.Action != "agent.create" || e.Result != "failed" || !audittest.Has(e, map[string]string{"code": problem.Conflict}) {
		t.Errorf("recorded %+v", e)
	}
	w.agent("rival", "bot-1")
	if _, _, err := w.CreateAgent(t.Context(), admin, "nobody", "bot", NeverExpires); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("a tenant that is not there: %v", err)
	}
	if err := w.DeleteAgent(t.Context(), admin, "acme", "bot-1"); err != nil {
		t.Fatal(err)
	}
	w.agent("acme", "bot-1")
}

func TestRotationOverlaps(t *testing.T) {
	w := newFixture(t)
	first, _, _ := w.agent("acme", "bot")
	second, token, err := w.RotateToken(t.Context(), admin, "acme", "bot", time.Hour, 10*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if token.Hint != second.Hint() || !token.ExpiresAt.Equal(noon.Add(time.Hour)) {
		t.Errorf("got %+v", token)
	}
	w.mustBe(first)
	w.mustBe(second)
	w.clock.Forward(10*time.Minute - time.Microsecond)
	w.mustBe(first)
	// A second rotation does not lengthen the life of the first token.
	third, _, err := w.RotateToken(t.Context(), admin, "acme", "bot", time.Hour, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	w.clock.Forward(time.Microsecond)
	w.refusedFor(first, "expired")
	w.mustBe(second)
	w.mustBe(third)

	fourth, _, err := w.RotateToken(t.Context(), admin, "acme", "bot", time.Hour, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.refusedFor(second, "revoked")
	w.refusedFor(third, "revoked")
	w.mustBe(fourth)
}

func TestRotationsThatAreRefused(t *testing.T) {
	w := newFixture(t)
	w.agent("acme", "bot")
	for name, tt := range map[string]struct {
		life, overlap time.Duration
	}{"no life": {0, 0}, "negative overlap": {time.Hour, -1}, "long overlap": {time.Hour, LongestOverlap + 1}} {
		if _, _, err := w.RotateToken(t.Context(), admin, "acme", "bot", tt.life, tt.overlap); problem.CodeOf(err) != problem.BadLimit {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := w.RevokeAgent(t.Context(), admin, "acme", "bot"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.RotateToken(t.Context(), admin, "acme", "bot", time.Hour, 0); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("a revoked agent: got %v", err)
	}
}

func TestRevokingOneTokenLeavesTheOther(t *testing.T) {
	w := newFixture(t)
	first, _, p := w.agent("acme", "bot")
	second, _, err := w.RotateToken(t.Context(), admin, "acme", "bot", time.Hour, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	a, b := w.hold(p), w.hold(w.mustBe(second))
	if err := w.RevokeToken(t.Context(), admin, "acme", "bot", p.TokenID); err != nil {
		t.Fatal(err)
	}
	if !a.cut() || b.cut() {
		t.Errorf("cut: %v, %v", a.cut(), b.cut())
	}
	w.refusedFor(first, "revoked")
	w.mustBe(second)
}

// Whatever is done with an agent of another tenant is answered as if there were none.
func TestAgentsOfOthersDoNotExist(t *testing.T) {
	w := newFixture(t)
	key, _, p := w.agent("acme", "bot")
	_, _, other := w.agent("rival", "theirs")
	_, _, rival := w.operator("rival", RoleAdmin)
	_, _, viewer := w.operator("acme", RoleViewer)
	for name, call := range map[string]func(by Principal, tenant, name string) error{
		"revoke":  func(by Principal, tenant, name string) error { return w.RevokeAgent(t.Context(), by, tenant, name) },
		"restore": func(by Principal, tenant, name string) error { return w.RestoreAgent(t.Context(), by, tenant, name) },
		"delete":  func(by Principal, tenant, name string) error { return w.DeleteAgent(t.Context(), by, tenant, name) },
		"revoke token": func(by Principal, tenant, name string) error {
			return w.RevokeToken(t.Context(), by, tenant, name, p.TokenID)
		},
		"rotate": func(by Principal, tenant, name string) error {
			_, _, err := w.RotateToken(t.Context(), by, tenant, name, time.Hour, 0)
			return err
		},
		"list tokens": func(by Principal, tenant, name string) error {
			_, err := w.Tokens(t.Context(), by, tenant, name)
			return err
		},
	} {
		none := call(rival, "rival", "bot")
		theirs := call(rival, "acme", "bot")
		nowhere := call(rival, "nobody", "bot")
		if problem.CodeOf(theirs) != problem.NotFound || theirs.Error() != none.Error() || nowhere.Error() != none.Error() {
			t.Errorf("%s: %v, %v, %v", name, none, theirs, nowhere)
		}
		if code := problem.CodeOf(call(p, "acme", "bot")); code != problem.Forbidden {
			t.Errorf("%s by an agent: %s", name, code)
		}
		if code := problem.CodeOf(call(viewer, "acme", "bot")); code != problem.Forbidden && name != "list tokens" {
			t.Errorf("%s by a viewer: %s", name, code)
		}
	}
	// A token's id is no way around it.
	if err := w.RevokeToken(t.Context(), rival, "rival", "theirs", p.TokenID); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("the token of another agent: %v", err)
	}
	w.mustBe(key)
	if w.Open() != 0 || other.Tenant != "rival" {
		t.Error("something is open")
	}
	list, err := w.Agents(t.Context(), rival, "rival")
	if err != nil || len(list) != 1 || list[0].Tenant != "rival" {
		t.Errorf("got %+v, %v", list, err)
	}
	for _, tenant := range []string{"", "acme"} {
		if _, err := w.Agents(t.Context(), rival, tenant); err == nil {
			t.Errorf("rival lists the agents of %q", tenant)
		}
		if _, _, err := w.CreateAgent(t.Context(), rival, tenant, "spy", time.Hour); err == nil {
			t.Errorf("rival makes an agent in %q", tenant)
		}
	}
}

func TestTenants(t *testing.T) {
	w := newFixture(t)
	if first, err := w.o.Store.Tenant(t.Context(), store.DefaultTenant); err != nil || first.ID != "default" {
		t.Errorf("default: %v", err)
	}
	_, _, operator := w.operator("acme", RoleAdmin)
	for name, tt := range map[string]struct {
		by   Principal
		id   string
		code string
	}{
		"again": {admin, "acme", problem.Conflict}, "upper case": {admin, "Acme", problem.BadName}, "empty": {admin, "", problem.BadName},
		"long": {admin, strings.Repeat("a", 41), problem.BadName}, "path": {admin, "../x", problem.BadName},
		"by a tenant's admin": {operator, "mine", problem.Forbidden}, "by nobody": {Principal{}, "mine", problem.Forbidden},
	} {
		if _, err := w.CreateTenant(t.Context(), tt.by, tt.id, Policy{}); problem.CodeOf(err) != tt.code {
			t.Errorf("%s: got %v", name, err)
		}
		if e := w.log.Last(t); name == "again" && (e.Action != "tenant.create" || e.Result != "failed" || !audittest.Has(e, map[string]string{"code": problem.Conflict})) {
			t.Errorf("recorded %+v", e)
		}
	}
	if got, err := w.CreateTenant(t.Context(), admin, strings.Repeat("a", 40), Policy{ForbidOperatorMode: true}); err != nil || !got.ForbidOperatorMode {
		t.Errorf("got %+v, %v", got, err)
	}
	all, err := w.Tenants(t.Context(), admin)
	if err != nil || len(all) != 4 {
		t.Errorf("%d tenants, %v", len(all), err)
	}
	own, err := w.Tenants(t.Context(), operator)
	if err != nil || len(own) != 1 || own[0].ID != "acme" {
		t.Errorf("got %+v, %v", own, err)
	}
	if _, err := w.DisconnectTenant(t.Context(), operator, "acme"); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("a tenant's admin disconnects it: %v", err)
	}
	if _, err := w.DisconnectTenant(t.Context(), admin, "nobody"); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("no tenant: %v", err)
	}
	if _, err := w.Tenants(t.Context(), callers[5].p); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("an agent: %v", err)
	}
}

func TestOperatorModeCanBeForbidden(t *testing.T) {
	w := newFixture(t)
	_, _, operator := w.operator("acme", RoleAdmin)
	if _, err := w.SetPolicy(t.Context(), operator, "acme", func(p *Policy) { p.ForbidOperatorMode = false }); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("a tenant decides for itself: %v", err)
	}
	if err := w.OperatorMode(t.Context(), "acme"); err != nil {
		t.Errorf("before: %v", err)
	}
	if _, err := w.SetPolicy(t.Context(), admin, "acme", func(p *Policy) { p.ForbidOperatorMode = true }); err != nil {
		t.Fatal(err)
	}
	if err := w.OperatorMode(t.Context(), "acme"); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("after: %v", err)
	}
	if err := w.OperatorMode(t.Context(), "rival"); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	if err := w.OperatorMode(t.Context(), "nobody"); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("no tenant: %v", err)
	}
	if _, err := w.SetPolicy(t.Context(), admin, "nobody", func(p *Policy) { p.ForbidOperatorMode = false }); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("no tenant: %v", err)
	}
}

// What another process has forbidden meanwhile stays forbidden.
func TestTwoChangesOfATenantUndoNothing(t *testing.T) {
	w := newFixture(t)
	for _, meanwhile := range []bool{true, false} {
		_, err := w.SetPolicy(t.Context(), admin, "acme", func(p *Policy) {
			if meanwhile {
				if _, err := w.SetPolicy(t.Context(), admin, "acme", func(p *Policy) { p.ForbidOperatorMode = true }); err != nil {
					t.Fatal(err)
				}
			}
			p.ForbidAccountPermissions = true
		})
		if meanwhile && problem.CodeOf(err) != problem.Conflict || !meanwhile && err != nil {
			t.Errorf("changed meanwhile %v: %v", meanwhile, err)
		}
		got, err := w.tenant(t.Context(), "acme")
		if err != nil || !got.ForbidOperatorMode || got.ForbidAccountPermissions == meanwhile {
			t.Errorf("changed meanwhile %v: the tenant is %+v, %v", meanwhile, got, err)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	if _, err := Open(t.Context(), Options{}); problem.CodeOf(err) != problem.BadConfig || strings.Count(err.Error(), "\n") != 4 {
		t.Errorf("got %v", err)
	}
}
