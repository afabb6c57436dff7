package api

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// never is the life of a key that is good until it is revoked.
const never = "never"

type (
	tenantInput struct {
		ID string `path:"id" maxLength:"64" doc:"the tenant's id"`
	}

	tenantBody struct {
		ID      string `path:"id" maxLength:"64" doc:"the tenant's id"`
		RawBody []byte `contentType:"application/json"`
	}

	operatorInput struct {
		ID string `path:"id" maxLength:"64" doc:"the operator's id"`
	}

	operatorBody struct {
		ID      string `path:"id" maxLength:"64" doc:"the operator's id"`
		RawBody []byte `contentType:"application/json"`
	}

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
	add(a, route{method: http.MethodGet, path: "/v1/whoami", id: "whoami", summary: "Whose key it is"}, a.whoami)

	add(a, route{method: http.MethodGet, path: "/v1/tenants", id: "list-tenants", summary: "List tenants"}, a.tenants)
	add(a, route{method: http.MethodPost, path: "/v1/tenants", id: "create-tenant", summary: "Make a tenant",
		status: http.StatusCreated, body: reflect.TypeFor[TenantRequest]()}, a.createTenant)
	add(a, route{method: http.MethodGet, path: "/v1/tenants/{id}", id: "show-tenant", summary: "Show a tenant, and what it holds of what all share"},
		a.showTenant)
	add(a, route{method: http.MethodPatch, path: "/v1/tenants/{id}", id: "set-tenant", summary: "Change what a tenant may",
		status: http.StatusOK, body: reflect.TypeFor[TenantPolicy]()}, a.setTenant)
	add(a, route{method: http.MethodPost, path: "/v1/tenants/{id}/disconnect", id: "disconnect-tenant",
		summary: "End what is open for a tenant's principals", status: http.StatusOK}, a.disconnectTenant)

	add(a, route{method: http.MethodGet, path: "/v1/operators", id: "list-operators", summary: "List operators"}, a.operators)
	add(a, route{method: http.MethodPost, path: "/v1/operators", id: "create-operator", summary: "Make an operator",
		status: http.StatusCreated, body: reflect.TypeFor[OperatorRequest]()}, a.createOperator)
	add(a, route{method: http.MethodPost, path: "/v1/operators/{id}/rotate", id: "rotate-operator", summary: "Give an operator a new key",
		status: http.StatusCreated, body: reflect.TypeFor[LifeRequest]()}, a.rotateOperator)
	add(a, route{method: http.MethodDelete, path: "/v1/operators/{id}", id: "revoke-operator", summary: "Revoke an operator's key",
		status: http.StatusNoContent}, a.revokeOperator)

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

// life reads how long a key is to be good.
func life(text string) (time.Duration, error) {
	if text == "" || text == never {
		return identity.NeverExpires, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 { // below zero there is a number that means never
		return 0, problem.New(problem.BadLimit, "give a time such as 720h, or never", "the life %s is not a positive duration", quote(text))
	}
	return d, nil
}

func (a *API) whoami(_ context.Context, by identity.Principal, _ *nothing) (*answer[Principal], error) {
	return &answer[Principal]{Principal{Kind: by.Kind, ID: by.ID, Name: by.Name, Tenant: by.Tenant, Role: by.Role, ExpiresAt: by.ExpiresAt,
		Scope: by.Scope, Session: by.Session}}, nil
}

func tenantOf(t identity.Tenant) Tenant {
	return Tenant{ID: t.ID, ForbidOperatorMode: t.ForbidOperatorMode, ForbidAccountPermissions: t.ForbidAccountPermissions, CreatedAt: t.CreatedAt}
}

func (a *API) tenants(ctx context.Context, by identity.Principal, _ *nothing) (*answer[Tenants], error) {
	all, err := a.Identity.Tenants(ctx, by)
	if err != nil {
		return nil, err
	}
	out := Tenants{Tenants: make([]Tenant, len(all))}
	for n, t := range all {
		out.Tenants[n] = tenantOf(t)
	}
	return &answer[Tenants]{out}, nil
}

func (a *API) showTenant(ctx context.Context, by identity.Principal, in *tenantInput) (*answer[TenantUse], error) {
	all, err := a.Identity.Tenants(ctx, by)
	if err != nil {
		return nil, err
	}
	n := slices.IndexFunc(all, func(t identity.Tenant) bool { return t.ID == in.ID })
	if n < 0 {
		return nil, problem.New(problem.NotFound, "list them: clawjail tenant ls", "there is no tenant %s", quote(in.ID))
	}
	uses, err := a.Status.Quotas(ctx, by, in.ID)
	if err != nil {
		return nil, err
	}
	return &answer[TenantUse]{TenantUse{tenantOf(all[n]), uses}}, nil
}

func (a *API) createTenant(ctx context.Context, by identity.Principal, in *jsonBody) (*answer[Tenant], error) {
	body, err := decode[TenantRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	t, err := a.Identity.CreateTenant(ctx, by, body.ID, identity.Policy{ForbidOperatorMode: body.ForbidOperatorMode, ForbidAccountPermissions: body.ForbidAccountPermissions})
	if err != nil {
		return nil, err
	}
	return &answer[Tenant]{tenantOf(t)}, nil
}

func (a *API) setTenant(ctx context.Context, by identity.Principal, in *tenantBody) (*answer[Tenant], error) {
	// A policy that says nothing is none: left out, false would allow what is forbidden.
	body, err := decode[TenantPolicy](in.RawBody)
	if err != nil {
		return nil, err
	}
	if body == (TenantPolicy{}) {
		return nil, problem.New(problem.BadRequest, "send forbid_operator_mode or forbid_account_permissions as true or false", "nothing was said to be changed")
	}
	t, err := a.Identity.SetPolicy(ctx, by, in.ID, func(p *identity.Policy) {
		if body.ForbidOperatorMode != nil {
			p.ForbidOperatorMode = *body.ForbidOperatorMode
		}
		if body.ForbidAccountPermissions != nil {
			p.ForbidAccountPermissions = *body.ForbidAccountPermissions
		}
	})
	if err != nil {
		return nil, err
	}
	return &answer[Tenant]{tenantOf(t)}, nil
}

func (a *API) disconnectTenant(ctx context.Context, by identity.Principal, in *tenantInput) (*answer[Disconnected], error) {
	n, err := a.Identity.DisconnectTenant(ctx, by, in.ID)
	if err != nil {
		return nil, err
	}
	return &answer[Disconnected]{Disconnected{Ended: n}}, nil
}

func operatorOf(o identity.Operator) Operator {
	return Operator{
		ID: o.ID, Name: o.Name, Tenant: o.Tenant, Role: identity.Role(o.Role), KeyHint: o.KeyHint, CreatedAt: o.CreatedAt, ExpiresAt: o.ExpiresAt,
		RevokedAt: o.RevokedAt,
	}
}

func (a *API) operators(ctx context.Context, by identity.Principal, in *ofTenantInput) (*answer[Operators], error) {
	all, err := a.Identity.Operators(ctx, by, by.Among(in.Tenant))
	if err != nil {
		return nil, err
	}
	out := Operators{Operators: make([]Operator, len(all))}
	for n, o := range all {
		out.Operators[n] = operatorOf(o)
	}
	return &answer[Operators]{out}, nil
}

func (a *API) createOperator(ctx context.Context, by identity.Principal, in *jsonBody) (*answer[IssuedOperator], error) {
	body, err := decode[OperatorRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	long, err := life(body.Life)
	if err != nil {
		return nil, err
	}
	if err := checkTenant(body.Tenant); err != nil {
		return nil, err
	}
	key, o, err := a.Identity.CreateOperator(ctx, by,
		identity.NewOperator{Name: body.Name, Tenant: by.Among(body.Tenant), Role: identity.Role(body.Role), Life: long})
	if err != nil {
		return nil, err
	}
	return &answer[IssuedOperator]{IssuedOperator{Key: key.Reveal(), Operator: operatorOf(o)}}, nil
}

func (a *API) rotateOperator(ctx context.Context, by identity.Principal, in *operatorBody) (*answer[IssuedOperator], error) {
	body, err := decode[LifeRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	long, err := life(body.Life)
	if err != nil {
		return nil, err
	}
	key, o, err := a.Identity.RotateOperator(ctx, by, in.ID, long)
	if err != nil {
		return nil, err
	}
	return &answer[IssuedOperator]{IssuedOperator{Key: key.Reveal(), Operator: operatorOf(o)}}, nil
}

func (a *API) revokeOperator(ctx context.Context, by identity.Principal, in *operatorInput) (*nothing, error) {
	return nil, a.Identity.RevokeOperator(ctx, by, in.ID)
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
	long, err := life(body.Life)
	if err != nil {
		return nil, err
	}
	if err := checkTenant(body.Tenant); err != nil {
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
	long, err := life(body.Life)
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
