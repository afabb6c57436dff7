-- Times are NULL where the row has none. Texts are sorted by their bytes, whatever the database's language is.

-- +goose Up
CREATE TABLE tenants (
    id                   text COLLATE "C" NOT NULL PRIMARY KEY CHECK (id ~ '^[a-z0-9-]{1,40}$'),
    created_at           timestamptz      NOT NULL,
    forbid_operator_mode boolean          NOT NULL
);

INSERT INTO tenants VALUES ('default', now(), false);

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
CREATE INDEX audit_time ON audit (time, node, seq);
CREATE INDEX audit_ref ON audit (ref, phase) WHERE ref <> '';
CREATE INDEX audit_session ON audit (session) WHERE session <> '';
CREATE INDEX audit_intents ON audit (node, seq, id) WHERE phase = 'intent';

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
