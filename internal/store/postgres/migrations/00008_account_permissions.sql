-- +goose Up
-- Whether a tenant's agents may not be permitted to use accounts without a grant each time.
ALTER TABLE tenants ADD COLUMN forbid_account_permissions boolean NOT NULL DEFAULT false;
