package api

import (
	"context"
	"net/http"
	"reflect"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
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
	provide(a, op.ListTokens())
	provide(a, op.RotateToken())
	provide(a, op.RevokeToken())
	provide(a, op.ListSessionTokens())
	provide(a, op.RevokeSessionToken())
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

func (a *API) revokeAgent(ctx context.Context, by identity.Principal, in *op.OneAgent) (*nothing, error) {
	return nil, a.Identity.RevokeAgent(ctx, by, by.TenantOr(in.Tenant), in.Name)
}

func (a *API) restoreAgent(ctx context.Context, by identity.Principal, in *op.OneAgent) (*nothing, error) {
	return nil, a.Identity.RestoreAgent(ctx, by, by.TenantOr(in.Tenant), in.Name)
}
