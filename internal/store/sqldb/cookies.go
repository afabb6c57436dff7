package sqldb

import (
	"context"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

const cookieSetColumns = `id, tenant, domain, ciphertext, count, scopes, max_leases, created_at, last_refreshed_at, last_injected_at, expires_at, egress_domains,
	signed_in_page, signed_in_marker, unwatched, signed_out_at, signed_out_by`

func (db *Tables) scanCookieSet(row Scanner) (s store.CookieSet, err error) {
	err = row.Scan(&s.ID, &s.Tenant, &s.Domain, blob{&s.Ciphertext}, &s.Count, db.dialect.ScanList(&s.Scopes), &s.MaxLeases,
		moment{&s.CreatedAt}, moment{&s.LastRefreshedAt}, moment{&s.LastInjectedAt}, moment{&s.ExpiresAt}, db.dialect.ScanList(&s.EgressDomains),
		&s.SignedIn.Page, &s.SignedIn.Marker, &s.SignedIn.Unwatched, moment{&s.SignedOutAt}, &s.SignedOutBy)
	return s, err
}

func (db *Tables) PutCookieSet(ctx context.Context, s store.CookieSet) error {
	if err := s.Validate(); err != nil {
		return err
	}
	return db.changeOr(ctx, errOccupied, "put cookie set", `INSERT INTO cookie_sets (`+cookieSetColumns+`)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
		ON CONFLICT (tenant, domain) DO UPDATE SET
			ciphertext = excluded.ciphertext, count = excluded.count, scopes = excluded.scopes, max_leases = excluded.max_leases,
			last_refreshed_at = excluded.last_refreshed_at, expires_at = excluded.expires_at, egress_domains = excluded.egress_domains,
			signed_in_page = excluded.signed_in_page, signed_in_marker = excluded.signed_in_marker, unwatched = excluded.unwatched,
			signed_out_at = CASE WHEN excluded.last_refreshed_at = cookie_sets.last_refreshed_at THEN cookie_sets.signed_out_at END,
			signed_out_by = CASE WHEN excluded.last_refreshed_at = cookie_sets.last_refreshed_at THEN cookie_sets.signed_out_by ELSE '' END,
			last_injected_at = CASE WHEN excluded.last_injected_at > cookie_sets.last_injected_at OR cookie_sets.last_injected_at IS NULL
				THEN excluded.last_injected_at ELSE cookie_sets.last_injected_at END
		WHERE cookie_sets.id = excluded.id`,
		s.ID, s.Tenant, s.Domain, Bytes(s.Ciphertext), s.Count, db.dialect.List(s.Scopes), s.MaxLeases,
		db.dialect.Stamp(s.CreatedAt), db.dialect.Stamp(s.LastRefreshedAt), db.dialect.Stamp(s.LastInjectedAt), db.dialect.Stamp(s.ExpiresAt), db.dialect.List(s.EgressDomains),
		s.SignedIn.Page, s.SignedIn.Marker, s.SignedIn.Unwatched, db.dialect.Stamp(s.SignedOutAt), s.SignedOutBy)
}

func (db *Tables) CookieSet(ctx context.Context, tenant, domain string) (store.CookieSet, error) {
	return one(ctx, db, "read cookie set", db.scanCookieSet,
		`SELECT `+cookieSetColumns+` FROM cookie_sets WHERE tenant = $1 AND domain = $2`, tenant, domain)
}

func (db *Tables) ListCookieSets(ctx context.Context, tenant string) ([]store.CookieSet, error) {
	return list(ctx, db, "list cookie sets", db.scanCookieSet,
		`SELECT `+cookieSetColumns+` FROM cookie_sets WHERE $1 = '' OR tenant = $1 ORDER BY domain, tenant`, tenant)
}

func (db *Tables) DeleteCookieSet(ctx context.Context, tenant, domain string) error {
	return db.changeOne(ctx, "delete cookie set", `DELETE FROM cookie_sets WHERE tenant = $1 AND domain = $2`, tenant, domain)
}

func (db *Tables) MarkInjected(ctx context.Context, tenant, domain string, at time.Time) error {
	if err := store.Moment("last_injected_at", at); err != nil {
		return err
	}
	return db.changeOne(ctx, "mark cookie set as injected", `UPDATE cookie_sets
		SET last_injected_at = CASE WHEN last_injected_at > $3 THEN last_injected_at ELSE $3 END WHERE tenant = $1 AND domain = $2`, tenant, domain, db.dialect.Stamp(at))
}

func (db *Tables) MarkSignedOut(ctx context.Context, tenant, domain string, m store.SignedOut) error {
	if err := m.Validate(); err != nil {
		return err
	}
	return db.changeOne(ctx, "mark cookie set as signed out", `UPDATE cookie_sets SET
		signed_out_at = CASE WHEN last_refreshed_at > $3 THEN signed_out_at WHEN $5 = '' THEN NULL ELSE coalesce(signed_out_at, $4) END,
		signed_out_by = CASE WHEN last_refreshed_at > $3 OR $5 <> '' AND signed_out_by <> '' THEN signed_out_by ELSE $5 END
		WHERE tenant = $1 AND domain = $2`, tenant, domain, db.dialect.Stamp(m.Opened), db.dialect.Stamp(m.At), m.By)
}

func (db *Tables) ReleaseLeases(ctx context.Context, session string) error {
	return db.add(ctx, "release leases", `DELETE FROM leases WHERE session = $1`, session)
}

func (db *Tables) ReleaseNodeLeases(ctx context.Context, node string) error {
	return db.add(ctx, "release leases of a node", `DELETE FROM leases WHERE node = $1`, node)
}
