package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"strings"

	codes "modernc.org/sqlite/lib"

	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqldb"
)

// auditGroups are how many rows one statement inserts: most of what a row costs is the statement.
func auditGroups() [3]int { return [3]int{16, 4, 1} }

func insertAudit(rows int) string {
	return `INSERT INTO audit (` + sqldb.AuditColumns + `) VALUES ` +
		strings.TrimSuffix(strings.Repeat(`(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?), `, rows), ", ")
}

func auditValues(to []any, r store.AuditRow) []any {
	return append(to, r.Node, r.Seq, stamp(r.Time), r.ID, r.Ref, r.Phase, r.Action, r.Result, r.Tenant, r.Actor,
		r.Session, r.Jail, r.Target, sqldb.Bytes(r.Detail), r.PrevHash, r.Hash)
}

// AppendAudit: a trigger refuses a row that does not follow the newest one.
func (db *DB) AppendAudit(ctx context.Context, rows []store.AuditRow) error {
	if _, err := store.Batch(rows); err != nil || len(rows) == 0 {
		return err
	}
	sizes := store.SizesOf(rows)
	return db.change(ctx, "append to the audit log", func(ctx context.Context, tx *sql.Tx) error {
		var values []any
		for n, size := range auditGroups() {
			for len(rows) >= size {
				values = values[:0]
				for _, r := range rows[:size] {
					values = auditValues(values, r)
				}
				if _, err := tx.StmtContext(ctx, db.insertAudit[n]).ExecContext(ctx, values...); err != nil {
					return db.whichRow(ctx, tx, rows[:size], err)
				}
				rows = rows[size:]
			}
		}
		for _, size := range sizes {
			if _, err := tx.StmtContext(ctx, db.growAudit).ExecContext(ctx, size.Tenant, size.Agent, size.Bytes); err != nil {
				return err
			}
		}
		return nil
	})
}

const (
	growAudit = `INSERT INTO audit_sizes (tenant, agent, bytes) VALUES ($1, $2, $3)
		ON CONFLICT (tenant, agent) DO UPDATE SET bytes = bytes + excluded.bytes`
	// shrinkAudit counts as store.AuditRow does.
	shrinkAudit = `UPDATE audit_sizes SET bytes = audit_sizes.bytes - gone.bytes FROM (
			SELECT tenant, CASE WHEN substr(actor, 1, 6) = 'agent:' THEN substr(actor, 7) ELSE '' END AS agent,
				sum(512 + length(CAST(target AS BLOB)) + coalesce(length(detail), 0)) AS bytes
			FROM audit WHERE node = $1 AND seq <= $2 GROUP BY 1, 2
		) AS gone WHERE audit_sizes.tenant = gone.tenant AND audit_sizes.agent = gone.agent`
	noAuditLeft = `DELETE FROM audit_sizes WHERE bytes <= 0`
)

// whichRow says which of the rows of a statement was refused, and why. Nothing of the statement has happened.
func (db *DB) whichRow(ctx context.Context, tx *sql.Tx, rows []store.AuditRow, cause error) error {
	one := tx.StmtContext(ctx, db.insertAudit[len(db.insertAudit)-1])
	for _, r := range rows {
		why := cause
		if len(rows) > 1 {
			if _, why = one.ExecContext(ctx, auditValues(nil, r)...); why == nil {
				continue
			}
		}
		return refused(ctx, tx, r, why)
	}
	return fmt.Errorf("append %d rows that are taken one by one: %w", len(rows), cause)
}

// refused says why the trigger has refused a row, if it has. The transaction still sees the rows before it.
func refused(ctx context.Context, tx *sql.Tx, r store.AuditRow, cause error) error {
	if code(cause) != codes.SQLITE_CONSTRAINT_TRIGGER {
		return cause
	}
	newest, err := newestSeq(ctx, tx, r.Node)
	if err != nil {
		return err
	}
	if err := store.Follows(r.Node, newest, r.Seq); err != nil {
		return err
	}
	return fmt.Errorf("audit record %s: %w", r.ID, store.ErrExists)
}

// newestSeq is 0 for a node without rows.
func newestSeq(ctx context.Context, tx *sql.Tx, node string) (seq int64, err error) {
	err = tx.QueryRowContext(ctx, `SELECT coalesce(max(seq), 0) FROM audit WHERE node = $1`, node).Scan(&seq)
	return seq, err
}

// WalkAudit: one statement sees one state of the database, however long it takes.
func (db *DB) WalkAudit(ctx context.Context, node string, from int64) iter.Seq2[store.AuditRow, error] {
	return func(yield func(store.AuditRow, error) bool) {
		const what = "walk the audit log"
		rows, err := db.walk.QueryContext(ctx, `SELECT `+sqldb.AuditColumns+` FROM audit WHERE node = $1 AND seq >= $2 ORDER BY seq`, node, from)
		if err != nil {
			yield(store.AuditRow{}, failure(ctx, what, err))
			return
		}
		defer rows.Close() // a second time where Next has done it; Err has its error
		for rows.Next() {
			r, err := sqldb.ScanAudit(rows)
			if err != nil {
				yield(store.AuditRow{}, failure(ctx, what, err))
				return
			}
			if !yield(r, nil) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(store.AuditRow{}, failure(ctx, what, err))
		}
	}
}

// TrimAudit implements store.Store. Triggers let rows go only while audit_trim has a row, which is gone before the commit.
func (db *DB) TrimAudit(ctx context.Context, node string, upTo int64, duty store.Duty) (int, error) {
	var removed int64
	err := db.change(ctx, "trim the audit log", func(ctx context.Context, tx *sql.Tx) error {
		if duty != (store.Duty{}) {
			if err := tx.QueryRowContext(ctx, `SELECT number FROM duties WHERE name = $1 AND number = $2`, duty.Name, duty.Number).Scan(&duty.Number); err != nil {
				return err
			}
		}
		newest, err := newestSeq(ctx, tx, node)
		if err != nil {
			return err
		}
		if upTo >= newest && newest > 0 {
			return fmt.Errorf("%w: the newest row of %s is %d, and it stays", store.ErrInvalid, node, newest)
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO audit_trim (node, upto) VALUES ($1, $2)`, node, upTo); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, shrinkAudit, node, upTo); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, noAuditLeft); err != nil {
			return err
		}
		result, err := tx.ExecContext(ctx, `DELETE FROM audit WHERE node = $1 AND seq <= $2`, node, upTo)
		if err != nil {
			return err
		}
		if removed, err = result.RowsAffected(); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM audit_trim`)
		return err
	})
	if err != nil {
		return 0, err
	}
	return int(removed), nil
}
