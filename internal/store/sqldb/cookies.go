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

func (db *Tables) PutCookieSet(ctx context.Context, was, s store.CookieSet) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if was.ID == "" {
		return db.add(ctx, "put cookie set", `INSERT INTO cookie_sets (`+cookieSetColumns+`)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)`,
			s.ID, s.Tenant, s.Domain, Bytes(s.Ciphertext), s.Count, db.dialect.List(s.Scopes), s.MaxLeases,
			db.dialect.Stamp(s.CreatedAt), db.dialect.Stamp(s.LastRefreshedAt), db.dialect.Stamp(s.LastInjectedAt), db.dialect.Stamp(s.ExpiresAt), db.dialect.List(s.EgressDomains),
			s.SignedIn.Page, s.SignedIn.Marker, s.SignedIn.Unwatched, db.dialect.Stamp(s.SignedOutAt), s.SignedOutBy)
	}
	return db.changeOr(ctx, errOccupied, "put cookie set", `UPDATE cookie_sets SET
			ciphertext = $4, count = $5, scopes = $6, max_leases = $7, last_refreshed_at = $8, expires_at = $9, egress_domains = $10,
			signed_in_page = $11, signed_in_marker = $12, unwatched = $13,
			signed_out_at = CASE WHEN last_refreshed_at = $8 THEN signed_out_at END,
			signed_out_by = CASE WHEN last_refreshed_at = $8 THEN signed_out_by ELSE '' END
		WHERE id = $1 AND tenant = $2 AND domain = $3 AND ciphertext = $14 AND scopes = $15 AND max_leases = $16 AND egress_domains = $17
			AND signed_in_page = $18 AND signed_in_marker = $19 AND unwatched = $20`,
		s.ID, s.Tenant, s.Domain, Bytes(s.Ciphertext), s.Count, db.dialect.List(s.Scopes), s.MaxLeases,
		db.dialect.Stamp(s.LastRefreshedAt), db.dialect.Stamp(s.ExpiresAt), db.dialect.List(s.EgressDomains), s.SignedIn.Page, s.SignedIn.Marker, s.SignedIn.Unwatched,
		Bytes(was.Ciphertext), db.dialect.List(was.Scopes), was.MaxLeases, db.dialect.List(was.EgressDomains), was.SignedIn.Page, was.SignedIn.Marker, was.SignedIn.Unwatched)
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
