package postgres

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqldb"
)

// auditAgent and auditBytes are what store.AuditRow says of a row.
const (
	auditAgent = `CASE WHEN substr(actor, 1, 6) = 'agent:' THEN substr(actor, 7) ELSE '' END`
	auditBytes = `512 + octet_length(target) + coalesce(octet_length(detail), 0)`
)

// AppendAudit is one statement, so one transaction and one round trip. The key decides between
// two that append to the same node, and a trigger refuses gaps.
func (db *DB) AppendAudit(ctx context.Context, rows []store.AuditRow) error {
	first, err := store.Batch(rows)
	if err != nil || len(rows) == 0 {
		return err
	}
	_, err = db.pool.Exec(ctx, `WITH written AS (INSERT INTO audit (`+sqldb.AuditColumns+`)
		SELECT `+sqldb.AuditColumns+` FROM unnest($1::text[], $2::bigint[], $3::timestamptz[], $4::text[], $5::text[], $6::text[], $7::text[],
			$8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::bytea[], $15::bytea[], $16::bytea[])
			WITH ORDINALITY AS given (`+sqldb.AuditColumns+`, place) ORDER BY place
			RETURNING tenant, `+auditAgent+` AS agent, `+auditBytes+` AS bytes)
		INSERT INTO audit_sizes (tenant, agent, bytes) SELECT tenant, agent, sum(bytes) FROM written GROUP BY 1, 2 ORDER BY 1, 2
			ON CONFLICT (tenant, agent) DO UPDATE SET bytes = audit_sizes.bytes + excluded.bytes`, columns(rows)...)
	if state(err) == notInOrder {
		err = db.outOfOrder(ctx, first, err)
	}
	return failure(ctx, "append to the audit log", err)
}

// columns turns rows into one list per column.
func columns(rows []store.AuditRow) []any {
	texts := make([][]string, 11)
	seqs := make([]int64, len(rows))
	times := make([]*time.Time, len(rows))
	details, previous, hashes := make([][]byte, len(rows)), make([][]byte, len(rows)), make([][]byte, len(rows))
	for i, r := range rows {
		for c, v := range []string{r.Node, r.ID, r.Ref, r.Phase, r.Action, r.Result, r.Tenant, r.Actor, r.Session, r.Jail, r.Target} {
			texts[c] = append(texts[c], v)
		}
		seqs[i], times[i] = r.Seq, stamp(r.Time)
		details[i], previous[i], hashes[i] = filled(r.Detail), r.PrevHash, r.Hash
	}
	out := []any{texts[0], seqs, times}
	for _, list := range texts[1:] {
		out = append(out, list)
	}
	return append(out, details, previous, hashes)
}

// outOfOrder says which of the rows does not follow, and how.
func (db *DB) outOfOrder(ctx context.Context, first map[string]int64, cause error) error {
	for node, seq := range first {
		newest, err := newestSeq(ctx, db.pool, node)
		if err != nil {
			return err
		}
		if err := store.Follows(node, newest, seq); err != nil {
			return err
		}
	}
	// The row before has come in the meantime.
	return fmt.Errorf("%w: %w", store.ErrGap, cause)
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// newestSeq is 0 for a node without rows.
func newestSeq(ctx context.Context, q querier, node string) (seq int64, err error) {
	err = q.QueryRow(ctx, `SELECT coalesce(max(seq), 0) FROM audit WHERE node = $1`, node).Scan(&seq)
	return seq, err
}

// pageRows is how many rows a walk holds at a time.
const pageRows = 256

// WalkAudit: a walk has a connection of its own, so that walks that take their time cannot keep
// others from working, and one transaction, which sees one state of the database.
func (db *DB) WalkAudit(ctx context.Context, node string, from int64) iter.Seq2[store.AuditRow, error] {
	return func(yield func(store.AuditRow, error) bool) {
		if err := db.walk(ctx, node, from, func(r store.AuditRow) bool { return yield(r, nil) }); err != nil {
			yield(store.AuditRow{}, failure(ctx, "walk the audit log", err))
		}
	}
}

// walk calls visit for each row until it returns false; an error then is none of the walk's any more.
func (db *DB) walk(ctx context.Context, node string, from int64, visit func(store.AuditRow) bool) error {
	conn, err := pgx.ConnectConfig(ctx, db.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	// Unread rows are not missed, and nothing was changed: how the connection ends does not matter.
	defer conn.Close(context.WithoutCancel(ctx))
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	for {
		rows, err := tx.Query(ctx, `SELECT `+sqldb.AuditColumns+` FROM audit WHERE node = $1 AND seq >= $2 ORDER BY seq LIMIT $3`, node, from, pageRows)
		if err != nil {
			return err
		}
		page, err := pgx.AppendRows([]store.AuditRow(nil), rows, func(row pgx.CollectableRow) (store.AuditRow, error) { return sqldb.ScanAudit(row) })
		if err != nil {
			return err
		}
		for _, r := range page {
			if !visit(r) {
				return nil
			}
			from = r.Seq + 1
		}
		if len(page) < pageRows {
			return nil
		}
	}
}

// TrimAudit: the two settings are what lets the triggers pass; they end with the transaction.
func (db *DB) TrimAudit(ctx context.Context, node string, upTo int64, duty store.Duty) (int, error) {
	var removed int64
	err := db.change(ctx, "trim the audit log", func(tx pgx.Tx) error {
		if duty != (store.Duty{}) {
			// The lock keeps other nodes from taking the duty until the transaction has ended.
			if err := tx.QueryRow(ctx, `SELECT number FROM duties WHERE name = $1 AND number = $2 FOR SHARE`, duty.Name, duty.Number).Scan(&duty.Number); err != nil {
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
		if _, err := tx.Exec(ctx, `SELECT set_config('clawjail.trim_node', $1, true), set_config('clawjail.trim_upto', $2, true)`,
			node, strconv.FormatInt(upTo, 10)); err != nil {
			return err
		}
		for _, step := range []struct {
			query string
			args  []any
		}{
			// AppendAudit takes these rows in their order, too.
			{`SELECT 1 FROM audit_sizes ORDER BY tenant, agent FOR UPDATE`, nil},
			{`UPDATE audit_sizes SET bytes = audit_sizes.bytes - gone.bytes FROM (
				SELECT tenant, ` + auditAgent + ` AS agent, sum(` + auditBytes + `) AS bytes FROM audit WHERE node = $1 AND seq <= $2 GROUP BY 1, 2
			) AS gone WHERE audit_sizes.tenant = gone.tenant AND audit_sizes.agent = gone.agent`, []any{node, upTo}},
			{`DELETE FROM audit_sizes WHERE bytes <= 0`, nil},
		} {
			if _, err := tx.Exec(ctx, step.query, step.args...); err != nil {
				return err
			}
		}
		tag, err := tx.Exec(ctx, `DELETE FROM audit WHERE node = $1 AND seq <= $2`, node, upTo)
		removed = tag.RowsAffected()
		return err
	})
	if err != nil {
		return 0, err
	}
	return int(removed), nil
}
