-- +goose Up
-- Control planes that use the database. Times are the database's.
CREATE TABLE nodes (
    name       TEXT    NOT NULL PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 40 AND name NOT GLOB '*[^a-z0-9-]*'),
    run        TEXT    NOT NULL,
    version    TEXT    NOT NULL,
    address    TEXT    NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL,
    stopped_at INTEGER
) STRICT;
