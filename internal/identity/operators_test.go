package identity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func TestOperatorIsKeptWithoutTheKey(t *testing.T) {
	w := newFixture(t)
	key, o, err := w.CreateOperator(t.Context(), admin, NewOperator{Name: "ann", Tenant: "acme", Role: RoleOperator, Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	row, err := w.o.Store.Operator(t.Context(), o.ID)
	if err != nil {
		t.Fatal(err)
	}
	want := store.Operator{
		ID: o.ID, Name: "ann", Tenant: "acme", Role: "operator", KeyHash: key.Hash(), KeyHint: key.Hint(), CreatedAt: noon, ExpiresAt: noon.Add(time.Hour),
	}
	if diff := cmp.Diff(want, row); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	if strings.Contains(fmt.Sprintf("%+v %s %+v", row, row.KeyHash, w.log.All()), key.Reveal()[len(PrefixOperator)+hintLength:]) {
		t.Error("the row or the log has the key")
	}
	if e := w.log.Last(t); e.Action != "operator.create" || e.Result != "ok" || e.Tenant != "acme" || e.Actor != "admin" || e.Target != o.ID ||
		e.Detail.String() != fmt.Sprintf(`{"of_tenant":"acme","presented":%q,"role":"operator"}`, key.Hint()) {
		t.Errorf("recorded %+v", e)
	}
}

func TestOperatorsThatAreNotMade(t *testing.T) {
	w := newFixture(t)
	_, _, tenantAdmin := w.operator("acme", RoleAdmin)
	_, _, operator := w.operator("acme", RoleOperator)
	good := NewOperator{Name: "bob", Tenant: "acme", Role: RoleViewer, Life: time.Hour}
	before, err := w.Operators(t.Context(), admin, "")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		by     Principal
		change func(*NewOperator)
		code   string
	}{
		"by an operator":                       {operator, func(*NewOperator) {}, problem.Forbidden},
		"in another tenant":                    {tenantAdmin, func(n *NewOperator) { n.Tenant = "rival" }, problem.NotFound},
		"in no tenant":                         {tenantAdmin, func(n *NewOperator) { n.Tenant, n.Role = "", RoleAdmin }, problem.Forbidden},
		"in a tenant that is not there":        {admin, func(n *NewOperator) { n.Tenant = "nobody" }, problem.NotFound},
		"viewer of all":                        {admin, func(n *NewOperator) { n.Tenant = "" }, problem.BadRequest},
		"role that is unknown":                 {admin, func(n *NewOperator) { n.Role = "owner" }, problem.BadRequest},
		"without a role":                       {admin, func(n *NewOperator) { n.Role = "" }, problem.BadRequest},
		"without a name":                       {admin, func(n *NewOperator) { n.Name = "" }, problem.BadName},
		"name with a line end":                 {admin, func(n *NewOperator) { n.Name = "bob\n" }, problem.BadName},
		"name that is too long":                {admin, func(n *NewOperator) { n.Name = strings.Repeat("b", 41) }, problem.BadName},
		"life that nobody has given":           {admin, func(n *NewOperator) { n.Life = 0 }, problem.BadLimit},
		"negative life":                        {admin, func(n *NewOperator) { n.Life = -2 }, problem.BadLimit},
		"life of a hundred years":              {admin, func(n *NewOperator) { n.Life = 100 * 365 * 24 * time.Hour }, problem.BadLimit},
		"by an agent":                          {callers[5].p, func(*NewOperator) {}, problem.Forbidden},
		"by the admin of another tenant":       {Principal{Kind: KindOperator, ID: "x", Tenant: "rival", Role: RoleAdmin}, func(*NewOperator) {}, problem.NotFound},
		"by the admin of a tenant with no row": {Principal{Kind: KindOperator, ID: "x", Tenant: "nobody", Role: RoleAdmin}, func(n *NewOperator) { n.Tenant = "nobody" }, problem.NotFound},
	} {
		n := good
		tt.change(&n)
		key, _, err := w.CreateOperator(t.Context(), tt.by, n)
		if problem.CodeOf(err) != tt.code || !key.IsZero() {
			t.Errorf("%s: got %v, want %s", name, err, tt.code)
		}
	}
	after, err := w.Operators(t.Context(), admin, "")
	if err != nil || len(after) != len(before) {
		t.Errorf("%d operators, %v", len(after)-len(before), err)
	}
	if _, _, err := w.CreateOperator(t.Context(), tenantAdmin, good); err != nil {
		t.Errorf("what a tenant's admin may: %v", err)
	}
}

func TestRotatedOperatorHasOneKey(t *testing.T) {
	w := newFixture(t)
	old, o, p := w.operator("acme", RoleOperator)
	open := w.hold(p)
	w.clock.Forward(time.Minute)
	key, fresh, err := w.RotateOperator(t.Context(), admin, o.ID, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if fresh.ID == o.ID || fresh.Name != o.Name || fresh.Role != o.Role || fresh.Tenant != o.Tenant || !fresh.ExpiresAt.Equal(noon.Add(61*time.Minute)) {
		t.Errorf("got %+v", fresh)
	}
	w.mustBe(key)
	w.refusedFor(old, "revoked")
	if !open.cut() {
		t.Error("what was open with the old key is open")
	}
	if _, _, err := w.RotateOperator(t.Context(), admin, o.ID, time.Hour); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("rotating a revoked key: %v", err)
	}
}

func TestOperatorsOfOthersDoNotExist(t *testing.T) {
	w := newFixture(t)
	key, o, _ := w.operator("acme", RoleOperator)
	_, all, _ := w.operator("", RoleAdmin)
	_, _, rival := w.operator("rival", RoleAdmin)
	_, _, viewer := w.operator("acme", RoleViewer)
	for name, call := range map[string]func(p Principal, id string) error{
		"revoke": func(p Principal, id string) error { return w.RevokeOperator(t.Context(), p, id) },
		"rotate": func(p Principal, id string) error {
			_, _, err := w.RotateOperator(t.Context(), p, id, time.Hour)
			return err
		},
	} {
		unknown := call(rival, "op_unknown")
		for _, id := range []string{o.ID, all.ID} {
			err := call(rival, id)
			if problem.CodeOf(err) != problem.NotFound || strings.ReplaceAll(err.Error(), id, "op_unknown") != unknown.Error() {
				t.Errorf("%s: got %v, and for what is not there %v", name, err, unknown)
			}
		}
		for _, id := range []string{o.ID, all.ID, "op_unknown"} {
			if err := call(viewer, id); problem.CodeOf(err) != problem.Forbidden {
				t.Errorf("%s by a viewer: %v", name, err)
			}
		}
	}
	w.mustBe(key)
	list, err := w.Operators(t.Context(), rival, "rival")
	if err != nil || len(list) != 1 || list[0].Tenant != "rival" {
		t.Errorf("got %+v, %v", list, err)
	}
	for _, tenant := range []string{"", "acme"} {
		if _, err := w.Operators(t.Context(), rival, tenant); err == nil {
			t.Errorf("rival lists the operators of %q", tenant)
		}
	}
}

func TestRevokingTwiceIsRevokingOnce(t *testing.T) {
	w := newFixture(t)
	_, o, _ := w.operator("acme", RoleOperator)
	for range 2 {
		if err := w.RevokeOperator(t.Context(), admin, o.ID); err != nil {
			t.Fatal(err)
		}
		w.clock.Forward(time.Hour)
	}
	row, err := w.o.Store.Operator(t.Context(), o.ID)
	if err != nil || !row.RevokedAt.Equal(noon) {
		t.Errorf("revoked at %v, %v", row.RevokedAt, err)
	}
}

// Nothing is made without a record; ending needs none.
func TestRecordsComeFirstExceptForEndings(t *testing.T) {
	w := newFixture(t)
	key, o, p := w.operator("acme", RoleOperator)
	agentKey, _, agent := w.agent("acme", "bot")
	w.agent("acme", "other")
	open, agentOpen := w.hold(p), w.hold(agent)
	w.log.Fail(errPlanted)
	for name, call := range map[string]func() error{
		"create operator": func() error {
			_, _, err := w.CreateOperator(t.Context(), admin, NewOperator{Name: "x", Tenant: "acme", Role: RoleViewer, Life: time.Hour})
			return err
		},
		"rotate operator": func() error { _, _, err := w.RotateOperator(t.Context(), admin, o.ID, time.Hour); return err },
		"create agent":    func() error { _, _, err := w.CreateAgent(t.Context(), admin, "acme", "x", time.Hour); return err },
		"rotate token":    func() error { _, _, err := w.RotateToken(t.Context(), admin, "acme", "bot", time.Hour, 0); return err },
		"restore agent":   func() error { return w.RestoreAgent(t.Context(), admin, "acme", "bot") },
		"create tenant":   func() error { _, err := w.CreateTenant(t.Context(), admin, "x", Policy{}); return err },
		"set policy": func() error {
			_, err := w.SetPolicy(t.Context(), admin, "acme", func(p *Policy) { p.ForbidOperatorMode = true })
			return err
		},
	} {
		if err := call(); !errors.Is(err, errPlanted) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	w.log.Fail(nil)
	w.mustBe(key)
	w.mustBe(agentKey)
	if list, err := w.Tenants(t.Context(), admin); err != nil || len(list) != 3 {
		t.Errorf("%d tenants, %v", len(list), err)
	}
	if list, err := w.Agents(t.Context(), admin, ""); err != nil || len(list) != 2 {
		t.Errorf("%d agents, %v", len(list), err)
	}
	if list, err := w.Operators(t.Context(), admin, ""); err != nil || len(list) != 1 {
		t.Errorf("%d operators, %v", len(list), err)
	}
	if list, err := w.Tokens(t.Context(), admin, "acme", "bot"); err != nil || len(list) != 1 {
		t.Errorf("%d tokens, %v", len(list), err)
	}
	if err := w.OperatorMode(t.Context(), "acme"); err != nil {
		t.Errorf("the policy changed: %v", err)
	}

	w.log.Fail(errPlanted)
	for name, call := range map[string]func() error{
		"revoke operator": func() error { return w.RevokeOperator(t.Context(), admin, o.ID) },
		"revoke token":    func() error { return w.RevokeToken(t.Context(), admin, "acme", "bot", agent.TokenID) },
		"delete agent":    func() error { return w.DeleteAgent(t.Context(), admin, "acme", "other") },
		"disconnect":      func() error { _, err := w.DisconnectTenant(t.Context(), admin, "acme"); return err },
	} {
		if err := call(); err != nil {
			t.Errorf("%s waits for its record: %v", name, err)
		}
	}
	if !open.cut() || !agentOpen.cut() {
		t.Error("what was revoked is open")
	}
	w.log.Fail(nil)
	w.refusedFor(key, "revoked")
	w.refusedFor(agentKey, "revoked")
	if list, err := w.Agents(t.Context(), admin, ""); err != nil || len(list) != 1 {
		t.Errorf("%d agents, %v", len(list), err)
	}
}

// failing is a store in which one write does not work.
type failing struct {
	Store
	createOperator, createToken, expireToken bool
	revokeOperator                           string      // whose
	hang                                     atomic.Bool // revoking waits until its context ends
}

func (f *failing) RevokeAgent(ctx context.Context, id string, at time.Time) error {
	if f.hang.Load() && !at.IsZero() {
		<-ctx.Done()
		return ctx.Err()
	}
	return f.Store.RevokeAgent(ctx, id, at)
}

func (f *failing) CreateOperator(ctx context.Context, o store.Operator) error {
	if f.createOperator {
		return errPlanted
	}
	return f.Store.CreateOperator(ctx, o)
}

func (f *failing) RevokeOperator(ctx context.Context, id string, at time.Time) error {
	if f.revokeOperator == id {
		return errPlanted
	}
	return f.Store.RevokeOperator(ctx, id, at)
}

func (f *failing) CreateToken(ctx context.Context, t store.Token) error {
	if f.createToken {
		return errPlanted
	}
	return f.Store.CreateToken(ctx, t)
}

func (f *failing) ExpireToken(ctx context.Context, id string, at time.Time) error {
	if f.expireToken {
		return errPlanted
	}
	return f.Store.ExpireToken(ctx, id, at)
}

func TestWhatFailsSaysSoAndLeavesNothing(t *testing.T) {
	fake := &failing{}
	w := newFixture(t, func(o *Options) { fake.Store = o.Store; o.Store = fake })
	key, o, p := w.operator("acme", RoleOperator)
	open := w.hold(p)
	w.agent("acme", "bot")
	failed := func(action string, err error) {
		t.Helper()
		if e := w.log.Last(t); !errors.Is(err, errPlanted) || e.Action != action || e.Result != "failed" {
			t.Errorf("got %v, recorded %+v", err, e)
		}
	}
	fake.createOperator = true
	_, _, err := w.CreateOperator(t.Context(), admin, NewOperator{Name: "x", Tenant: "acme", Role: RoleViewer, Life: time.Hour})
	failed("operator.create", err)
	fake.revokeOperator = o.ID
	failed("operator.revoke", w.RevokeOperator(t.Context(), admin, o.ID))
	// Cutting off does not wait for the database: the key is refused here from then on.
	if !open.cut() {
		t.Error("a connection goes on whose key was revoked")
	}
	if _, err := w.Authenticate(t.Context(), key.Reveal(), here); problem.CodeOf(err) != problem.Unauthorized {
		t.Errorf("a key whose revocation could not be written: %v", err)
	}
	if _, err := w.WatchValidity(t.Context(), p, func(error) {}); problem.CodeOf(err) != problem.Unauthorized {
		t.Errorf("a connection of a key whose revocation could not be written: %v", err)
	}
	fake.revokeOperator = ""
	if err := w.RevokeOperator(t.Context(), admin, o.ID); err != nil || w.revocations.has(p) {
		t.Errorf("revoked again, when it can be written: %v", err)
	}
	fake.createOperator = false
	key, o, _ = w.operator("acme", RoleOperator)
	fake.revokeOperator = o.ID
	_, _, err = w.RotateOperator(t.Context(), admin, o.ID, time.Hour)
	failed("operator.rotate", err)
	w.mustBe(key)
	operators, err := w.Operators(t.Context(), admin, "acme")
	if operators = slices.DeleteFunc(operators, func(o Operator) bool { return !o.RevokedAt.IsZero() }); err != nil || len(operators) != 1 {
		t.Errorf("a key that was told to nobody was left: %+v, %v", operators, err)
	}
	fake.createToken = true
	_, _, err = w.CreateAgent(t.Context(), admin, "acme", "new", time.Hour)
	failed("agent.create", err)
	if list, err := w.Agents(t.Context(), admin, "acme"); err != nil || len(list) != 1 {
		t.Errorf("an agent without a token was left: %+v, %v", list, err)
	}
	fake.createToken, fake.expireToken = false, true
	_, _, err = w.RotateToken(t.Context(), admin, "acme", "bot", time.Hour, time.Minute)
	failed("token.rotate", err)
	list, err := w.Tokens(t.Context(), admin, "acme", "bot")
	good := 0
	for _, token := range list {
		if token.RevokedAt.IsZero() {
			good++
		}
	}
	if err != nil || good != 1 {
		t.Errorf("%d tokens are good, %v", good, err)
	}
}

// Whoever asks for an end may leave before it is written, as a client does that is interrupted.
func TestAnEndIsWrittenAlsoWhenItsCallerHasLeft(t *testing.T) {
	left, leave := context.WithCancel(t.Context())
	leave()
	w := newFixture(t)
	operatorKey, o, _ := w.operator("acme", RoleOperator)
	tokenKey, _, bot := w.agent("acme", "bot")
	agentKey, _, _ := w.agent("acme", "revoked")
	w.agent("acme", "deleted")
	goodKey, _, _ := w.agent("acme", "good")
	for what, end := range map[string]error{
		"operator": w.RevokeOperator(left, admin, o.ID), "token": w.RevokeToken(left, admin, "acme", "bot", bot.TokenID),
		"agent": w.RevokeAgent(left, admin, "acme", "revoked"), "deleted": w.DeleteAgent(left, admin, "acme", "deleted"),
	} {
		if end != nil {
			t.Errorf("%s: %v", what, end)
		}
	}
	other := w.another()
	for what, key := range map[string]Key{"operator": operatorKey, "token": tokenKey, "agent": agentKey} {
		if _, err := other.Authenticate(t.Context(), key.Reveal(), here); problem.CodeOf(err) != problem.Unauthorized {
			t.Errorf("%s: another process has %v", what, err)
		}
	}
	if _, err := other.Authenticate(t.Context(), goodKey.Reveal(), here); err != nil {
		t.Errorf("a key that is good: %v", err)
	}
	if list, err := w.Agents(t.Context(), admin, "acme"); err != nil || len(list) != 3 {
		t.Errorf("%d agents, %v", len(list), err)
	}
	if _, err := w.CreateTenant(left, admin, "left", Policy{}); !errors.Is(err, context.Canceled) {
		t.Errorf("something is begun for a caller who has left: %v", err)
	}
}

// What the database does not take is cut at once, and written when it can be.
func TestARevocationThatCouldNotBeWrittenIsWrittenLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &failing{}
		w := newFixture(t, func(o *Options) { fake.Store = o.Store; o.Store = fake })
		defer w.Close()
		key, _, p := w.agent("acme", "bot")
		restoredKey, _, _ := w.agent("acme", "restored")
		open, other := w.hold(p), w.another()
		defer other.Close()
		fake.hang.Store(true)
		var asking sync.WaitGroup
		for _, name := range []string{"bot", "restored"} {
			asking.Go(func() {
				if err := w.RevokeAgent(t.Context(), admin, "acme", name); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: got %v", name, err)
				}
			})
		}
		synctest.Wait()
		if !open.cut() {
			t.Error("what is open waits for the database")
		}
		asking.Wait()
		if _, err := other.Authenticate(t.Context(), key.Reveal(), here); err != nil {
			t.Errorf("another process, before it is written: %v", err)
		}
		if err := w.RestoreAgent(t.Context(), admin, "acme", "restored"); err != nil {
			t.Error(err)
		}
		before := len(w.log.All())
		w.log.Fail(errPlanted) // an ending does not wait for its record
		fake.hang.Store(false)
		time.Sleep(3 * DefaultRecheck)
		synctest.Wait()
		if _, err := other.Authenticate(t.Context(), key.Reveal(), here); problem.CodeOf(err) != problem.Unauthorized {
			t.Errorf("another process, when it can be written: %v", err)
		}
		if events := w.log.All()[before:]; len(events) != 1 || events[0].Action != "agent.revoke" || events[0].Result != "ok" {
			t.Errorf("recorded %+v", events)
		}
		for _, s := range []*Service{w.Service, other} {
			if _, err := s.Authenticate(t.Context(), restoredKey.Reveal(), here); err != nil {
				t.Errorf("one that was restored in the meantime: %v", err)
			}
		}
	})
}
