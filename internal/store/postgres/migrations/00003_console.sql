-- +goose Up
-- Who is signed in to the console. It is of an operator, or of who had the admin key with that fingerprint.
CREATE TABLE sign_ins (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    hash       bytea            NOT NULL UNIQUE CHECK (length(hash) = 32),
    operator   text COLLATE "C" REFERENCES operators (id),
    admin_key  text COLLATE "C",
    method     text COLLATE "C" NOT NULL,
    remote     text COLLATE "C" NOT NULL,
    user_agent text COLLATE "C" NOT NULL,
    created_at timestamptz      NOT NULL,
    used_at    timestamptz      NOT NULL,
    expires_at timestamptz      NOT NULL,
    CHECK ((operator IS NULL) <> (admin_key IS NULL))
);
CREATE INDEX sign_ins_operator ON sign_ins (operator);

-- With what they may sign in besides a key.
CREATE TABLE passkeys (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    operator   text COLLATE "C" REFERENCES operators (id),
    admin_key  text COLLATE "C",
    name       text COLLATE "C" NOT NULL,
    host       text COLLATE "C" NOT NULL,
    credential bytea            NOT NULL UNIQUE,
    handle     bytea            NOT NULL,
    record     bytea            NOT NULL,
    count      bigint           NOT NULL CHECK (count >= 0),
    created_at timestamptz      NOT NULL,
    used_at    timestamptz,
    CHECK ((operator IS NULL) <> (admin_key IS NULL))
);
CREATE INDEX passkeys_operator ON passkeys (operator);
CREATE INDEX passkeys_admin ON passkeys (admin_key);
