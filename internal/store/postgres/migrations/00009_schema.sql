-- Times are NULL where the row has none. Texts are sorted by their bytes, whatever the database's language is.

-- +goose Up
CREATE TABLE tenants (
    id                   text COLLATE "C" NOT NULL PRIMARY KEY CHECK (id ~ '^[a-z0-9-]{1,40}$'),
    created_at           timestamptz      NOT NULL,
    forbid_operator_mode boolean          NOT NULL,
    -- Whether its agents may not be permitted to use accounts without a grant each time.
    forbid_account_permissions boolean    NOT NULL DEFAULT false
);

INSERT INTO tenants VALUES ('default', now(), false, false);

CREATE TABLE operators (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    name       text COLLATE "C" NOT NULL,
    tenant     text COLLATE "C" REFERENCES tenants (id), -- NULL: all
    role       text COLLATE "C" NOT NULL,
    key_hash   bytea            NOT NULL UNIQUE CHECK (length(key_hash) = 32),
    key_hint   text COLLATE "C" NOT NULL,
    created_at timestamptz      NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    CHECK (tenant IS NOT NULL OR role = 'admin')
);
CREATE INDEX operators_tenant ON operators (tenant);

CREATE TABLE agents (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    tenant     text COLLATE "C" NOT NULL REFERENCES tenants (id),
    name       text COLLATE "C" NOT NULL CHECK (name ~ '^[a-z0-9-]{1,40}$'),
    created_at timestamptz      NOT NULL,
    revoked_at timestamptz,
    UNIQUE (tenant, name),
    UNIQUE (id, tenant)
);

CREATE TABLE tokens (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    agent      text COLLATE "C" NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    hash       bytea            NOT NULL UNIQUE CHECK (length(hash) = 32),
    hint       text COLLATE "C" NOT NULL,
    created_at timestamptz      NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    used_at    timestamptz
);
CREATE INDEX tokens_agent ON tokens (agent);

CREATE TABLE cookie_sets (
    id                text COLLATE "C" NOT NULL PRIMARY KEY,
    tenant            text COLLATE "C" NOT NULL REFERENCES tenants (id),
    domain            text COLLATE "C" NOT NULL,
    ciphertext        bytea            NOT NULL,
    count             integer          NOT NULL,
    scopes            text[]           NOT NULL,
    max_leases        integer          NOT NULL CHECK (max_leases >= 1),
    created_at        timestamptz      NOT NULL,
    last_refreshed_at timestamptz,
    last_injected_at  timestamptz,
    expires_at        timestamptz,
    -- Other domains that the site was seen to need when somebody logged in to it: they are proposed for its grants.
    egress_domains    text[]           NOT NULL DEFAULT '{}',
    -- How the site shows whether it is signed in there, as people have said, and when a session saw that it is not.
    signed_in_page    text             NOT NULL DEFAULT '',
    signed_in_marker  text             NOT NULL DEFAULT '',
    unwatched         boolean          NOT NULL DEFAULT false,
    signed_out_at     timestamptz,
    signed_out_by     text             NOT NULL DEFAULT '',
    UNIQUE (tenant, domain)
);

CREATE TABLE leases (
    cookie_set text COLLATE "C" NOT NULL REFERENCES cookie_sets (id) ON DELETE CASCADE,
    session    text COLLATE "C" NOT NULL,
    node       text COLLATE "C" NOT NULL,
    at         timestamptz      NOT NULL,
    PRIMARY KEY (cookie_set, session)
);
CREATE INDEX leases_session ON leases (session);
CREATE INDEX leases_node ON leases (node);

CREATE TABLE secrets (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    tenant     text COLLATE "C" NOT NULL REFERENCES tenants (id),
    agent      text COLLATE "C", -- NULL: the tenant's
    service    text COLLATE "C" NOT NULL,
    ciphertext bytea            NOT NULL,
    created_at timestamptz      NOT NULL,
    updated_at timestamptz,
    used_at    timestamptz,
    -- Both columns: a tenant's secret cannot belong to an agent of another one.
    FOREIGN KEY (agent, tenant) REFERENCES agents (id, tenant) ON DELETE CASCADE
);
CREATE UNIQUE INDEX secrets_place ON secrets (tenant, coalesce(agent, ''), service);
CREATE INDEX secrets_agent ON secrets (agent, tenant);

CREATE TABLE grants (
    id             text COLLATE "C" NOT NULL PRIMARY KEY,
    tenant         text COLLATE "C" NOT NULL REFERENCES tenants (id),
    domains        text[]           NOT NULL,
    egress_domains text[]           NOT NULL,
    access         text COLLATE "C" NOT NULL,
    origin         text COLLATE "C" NOT NULL,
    operator       text COLLATE "C" NOT NULL,
    issued_at      timestamptz      NOT NULL,
    not_before     timestamptz      NOT NULL,
    expires_at     timestamptz      NOT NULL,
    used_at        timestamptz,
    used_by        text COLLATE "C" NOT NULL,
    revoked_at     timestamptz,
    revoked_by     text COLLATE "C" NOT NULL
);
CREATE INDEX grants_issued ON grants (tenant, issued_at);
CREATE INDEX grants_expire ON grants (expires_at);

-- The log has no references: its rows outlive what they are about.
CREATE TABLE audit (
    node      text COLLATE "C" NOT NULL,
    seq       bigint           NOT NULL CHECK (seq >= 1),
    time      timestamptz      NOT NULL,
    id        text COLLATE "C" NOT NULL,
    ref       text COLLATE "C" NOT NULL,
    phase     text COLLATE "C" NOT NULL,
    action    text COLLATE "C" NOT NULL,
    result    text COLLATE "C" NOT NULL,
    tenant    text COLLATE "C" NOT NULL,
    actor     text COLLATE "C" NOT NULL,
    session   text COLLATE "C" NOT NULL,
    jail      text COLLATE "C" NOT NULL,
    target    text COLLATE "C" NOT NULL,
    detail    bytea            NOT NULL,
    prev_hash bytea            NOT NULL CHECK (length(prev_hash) = 32),
    hash      bytea            NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (node, seq)
);
CREATE UNIQUE INDEX audit_id ON audit (id);
-- A log that is asked for an action, a tenant, an actor or a result is read in its order from this index, and only the rows that
-- are shown from the table. An index of its own for each would cost every write; this one is written anyway.
CREATE INDEX audit_time ON audit (time, node, seq) INCLUDE (action, tenant, actor, result);
CREATE INDEX audit_ref ON audit (ref, phase) WHERE ref <> '';
-- What a session did last is shown while it runs: the index has it in its order, however much it was.
CREATE INDEX audit_session ON audit (session, time, node, seq) WHERE session <> '';
CREATE INDEX audit_intents ON audit (node, seq, id) WHERE phase = 'intent';

-- How much room the records of each tenant and agent take: 512 bytes for a row, and its target and detail. It is kept beside
-- the rows, because counting would read them all.
CREATE TABLE audit_sizes (
    tenant text COLLATE "C" NOT NULL,
    agent  text COLLATE "C" NOT NULL,
    bytes  bigint           NOT NULL,
    PRIMARY KEY (tenant, agent)
);

-- The triggers let a row go only in a transaction that has set clawjail.trim_node and clawjail.trim_upto for itself,
-- as TrimAudit does: outside of it both are empty. They stop mistakes and careless tools; somebody who means it can
-- set them or drop a trigger, and is found by the hashes of the chain.
-- +goose StatementBegin
CREATE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.node = current_setting('clawjail.trim_node', true)
        AND OLD.seq <= nullif(current_setting('clawjail.trim_upto', true), '')::bigint THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'audit: a row is neither changed nor removed';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER audit_no_change BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_refuse();
CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse();

-- +goose StatementBegin
CREATE FUNCTION audit_follow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.seq <> coalesce((SELECT max(seq) FROM audit WHERE node = NEW.node), 0) + 1 THEN
        RAISE EXCEPTION 'audit: a row comes right after the newest one' USING ERRCODE = 'CJ001';
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER audit_in_order BEFORE INSERT ON audit FOR EACH ROW EXECUTE FUNCTION audit_follow();

-- What Ping writes to.
CREATE TABLE heartbeat (
    only_row integer NOT NULL PRIMARY KEY CHECK (only_row = 1),
    beats    bigint  NOT NULL
);
INSERT INTO heartbeat VALUES (1, 0);

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
