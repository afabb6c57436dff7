package api

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

// Egress is what operators decide about the way out, and what agents ask for. *egress.Book is one.
type Egress interface {
	op.Egress

	ListServices(ctx context.Context, by identity.Principal, tenant string) ([]egress.Service, error)
	PutService(ctx context.Context, by identity.Principal, s egress.Service) (egress.Service, error)
	RemoveService(ctx context.Context, by identity.Principal, id string) error
	ListProviders(ctx context.Context, by identity.Principal, tenant string) ([]egress.Provider, error)
	PutProvider(ctx context.Context, by identity.Principal, p egress.Provider) (egress.Provider, error)
	RemoveProvider(ctx context.Context, by identity.Principal, id string) error

	ShowSettings(ctx context.Context, by identity.Principal, tenant, agent string) (set, effective egress.Settings, err error)
	PutSettings(ctx context.Context, by identity.Principal, s egress.Settings) (egress.Settings, error)

	Ask(ctx context.Context, by identity.Principal, kind egress.AccessKind, target, reason string, wait time.Duration) (egress.AccessRequest, error)
	AccessRequests(ctx context.Context, by identity.Principal, tenant string, all bool) ([]egress.AccessRequest, error)
	AccessRequest(ctx context.Context, by identity.Principal, id string, wait time.Duration) (egress.AccessRequest, error)
	Answer(ctx context.Context, by identity.Principal, id string, a egress.AccessAnswer) (egress.AccessRequest, error)

	Usage(ctx context.Context, by identity.Principal, tenant, from string) ([]egress.Usage, error)
}

type (
	serviceInput struct {
		ID string `path:"id" maxLength:"64" doc:"the service's id"`
	}

	providerInput struct {
		ID string `path:"id" maxLength:"64" doc:"the provider's id"`
	}

	settingsInput struct {
		Tenant     string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own, or default, when it is left out"`
		AllTenants bool   `query:"all_tenants" doc:"what holds for all tenants, instead of one"`
	}

	settingsBody struct {
		Tenant     string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own, or default, when it is left out"`
		AllTenants bool   `query:"all_tenants" doc:"what holds for all tenants, instead of one"`
		RawBody    []byte `contentType:"application/json"`
	}

	usageInput struct {
		Tenant string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own when it is left out; of a caller of all tenants, all"`
		From   string `query:"from" pattern:"^[0-9]{4}-[0-9]{2}-[0-9]{2}$" doc:"the first day (UTC), such as 2026-01-31; today when it is left out"`
	}
)

func (a *API) egressRoutes() {
	provide(a, op.ListRules())
	provide(a, op.AddRule())
	provide(a, op.RemoveRule())
	provide(a, op.ExplainRules())

	add(a, route{method: http.MethodGet, path: "/v1/services", id: "list-services", summary: "List the services that agents use"}, a.services)
	add(a, route{method: http.MethodPut, path: "/v1/services", id: "put-service", summary: "Make a service, or replace the one of the same name",
		status: http.StatusOK, body: reflect.TypeFor[ServiceRequest]()}, a.putService)
	add(a, route{method: http.MethodDelete, path: "/v1/services/{id}", id: "remove-service", summary: "Remove a service",
		status: http.StatusNoContent}, a.removeService)

	add(a, route{method: http.MethodGet, path: "/v1/providers", id: "list-providers", summary: "List the providers of models"}, a.providers)
	add(a, route{method: http.MethodPut, path: "/v1/providers", id: "put-provider", summary: "Make a provider, or replace the one of the same name",
		status: http.StatusOK, body: reflect.TypeFor[ProviderRequest]()}, a.putProvider)
	add(a, route{method: http.MethodDelete, path: "/v1/providers/{id}", id: "remove-provider", summary: "Remove a provider",
		status: http.StatusNoContent}, a.removeProvider)

	add(a, route{method: http.MethodGet, path: "/v1/settings", id: "get-settings", summary: "What holds for all agents of a tenant"}, a.settings)
	add(a, route{method: http.MethodPut, path: "/v1/settings", id: "put-settings", summary: "Change what holds for all agents of a tenant",
		status: http.StatusOK, body: reflect.TypeFor[SettingsRequest]()}, a.putSettings)
	add(a, route{method: http.MethodGet, path: "/v1/agents/{name}/settings", id: "get-agent-settings", summary: "What holds for an agent"}, a.agentSettings)
	add(a, route{method: http.MethodPut, path: "/v1/agents/{name}/settings", id: "put-agent-settings", summary: "Change what holds for an agent",
		status: http.StatusOK, body: reflect.TypeFor[SettingsRequest]()}, a.putAgentSettings)

	add(a, route{method: http.MethodGet, path: "/v1/usage", id: "list-usage", summary: "What agents have used of models"}, a.usage)
}

func (a *API) services(ctx context.Context, by identity.Principal, in *ofTenantInput) (*answer[Services], error) {
	tenant := by.Among(in.Tenant)
	all, err := a.Egress.ListServices(ctx, by, tenant)
	if err != nil {
		return nil, err
	}
	names, err := op.AgentNames(ctx, a.Identity, by, tenant)
	if err != nil {
		return nil, err
	}
	out := Services{Services: make([]Service, len(all))}
	for n, s := range all {
		out.Services[n] = Service{s, names[s.Agent]}
	}
	return &answer[Services]{out}, nil
}

func (a *API) putService(ctx context.Context, by identity.Principal, in *jsonBody) (*answer[Service], error) {
	body, err := decode[ServiceRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	service := body.Service()
	if service.Tenant, service.Agent, err = body.Whose.Of(ctx, a.Identity, by, identity.ServiceChange); err != nil {
		return nil, err
	}
	out, err := a.Egress.PutService(ctx, by, service)
	if err != nil {
		return nil, err
	}
	return &answer[Service]{Service{out, body.Agent}}, nil
}

func (a *API) removeService(ctx context.Context, by identity.Principal, in *serviceInput) (*nothing, error) {
	return nil, a.Egress.RemoveService(ctx, by, in.ID)
}

func (a *API) providers(ctx context.Context, by identity.Principal, in *ofTenantInput) (*answer[Providers], error) {
	tenant := by.Among(in.Tenant)
	all, err := a.Egress.ListProviders(ctx, by, tenant)
	if err != nil {
		return nil, err
	}
	names, err := op.AgentNames(ctx, a.Identity, by, tenant)
	if err != nil {
		return nil, err
	}
	out := Providers{Providers: make([]Provider, len(all))}
	for n, p := range all {
		out.Providers[n] = Provider{p, names[p.Agent]}
	}
	return &answer[Providers]{out}, nil
}

func (a *API) putProvider(ctx context.Context, by identity.Principal, in *jsonBody) (*answer[Provider], error) {
	body, err := decode[ProviderRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	provider := body.Provider()
	if provider.Tenant, provider.Agent, err = body.Whose.Of(ctx, a.Identity, by, identity.ProviderChange); err != nil {
		return nil, err
	}
	out, err := a.Egress.PutProvider(ctx, by, provider)
	if err != nil {
		return nil, err
	}
	return &answer[Provider]{Provider{out, body.Agent}}, nil
}

func (a *API) removeProvider(ctx context.Context, by identity.Principal, in *providerInput) (*nothing, error) {
	return nil, a.Egress.RemoveProvider(ctx, by, in.ID)
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

func (a *API) usage(ctx context.Context, by identity.Principal, in *usageInput) (*answer[ModelUsages], error) {
	tenant, from := by.Among(in.Tenant), in.From
	if from == "" {
		from = a.Now().UTC().Format(time.DateOnly)
	}
	all, err := a.Egress.Usage(ctx, by, tenant, from)
	if err != nil {
		return nil, err
	}
	names, err := op.AgentNames(ctx, a.Identity, by, tenant)
	if err != nil {
		return nil, err
	}
	out := ModelUsages{Usage: make([]ModelUsage, len(all))}
	for n, u := range all {
		out.Usage[n] = ModelUsage{u, names[u.Agent]}
	}
	return &answer[ModelUsages]{out}, nil
}

// listed is a list that is there, also when it is empty.
func listed[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}
