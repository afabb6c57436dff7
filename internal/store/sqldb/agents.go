package sqldb

import (
	"context"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

const (
	agentColumns = `agents.id, agents.tenant, agents.name, agents.created_at, agents.revoked_at`
	tokenColumns = `tokens.id, tokens.agent, tokens.hash, tokens.hint, tokens.created_at, tokens.expires_at, tokens.revoked_at, tokens.used_at`
)

func agentFields(a *store.Agent) []any {
	return []any{&a.ID, &a.Tenant, &a.Name, moment{&a.CreatedAt}, moment{&a.RevokedAt}}
}

func tokenFields(t *store.Token) []any {
	return []any{&t.ID, &t.Agent, blob{&t.Hash}, &t.Hint, moment{&t.CreatedAt}, moment{&t.ExpiresAt}, moment{&t.RevokedAt}, moment{&t.UsedAt}}
}

func scanAgent(row Scanner) (a store.Agent, err error) {
	err = row.Scan(agentFields(&a)...)
	return a, err
}

func scanToken(row Scanner) (t store.Token, err error) {
	err = row.Scan(tokenFields(&t)...)
	return t, err
}

func (db *Tables) CreateAgent(ctx context.Context, a store.Agent) error {
	if err := a.Validate(); err != nil {
		return err
	}
	return db.add(ctx, "create agent", `INSERT INTO agents (id, tenant, name, created_at, revoked_at) VALUES ($1, $2, $3, $4, $5)`,
		a.ID, a.Tenant, a.Name, db.dialect.Stamp(a.CreatedAt), db.dialect.Stamp(a.RevokedAt))
}

func (db *Tables) Agent(ctx context.Context, tenant, name string) (store.Agent, error) {
	return one(ctx, db, "read agent", scanAgent, `SELECT `+agentColumns+` FROM agents WHERE tenant = $1 AND name = $2`, tenant, name)
}

func (db *Tables) AgentByID(ctx context.Context, id string) (store.Agent, error) {
	return one(ctx, db, "read agent", scanAgent, `SELECT `+agentColumns+` FROM agents WHERE id = $1`, id)
}

func (db *Tables) ListAgents(ctx context.Context, tenant string) ([]store.Agent, error) {
	return list(ctx, db, "list agents", scanAgent,
		`SELECT `+agentColumns+` FROM agents WHERE $1 = '' OR tenant = $1 ORDER BY name, tenant`, tenant)
}

func (db *Tables) RevokeAgent(ctx context.Context, id string, at time.Time) error {
	return db.changeOne(ctx, "revoke agent", `UPDATE agents SET revoked_at = $2 WHERE id = $1`, id, db.dialect.Stamp(at))
}

func (db *Tables) DeleteAgent(ctx context.Context, id string) error {
	return db.changeOne(ctx, "delete agent", `DELETE FROM agents WHERE id = $1`, id)
}

func (db *Tables) CreateToken(ctx context.Context, t store.Token) error {
	if err := t.Validate(); err != nil {
		return err
	}
	return db.add(ctx, "create token", `INSERT INTO tokens (id, agent, hash, hint, created_at, expires_at, revoked_at, used_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		t.ID, t.Agent, t.Hash, t.Hint, db.dialect.Stamp(t.CreatedAt), db.dialect.Stamp(t.ExpiresAt), db.dialect.Stamp(t.RevokedAt), db.dialect.Stamp(t.UsedAt))
}

const tokenByHash = `SELECT ` + tokenColumns + `, ` + agentColumns + ` FROM tokens JOIN agents ON agents.id = tokens.agent WHERE tokens.hash = $1`

func (db *Tables) TokenByHash(ctx context.Context, hash []byte) (store.Token, store.Agent, error) {
	type both struct {
		token store.Token
		agent store.Agent
	}
	v, err := one(ctx, db, "read token", func(row Scanner) (b both, err error) {
		err = row.Scan(append(tokenFields(&b.token), agentFields(&b.agent)...)...)
		return b, err
	}, tokenByHash, Bytes(hash))
	return v.token, v.agent, err
}

func (db *Tables) ListTokens(ctx context.Context, agent string) ([]store.Token, error) {
	return list(ctx, db, "list tokens", scanToken, `SELECT `+tokenColumns+` FROM tokens WHERE agent = $1 ORDER BY created_at, id`, agent)
}

func (db *Tables) ListTenantTokens(ctx context.Context, tenant string) ([]store.Token, error) {
	return list(ctx, db, "list the tokens of a tenant", scanToken, `SELECT `+tokenColumns+` FROM tokens WHERE $1 = '' OR agent IN
		(SELECT id FROM agents WHERE tenant = $1) ORDER BY agent, created_at, id`, tenant)
}

func (db *Tables) RevokeToken(ctx context.Context, id string, at time.Time) error {
	if err := store.Moment("revoked_at", at); err != nil {
		return err
	}
	return db.changeOne(ctx, "revoke token", `UPDATE tokens SET revoked_at = coalesce(revoked_at, $2) WHERE id = $1`, id, db.dialect.Stamp(at))
}

func (db *Tables) ExpireToken(ctx context.Context, id string, at time.Time) error {
	if err := store.Moment("expires_at", at); err != nil {
		return err
	}
	return db.changeOne(ctx, "expire token", `UPDATE tokens SET expires_at = CASE WHEN expires_at < $2 THEN expires_at ELSE $2 END WHERE id = $1`, id, db.dialect.Stamp(at))
}

func (db *Tables) TouchToken(ctx context.Context, id string, at time.Time) error {
	if err := store.Moment("used_at", at); err != nil {
		return err
	}
	return db.changeOne(ctx, "touch token", `UPDATE tokens SET used_at = CASE WHEN used_at > $2 THEN used_at ELSE $2 END WHERE id = $1`, id, db.dialect.Stamp(at))
}
