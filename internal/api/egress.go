package api

import (
	"context"
	"net/http"
	"reflect"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

// Egress is what operators decide about the way out, and what agents ask for. *egress.Book is one.
type Egress interface {
	op.Egress

	ShowSettings(ctx context.Context, by identity.Principal, tenant, agent string) (set, effective egress.Settings, err error)
	PutSettings(ctx context.Context, by identity.Principal, s egress.Settings) (egress.Settings, error)
}

type (
	settingsInput struct {
		Tenant     string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own, or default, when it is left out"`
		AllTenants bool   `query:"all_tenants" doc:"what holds for all tenants, instead of one"`
	}

	settingsBody struct {
		Tenant     string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own, or default, when it is left out"`
		AllTenants bool   `query:"all_tenants" doc:"what holds for all tenants, instead of one"`
		RawBody    []byte `contentType:"application/json"`
	}
)

func (a *API) egressRoutes() {
	provide(a, op.ListRules())
	provide(a, op.AddRule())
	provide(a, op.RemoveRule())
	provide(a, op.ExplainRules())
	provide(a, op.ListServices())
	provide(a, op.PutService())
	provide(a, op.RemoveService())
	provide(a, op.ListProviders())
	provide(a, op.PutProvider())
	provide(a, op.RemoveProvider())
	provide(a, op.ListUsage())
	provide(a, op.AskForAccess())
	provide(a, op.ListAccess())
	provide(a, op.ShowAccess())
	provide(a, op.AnswerAccess())

	add(a, route{method: http.MethodGet, path: "/v1/settings", id: "get-settings", summary: "What holds for all agents of a tenant"}, a.settings)
	add(a, route{method: http.MethodPut, path: "/v1/settings", id: "put-settings", summary: "Change what holds for all agents of a tenant",
		status: http.StatusOK, body: reflect.TypeFor[SettingsRequest]()}, a.putSettings)
	add(a, route{method: http.MethodGet, path: "/v1/agents/{name}/settings", id: "get-agent-settings", summary: "What holds for an agent"}, a.agentSettings)
	add(a, route{method: http.MethodPut, path: "/v1/agents/{name}/settings", id: "put-agent-settings", summary: "Change what holds for an agent",
		status: http.StatusOK, body: reflect.TypeFor[SettingsRequest]()}, a.putAgentSettings)
}

// settingsTenant is whose settings a query names: empty for those of all tenants.
func settingsTenant(by identity.Principal, tenant string, all bool) (string, error) {
	switch {
	case all && tenant != "":
		return "", problem.New(problem.BadRequest, "leave one of them out", "tenant and all_tenants are both there")
	case all:
		return "", nil
	}
	return by.TenantOr(tenant), nil
}

func (a *API) settings(ctx context.Context, by identity.Principal, in *settingsInput) (*answer[SettingsShown], error) {
	tenant, err := settingsTenant(by, in.Tenant, in.AllTenants)
	if err != nil {
		return nil, err
	}
	return a.showSettings(ctx, by, tenant, "")
}

func (a *API) agentSettings(ctx context.Context, by identity.Principal, in *agentInput) (*answer[SettingsShown], error) {
	return a.showSettings(ctx, by, by.TenantOr(in.Tenant), in.Name)
}

func (a *API) showSettings(ctx context.Context, by identity.Principal, tenant, agent string) (*answer[SettingsShown], error) {
	set, effective, err := a.Egress.ShowSettings(ctx, by, tenant, agent)
	if err != nil {
		return nil, err
	}
	return &answer[SettingsShown]{SettingsShown{Set: set, Effective: effective}}, nil
}

func (a *API) putSettings(ctx context.Context, by identity.Principal, in *settingsBody) (*answer[egress.Settings], error) {
	tenant, err := settingsTenant(by, in.Tenant, in.AllTenants)
	if err != nil {
		return nil, err
	}
	return a.storeSettings(ctx, by, in.RawBody, func() (string, string, error) { return tenant, "", nil })
}

func (a *API) putAgentSettings(ctx context.Context, by identity.Principal, in *agentTokenBody) (*answer[egress.Settings], error) {
	return a.storeSettings(ctx, by, in.RawBody, func() (string, string, error) {
		tenant := by.TenantOr(in.Tenant)
		found, err := op.AgentNamed(ctx, a.Identity, by, identity.SettingsChange, tenant, in.Name)
		return tenant, found.ID, err
	})
}

func (a *API) storeSettings(ctx context.Context, by identity.Principal, raw []byte, whose func() (tenant, agent string, err error)) (*answer[egress.Settings], error) {
	body, err := decode[SettingsRequest](raw)
	if err != nil {
		return nil, err
	}
	settings := body.settings()
	if settings.Tenant, settings.Agent, err = whose(); err != nil {
		return nil, err
	}
	out, err := a.Egress.PutSettings(ctx, by, settings)
	if err != nil {
		return nil, err
	}
	return &answer[egress.Settings]{out}, nil
}

// listed is a list that is there, also when it is empty.
func listed[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}
