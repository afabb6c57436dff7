package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/store/storetest"
)

func open(t testing.TB, dir string) *sqlite.DB {
	t.Helper()
	db, err := sqlite.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func TestStore(t *testing.T) {
	defer goleak.VerifyNone(t)
	storetest.Run(t, func(t *testing.T) store.Store { return open(t, t.TempDir()) })
}

// file is a storetest.Database.
type file string

func (f file) Open(ctx context.Context) (store.Store, error) {
	db, err := sqlite.Open(ctx, string(f))
	if err != nil {
		return nil, err
	}
	return db, nil
}

// Exec uses SQLite without any of the settings of package sqlite.
func (f file) Exec(ctx context.Context, statement string) error {
	db, err := sql.Open("sqlite", filepath.Join(string(f), sqlite.FileName))
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, statement)
	return errors.Join(err, db.Close())
}

func (f file) Unguard(ctx context.Context) error {
	return f.Exec(ctx, `DROP TRIGGER audit_no_update; DROP TRIGGER audit_no_delete; DROP TRIGGER audit_in_order`)
}

func TestSharedDatabase(t *testing.T) {
	defer goleak.VerifyNone(t)
	storetest.RunShared(t, func(t *testing.T) storetest.Database { return file(t.TempDir()) })
}

// TestReplacingAnAuditRowIsRefused: REPLACE removes rows without a trigger for deletes, so it has to be stopped before.
func TestReplacingAnAuditRowIsRefused(t *testing.T) {
	db := file(t.TempDir())
	s := open(t, string(db))
	rows := make([]store.AuditRow, 3)
	for i := range rows {
		rows[i] = row("n1", int64(i+1))
	}
	if err := s.AppendAudit(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	const columns = `time, ref, phase, action, result, tenant, actor, session, jail, target, detail, prev_hash, hash`
	replace := func(seq, id string) string {
		return `INSERT OR REPLACE INTO audit (node, seq, id, ` + columns + `) SELECT node, ` + seq + `, ` + id + `, ` + columns + ` FROM audit WHERE seq = 2`
	}
	for name, statement := range map[string]string{
		"by its place": replace("3", "'forged'"), "by its ID": replace("4", "id"), "by both": replace("2", "id"),
		"with a rowid": strings.Replace(strings.Replace(replace("4", "'forged'"), "(node", "(rowid, node", 1), "SELECT node", "SELECT 2, node", 1),
	} {
		if err := db.Exec(t.Context(), statement); err == nil {
			t.Errorf("a row is replaced %s:\n%s", name, statement)
		}
	}
	if err := db.Unguard(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := db.Exec(t.Context(), replace("4", "id")); err != nil {
		t.Errorf("without the triggers: %v", err)
	}
	if _, err := s.FindAudit(t.Context(), "n1-3"); err != nil {
		t.Error(err)
	}
}
