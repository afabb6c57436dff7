package sqldb

import (
	"context"

	"github.com/clawjail/clawjail/internal/store"
)

const tenantColumns = `id, created_at, forbid_operator_mode, forbid_account_permissions`

func scanTenant(row Scanner) (t store.Tenant, err error) {
	err = row.Scan(&t.ID, moment{&t.CreatedAt}, &t.ForbidOperatorMode, &t.ForbidAccountPermissions)
	return t, err
}

func (db *Tables) CreateTenant(ctx context.Context, t store.Tenant) error {
	if err := t.Validate(); err != nil {
		return err
	}
	return db.add(ctx, "create tenant", `INSERT INTO tenants (`+tenantColumns+`) VALUES ($1, $2, $3, $4)`,
		t.ID, db.dialect.Stamp(t.CreatedAt), t.ForbidOperatorMode, t.ForbidAccountPermissions)
}

func (db *Tables) Tenant(ctx context.Context, id string) (store.Tenant, error) {
	return one(ctx, db, "read tenant", scanTenant, `SELECT `+tenantColumns+` FROM tenants WHERE id = $1`, id)
}

func (db *Tables) ListTenants(ctx context.Context) ([]store.Tenant, error) {
	return list(ctx, db, "list tenants", scanTenant, `SELECT `+tenantColumns+` FROM tenants ORDER BY id`)
}

func (db *Tables) UpdateTenant(ctx context.Context, was, t store.Tenant) error {
	return db.changeOr(ctx, errOccupied, "update tenant", `UPDATE tenants SET forbid_operator_mode = $2, forbid_account_permissions = $3
		WHERE id = $1 AND forbid_operator_mode = $4 AND forbid_account_permissions = $5`,
		t.ID, t.ForbidOperatorMode, t.ForbidAccountPermissions, was.ForbidOperatorMode, was.ForbidAccountPermissions)
}
