-- +goose Up
-- The other domains that a site was seen to need when somebody logged in to it: they are proposed for its grants.
ALTER TABLE cookie_sets ADD COLUMN egress_domains TEXT NOT NULL DEFAULT '[]';
