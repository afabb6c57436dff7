-- +goose Up
-- Where other control planes of the database reach this one; empty for nowhere.
ALTER TABLE nodes ADD COLUMN peer_address TEXT NOT NULL DEFAULT '';
-- When the others gave it up.
ALTER TABLE nodes ADD COLUMN lost_at INTEGER;
