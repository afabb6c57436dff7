package sqldb

import (
	"context"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

const operatorColumns = `id, name, tenant, role, key_hash, key_hint, created_at, expires_at, revoked_at`

func scanOperator(row Scanner) (o store.Operator, err error) {
	err = row.Scan(&o.ID, &o.Name, optional{&o.Tenant}, &o.Role, blob{&o.KeyHash}, &o.KeyHint,
		moment{&o.CreatedAt}, moment{&o.ExpiresAt}, moment{&o.RevokedAt})
	return o, err
}

func (db *Tables) CreateOperator(ctx context.Context, o store.Operator) error {
	if err := o.Validate(); err != nil {
		return err
	}
	return db.add(ctx, "create operator", `INSERT INTO operators (`+operatorColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		o.ID, o.Name, text(o.Tenant), o.Role, o.KeyHash, o.KeyHint, db.dialect.Stamp(o.CreatedAt), db.dialect.Stamp(o.ExpiresAt), db.dialect.Stamp(o.RevokedAt))
}

func (db *Tables) Operator(ctx context.Context, id string) (store.Operator, error) {
	return one(ctx, db, "read operator", scanOperator, `SELECT `+operatorColumns+` FROM operators WHERE id = $1`, id)
}

func (db *Tables) OperatorByKey(ctx context.Context, hash []byte) (store.Operator, error) {
	return one(ctx, db, "read operator", scanOperator, `SELECT `+operatorColumns+` FROM operators WHERE key_hash = $1`, Bytes(hash))
}

func (db *Tables) ListOperators(ctx context.Context, tenant string) ([]store.Operator, error) {
	return list(ctx, db, "list operators", scanOperator,
		`SELECT `+operatorColumns+` FROM operators WHERE $1 = '' OR tenant = $1 ORDER BY created_at, id`, tenant)
}

func (db *Tables) RevokeOperator(ctx context.Context, id string, at time.Time) error {
	if err := store.Moment("revoked_at", at); err != nil {
		return err
	}
	return db.changeOne(ctx, "revoke operator", `UPDATE operators SET revoked_at = coalesce(revoked_at, $2) WHERE id = $1`, id, db.dialect.Stamp(at))
}
