package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func openHere(t *testing.T) (*DB, string) {
	t.Helper()
	dir := t.TempDir()
	db, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db, dir
}

func TestConnectionsHaveTheirSettings(t *testing.T) {
	db, _ := openHere(t)
	for name, tt := range map[string]struct {
		pool *sql.DB
		want map[string]string
	}{
		"write": {db.write, map[string]string{"query_only": "0"}},
		"read":  {db.read, map[string]string{"query_only": "1"}},
		"walk":  {db.walk, map[string]string{"query_only": "1"}},
	} {
		for setting, want := range map[string]string{
			"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "10000", "trusted_schema": "0", "temp_store": "2",
		} {
			tt.want[setting] = want
		}
		for setting, want := range tt.want {
			var got string
			if err := tt.pool.QueryRowContext(t.Context(), "PRAGMA "+setting).Scan(&got); err != nil || got != want {
				t.Errorf("%s: %s is %q (%v), want %q", name, setting, got, err, want)
			}
		}
		conn, err := tt.pool.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.ExecContext(t.Context(), "PRAGMA writable_schema = ON"); err != nil {
			t.Error(err)
		}
		if _, err := conn.ExecContext(t.Context(), "DELETE FROM sqlite_schema"); err == nil {
			t.Errorf("%s: the schema can be written to", name)
		}
		if _, err := conn.ExecContext(t.Context(), `SELECT "no such column"`); err == nil {
			t.Errorf("%s: a name in quotes is taken for a text", name)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := db.read.ExecContext(t.Context(), `DELETE FROM heartbeat`); err == nil {
		t.Error("a reader can write")
	}
	if n := db.write.Stats().MaxOpenConnections; n != 1 {
		t.Errorf("%d connections write", n)
	}
}

// TestLockedDatabaseIsUnavailable: another process that does not end its transaction.
func TestLockedDatabaseIsUnavailable(t *testing.T) {
	db, dir := openHere(t)
	other, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	tx, err := other.write.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.write.ExecContext(t.Context(), "PRAGMA busy_timeout = 1"); err != nil {
		t.Fatal(err)
	}
	err = db.Ping(t.Context())
	if !errors.Is(err, store.ErrUnavailable) || problem.CodeOf(err) != problem.DatabaseUnavailable {
		t.Errorf("got %v", err)
	}
	if _, err := db.Tenant(t.Context(), store.DefaultTenant); err != nil {
		t.Errorf("a reader waits for a writer: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := db.Ping(t.Context()); err != nil {
		t.Errorf("after the other's transaction: %v", err)
	}
}

// TestFullDatabaseChangesNothing: SQLite says that the disk is full when a file has as many pages as it may have.
func TestFullDatabaseChangesNothing(t *testing.T) {
	db, _ := openHere(t)
	ctx := t.Context()
	setting := func(statement string) {
		t.Helper()
		var pages int64
		if err := db.write.QueryRowContext(ctx, statement).Scan(&pages); err != nil {
			t.Fatal(err)
		}
	}
	setting("PRAGMA max_page_count = 80")
	set := store.CookieSet{ID: "c", Tenant: "default", Domain: "a.example", MaxLeases: 1, Ciphertext: make([]byte, 1<<20), CreatedAt: time.Date(2031, 2, 3, 12, 0, 0, 0, time.UTC)}
	err := db.PutCookieSet(ctx, store.CookieSet{}, set)
	if !errors.Is(err, store.ErrUnavailable) || problem.CodeOf(err) != problem.DiskFull {
		t.Fatalf("got %v", err)
	}
	if _, err := db.CookieSet(context.Background(), "default", "a.example"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("half of it is there: %v", err)
	}
	if err := db.Ping(ctx); err != nil {
		t.Errorf("a change for which there is space: %v", err)
	}
	setting("PRAGMA max_page_count = 1000000")
	if err := db.PutCookieSet(ctx, store.CookieSet{}, set); err != nil {
		t.Errorf("when there is space again: %v", err)
	}
}

// TestGuardOfTheLogEndsWithTheTrim: what lets TrimAudit remove rows is gone when it has, or has failed.
func TestGuardOfTheLogEndsWithTheTrim(t *testing.T) {
	db, _ := openHere(t)
	rows := make([]store.AuditRow, 9)
	for i := range rows {
		rows[i] = store.AuditRow{
			Node: "n1", Seq: int64(i + 1), ID: string(rune('a' + i)), Phase: "event", Time: time.Date(2031, 2, 3, 12, 0, 0, 0, time.UTC),
			PrevHash: make([]byte, 32), Hash: make([]byte, 32),
		}
	}
	if err := db.AppendAudit(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	for _, upTo := range []int64{3, 3, 9} {
		if _, err := db.TrimAudit(t.Context(), "n1", upTo, store.Duty{}); (err != nil) != (upTo == 9) {
			t.Errorf("trim to %d: %v", upTo, err)
		}
		var guards int
		if err := db.read.QueryRowContext(t.Context(), `SELECT count(*) FROM audit_trim`).Scan(&guards); err != nil || guards != 0 {
			t.Errorf("after the trim to %d: %d guards, %v", upTo, guards, err)
		}
	}
}
