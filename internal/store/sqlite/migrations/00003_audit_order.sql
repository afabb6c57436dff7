-- The trigger is asked for every row of the audit log. It says what it said before, by one step to the newest row instead
-- of an aggregate.

-- +goose Up
DROP TRIGGER audit_in_order;

-- +goose StatementBegin
CREATE TRIGGER audit_in_order BEFORE INSERT ON audit
WHEN NEW.seq <> coalesce((SELECT seq FROM audit WHERE node = NEW.node ORDER BY seq DESC LIMIT 1), 0) + 1
    OR EXISTS (SELECT 1 FROM audit WHERE id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'audit: a row comes right after the newest one, with an id of its own');
END;
-- +goose StatementEnd
