package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/clawjail/clawjail/internal/store"
)

// LeaseCookieSets locks the sets, in the order of their domains so that two calls cannot
// wait for each other, and counts once it has them: what it counts then stays true.
func (db *DB) LeaseCookieSets(ctx context.Context, l store.Lease, domains []string) (busy []string, err error) {
	if err := errors.Join(l.Validate(), store.Text(domains...)); err != nil {
		return nil, err
	}
	domains = slices.Compact(slices.Sorted(slices.Values(domains)))
	err = db.change(ctx, "lease cookie sets", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT id, domain FROM cookie_sets WHERE tenant = $1 AND domain = ANY($2) ORDER BY domain FOR UPDATE`,
			l.Tenant, filled(domains))
		if err != nil {
			return err
		}
		ids := map[string]string{}
		var id, domain string
		if _, err := pgx.ForEachRow(rows, []any{&id, &domain}, func() error { ids[domain] = id; return nil }); err != nil {
			return err
		}
		for _, domain := range domains {
			id, exists := ids[domain]
			if !exists {
				return fmt.Errorf("cookies of %s: %w", domain, store.ErrNotFound)
			}
			var taken bool
			if err := tx.QueryRow(ctx, `SELECT (SELECT count(*) FROM leases
					WHERE cookie_set = $1 AND session <> $2 AND (expires_at IS NULL OR expires_at > $3)) >= max_leases
				FROM cookie_sets WHERE id = $1`, id, l.Session, stamp(l.At)).Scan(&taken); err != nil {
				return err
			}
			if taken {
				busy = append(busy, domain)
			}
		}
		if len(busy) > 0 {
			return nil
		}
		for _, domain := range domains {
			if _, err := tx.Exec(ctx, `INSERT INTO leases (cookie_set, session, node, at, expires_at) VALUES ($1, $2, $3, $4, $5)
				ON CONFLICT DO NOTHING`, ids[domain], l.Session, l.Node, stamp(l.At), stamp(l.ExpiresAt)); err != nil {
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
