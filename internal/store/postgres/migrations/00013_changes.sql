-- +goose Up
-- Control planes listen to the channel clawjail, so that they need not wait until they look again. The schema stands before what has
-- changed, because channels are those of a whole database.
-- +goose StatementBegin
CREATE FUNCTION tell_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('clawjail', TG_TABLE_SCHEMA || '.' || TG_ARGV[0]);
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER entries_tell AFTER UPDATE ON entries_revision FOR EACH STATEMENT EXECUTE FUNCTION tell_change('entries');
CREATE TRIGGER operators_tell AFTER UPDATE OR DELETE ON operators FOR EACH STATEMENT EXECUTE FUNCTION tell_change('keys');
CREATE TRIGGER agents_tell AFTER UPDATE OR DELETE ON agents FOR EACH STATEMENT EXECUTE FUNCTION tell_change('keys');
-- Not each use of a token, or of a sign-in, and not each word of a node.
CREATE TRIGGER tokens_tell AFTER UPDATE OF expires_at, revoked_at OR DELETE ON tokens FOR EACH STATEMENT EXECUTE FUNCTION tell_change('keys');
CREATE TRIGGER sign_ins_tell AFTER DELETE ON sign_ins FOR EACH STATEMENT EXECUTE FUNCTION tell_change('sign-ins');
CREATE TRIGGER nodes_tell AFTER INSERT OR UPDATE OF run, stopped_at, lost_at OR DELETE ON nodes FOR EACH STATEMENT EXECUTE FUNCTION tell_change('nodes');
