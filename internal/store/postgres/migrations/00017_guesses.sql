-- +goose Up
-- When the wrong keys of a place are forgotten. It is no loss when a crash of the server empties the table.
CREATE UNLOGGED TABLE guesses (
    place text COLLATE "C" NOT NULL PRIMARY KEY,
    until timestamptz      NOT NULL
);
CREATE TRIGGER guesses_tell AFTER INSERT OR UPDATE ON guesses FOR EACH STATEMENT EXECUTE FUNCTION tell_change('guesses');
