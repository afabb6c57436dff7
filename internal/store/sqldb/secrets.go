package sqldb

import (
	"context"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

const secretColumns = `id, tenant, agent, service, ciphertext, created_at, updated_at, used_at`

func scanSecret(row Scanner) (s store.Secret, err error) {
	err = row.Scan(&s.ID, &s.Tenant, optional{&s.Agent}, &s.Service, blob{&s.Ciphertext},
		moment{&s.CreatedAt}, moment{&s.UpdatedAt}, moment{&s.UsedAt})
	return s, err
}

func (db *Tables) PutSecret(ctx context.Context, was, s store.Secret) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if was.ID == "" {
		return db.add(ctx, "put secret", `INSERT INTO secrets (`+secretColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
			s.ID, s.Tenant, text(s.Agent), s.Service, Bytes(s.Ciphertext), db.dialect.Stamp(s.CreatedAt), db.dialect.Stamp(s.UpdatedAt), db.dialect.Stamp(s.UsedAt))
	}
	return db.changeOr(ctx, errOccupied, "put secret", `UPDATE secrets SET ciphertext = $5, updated_at = $6
		WHERE id = $1 AND tenant = $2 AND coalesce(agent, '') = $3 AND service = $4 AND ciphertext = $7`,
		s.ID, s.Tenant, s.Agent, s.Service, Bytes(s.Ciphertext), db.dialect.Stamp(s.UpdatedAt), Bytes(was.Ciphertext))
}

func (db *Tables) Secret(ctx context.Context, tenant, agent, service string) (store.Secret, error) {
	return one(ctx, db, "read secret", scanSecret,
		`SELECT `+secretColumns+` FROM secrets WHERE tenant = $1 AND coalesce(agent, '') = $2 AND service = $3`, tenant, agent, service)
}

func (db *Tables) ListSecrets(ctx context.Context, tenant string) ([]store.Secret, error) {
	return list(ctx, db, "list secrets", scanSecret,
		`SELECT `+secretColumns+` FROM secrets WHERE $1 = '' OR tenant = $1 ORDER BY service, coalesce(agent, ''), tenant`, tenant)
}

func (db *Tables) DeleteSecret(ctx context.Context, tenant, agent, service string) error {
	return db.changeOne(ctx, "delete secret",
		`DELETE FROM secrets WHERE tenant = $1 AND coalesce(agent, '') = $2 AND service = $3`, tenant, agent, service)
}

func (db *Tables) MarkUsed(ctx context.Context, tenant, agent, service string, at time.Time) error {
	if err := store.Moment("used_at", at); err != nil {
		return err
	}
	return db.changeOne(ctx, "mark secret as used", `UPDATE secrets SET used_at = CASE WHEN used_at > $4 THEN used_at ELSE $4 END
		WHERE tenant = $1 AND coalesce(agent, '') = $2 AND service = $3`, tenant, agent, service, db.dialect.Stamp(at))
}

func (db *Tables) ListSealed(ctx context.Context) ([]store.Sealed, error) {
	return list(ctx, db, "list what is encrypted", func(row Scanner) (s store.Sealed, err error) {
		err = row.Scan(&s.ID, &s.Tenant, &s.Agent, &s.Name, &s.Secret, blob{&s.Head}, &s.Bytes)
		return s, err
	}, fmt.Sprintf(`
		SELECT id, tenant, '', domain, false, substr(ciphertext, 1, %[1]d), length(ciphertext) FROM cookie_sets
		UNION ALL
		SELECT id, tenant, coalesce(agent, ''), service, true, substr(ciphertext, 1, %[1]d), length(ciphertext) FROM secrets`, store.SealedHead))
}
