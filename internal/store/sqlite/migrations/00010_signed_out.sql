-- +goose Up
-- How the site of an account shows whether it is signed in there, as people have said, and when a session saw that it is not.
ALTER TABLE cookie_sets ADD COLUMN signed_in_page TEXT NOT NULL DEFAULT '';
ALTER TABLE cookie_sets ADD COLUMN signed_in_marker TEXT NOT NULL DEFAULT '';
ALTER TABLE cookie_sets ADD COLUMN unwatched INTEGER NOT NULL DEFAULT 0 CHECK (unwatched IN (0, 1));
ALTER TABLE cookie_sets ADD COLUMN signed_out_at INTEGER;
ALTER TABLE cookie_sets ADD COLUMN signed_out_by TEXT NOT NULL DEFAULT '';
