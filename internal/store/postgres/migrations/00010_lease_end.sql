-- +goose Up
-- When a lease is over at the latest, also when its node never comes back; NULL where who took it did not say.
ALTER TABLE leases ADD COLUMN expires_at timestamptz;
