package sqldb

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/store"
)

// AuditColumns are those that ScanAudit scans.
const AuditColumns = `node, seq, time, id, ref, phase, action, result, tenant, actor, session, jail, target, detail, prev_hash, hash`

// ScanAudit scans a row of the audit log.
func ScanAudit(row Scanner) (r store.AuditRow, err error) {
	err = row.Scan(&r.Node, &r.Seq, moment{&r.Time}, &r.ID, &r.Ref, &r.Phase, &r.Action, &r.Result, &r.Tenant, &r.Actor,
		&r.Session, &r.Jail, &r.Target, blob{&r.Detail}, blob{&r.PrevHash}, blob{&r.Hash})
	return r, err
}

func (db *Tables) AuditSizes(ctx context.Context) ([]store.AuditSize, error) {
	return list(ctx, db, "read how large the audit log is", func(row Scanner) (s store.AuditSize, err error) {
		err = row.Scan(&s.Tenant, &s.Agent, &s.Bytes)
		return s, err
	}, `SELECT tenant, agent, bytes FROM audit_sizes ORDER BY tenant, agent`)
}

func (db *Tables) LastAudit(ctx context.Context, node string) (store.AuditRow, error) {
	return one(ctx, db, "read the audit log", ScanAudit,
		`SELECT `+AuditColumns+` FROM audit WHERE node = $1 ORDER BY seq DESC LIMIT 1`, node)
}

func (db *Tables) FindAudit(ctx context.Context, id string) (store.AuditRow, error) {
	return one(ctx, db, "read the audit log", ScanAudit, `SELECT `+AuditColumns+` FROM audit WHERE id = $1`, id)
}

func (db *Tables) ListAudit(ctx context.Context, f store.AuditFilter) ([]store.AuditRow, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	query, args := db.SelectAudit(f)
	rows, err := listFrom(ctx, db, db.dialect.Listings, "read the audit log", ScanAudit, query, args...)
	if f.Newest {
		slices.Reverse(rows)
	}
	return rows, err
}

// SelectAudit is the query of ListAudit.
func (db *Tables) SelectAudit(f store.AuditFilter) (query string, args []any) {
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
		match("substr(action, 1, length(CAST(? AS text))) = ?", f.ActionPrefix)
	}
	if !f.Since.IsZero() {
		match("time >= ?", db.dialect.Stamp(f.Since))
	}
	if !f.Until.IsZero() {
		match("time < ?", db.dialect.Stamp(f.Until))
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
		return "SELECT " + AuditColumns + " FROM audit JOIN (SELECT node AS at_node, seq AS at_seq" + found +
			") AS found ON node = at_node AND seq = at_seq" + ordered, args
	}
	return "SELECT " + AuditColumns + found, args
}

func scanText(row Scanner) (s string, err error) {
	err = row.Scan(&s)
	return s, err
}

// AuditNodes jumps from node to node instead of reading all rows.
func (db *Tables) AuditNodes(ctx context.Context) ([]string, error) {
	return list(ctx, db, "list the nodes of the audit log", scanText, `
		WITH RECURSIVE nodes (node) AS (
			SELECT min(node) FROM audit
			UNION ALL
			SELECT (SELECT min(audit.node) FROM audit WHERE audit.node > nodes.node) FROM nodes WHERE nodes.node IS NOT NULL
		)
		SELECT node FROM nodes WHERE node IS NOT NULL ORDER BY node`)
}

// OpenIntents: which intents are open is found in the indexes alone, without reading the log.
func (db *Tables) OpenIntents(ctx context.Context, node string) ([]store.AuditRow, error) {
	return list(ctx, db, "list the open intents", ScanAudit, `SELECT `+AuditColumns+` FROM audit WHERE node = $1 AND seq IN (
			SELECT seq FROM audit AS intent`+db.dialect.ByIntents+`
			WHERE intent.node = $1 AND intent.phase = 'intent' AND NOT EXISTS (
				SELECT 1 FROM audit AS closing WHERE closing.ref = intent.id AND closing.ref <> '' AND closing.phase = 'outcome'))
		ORDER BY seq`, node)
}
