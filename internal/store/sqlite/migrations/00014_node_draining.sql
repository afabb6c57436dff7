-- +goose Up
-- Since when a node opens no new sessions.
ALTER TABLE nodes ADD COLUMN draining_at INTEGER;
