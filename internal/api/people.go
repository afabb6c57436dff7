package api

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

type (
	agentInput struct {
		Name   string `path:"name" maxLength:"64" doc:"the agent's name"`
		Tenant string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own, or default, when it is left out"`
	}

	agentTokenBody struct {
		Name    string `path:"name" maxLength:"64" doc:"the agent's name"`
		Tenant  string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own, or default, when it is left out"`
		RawBody []byte `contentType:"application/json"`
	}

	agentTokenInput struct {
		Name   string `path:"name" maxLength:"64" doc:"the agent's name"`
		ID     string `path:"id" maxLength:"64" doc:"the token's id"`
		Tenant string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own, or default, when it is left out"`
	}
)

func (a *API) peopleRoutes() {
	provide(a, op.WhoAmI())
	provide(a, op.ListTenants())
	provide(a, op.CreateTenant())
	provide(a, op.ShowTenant())
	provide(a, op.SetTenant())
	provide(a, op.DisconnectTenant())
	provide(a, op.ListOperators())
	provide(a, op.CreateOperator())
	provide(a, op.RotateOperator())
	provide(a, op.RevokeOperator())

	add(a, route{method: http.MethodGet, path: "/v1/agents", id: "list-agents", summary: "List agents"}, a.agents)
	add(a, route{method: http.MethodPost, path: "/v1/agents", id: "create-agent", summary: "Make an agent",
		status: http.StatusCreated, body: reflect.TypeFor[AgentRequest]()}, a.createAgent)
	add(a, route{method: http.MethodDelete, path: "/v1/agents/{name}", id: "delete-agent", summary: "Remove an agent",
		status: http.StatusNoContent}, a.deleteAgent)
	add(a, route{method: http.MethodPost, path: "/v1/agents/{name}/revoke", id: "revoke-agent", summary: "Revoke an agent",
		status: http.StatusNoContent}, a.revokeAgent)
	add(a, route{method: http.MethodPost, path: "/v1/agents/{name}/restore", id: "restore-agent", summary: "Take an agent's revocation back",
		status: http.StatusNoContent}, a.restoreAgent)
	add(a, route{method: http.MethodGet, path: "/v1/agents/{name}/tokens", id: "list-tokens", summary: "List an agent's tokens"}, a.tokens)
	add(a, route{method: http.MethodPost, path: "/v1/agents/{name}/tokens", id: "rotate-token", summary: "Give an agent a new token",
		status: http.StatusCreated, body: reflect.TypeFor[RotateRequest]()}, a.rotateToken)
	add(a, route{method: http.MethodDelete, path: "/v1/agents/{name}/tokens/{id}", id: "revoke-token", summary: "Revoke an agent's token",
		status: http.StatusNoContent}, a.revokeToken)
}

func agentOf(g identity.Agent) Agent {
	return Agent{ID: g.ID, Name: g.Name, Tenant: g.Tenant, CreatedAt: g.CreatedAt, RevokedAt: g.RevokedAt}
}

func (a *API) agents(ctx context.Context, by identity.Principal, in *ofTenantInput) (*answer[Agents], error) {
	all, err := a.Identity.Agents(ctx, by, by.Among(in.Tenant))
	if err != nil {
		return nil, err
	}
	return &answer[Agents]{a.agentsAndJails(ctx, by, by.Among(in.Tenant), all)}, nil
}

func (a *API) createAgent(ctx context.Context, by identity.Principal, in *jsonBody) (*answer[IssuedAgent], error) {
	body, err := decode[AgentRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	long, err := op.Life(body.Life)
	if err != nil {
		return nil, err
	}
	if err := op.CheckTenant(body.Tenant); err != nil {
		return nil, err
	}
	key, g, err := a.Identity.CreateAgent(ctx, by, by.TenantOr(body.Tenant), body.Name, long)
	if err != nil {
		return nil, err
	}
	out := IssuedAgent{Key: key.Reveal(), Agent: agentOf(g)}
	if long != identity.NeverExpires {
		out.ExpiresAt = g.CreatedAt.Add(long)
	}
	return &answer[IssuedAgent]{out}, nil
}

func (a *API) deleteAgent(ctx context.Context, by identity.Principal, in *agentRemoval) (*nothing, error) {
	if a.Agents != nil {
		return nil, a.Agents.RemoveAgent(ctx, by, by.TenantOr(in.Tenant), in.Name,
			agent.RemoveOptions{KeepState: in.KeepState, RemoveWorkspace: !in.KeepWorkspace})
	}
	return nil, a.Identity.DeleteAgent(ctx, by, by.TenantOr(in.Tenant), in.Name)
}

func (a *API) revokeAgent(ctx context.Context, by identity.Principal, in *agentInput) (*nothing, error) {
	return nil, a.Identity.RevokeAgent(ctx, by, by.TenantOr(in.Tenant), in.Name)
}

func (a *API) restoreAgent(ctx context.Context, by identity.Principal, in *agentInput) (*nothing, error) {
	return nil, a.Identity.RestoreAgent(ctx, by, by.TenantOr(in.Tenant), in.Name)
}

func tokenOf(t identity.Token) Token {
	return Token{ID: t.ID, Hint: t.Hint, CreatedAt: t.CreatedAt, ExpiresAt: t.ExpiresAt, RevokedAt: t.RevokedAt, UsedAt: t.UsedAt}
}

func (a *API) tokens(ctx context.Context, by identity.Principal, in *agentInput) (*answer[Tokens], error) {
	all, err := a.Identity.Tokens(ctx, by, by.TenantOr(in.Tenant), in.Name)
	if err != nil {
		return nil, err
	}
	out := Tokens{Tokens: make([]Token, len(all))}
	for n, t := range all {
		out.Tokens[n] = tokenOf(t)
	}
	return &answer[Tokens]{out}, nil
}

func (a *API) rotateToken(ctx context.Context, by identity.Principal, in *agentTokenBody) (*answer[IssuedToken], error) {
	body, err := decode[RotateRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	long, err := op.Life(body.Life)
	if err != nil {
		return nil, err
	}
	overlap := identity.DefaultOverlap
	if body.Overlap != "" {
		if overlap, err = time.ParseDuration(body.Overlap); err != nil {
			return nil, problem.New(problem.BadLimit, "give a time such as 10m", "the overlap %s is not a duration", quote(body.Overlap))
		}
	}
	if issued, done, err := a.rotateKept(ctx, by, by.TenantOr(in.Tenant), in.Name, body, overlap); err != nil || done {
		return &answer[IssuedToken]{issued}, err
	}
	key, t, err := a.Identity.RotateToken(ctx, by, by.TenantOr(in.Tenant), in.Name, long, overlap)
	if err != nil {
		return nil, err
	}
	return &answer[IssuedToken]{IssuedToken{Key: key.Reveal(), Token: tokenOf(t)}}, nil
}

func (a *API) revokeToken(ctx context.Context, by identity.Principal, in *agentTokenInput) (*nothing, error) {
	return nil, a.Identity.RevokeToken(ctx, by, by.TenantOr(in.Tenant), in.Name, in.ID)
}
