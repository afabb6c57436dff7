-- +goose Up
-- Who is signed in to the console. It is of an operator, or of who had the admin key with that fingerprint.
CREATE TABLE sign_ins (
    id         TEXT    NOT NULL PRIMARY KEY,
    hash       BLOB    NOT NULL UNIQUE CHECK (length(hash) = 32),
    operator   TEXT    REFERENCES operators (id),
    admin_key  TEXT,
    method     TEXT    NOT NULL,
    remote     TEXT    NOT NULL,
    user_agent TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    used_at    INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    CHECK ((operator IS NULL) <> (admin_key IS NULL))
) STRICT;
CREATE INDEX sign_ins_operator ON sign_ins (operator);

-- With what they may sign in besides a key.
CREATE TABLE passkeys (
    id         TEXT    NOT NULL PRIMARY KEY,
    operator   TEXT    REFERENCES operators (id),
    admin_key  TEXT,
    name       TEXT    NOT NULL,
    host       TEXT    NOT NULL,
    credential BLOB    NOT NULL UNIQUE,
    handle     BLOB    NOT NULL,
    record     BLOB    NOT NULL,
    count      INTEGER NOT NULL CHECK (count >= 0),
    created_at INTEGER NOT NULL,
    used_at    INTEGER,
    CHECK ((operator IS NULL) <> (admin_key IS NULL))
) STRICT;
CREATE INDEX passkeys_operator ON passkeys (operator);
CREATE INDEX passkeys_admin ON passkeys (admin_key);
