-- +goose Up
-- How the site of an account shows whether it is signed in there, as people have said, and when a session saw that it is not.
ALTER TABLE cookie_sets ADD COLUMN signed_in_page text NOT NULL DEFAULT '';
ALTER TABLE cookie_sets ADD COLUMN signed_in_marker text NOT NULL DEFAULT '';
ALTER TABLE cookie_sets ADD COLUMN unwatched boolean NOT NULL DEFAULT false;
ALTER TABLE cookie_sets ADD COLUMN signed_out_at timestamptz;
ALTER TABLE cookie_sets ADD COLUMN signed_out_by text NOT NULL DEFAULT '';
