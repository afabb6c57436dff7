package sqldb

import (
	"context"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

const passkeyColumns = `id, operator, admin_key, name, host, credential, handle, record, count, created_at, used_at`

func scanPasskey(row Scanner) (p store.Passkey, err error) {
	err = row.Scan(&p.ID, optional{&p.Owner.Operator}, optional{&p.Owner.AdminKey}, &p.Name, &p.Host, blob{&p.Credential}, blob{&p.Handle}, blob{&p.Record},
		&p.Count, moment{&p.CreatedAt}, moment{&p.UsedAt})
	return p, err
}

func (db *Tables) CreatePasskey(ctx context.Context, p store.Passkey) error {
	if err := p.Validate(); err != nil {
		return err
	}
	return db.add(ctx, "create passkey", `INSERT INTO passkeys (`+passkeyColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		p.ID, text(p.Owner.Operator), text(p.Owner.AdminKey), p.Name, p.Host, p.Credential, p.Handle, p.Record, int64(p.Count), db.dialect.Stamp(p.CreatedAt), db.dialect.Stamp(p.UsedAt))
}

func (db *Tables) PasskeyByCredential(ctx context.Context, credential []byte) (store.Passkey, error) {
	return one(ctx, db, "read passkey", scanPasskey, `SELECT `+passkeyColumns+` FROM passkeys WHERE credential = $1`, Bytes(credential))
}

func (db *Tables) ListPasskeys(ctx context.Context, owner store.Owner) ([]store.Passkey, error) {
	return list(ctx, db, "list passkeys", scanPasskey, `SELECT `+passkeyColumns+` FROM passkeys
		WHERE operator = $1 OR admin_key = $2 ORDER BY created_at, id`, text(owner.Operator), text(owner.AdminKey))
}

func (db *Tables) UsePasskey(ctx context.Context, id string, count uint32, at time.Time) (used bool, err error) {
	if err := store.Moment("used_at", at); err != nil {
		return false, err
	}
	return db.decide(ctx, "use passkey", func(row Scanner) error { return row.Scan(new(string)) },
		statement{`UPDATE passkeys SET count = $2, used_at = CASE WHEN used_at > $3 THEN used_at ELSE $3 END
			WHERE id = $1 AND (count < $2 OR count = 0 AND $2 = 0) RETURNING id`, []any{id, int64(count), db.dialect.Stamp(at)}},
		statement{`SELECT id FROM passkeys WHERE id = $1`, []any{id}})
}

func (db *Tables) DeletePasskey(ctx context.Context, owner store.Owner, id string) error {
	return db.changeOne(ctx, "delete passkey", `DELETE FROM passkeys WHERE id = $1 AND (operator = $2 OR admin_key = $3)`, id, text(owner.Operator), text(owner.AdminKey))
}
