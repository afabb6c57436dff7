-- +goose Up
-- What operators decided about what agents may reach. Package egress knows what the bodies say.
CREATE TABLE entries (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    kind       text COLLATE "C" NOT NULL CHECK (kind ~ '^[a-z]{1,20}$'),
    tenant     text COLLATE "C" REFERENCES tenants (id), -- NULL: all
    agent      text COLLATE "C", -- NULL: all of the tenant
    name       text COLLATE "C" NOT NULL,
    body       bytea            NOT NULL CHECK (length(body) BETWEEN 1 AND 65536),
    version    bigint           NOT NULL CHECK (version >= 1),
    created_at timestamptz      NOT NULL,
    updated_at timestamptz,
    expires_at timestamptz,
    -- Without a tenant the reference below would hold for any agent.
    CHECK (agent IS NULL OR tenant IS NOT NULL),
    FOREIGN KEY (agent, tenant) REFERENCES agents (id, tenant) ON DELETE CASCADE
);
CREATE UNIQUE INDEX entries_name ON entries (kind, coalesce(tenant, ''), coalesce(agent, ''), name) WHERE name <> '';
CREATE INDEX entries_agent ON entries (agent, tenant);
CREATE INDEX entries_tenant ON entries (tenant);
CREATE INDEX entries_expire ON entries (expires_at) WHERE expires_at IS NOT NULL;

-- How often entries were changed. It is counted in the transaction of the change, also of one that the reference to
-- agents makes. The row stays locked until that has been committed, so that numbers become visible in their order:
-- whoever sees a number sees all changes up to it. A sequence would not do, because it is outside of transactions.
CREATE TABLE entries_revision (
    only_row integer NOT NULL PRIMARY KEY CHECK (only_row = 1),
    revision bigint  NOT NULL
);
INSERT INTO entries_revision VALUES (1, 1);

-- A statement that changed nothing is not counted.
-- +goose StatementBegin
CREATE FUNCTION entries_count() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'TRUNCATE' THEN
        IF NOT EXISTS (SELECT 1 FROM changed) THEN
            RETURN NULL;
        END IF;
    END IF;
    UPDATE entries_revision SET revision = revision + 1;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER entries_inserted AFTER INSERT ON entries REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION entries_count();
CREATE TRIGGER entries_updated AFTER UPDATE ON entries REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION entries_count();
CREATE TRIGGER entries_deleted AFTER DELETE ON entries REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION entries_count();
CREATE TRIGGER entries_truncated AFTER TRUNCATE ON entries FOR EACH STATEMENT EXECUTE FUNCTION entries_count();

-- What agents used of models. It does not refer to them: it outlives them.
CREATE TABLE usages (
    day           text COLLATE "C" NOT NULL CHECK (day ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}$'),
    tenant        text COLLATE "C" NOT NULL REFERENCES tenants (id),
    agent         text COLLATE "C" NOT NULL,
    provider      text COLLATE "C" NOT NULL, -- empty: the sum over all
    model         text COLLATE "C" NOT NULL,
    requests      bigint           NOT NULL CHECK (requests >= 0),
    input_tokens  bigint           NOT NULL CHECK (input_tokens >= 0),
    output_tokens bigint           NOT NULL CHECK (output_tokens >= 0),
    micro_cost    bigint           NOT NULL CHECK (micro_cost >= 0),
    PRIMARY KEY (day, tenant, agent, provider, model)
);
