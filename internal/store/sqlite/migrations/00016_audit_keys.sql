-- +goose Up
-- Public keys of all nodes' records, and a signature of each by who has the admin key.
CREATE TABLE audit_keys (
    id      TEXT NOT NULL PRIMARY KEY,
    public  BLOB NOT NULL,
    voucher BLOB NOT NULL
) STRICT;
