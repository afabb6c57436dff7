package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/clawjail/clawjail/internal/store"
)

// LeaseCookieSets: the transaction is the only one that writes, so what it counts stays true.
func (db *DB) LeaseCookieSets(ctx context.Context, l store.Lease, domains []string) (busy []string, err error) {
	if err := errors.Join(l.Validate(), store.Text(domains...)); err != nil {
		return nil, err
	}
	domains = slices.Compact(slices.Sorted(slices.Values(domains)))
	err = db.change(ctx, "lease cookie sets", func(ctx context.Context, tx *sql.Tx) error {
		var free []string
		for _, domain := range domains {
			var id string
			var taken bool
			switch err := tx.QueryRowContext(ctx, `SELECT id,
				(SELECT count(*) FROM leases
					WHERE cookie_set = cookie_sets.id AND session <> $3 AND (expires_at IS NULL OR expires_at > $4)) >= max_leases
				FROM cookie_sets WHERE tenant = $1 AND domain = $2`, l.Tenant, domain, l.Session, stamp(l.At)).Scan(&id, &taken); {
			case errors.Is(err, sql.ErrNoRows):
				return fmt.Errorf("cookies of %s: %w", domain, store.ErrNotFound)
			case err != nil:
				return err
			case taken:
				busy = append(busy, domain)
			default:
				free = append(free, id)
			}
		}
		if len(busy) > 0 {
			return nil
		}
		for _, id := range free {
			if _, err := tx.ExecContext(ctx, `INSERT INTO leases (cookie_set, session, node, at, expires_at) VALUES ($1, $2, $3, $4, $5)
				ON CONFLICT DO NOTHING`, id, l.Session, l.Node, stamp(l.At), stamp(l.ExpiresAt)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return busy, nil
}
