-- +goose Up
-- Since when a node opens no new sessions.
ALTER TABLE nodes ADD COLUMN draining_at timestamptz;
DROP TRIGGER nodes_tell ON nodes;
CREATE TRIGGER nodes_tell AFTER INSERT OR UPDATE OF run, stopped_at, lost_at, draining_at OR DELETE ON nodes FOR EACH STATEMENT EXECUTE FUNCTION tell_change('nodes');
