package sqldb

import (
	"context"
	"errors"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

const grantColumns = `id, tenant, domains, egress_domains, access, origin, operator, issued_at, not_before, expires_at,
	used_at, used_by, revoked_at, revoked_by`

const readGrant = `SELECT ` + grantColumns + ` FROM grants WHERE id = $1`

func (db *Tables) scanGrant(row Scanner) (g store.Grant, err error) {
	err = row.Scan(&g.ID, &g.Tenant, db.dialect.ScanList(&g.Domains), db.dialect.ScanList(&g.EgressDomains), &g.Access, &g.Origin, &g.Operator,
		moment{&g.IssuedAt}, moment{&g.NotBefore}, moment{&g.ExpiresAt}, moment{&g.UsedAt}, &g.UsedBy, moment{&g.RevokedAt}, &g.RevokedBy)
	return g, err
}

func (db *Tables) CreateGrant(ctx context.Context, g store.Grant) error {
	if err := g.Validate(); err != nil {
		return err
	}
	return db.add(ctx, "create grant", `INSERT INTO grants (`+grantColumns+`)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`,
		g.ID, g.Tenant, db.dialect.List(g.Domains), db.dialect.List(g.EgressDomains), g.Access, g.Origin, g.Operator,
		db.dialect.Stamp(g.IssuedAt), db.dialect.Stamp(g.NotBefore), db.dialect.Stamp(g.ExpiresAt), db.dialect.Stamp(g.UsedAt), g.UsedBy, db.dialect.Stamp(g.RevokedAt), g.RevokedBy)
}

func (db *Tables) Grant(ctx context.Context, id string) (store.Grant, error) {
	return one(ctx, db, "read grant", db.scanGrant, readGrant, id)
}

func (db *Tables) ListGrants(ctx context.Context, tenant string) ([]store.Grant, error) {
	return list(ctx, db, "list grants", db.scanGrant,
		`SELECT `+grantColumns+` FROM grants WHERE $1 = '' OR tenant = $1 ORDER BY issued_at DESC, id DESC`, tenant)
}

const useGrant = `UPDATE grants SET used_at = $4, used_by = $3
	WHERE id = $1 AND tenant = $2 AND used_at IS NULL AND revoked_at IS NULL AND not_before <= $4 AND $4 < expires_at
	RETURNING ` + grantColumns

func (db *Tables) UseGrant(ctx context.Context, id, tenant, session string, now time.Time) (g store.Grant, used bool, err error) {
	if err := errors.Join(store.Text(session), store.Moment("now", now)); err != nil {
		return store.Grant{}, false, err
	}
	used, err = db.decide(ctx, "use grant", func(row Scanner) (err error) { g, err = db.scanGrant(row); return err },
		statement{useGrant, []any{id, tenant, session, db.dialect.Stamp(now)}},
		statement{readGrant, []any{id}})
	if err != nil {
		return store.Grant{}, false, err
	}
	return g, used, nil
}

func (db *Tables) RevokeGrant(ctx context.Context, id, by string, at time.Time) error {
	if err := errors.Join(store.Text(by), store.Moment("revoked_at", at)); err != nil {
		return err
	}
	return db.changeOne(ctx, "revoke grant", `UPDATE grants SET revoked_at = coalesce(revoked_at, $3),
		revoked_by = CASE WHEN revoked_at IS NULL THEN $2 ELSE revoked_by END WHERE id = $1`, id, by, db.dialect.Stamp(at))
}

func (db *Tables) DeleteGrantsBefore(ctx context.Context, expired time.Time) (int, error) {
	if err := store.Moment("expired", expired); err != nil {
		return 0, err
	}
	return db.remove(ctx, "delete old grants", `DELETE FROM grants WHERE expires_at < $1`, db.dialect.Stamp(expired))
}
