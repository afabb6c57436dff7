-- +goose Up
-- A log that is asked for actions is read in its order from this index, and only the rows that are shown from the table. An
-- index of its own would cost every write; this one is written anyway.
DROP INDEX audit_time;
CREATE INDEX audit_time ON audit (time, node, seq) INCLUDE (action, tenant);
