package session

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/identity"
)

// keyAdmin is the admin as the real identity knows it.
var keyAdmin = identity.Principal{Kind: identity.KindAdmin, ID: "admin", Name: "admin", Role: identity.RoleAdmin, TokenID: "admin"}

// people is a real identity over the fixture's database.
func (a *accounts) people(t testing.TB) *identity.Service {
	t.Helper()
	key, err := identity.LoadAdminKey(filepath.Join(t.TempDir(), "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	who, err := identity.Open(t.Context(), identity.Options{Store: a.db, Admin: key, Now: time.Now, Recheck: identity.DefaultRecheck,
		RateLimit: identity.DefaultRateLimit(), Audit: new(audittest.Log)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(who.Close)
	return who
}
