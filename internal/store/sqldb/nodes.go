package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

func (db *Tables) StartNode(ctx context.Context, n store.Node, former string, alive time.Duration) error {
	if err := errors.Join(n.Validate(), store.Text(former)); err != nil {
		return err
	}
	now := db.dialect.Ago("0")
	return db.changeOr(ctx, errOccupied, "start node", `INSERT INTO nodes (name, run, version, address, peer_address, started_at, seen_at)
		VALUES ($1, $2, $3, $4, $7, `+now+`, `+now+`)
		ON CONFLICT (name) DO UPDATE SET run = $2, version = $3, address = $4, peer_address = $7, started_at = `+now+`, seen_at = `+now+`, stopped_at = NULL, lost_at = NULL, draining_at = NULL
		WHERE nodes.stopped_at IS NOT NULL OR nodes.lost_at IS NOT NULL OR nodes.run = $5 OR nodes.seen_at <= `+db.dialect.Ago("$6"), n.Name, n.Run, n.Version, n.Address, former, alive.Microseconds(), n.PeerAddress)
}

// SeeNode is said often, and must not wait for a disk that is busy: a node would be given up.
func (db *Tables) SeeNode(ctx context.Context, name, run string) error {
	return db.changeOne(ctx, "see node", `UPDATE nodes SET seen_at = `+db.dialect.Ago("0")+` WHERE name = $1 AND run = $2 AND stopped_at IS NULL AND lost_at IS NULL
		AND `+db.dialect.Hasty, name, run)
}

func (db *Tables) DrainNode(ctx context.Context, name string, drain bool) error {
	since := "NULL"
	if drain {
		since = "coalesce(draining_at, " + db.dialect.Ago("0") + ")"
	}
	return db.changeOne(ctx, "drain node", `UPDATE nodes SET draining_at = `+since+` WHERE name = $1 AND stopped_at IS NULL AND lost_at IS NULL`, name)
}

func (db *Tables) LoseNode(ctx context.Context, name, run string, silent time.Duration) error {
	return db.changeOne(ctx, "lose node", `UPDATE nodes SET lost_at = `+db.dialect.Ago("0")+` WHERE name = $1 AND run = $2 AND stopped_at IS NULL
		AND lost_at IS NULL AND seen_at <= `+db.dialect.Ago("$3"), name, run, silent.Microseconds())
}

func (db *Tables) ReleaseLostLeases(ctx context.Context, name, run string) error {
	return db.add(ctx, "release leases of a lost node", `DELETE FROM leases WHERE node = $1
		AND EXISTS (SELECT 1 FROM nodes WHERE name = $1 AND run = $2 AND lost_at IS NOT NULL)`, name, run)
}

func (db *Tables) TakeDuty(ctx context.Context, name, node, run string, term time.Duration) (store.Duty, error) {
	duty := store.Duty{Name: name}
	if err := store.Text(name, node, run); err != nil {
		return duty, err
	}
	now, until := db.dialect.Ago("0"), db.dialect.Ago("$4")
	err := db.dialect.Change(ctx, "take a duty", func(ctx context.Context, q Querier) error {
		err := q.QueryRowContext(ctx, `INSERT INTO duties (name, node, run, number, until) VALUES ($1, $2, $3, 1, `+until+`)
			ON CONFLICT (name) DO UPDATE SET node = $2, run = $3, until = `+until+`, number = duties.number + CASE WHEN duties.run = $3 THEN 0 ELSE 1 END
			WHERE duties.run = $3 OR duties.until <= `+now+` OR NOT EXISTS (SELECT 1 FROM nodes WHERE nodes.name = duties.node AND nodes.run = duties.run
				AND stopped_at IS NULL AND lost_at IS NULL)
			RETURNING number`, name, node, run, -term.Microseconds()).Scan(&duty.Number)
		if errors.Is(err, sql.ErrNoRows) {
			return errOccupied
		}
		return err
	})
	return duty, err
}

func (db *Tables) PutAuditKey(ctx context.Context, k store.AuditKey) error {
	if err := store.Text(k.ID); err != nil {
		return err
	}
	return db.add(ctx, "keep an audit key", `INSERT INTO audit_keys (id, public, voucher) VALUES ($1, $2, $3)
		ON CONFLICT (id) DO UPDATE SET public = $2, voucher = $3`, k.ID, Bytes(k.Public), Bytes(k.Voucher))
}

func (db *Tables) ListAuditKeys(ctx context.Context) ([]store.AuditKey, error) {
	return list(ctx, db, "list audit keys", func(row Scanner) (k store.AuditKey, err error) {
		err = row.Scan(&k.ID, blob{&k.Public}, blob{&k.Voucher})
		return k, err
	}, `SELECT id, public, voucher FROM audit_keys ORDER BY id`)
}

func (db *Tables) StopNode(ctx context.Context, name, run string) error {
	now := db.dialect.Ago("0")
	return db.changeOr(ctx, nil, "stop node", `UPDATE nodes SET seen_at = `+now+`, stopped_at = `+now+` WHERE name = $1 AND run = $2 AND stopped_at IS NULL`, name, run)
}

func (db *Tables) ListNodes(ctx context.Context) ([]store.Node, error) {
	return list(ctx, db, "list nodes", func(row Scanner) (n store.Node, err error) {
		err = row.Scan(&n.Name, &n.Run, &n.Version, &n.Address, &n.PeerAddress, moment{&n.StartedAt}, moment{&n.SeenAt}, moment{&n.StoppedAt}, moment{&n.LostAt}, moment{&n.DrainingAt}, moment{&n.ReadAt})
		return n, err
	}, `SELECT name, run, version, address, peer_address, started_at, seen_at, stopped_at, lost_at, draining_at, `+db.dialect.Ago("0")+` FROM nodes ORDER BY name`)
}

func (db *Tables) DeleteNodesSilent(ctx context.Context, longer time.Duration) (int, error) {
	return db.remove(ctx, "delete silent nodes", `DELETE FROM nodes WHERE seen_at < `+db.dialect.Ago("$1"), longer.Microseconds())
}
