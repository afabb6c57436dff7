-- +goose Up
-- Control planes that use the database. Times are the database's.
CREATE TABLE nodes (
    name       text COLLATE "C" NOT NULL PRIMARY KEY CHECK (name ~ '^[a-z0-9-]{1,40}$'),
    run        text COLLATE "C" NOT NULL,
    version    text COLLATE "C" NOT NULL,
    address    text COLLATE "C" NOT NULL,
    started_at timestamptz      NOT NULL,
    seen_at    timestamptz      NOT NULL,
    stopped_at timestamptz
);
