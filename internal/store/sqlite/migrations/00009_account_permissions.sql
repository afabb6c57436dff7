-- +goose Up
-- Whether a tenant's agents may not be permitted to use accounts without a grant each time.
ALTER TABLE tenants ADD COLUMN forbid_account_permissions INTEGER NOT NULL DEFAULT 0 CHECK (forbid_account_permissions IN (0, 1));
