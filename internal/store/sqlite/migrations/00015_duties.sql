-- +goose Up
-- What one node does for all, and which one. The number rises when another run takes it.
CREATE TABLE duties (
    name   TEXT    NOT NULL PRIMARY KEY,
    node   TEXT    NOT NULL,
    run    TEXT    NOT NULL,
    number INTEGER NOT NULL,
    until  INTEGER NOT NULL
) STRICT;
