package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

// admin is the holder of the admin key.
var admin = store.Owner{AdminKey: "fingerprint"}

// newOperator makes one of acme's, which must be there.
func newOperator(t *testing.T, s store.Store, id string) store.Operator {
	t.Helper()
	o := store.Operator{ID: id, Name: "Ann", Tenant: "acme", Role: "viewer", KeyHash: hash("key " + id), KeyHint: "cjop_abcd", CreatedAt: at(0), ExpiresAt: at(900)}
	must(t, s.CreateOperator(t.Context(), o))
	return o
}

func signIn(id string, owner store.Owner, seconds int) store.SignIn {
	return store.SignIn{ID: id, Hash: hash("cookie " + id), Owner: owner, Method: "key", Remote: "192.0.2.1", UserAgent: "Firefox", CreatedAt: at(seconds), UsedAt: at(seconds),
		ExpiresAt: at(seconds + 100)}
}

func testSignIns(t *testing.T, s store.Store) {
	ctx := t.Context()
	newTenant(t, s, "acme")
	ann := newOperator(t, s, "o1")
	hers, theirs := signIn("i1", store.Owner{Operator: "o1"}, 1), signIn("i2", admin, 2)
	must(t, s.CreateSignIn(ctx, hers))
	must(t, s.CreateSignIn(ctx, theirs))
	check(t, "by ID", hers)(s.SignIn(ctx, "i1"))
	for what, c := range map[string]struct {
		of   store.SignInFilter
		want []store.SignIn
	}{
		"all, the newest first": {store.SignInFilter{Limit: 9}, []store.SignIn{theirs, hers}},
		"the newest":            {store.SignInFilter{Limit: 1}, []store.SignIn{theirs}},
		"of the admin":          {store.SignInFilter{Owner: admin, Limit: 9}, []store.SignIn{theirs}},
		"of an operator":        {store.SignInFilter{Owner: hers.Owner, Limit: 9}, []store.SignIn{hers}},
		"of another admin key":  {store.SignInFilter{Owner: store.Owner{AdminKey: "x"}, Limit: 9}, nil},
		"of a tenant":           {store.SignInFilter{Tenant: "acme", Limit: 9}, []store.SignIn{hers}},
		"of another tenant":     {store.SignInFilter{Tenant: "other", Limit: 9}, nil},
	} {
		check(t, what, c.want)(s.ListSignIns(ctx, c.of))
	}
	_, err := s.ListSignIns(ctx, store.SignInFilter{})
	wantError(t, "a list without a limit", err, store.ErrInvalid)
	found, operator, err := s.SignInByHash(ctx, hers.Hash)
	must(t, err)
	same(t, "by hash", found, hers)
	same(t, "its operator", operator, ann)
	found, operator, err = s.SignInByHash(ctx, theirs.Hash)
	must(t, err)
	same(t, "the admin's", found, theirs)
	same(t, "which has no operator", operator, store.Operator{})

	again := signIn("i1", admin, 3)
	again.Hash = hash("another")
	wantError(t, "the same ID", s.CreateSignIn(ctx, again), store.ErrExists)
	again.ID, again.Hash = "i3", hers.Hash
	wantError(t, "the same hash", s.CreateSignIn(ctx, again), store.ErrExists)
	wantError(t, "no such operator", s.CreateSignIn(ctx, signIn("i3", store.Owner{Operator: "o9"}, 3)), store.ErrNotFound)
	_, err = s.SignIn(ctx, "i9")
	wantError(t, "no such ID", err, store.ErrNotFound)
	for what, sum := range map[string][]byte{"no such hash": hash("x"), "no hash": nil} {
		_, _, err = s.SignInByHash(ctx, sum)
		wantError(t, what, err, store.ErrNotFound)
	}

	must(t, s.TouchSignIn(ctx, "i1", at(50)))
	must(t, s.TouchSignIn(ctx, "i1", at(40)))
	hers.UsedAt = at(50)
	must(t, s.RevokeOperator(ctx, "o1", at(60)))
	ann.RevokedAt = at(60)
	found, operator, err = s.SignInByHash(ctx, hers.Hash)
	must(t, err)
	same(t, "used last", found, hers)
	same(t, "of an operator who is revoked", operator, ann)
	wantError(t, "touch none", s.TouchSignIn(ctx, "i9", at(1)), store.ErrNotFound)
	wantError(t, "touch at no time", s.TouchSignIn(ctx, "i1", time.Time{}), store.ErrInvalid)

	must(t, s.DeleteSignIn(ctx, "i2"))
	wantError(t, "delete it again", s.DeleteSignIn(ctx, "i2"), store.ErrNotFound)
	_, _, err = s.SignInByHash(ctx, theirs.Hash)
	wantError(t, "a deleted one", err, store.ErrNotFound)

	tick := time.Microsecond
	check(t, "neither is over", 0)(s.DeleteSignInsBefore(ctx, at(101), at(50)))
	check(t, "nobody used it", 1)(s.DeleteSignInsBefore(ctx, at(101), at(50).Add(tick)))
	must(t, s.CreateSignIn(ctx, hers))
	check(t, "it expired", 1)(s.DeleteSignInsBefore(ctx, at(101).Add(tick), at(0)))
	check(t, "those that are left", []store.SignIn(nil))(s.ListSignIns(ctx, store.SignInFilter{Limit: 9}))
	_, err = s.DeleteSignInsBefore(ctx, time.Time{}, at(1))
	wantError(t, "delete before no time", err, store.ErrInvalid)
}

func passkey(id string, owner store.Owner, seconds int) store.Passkey {
	return store.Passkey{ID: id, Owner: owner, Name: "laptop", Host: "localhost", Credential: []byte("credential " + id), Handle: []byte("handle"),
		Record: []byte(`{"key":"AA"}`), Count: 4, CreatedAt: at(seconds)}
}

func testPasskeys(t *testing.T, s store.Store) {
	ctx := t.Context()
	newTenant(t, s, "acme")
	newOperator(t, s, "o1")
	newOperator(t, s, "o2")
	ann := store.Owner{Operator: "o1"}
	second, first, theirs := passkey("p1", ann, 2), passkey("p2", ann, 1), passkey("p3", admin, 1)
	for _, p := range []store.Passkey{second, first, theirs} {
		must(t, s.CreatePasskey(ctx, p))
	}
	check(t, "by credential", second)(s.PasskeyByCredential(ctx, second.Credential))
	check(t, "of an operator, the oldest first", []store.Passkey{first, second})(s.ListPasskeys(ctx, ann))
	check(t, "of the admin", []store.Passkey{theirs})(s.ListPasskeys(ctx, admin))
	for what, owner := range map[string]store.Owner{"another operator": {Operator: "o2"}, "another admin key": {AdminKey: "x"}, "nobody": {}} {
		check(t, "of "+what, []store.Passkey(nil))(s.ListPasskeys(ctx, owner))
		wantError(t, "delete it as "+what, s.DeletePasskey(ctx, owner, "p1"), store.ErrNotFound)
		wantError(t, "delete the admin's as "+what, s.DeletePasskey(ctx, owner, "p3"), store.ErrNotFound)
	}
	wantError(t, "the same ID", s.CreatePasskey(ctx, passkey("p1", admin, 1)), store.ErrExists)
	again := passkey("p4", admin, 1)
	again.Credential = first.Credential
	wantError(t, "the same credential", s.CreatePasskey(ctx, again), store.ErrExists)
	wantError(t, "no such operator", s.CreatePasskey(ctx, passkey("p4", store.Owner{Operator: "o9"}, 1)), store.ErrNotFound)
	for what, credential := range map[string][]byte{"no such credential": []byte("x"), "no credential": nil} {
		_, err := s.PasskeyByCredential(ctx, credential)
		wantError(t, what, err, store.ErrNotFound)
	}
	must(t, s.DeletePasskey(ctx, ann, "p1"))
	wantError(t, "delete it again", s.DeletePasskey(ctx, ann, "p1"), store.ErrNotFound)
	check(t, "what is left", []store.Passkey{first})(s.ListPasskeys(ctx, ann))
}

// testPasskeyCounts: a count that is not more than the known one is a copy's, but for those that do not count.
func testPasskeyCounts(t *testing.T, s store.Store) {
	ctx := t.Context()
	counting, other := passkey("p1", admin, 1), passkey("p2", admin, 1)
	other.Count = 0
	must(t, s.CreatePasskey(ctx, counting))
	must(t, s.CreatePasskey(ctx, other))
	for _, step := range []struct {
		id    string
		count uint32
		used  bool
	}{
		{"p1", 4, false}, {"p1", 0, false}, {"p1", 5, true}, {"p1", 5, false}, {"p1", 3, false}, {"p1", 1<<32 - 1, true}, {"p1", 6, false},
		{"p2", 0, true}, {"p2", 0, true}, {"p2", 1, true}, {"p2", 0, false}, {"p2", 1, false}, {"p2", 2, true},
	} {
		check(t, fmt.Sprint(step.id, " with ", step.count), step.used)(s.UsePasskey(ctx, step.id, step.count, at(10)))
	}
	counting.Count, counting.UsedAt = 1<<32-1, at(10)
	check(t, "what is kept", counting)(s.PasskeyByCredential(ctx, counting.Credential))
	_, err := s.UsePasskey(ctx, "p9", 1, at(10))
	wantError(t, "use none", err, store.ErrNotFound)
	_, err = s.UsePasskey(ctx, "p1", 1, time.Time{})
	wantError(t, "use at no time", err, store.ErrInvalid)
}

// testPasskeyRace: of 64 uses with one count, one is the passkey's.
func testPasskeyRace(t *testing.T, s store.Store) {
	must(t, s.CreatePasskey(t.Context(), passkey("p1", admin, 1)))
	var won counter
	race(64, func(int) {
		used, err := s.UsePasskey(t.Context(), "p1", 5, at(10))
		if err != nil {
			t.Error(err)
		}
		if used {
			won.add()
		}
	})
	won.want(t, "uses with one count", 1)
}
