-- +goose Up
-- What a session did last is shown while it runs: the index has it in its order, however much it was.
DROP INDEX audit_session;
CREATE INDEX audit_session ON audit (session, time, node, seq) WHERE session <> '';
