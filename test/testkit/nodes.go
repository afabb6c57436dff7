//go:build linux

package testkit

import (
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/store/postgres/pgtest"
	"github.com/clawjail/clawjail/internal/testenv"
)

// OnPostgreSQL is the setting of a database of a new server, which control planes reach as their own users.
func OnPostgreSQL(t *testing.T) string {
	t.Helper()
	testenv.Root(t)
	address := pgtest.Start(t).Database(t)
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(u.Query().Get("host"), 0o755); err != nil {
		t.Fatal(err)
	}
	return "database: " + strconv.Quote(address) + "\n"
}

// Join starts an instance again with the keys of another one, with which it shares a database.
func (b *Installation) Join(other *Installation) {
	b.T.Helper()
	if err := b.Stop(b.T.Context()); err != nil {
		b.T.Fatal(err)
	}
	for _, name := range []string{"admin.key", "vault.key", "grants.key"} {
		key, err := os.ReadFile(filepath.Join(hostd.ControlDir(other.Config), name))
		if err == nil { // into the file, which is its user's
			err = os.WriteFile(filepath.Join(hostd.ControlDir(b.Config), name), key, 0o600)
		}
		if err != nil {
			b.T.Fatal(err)
		}
	}
	b.Up()
}
