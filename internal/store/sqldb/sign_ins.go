package sqldb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

const signInColumns = `sign_ins.id, sign_ins.hash, sign_ins.operator, sign_ins.admin_key, sign_ins.method, sign_ins.remote, sign_ins.user_agent,
	sign_ins.created_at, sign_ins.used_at, sign_ins.expires_at`

func signInFields(s *store.SignIn) []any {
	return []any{&s.ID, blob{&s.Hash}, optional{&s.Owner.Operator}, optional{&s.Owner.AdminKey}, &s.Method, &s.Remote, &s.UserAgent,
		moment{&s.CreatedAt}, moment{&s.UsedAt}, moment{&s.ExpiresAt}}
}

func scanSignIn(row Scanner) (s store.SignIn, err error) {
	err = row.Scan(signInFields(&s)...)
	return s, err
}

func (db *Tables) CreateSignIn(ctx context.Context, s store.SignIn) error {
	if err := s.Validate(); err != nil {
		return err
	}
	return db.add(ctx, "create sign-in", `INSERT INTO sign_ins (id, hash, operator, admin_key, method, remote, user_agent, created_at, used_at, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`, s.ID, s.Hash, text(s.Owner.Operator), text(s.Owner.AdminKey), s.Method, s.Remote, s.UserAgent,
		db.dialect.Stamp(s.CreatedAt), db.dialect.Stamp(s.UsedAt), db.dialect.Stamp(s.ExpiresAt))
}

func (db *Tables) SignIn(ctx context.Context, id string) (store.SignIn, error) {
	return one(ctx, db, "read sign-in", scanSignIn, `SELECT `+signInColumns+` FROM sign_ins WHERE id = $1`, id)
}

func (db *Tables) SignInByHash(ctx context.Context, hash []byte) (store.SignIn, store.Operator, error) {
	type both struct {
		signIn   store.SignIn
		operator store.Operator
	}
	v, err := one(ctx, db, "read sign-in", func(row Scanner) (b both, err error) {
		o := &b.operator
		err = row.Scan(append(signInFields(&b.signIn), optional{&o.ID}, optional{&o.Name}, optional{&o.Tenant}, optional{&o.Role}, blob{&o.KeyHash}, optional{&o.KeyHint},
			moment{&o.CreatedAt}, moment{&o.ExpiresAt}, moment{&o.RevokedAt})...)
		return b, err
	}, `SELECT `+signInColumns+`, o.id, o.name, o.tenant, o.role, o.key_hash, o.key_hint, o.created_at, o.expires_at, o.revoked_at
		FROM sign_ins LEFT JOIN operators o ON o.id = sign_ins.operator WHERE sign_ins.hash = $1`, Bytes(hash))
	return v.signIn, v.operator, err
}

func (db *Tables) ListSignIns(ctx context.Context, f store.SignInFilter) ([]store.SignIn, error) {
	which, args := "", []any{f.Limit}
	switch {
	case f.Limit < 1:
		return nil, fmt.Errorf("list sign-ins: %w: limit is %d", store.ErrInvalid, f.Limit)
	case f.Owner != store.Owner{}:
		which, args = ` WHERE operator = $2 OR admin_key = $3`, append(args, text(f.Owner.Operator), text(f.Owner.AdminKey))
	case f.Tenant != "":
		which, args = ` WHERE operator IN (SELECT id FROM operators WHERE tenant = $2)`, append(args, f.Tenant)
	}
	return list(ctx, db, "list sign-ins", scanSignIn, `SELECT `+signInColumns+` FROM sign_ins`+which+` ORDER BY created_at DESC, id DESC LIMIT $1`, args...)
}

func (db *Tables) TouchSignIn(ctx context.Context, id string, at time.Time) error {
	if err := store.Moment("used_at", at); err != nil {
		return err
	}
	return db.changeOne(ctx, "touch sign-in", `UPDATE sign_ins SET used_at = CASE WHEN used_at > $2 THEN used_at ELSE $2 END WHERE id = $1`, id, db.dialect.Stamp(at))
}

func (db *Tables) DeleteSignIn(ctx context.Context, id string) error {
	return db.changeOne(ctx, "delete sign-in", `DELETE FROM sign_ins WHERE id = $1`, id)
}

func (db *Tables) DeleteSignInsBefore(ctx context.Context, expired, used time.Time) (int, error) {
	if err := errors.Join(store.Moment("expired", expired), store.Moment("used", used)); err != nil {
		return 0, err
	}
	return db.remove(ctx, "delete old sign-ins", `DELETE FROM sign_ins WHERE expires_at < $1 OR used_at < $2`, db.dialect.Stamp(expired), db.dialect.Stamp(used))
}
