-- +goose Up
-- What one node does for all, and which one. The number rises when another run takes it.
CREATE TABLE duties (
    name   text COLLATE "C" NOT NULL PRIMARY KEY,
    node   text COLLATE "C" NOT NULL,
    run    text COLLATE "C" NOT NULL,
    number bigint           NOT NULL,
    until  timestamptz      NOT NULL
);
