package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"slices"
	"strings"

	codes "modernc.org/sqlite/lib"

	"github.com/clawjail/clawjail/internal/store"
)

const auditColumns = `node, seq, time, id, ref, phase, action, result, tenant, actor, session, jail, target, detail, prev_hash, hash`

func scanAudit(row scanner) (r store.AuditRow, err error) {
	err = row.Scan(&r.Node, &r.Seq, moment{&r.Time}, &r.ID, &r.Ref, &r.Phase, &r.Action, &r.Result, &r.Tenant, &r.Actor,
		&r.Session, &r.Jail, &r.Target, blob{&r.Detail}, blob{&r.PrevHash}, blob{&r.Hash})
	return r, err
}

// auditGroups are how many rows one statement inserts: most of what a row costs is the statement.
func auditGroups() [3]int { return [3]int{16, 4, 1} }

func insertAudit(rows int) string {
	return `INSERT INTO audit (` + auditColumns + `) VALUES ` +
		strings.TrimSuffix(strings.Repeat(`(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?), `, rows), ", ")
}

func auditValues(to []any, r store.AuditRow) []any {
	return append(to, r.Node, r.Seq, stamp(r.Time), r.ID, r.Ref, r.Phase, r.Action, r.Result, r.Tenant, r.Actor,
		r.Session, r.Jail, r.Target, bytes(r.Detail), r.PrevHash, r.Hash)
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

func (db *DB) AuditSizes(ctx context.Context) ([]store.AuditSize, error) {
	return list(ctx, db, "read how large the audit log is", func(row scanner) (s store.AuditSize, err error) {
		err = row.Scan(&s.Tenant, &s.Agent, &s.Bytes)
		return s, err
	}, `SELECT tenant, agent, bytes FROM audit_sizes ORDER BY tenant, agent`)
}

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

func (db *DB) LastAudit(ctx context.Context, node string) (store.AuditRow, error) {
	return one(ctx, db, "read the audit log", scanAudit,
		`SELECT `+auditColumns+` FROM audit WHERE node = $1 ORDER BY seq DESC LIMIT 1`, node)
}

func (db *DB) FindAudit(ctx context.Context, id string) (store.AuditRow, error) {
	return one(ctx, db, "read the audit log", scanAudit, `SELECT `+auditColumns+` FROM audit WHERE id = $1`, id)
}

func (db *DB) ListAudit(ctx context.Context, f store.AuditFilter) ([]store.AuditRow, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	query, args := selectAudit(f)
	rows, err := listFrom(ctx, db.listings, "read the audit log", scanAudit, query, args...)
	if f.Newest {
		slices.Reverse(rows)
	}
	return rows, err
}

func selectAudit(f store.AuditFilter) (query string, args []any) {
	var where []string
	match := func(condition string, value any) {
		args = append(args, value)
		where = append(where, strings.ReplaceAll(condition, "?", fmt.Sprintf("$%d", len(args))))
	}
	for _, field := range []struct{ column, value string }{
		{"node", f.Node}, {"tenant", f.Tenant}, {"actor", f.Actor}, {"action", f.Action}, {"session", f.Session}, {"jail", f.Jail},
		{"phase", f.Phase}, {"result", f.Result}, {"ref", f.Ref},
	} {
		if field.value != "" {
			match(field.column+" = ?", field.value)
		}
	}
	// The indexes on these leave out the rows without one, and are used only for a query that says so.
	if f.Session != "" {
		where = append(where, "session <> ''")
	}
	if f.Ref != "" {
		where = append(where, "ref <> ''")
	}
	if f.ActionPrefix != "" {
		match("substr(action, 1, length(?)) = ?", f.ActionPrefix)
	}
	if !f.Since.IsZero() {
		match("time >= ?", stamp(f.Since))
	}
	if !f.Until.IsZero() {
		match("time < ?", stamp(f.Until))
	}
	if f.AfterSeq != 0 {
		match("seq > ?", f.AfterSeq)
	}
	order := []string{"time", "node", "seq"}
	if f.Node != "" {
		order = []string{"seq"}
	}
	direction := ""
	if f.Newest {
		direction = " DESC"
	}
	args = append(args, f.Limit)
	ordered := fmt.Sprintf(" ORDER BY %s%s", strings.Join(order, direction+", "), direction)
	found := " FROM audit"
	if len(where) > 0 {
		found += " WHERE " + strings.Join(where, " AND ")
	}
	found += fmt.Sprintf("%s LIMIT $%d", ordered, len(args))
	if f.InTimes() { // the index of times has all of that: of the rows that do not match, only the index is read
		return "SELECT " + auditColumns + " FROM audit JOIN (SELECT node AS at_node, seq AS at_seq" + found +
			") AS found ON node = at_node AND seq = at_seq" + ordered, args
	}
	return "SELECT " + auditColumns + found, args
}

// WalkAudit: one statement sees one state of the database, however long it takes.
func (db *DB) WalkAudit(ctx context.Context, node string, from int64) iter.Seq2[store.AuditRow, error] {
	return func(yield func(store.AuditRow, error) bool) {
		const what = "walk the audit log"
		rows, err := db.walk.QueryContext(ctx, `SELECT `+auditColumns+` FROM audit WHERE node = $1 AND seq >= $2 ORDER BY seq`, node, from)
		if err != nil {
			yield(store.AuditRow{}, failure(ctx, what, err))
			return
		}
		defer rows.Close() // a second time where Next has done it; Err has its error
		for rows.Next() {
			r, err := scanAudit(rows)
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

func scanText(row scanner) (s string, err error) {
	err = row.Scan(&s)
	return s, err
}

// AuditNodes jumps from node to node instead of reading all rows.
func (db *DB) AuditNodes(ctx context.Context) ([]string, error) {
	return list(ctx, db, "list the nodes of the audit log", scanText, `
		WITH RECURSIVE nodes (node) AS (
			SELECT min(node) FROM audit
			UNION ALL
			SELECT (SELECT min(audit.node) FROM audit WHERE audit.node > nodes.node) FROM nodes WHERE nodes.node IS NOT NULL
		)
		SELECT node FROM nodes WHERE node IS NOT NULL ORDER BY node`)
}

// OpenIntents: which intents are open is found in the indexes alone, without reading the log.
func (db *DB) OpenIntents(ctx context.Context, node string) ([]store.AuditRow, error) {
	return list(ctx, db, "list the open intents", scanAudit, `SELECT `+auditColumns+` FROM audit WHERE node = $1 AND seq IN (
			SELECT seq FROM audit AS intent INDEXED BY audit_intents
			WHERE intent.node = $1 AND intent.phase = 'intent' AND NOT EXISTS (
				SELECT 1 FROM audit AS closing WHERE closing.ref = intent.id AND closing.ref <> '' AND closing.phase = 'outcome'))
		ORDER BY seq`, node)
}

// TrimAudit: the row in audit_trim is what lets the triggers pass; nobody else ever sees it.
func (db *DB) TrimAudit(ctx context.Context, node string, upTo int64) (int, error) {
	var removed int64
	err := db.change(ctx, "trim the audit log", func(ctx context.Context, tx *sql.Tx) error {
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
