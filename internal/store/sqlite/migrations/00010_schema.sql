-- Times are microseconds since 1970, UTC; NULL where the row has none. Lists are JSON.

-- +goose Up
CREATE TABLE tenants (
    id                   TEXT    NOT NULL PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 40 AND id NOT GLOB '*[^a-z0-9-]*'),
    created_at           INTEGER NOT NULL,
    forbid_operator_mode INTEGER NOT NULL CHECK (forbid_operator_mode IN (0, 1)),
    -- Whether its agents may not be permitted to use accounts without a grant each time.
    forbid_account_permissions INTEGER NOT NULL DEFAULT 0 CHECK (forbid_account_permissions IN (0, 1))
) STRICT, WITHOUT ROWID;

INSERT INTO tenants VALUES ('default', CAST(unixepoch('subsec') * 1000000 AS INTEGER), 0, 0);

CREATE TABLE operators (
    id         TEXT    NOT NULL PRIMARY KEY,
    name       TEXT    NOT NULL,
    tenant     TEXT    REFERENCES tenants (id), -- NULL: all
    role       TEXT    NOT NULL,
    key_hash   BLOB    NOT NULL UNIQUE CHECK (length(key_hash) = 32),
    key_hint   TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    CHECK (tenant IS NOT NULL OR role = 'admin')
) STRICT;
CREATE INDEX operators_tenant ON operators (tenant);

CREATE TABLE agents (
    id         TEXT    NOT NULL PRIMARY KEY,
    tenant     TEXT    NOT NULL REFERENCES tenants (id),
    name       TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 40 AND name NOT GLOB '*[^a-z0-9-]*'),
    created_at INTEGER NOT NULL,
    revoked_at INTEGER,
    UNIQUE (tenant, name),
    UNIQUE (id, tenant)
) STRICT;

CREATE TABLE tokens (
    id         TEXT    NOT NULL PRIMARY KEY,
    agent      TEXT    NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    hash       BLOB    NOT NULL UNIQUE CHECK (length(hash) = 32),
    hint       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    used_at    INTEGER
) STRICT;
CREATE INDEX tokens_agent ON tokens (agent);

CREATE TABLE cookie_sets (
    id                TEXT    NOT NULL PRIMARY KEY,
    tenant            TEXT    NOT NULL REFERENCES tenants (id),
    domain            TEXT    NOT NULL,
    ciphertext        BLOB    NOT NULL,
    count             INTEGER NOT NULL,
    scopes            TEXT    NOT NULL,
    max_leases        INTEGER NOT NULL CHECK (max_leases >= 1),
    created_at        INTEGER NOT NULL,
    last_refreshed_at INTEGER,
    last_injected_at  INTEGER,
    expires_at        INTEGER,
    -- Other domains that the site was seen to need when somebody logged in to it: they are proposed for its grants.
    egress_domains    TEXT    NOT NULL DEFAULT '[]',
    -- How the site shows whether it is signed in there, as people have said, and when a session saw that it is not.
    signed_in_page    TEXT    NOT NULL DEFAULT '',
    signed_in_marker  TEXT    NOT NULL DEFAULT '',
    unwatched         INTEGER NOT NULL DEFAULT 0 CHECK (unwatched IN (0, 1)),
    signed_out_at     INTEGER,
    signed_out_by     TEXT    NOT NULL DEFAULT '',
    UNIQUE (tenant, domain)
) STRICT;

CREATE TABLE leases (
    cookie_set TEXT    NOT NULL REFERENCES cookie_sets (id) ON DELETE CASCADE,
    session    TEXT    NOT NULL,
    node       TEXT    NOT NULL,
    at         INTEGER NOT NULL,
    PRIMARY KEY (cookie_set, session)
) STRICT, WITHOUT ROWID;
CREATE INDEX leases_session ON leases (session);
CREATE INDEX leases_node ON leases (node);

CREATE TABLE secrets (
    id         TEXT    NOT NULL PRIMARY KEY,
    tenant     TEXT    NOT NULL REFERENCES tenants (id),
    agent      TEXT, -- NULL: the tenant's
    service    TEXT    NOT NULL,
    ciphertext BLOB    NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER,
    used_at    INTEGER,
    -- Both columns: a tenant's secret cannot belong to an agent of another one.
    FOREIGN KEY (agent, tenant) REFERENCES agents (id, tenant) ON DELETE CASCADE
) STRICT;
CREATE UNIQUE INDEX secrets_place ON secrets (tenant, coalesce(agent, ''), service);
CREATE INDEX secrets_agent ON secrets (agent, tenant);

CREATE TABLE grants (
    id             TEXT    NOT NULL PRIMARY KEY,
    tenant         TEXT    NOT NULL REFERENCES tenants (id),
    domains        TEXT    NOT NULL,
    egress_domains TEXT    NOT NULL,
    access         TEXT    NOT NULL,
    origin         TEXT    NOT NULL,
    operator       TEXT    NOT NULL,
    issued_at      INTEGER NOT NULL,
    not_before     INTEGER NOT NULL,
    expires_at     INTEGER NOT NULL,
    used_at        INTEGER,
    used_by        TEXT    NOT NULL,
    revoked_at     INTEGER,
    revoked_by     TEXT    NOT NULL
) STRICT;
CREATE INDEX grants_issued ON grants (tenant, issued_at);
CREATE INDEX grants_expire ON grants (expires_at);

-- The log has no references: its rows outlive what they are about. It has no rowid either, because INSERT OR REPLACE
-- with a rowid would replace a row behind the back of the triggers.
CREATE TABLE audit (
    node      TEXT    NOT NULL,
    seq       INTEGER NOT NULL CHECK (seq >= 1),
    time      INTEGER NOT NULL,
    id        TEXT    NOT NULL,
    ref       TEXT    NOT NULL,
    phase     TEXT    NOT NULL,
    action    TEXT    NOT NULL,
    result    TEXT    NOT NULL,
    tenant    TEXT    NOT NULL,
    actor     TEXT    NOT NULL,
    session   TEXT    NOT NULL,
    jail      TEXT    NOT NULL,
    target    TEXT    NOT NULL,
    detail    BLOB    NOT NULL,
    prev_hash BLOB    NOT NULL CHECK (length(prev_hash) = 32),
    hash      BLOB    NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (node, seq)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX audit_id ON audit (id);
-- A log that is asked for an action, a tenant, an actor or a result is read in its order from this index, and only the rows that
-- are shown from the table. An index of its own for each would cost every write; this one is written anyway.
CREATE INDEX audit_time ON audit (time, node, seq, action, tenant, actor, result);
CREATE INDEX audit_ref ON audit (ref, phase) WHERE ref <> '';
-- What a session did last is shown while it runs: the index has it in its order, however much it was.
CREATE INDEX audit_session ON audit (session, time, node, seq) WHERE session <> '';
CREATE INDEX audit_intents ON audit (node, seq, id) WHERE phase = 'intent';

-- How much room the records of each tenant and agent take: 512 bytes for a row, and its target and detail. It is kept beside
-- the rows, because counting would read them all.
CREATE TABLE audit_sizes (
    tenant TEXT    NOT NULL,
    agent  TEXT    NOT NULL,
    bytes  INTEGER NOT NULL,
    PRIMARY KEY (tenant, agent)
) STRICT, WITHOUT ROWID;

-- The guard of the triggers. TrimAudit writes a row here, removes what the row allows, and removes the row, all in one
-- transaction: outside of it the table is empty. It stops mistakes and careless tools; somebody who means it can write
-- a row or drop a trigger, and is found by the hashes of the chain.
CREATE TABLE audit_trim (
    node TEXT    NOT NULL PRIMARY KEY,
    upto INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- +goose StatementBegin
CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit
BEGIN
    SELECT RAISE(ABORT, 'audit: a row does not change');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit
WHEN NOT EXISTS (SELECT 1 FROM audit_trim WHERE node = OLD.node AND OLD.seq <= upto)
BEGIN
    SELECT RAISE(ABORT, 'audit: a row is not removed');
END;
-- +goose StatementEnd

-- INSERT OR REPLACE removes the row that is in its way, and that fires no trigger for deletes. The newest row is found by one step
-- instead of an aggregate: the trigger is asked for every row.
-- +goose StatementBegin
CREATE TRIGGER audit_in_order BEFORE INSERT ON audit
WHEN NEW.seq <> coalesce((SELECT seq FROM audit WHERE node = NEW.node ORDER BY seq DESC LIMIT 1), 0) + 1
    OR EXISTS (SELECT 1 FROM audit WHERE id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'audit: a row comes right after the newest one, with an id of its own');
END;
-- +goose StatementEnd

-- What Ping writes to.
CREATE TABLE heartbeat (
    only_row INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    beats    INTEGER NOT NULL
) STRICT;
INSERT INTO heartbeat VALUES (1, 0);

-- What operators decided about what agents may reach. Package egress knows what the bodies say.
CREATE TABLE entries (
    id         TEXT    NOT NULL PRIMARY KEY,
    kind       TEXT    NOT NULL CHECK (length(kind) BETWEEN 1 AND 20 AND kind NOT GLOB '*[^a-z]*'),
    tenant     TEXT    REFERENCES tenants (id), -- NULL: all
    agent      TEXT, -- NULL: all of the tenant
    name       TEXT    NOT NULL,
    body       BLOB    NOT NULL CHECK (length(body) BETWEEN 1 AND 65536),
    version    INTEGER NOT NULL CHECK (version >= 1),
    created_at INTEGER NOT NULL,
    updated_at INTEGER,
    expires_at INTEGER,
    -- Without a tenant the reference below would hold for any agent.
    CHECK (agent IS NULL OR tenant IS NOT NULL),
    FOREIGN KEY (agent, tenant) REFERENCES agents (id, tenant) ON DELETE CASCADE
) STRICT;
CREATE UNIQUE INDEX entries_name ON entries (kind, coalesce(tenant, ''), coalesce(agent, ''), name) WHERE name <> '';
CREATE INDEX entries_agent ON entries (agent, tenant);
CREATE INDEX entries_tenant ON entries (tenant);
CREATE INDEX entries_expire ON entries (expires_at) WHERE expires_at IS NOT NULL;

-- How often entries were changed. It is counted in the transaction of the change, also of one that the reference to
-- agents makes: whoever sees a number sees all changes up to it.
CREATE TABLE entries_revision (
    only_row INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    revision INTEGER NOT NULL
) STRICT;
INSERT INTO entries_revision VALUES (1, 1);

-- +goose StatementBegin
CREATE TRIGGER entries_inserted AFTER INSERT ON entries
BEGIN
    UPDATE entries_revision SET revision = revision + 1;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER entries_updated AFTER UPDATE ON entries
BEGIN
    UPDATE entries_revision SET revision = revision + 1;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER entries_deleted AFTER DELETE ON entries
BEGIN
    UPDATE entries_revision SET revision = revision + 1;
END;
-- +goose StatementEnd

-- What agents used of models. It does not refer to them: it outlives them.
CREATE TABLE usages (
    day           TEXT    NOT NULL CHECK (day GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]'),
    tenant        TEXT    NOT NULL REFERENCES tenants (id),
    agent         TEXT    NOT NULL,
    provider      TEXT    NOT NULL, -- empty: the sum over all
    model         TEXT    NOT NULL,
    requests      INTEGER NOT NULL CHECK (requests >= 0),
    input_tokens  INTEGER NOT NULL CHECK (input_tokens >= 0),
    output_tokens INTEGER NOT NULL CHECK (output_tokens >= 0),
    micro_cost    INTEGER NOT NULL CHECK (micro_cost >= 0),
    PRIMARY KEY (day, tenant, agent, provider, model)
) STRICT, WITHOUT ROWID;

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
