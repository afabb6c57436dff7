package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

const secretColumns = `id, tenant, agent, service, ciphertext, created_at, updated_at, used_at`

func scanSecret(row scanner) (s store.Secret, err error) {
	err = row.Scan(&s.ID, &s.Tenant, optional{&s.Agent}, &s.Service, blob{&s.Ciphertext},
		moment{&s.CreatedAt}, moment{&s.UpdatedAt}, moment{&s.UsedAt})
	return s, err
}

func (db *DB) PutSecret(ctx context.Context, s store.Secret) error {
	if err := s.Validate(); err != nil {
		return err
	}
	return db.changeOr(ctx, errOccupied, "put secret", `INSERT INTO secrets (`+secretColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
		ON CONFLICT (tenant, coalesce(agent, ''), service) DO UPDATE SET
			ciphertext = excluded.ciphertext, updated_at = excluded.updated_at,
			used_at = coalesce(max(used_at, excluded.used_at), used_at, excluded.used_at)
		WHERE id = excluded.id`,
		s.ID, s.Tenant, text(s.Agent), s.Service, bytes(s.Ciphertext), stamp(s.CreatedAt), stamp(s.UpdatedAt), stamp(s.UsedAt))
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
	return db.changeOne(ctx, "mark secret as used", `UPDATE secrets SET used_at = max(coalesce(used_at, $4), $4)
		WHERE tenant = $1 AND coalesce(agent, '') = $2 AND service = $3`, tenant, agent, service, stamp(at))
}

func (db *DB) ListSealed(ctx context.Context) ([]store.Sealed, error) {
	return list(ctx, db, "list what is encrypted", func(row scanner) (s store.Sealed, err error) {
		err = row.Scan(&s.ID, &s.Tenant, &s.Agent, &s.Name, &s.Secret, blob{&s.Head}, &s.Bytes)
		return s, err
	}, fmt.Sprintf(`
		SELECT id, tenant, '', domain, 0, substr(ciphertext, 1, %[1]d), length(ciphertext) FROM cookie_sets
		UNION ALL
		SELECT id, tenant, coalesce(agent, ''), service, 1, substr(ciphertext, 1, %[1]d), length(ciphertext) FROM secrets`, store.SealedHead))
}
