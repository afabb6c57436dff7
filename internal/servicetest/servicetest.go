// Package servicetest makes the services that others are built on, over a real database, for tests.
package servicetest

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/vault"
)

// Services end with the test.
type Services struct {
	DB       *sqlite.DB
	Log      *audit.Log
	LogKey   *checkpoint.Key
	Vault    *vault.Vault
	Keyring  *grant.Keyring
	Grants   *grant.Issuer
	Identity *identity.Service
	Admin    identity.Principal
	AdminKey string
}

// Options change what the services are made from. All may be nil.
type Options struct {
	// VaultNow is the clock of the vault.
	VaultNow func() time.Time
	// IdentityAudit is where identity records, in place of the log.
	IdentityAudit audit.Records
}

// New makes them.
func New(t testing.TB, o Options) *Services {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, dir := t.Context(), t.TempDir()
	own := func(name string) string { return filepath.Join(dir, "keys", name) }
	must(os.Mkdir(filepath.Join(dir, "keys"), 0o700))
	must(os.Mkdir(filepath.Join(dir, "db"), 0o700))
	db, err := sqlite.Open(ctx, filepath.Join(dir, "db"))
	must(err)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &Services{DB: db}
	s.Log, s.LogKey = audittest.Open(t, db)
	if o.VaultNow == nil {
		o.VaultNow = time.Now
	}
	if o.IdentityAudit == nil {
		o.IdentityAudit = s.Log
	}
	s.Vault, err = vault.Open(ctx, vault.Options{KeyFile: own("vault.key"), Store: db, Now: o.VaultNow})
	must(err)
	s.Keyring, err = grant.OpenKeyring(own("grants.key"), time.Now)
	must(err)
	s.Grants, err = grant.New(grant.Options{Store: db, Keys: s.Keyring, Installation: "test", RegistrableDomain: cookies.RegistrableDomain,
		Limits: grant.DefaultLimits(), Now: time.Now, Audit: s.Log})
	must(err)
	admin, err := identity.LoadAdminKey(own("admin.key"))
	must(err)
	text, err := os.ReadFile(own("admin.key"))
	must(err)
	s.AdminKey = strings.TrimSpace(string(text))
	s.Identity, err = identity.Open(ctx, identity.Options{Store: db, Admin: admin, Now: time.Now, Recheck: time.Hour,
		RateLimit: identity.DefaultRateLimit(), Audit: o.IdentityAudit})
	must(err)
	t.Cleanup(s.Identity.Close)
	s.Admin, err = s.Identity.Authenticate(ctx, s.AdminKey, netip.Addr{})
	must(err)
	return s
}
