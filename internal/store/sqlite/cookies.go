package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqldb"
)

const cookieSetColumns = `id, tenant, domain, ciphertext, count, scopes, max_leases, created_at, last_refreshed_at, last_injected_at, expires_at, egress_domains,
	signed_in_page, signed_in_marker, unwatched, signed_out_at, signed_out_by`

func scanCookieSet(row scanner) (s store.CookieSet, err error) {
	err = row.Scan(&s.ID, &s.Tenant, &s.Domain, blob{&s.Ciphertext}, &s.Count, listing{&s.Scopes}, &s.MaxLeases,
		moment{&s.CreatedAt}, moment{&s.LastRefreshedAt}, moment{&s.LastInjectedAt}, moment{&s.ExpiresAt}, listing{&s.EgressDomains},
		&s.SignedIn.Page, &s.SignedIn.Marker, &s.SignedIn.Unwatched, moment{&s.SignedOutAt}, &s.SignedOutBy)
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
			last_injected_at = coalesce(max(last_injected_at, excluded.last_injected_at), last_injected_at, excluded.last_injected_at)
		WHERE id = excluded.id`,
		s.ID, s.Tenant, s.Domain, bytes(s.Ciphertext), s.Count, texts(s.Scopes), s.MaxLeases,
		stamp(s.CreatedAt), stamp(s.LastRefreshedAt), stamp(s.LastInjectedAt), stamp(s.ExpiresAt), texts(s.EgressDomains),
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
		SET last_injected_at = max(coalesce(last_injected_at, $3), $3) WHERE tenant = $1 AND domain = $2`, tenant, domain, stamp(at))
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
				(SELECT count(*) FROM leases WHERE cookie_set = cookie_sets.id AND session <> $3) >= max_leases
				FROM cookie_sets WHERE tenant = $1 AND domain = $2`, l.Tenant, domain, l.Session).Scan(&id, &taken); {
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
			if _, err := tx.ExecContext(ctx, `INSERT INTO leases (cookie_set, session, node, at) VALUES ($1, $2, $3, $4)
				ON CONFLICT DO NOTHING`, id, l.Session, l.Node, stamp(l.At)); err != nil {
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
