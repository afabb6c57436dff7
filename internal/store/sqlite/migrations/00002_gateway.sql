-- +goose Up
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
