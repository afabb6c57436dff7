package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqldb"
)

const cookieSetColumns = `id, tenant, domain, ciphertext, count, scopes, max_leases, created_at, last_refreshed_at, last_injected_at, expires_at, egress_domains,
	signed_in_page, signed_in_marker, unwatched, signed_out_at, signed_out_by`

func scanCookieSet(row pgx.Row) (s store.CookieSet, err error) {
	err = row.Scan(&s.ID, &s.Tenant, &s.Domain, &s.Ciphertext, &s.Count, &s.Scopes, &s.MaxLeases,
		moment{&s.CreatedAt}, moment{&s.LastRefreshedAt}, moment{&s.LastInjectedAt}, moment{&s.ExpiresAt}, &s.EgressDomains,
		&s.SignedIn.Page, &s.SignedIn.Marker, &s.SignedIn.Unwatched, moment{&s.SignedOutAt}, &s.SignedOutBy)
	orNil(&s.Ciphertext)
	orNil(&s.Scopes)
	orNil(&s.EgressDomains)
	return s, err
}

func (db *DB) PutCookieSet(ctx context.Context, s store.CookieSet) error {
	if err := s.Validate(); err != nil {
		return err
	}
	return db.changeOr(ctx, sqldb.ErrOccupied, "put cookie set", `INSERT INTO cookie_sets (`+cookieSetColumns+`)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
		ON CONFLICT (tenant, domain) DO UPDATE SET
			ciphertext = excluded.ciphertext, count = excluded.count, scopes = excluded.scopes, max_leases = excluded.max_leases,
			last_refreshed_at = excluded.last_refreshed_at, expires_at = excluded.expires_at, egress_domains = excluded.egress_domains,
			signed_in_page = excluded.signed_in_page, signed_in_marker = excluded.signed_in_marker, unwatched = excluded.unwatched,
			signed_out_at = CASE WHEN excluded.last_refreshed_at = cookie_sets.last_refreshed_at THEN cookie_sets.signed_out_at END,
			signed_out_by = CASE WHEN excluded.last_refreshed_at = cookie_sets.last_refreshed_at THEN cookie_sets.signed_out_by ELSE '' END,
			last_injected_at = greatest(cookie_sets.last_injected_at, excluded.last_injected_at)
		WHERE cookie_sets.id = excluded.id`,
		s.ID, s.Tenant, s.Domain, filled(s.Ciphertext), s.Count, filled(s.Scopes), s.MaxLeases,
		stamp(s.CreatedAt), stamp(s.LastRefreshedAt), stamp(s.LastInjectedAt), stamp(s.ExpiresAt), filled(s.EgressDomains),
		s.SignedIn.Page, s.SignedIn.Marker, s.SignedIn.Unwatched, stamp(s.SignedOutAt), s.SignedOutBy)
}

func (db *DB) CookieSet(ctx context.Context, tenant, domain string) (store.CookieSet, error) {
	return one(ctx, db, "read cookie set", scanCookieSet,
		`SELECT `+cookieSetColumns+` FROM cookie_sets WHERE tenant = $1 AND domain = $2`, tenant, domain)
}

func (db *DB) ListCookieSets(ctx context.Context, tenant string) ([]store.CookieSet, error) {
	return list(ctx, db, "list cookie sets", scanCookieSet,
		`SELECT `+cookieSetColumns+` FROM cookie_sets WHERE $1 = '' OR tenant = $1 ORDER BY domain, tenant`, tenant)
}

func (db *DB) DeleteCookieSet(ctx context.Context, tenant, domain string) error {
	return db.changeOne(ctx, "delete cookie set", `DELETE FROM cookie_sets WHERE tenant = $1 AND domain = $2`, tenant, domain)
}

func (db *DB) MarkInjected(ctx context.Context, tenant, domain string, at time.Time) error {
	if err := store.Moment("last_injected_at", at); err != nil {
		return err
	}
	return db.changeOne(ctx, "mark cookie set as injected", `UPDATE cookie_sets
		SET last_injected_at = greatest(last_injected_at, $3) WHERE tenant = $1 AND domain = $2`, tenant, domain, stamp(at))
}

func (db *DB) MarkSignedOut(ctx context.Context, tenant, domain string, m store.SignedOut) error {
	if err := m.Validate(); err != nil {
		return err
	}
	return db.changeOne(ctx, "mark cookie set as signed out", `UPDATE cookie_sets SET
		signed_out_at = CASE WHEN last_refreshed_at > $3 THEN signed_out_at WHEN $5 = '' THEN NULL ELSE coalesce(signed_out_at, $4) END,
		signed_out_by = CASE WHEN last_refreshed_at > $3 OR $5 <> '' AND signed_out_by <> '' THEN signed_out_by ELSE $5 END
		WHERE tenant = $1 AND domain = $2`, tenant, domain, stamp(m.Opened), stamp(m.At), m.By)
}

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
			if err := tx.QueryRow(ctx, `SELECT (SELECT count(*) FROM leases WHERE cookie_set = $1 AND session <> $2) >= max_leases
				FROM cookie_sets WHERE id = $1`, id, l.Session).Scan(&taken); err != nil {
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
			if _, err := tx.Exec(ctx, `INSERT INTO leases (cookie_set, session, node, at) VALUES ($1, $2, $3, $4)
				ON CONFLICT DO NOTHING`, ids[domain], l.Session, l.Node, stamp(l.At)); err != nil {
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

func (db *DB) ReleaseLeases(ctx context.Context, session string) error {
	return db.add(ctx, "release leases", `DELETE FROM leases WHERE session = $1`, session)
}

func (db *DB) ReleaseNodeLeases(ctx context.Context, node string) error {
	return db.add(ctx, "release leases of a node", `DELETE FROM leases WHERE node = $1`, node)
}
