-- +goose Up
-- Public keys of all nodes' records, and a signature of each by who has the admin key.
CREATE TABLE audit_keys (
    id      text COLLATE "C" NOT NULL PRIMARY KEY,
    public  bytea            NOT NULL,
    voucher bytea            NOT NULL
);
