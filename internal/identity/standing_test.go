package identity

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestStandingIsThatOfNow(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	_, _, agent := w.agent("acme", "bot")
	_, o, ann := w.operator("acme", RoleOperator)
	for _, want := range []Principal{admin, ann} {
		if got, err := w.Standing(ctx, want.Kind, want.ID); err != nil || got != want {
			t.Errorf("%+v, %v", got, err)
		}
	}
	row, err := w.o.Store.Operator(ctx, o.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := w.OperatorStanding(row); err != nil || got != ann {
		t.Errorf("%+v, %v", got, err)
	}
	none := func(what string, p Principal, err error) {
		t.Helper()
		if problem.CodeOf(err) != problem.Unauthorized || p != (Principal{}) {
			t.Errorf("%s: %+v, %v", what, p, err)
		}
	}
	for what, of := range map[string]struct {
		kind Kind
		id   string
	}{"an agent": {KindAgent, agent.ID}, "nobody": {KindOperator, "op_9"}, "another admin": {KindAdmin, "x"}, "no kind": {"", "admin"}} {
		p, err := w.Standing(ctx, of.kind, of.id)
		none(what, p, err)
	}
	p, err := w.OperatorStanding(Operator{})
	none("no row", p, err)
	row.Tenant = ""
	p, err = w.OperatorStanding(row)
	none("an operator of all tenants", p, err)

	// A revocation that cannot be written counts here all the same.
	row.Tenant = "acme"
	fake := &failing{Store: w.o.Store, revokeOperator: o.ID}
	w.o.Store = fake
	if err := w.RevokeOperator(ctx, admin, o.ID); !errors.Is(err, errPlanted) {
		t.Fatal(err)
	}
	p, err = w.Standing(ctx, KindOperator, o.ID)
	none("revoked, and not written", p, err)
	fake.revokeOperator = ""
	if err := w.RevokeOperator(ctx, admin, o.ID); err != nil {
		t.Fatal(err)
	}
	p, err = w.Standing(ctx, KindOperator, o.ID)
	none("revoked", p, err)
	_, expiring, err := w.CreateOperator(ctx, admin, NewOperator{Name: "x", Tenant: "acme", Role: RoleViewer, Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	w.clock.Forward(time.Hour)
	p, err = w.Standing(ctx, KindOperator, expiring.ID)
	none("expired", p, err)

	nobody := newFixture(t)
	nobody.o.Admin = AdminKey{}
	p, err = nobody.Standing(ctx, KindAdmin, "admin")
	none("an installation without a key", p, err)
}

func TestAFingerprintTellsAdminKeysApart(t *testing.T) {
	w, other := newFixture(t), newFixture(t)
	print := w.AdminFingerprint()
	if len(print) != 32 || print != w.o.Admin.Fingerprint() || print == other.AdminFingerprint() {
		t.Errorf("%q and %q", print, other.AdminFingerprint())
	}
	if (AdminKey{}).Fingerprint() != "" {
		t.Error("no key has a fingerprint")
	}
}

func TestTheAdminKeyIsReadForWhoPresentsIt(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "admin.key")
	if _, err := ReadAdminKey(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	want, err := LoadAdminKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ReadAdminKey(path); err != nil || !want.matches(got) {
		t.Errorf("%v", err)
	}
	// The folder is another's, who may lead root to other files.
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	linked := filepath.Join(dir, "linked")
	if err := os.Symlink(path, linked); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{secret, linked, dir} {
		if key, err := ReadAdminKey(path); err == nil || !key.IsZero() || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A face that takes something else than keys shares their limit.
func TestTheBrakeIsOne(t *testing.T) {
	w := newFixture(t)
	key, _, _ := w.operator("acme", RoleViewer)
	for range w.o.RateLimit.Burst {
		if err := w.RateLimited(t.Context(), here); err != nil {
			t.Fatal(err)
		}
		w.Wrong(t.Context(), here)
	}
	for range 2 {
		if wait, ok := RetryAfter(w.RateLimited(t.Context(), here)); !ok || wait <= 0 {
			t.Error("it is not braked")
		}
	}
	if _, err := w.Authenticate(t.Context(), key.Reveal(), here); problem.CodeOf(err) != problem.RateLimited {
		t.Errorf("a key: %v", err)
	}
	braked := 0
	for _, e := range w.log.All() {
		if audittest.Has(e, map[string]string{"reason": "braked"}) {
			braked++
		}
	}
	if braked != 1 {
		t.Errorf("%d records", braked)
	}
}
