package postgres

import (
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/postgres/pgtest"
)

// TestGuardOfTheLogEndsWithTheTrim: what lets TrimAudit remove rows is gone when it has, also on its own connection.
func TestGuardOfTheLogEndsWithTheTrim(t *testing.T) {
	db, err := Open(t.Context(), pgtest.Start(t).Database(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
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
	for _, upTo := range []int64{3, 5} {
		if removed, err := db.TrimAudit(t.Context(), "n1", upTo, store.Duty{}); err != nil || removed == 0 {
			t.Fatalf("removed %d, %v", removed, err)
		}
		for _, conn := range db.pool.AcquireAllIdle(t.Context()) {
			var guard string
			err := conn.QueryRow(t.Context(), `SELECT coalesce(current_setting('clawjail.trim_node', true), '')
				|| coalesce(current_setting('clawjail.trim_upto', true), '')`).Scan(&guard)
			conn.Release()
			if err != nil || guard != "" {
				t.Errorf("a connection still may remove %q, %v", guard, err)
			}
		}
	}
}
