package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/clawjail/clawjail/internal/store"
)

const secretColumns = `id, tenant, agent, service, ciphertext, created_at, updated_at, used_at`

func scanSecret(row pgx.Row) (s store.Secret, err error) {
	err = row.Scan(&s.ID, &s.Tenant, optional{&s.Agent}, &s.Service, &s.Ciphertext,
		moment{&s.CreatedAt}, moment{&s.UpdatedAt}, moment{&s.UsedAt})
	orNil(&s.Ciphertext)
	return s, err
}

func (db *DB) PutSecret(ctx context.Context, s store.Secret) error {
	if err := s.Validate(); err != nil {
		return err
	}
	return db.changeOr(ctx, errOccupied, "put secret", `INSERT INTO secrets (`+secretColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
		ON CONFLICT (tenant, coalesce(agent, ''), service) DO UPDATE SET
			ciphertext = excluded.ciphertext, updated_at = excluded.updated_at,
			used_at = greatest(secrets.used_at, excluded.used_at)
		WHERE secrets.id = excluded.id`,
		s.ID, s.Tenant, text(s.Agent), s.Service, filled(s.Ciphertext), stamp(s.CreatedAt), stamp(s.UpdatedAt), stamp(s.UsedAt))
}

func (db *DB) Secret(ctx context.Context, tenant, agent, service string) (store.Secret, error) {
	return one(ctx, db, "read secret", scanSecret,
		`SELECT `+secretColumns+` FROM secrets WHERE tenant = $1 AND coalesce(agent, '') = $2 AND service = $3`, tenant, agent, service)
}

func (db *DB) ListSecrets(ctx context.Context, tenant string) ([]store.Secret, error) {
	return list(ctx, db, "list secrets", scanSecret,
		`SELECT `+secretColumns+` FROM secrets WHERE $1 = '' OR tenant = $1 ORDER BY service, coalesce(agent, ''), tenant`, tenant)
}

func (db *DB) DeleteSecret(ctx context.Context, tenant, agent, service string) error {
	return db.changeOne(ctx, "delete secret",
		`DELETE FROM secrets WHERE tenant = $1 AND coalesce(agent, '') = $2 AND service = $3`, tenant, agent, service)
}

func (db *DB) MarkUsed(ctx context.Context, tenant, agent, service string, at time.Time) error {
	if err := store.Moment("used_at", at); err != nil {
		return err
	}
	return db.changeOne(ctx, "mark secret as used", `UPDATE secrets SET used_at = greatest(used_at, $4)
		WHERE tenant = $1 AND coalesce(agent, '') = $2 AND service = $3`, tenant, agent, service, stamp(at))
}

func (db *DB) ListSealed(ctx context.Context) ([]store.Sealed, error) {
	return list(ctx, db, "list what is encrypted", func(row pgx.Row) (s store.Sealed, err error) {
		err = row.Scan(&s.ID, &s.Tenant, &s.Agent, &s.Name, &s.Secret, &s.Head, &s.Bytes)
		return s, err
	}, fmt.Sprintf(`
		SELECT id, tenant, '', domain, false, substr(ciphertext, 1, %[1]d), octet_length(ciphertext)::bigint FROM cookie_sets
		UNION ALL
		SELECT id, tenant, coalesce(agent, ''), service, true, substr(ciphertext, 1, %[1]d), octet_length(ciphertext)::bigint FROM secrets`, store.SealedHead))
}
