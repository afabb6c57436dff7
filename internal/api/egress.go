package api

import (
	"context"
	"errors"
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
	Rules(ctx context.Context, by identity.Principal, tenant string) ([]egress.Rule, error)
	AddRule(ctx context.Context, by identity.Principal, r egress.Rule) (egress.Rule, error)
	RemoveRule(ctx context.Context, by identity.Principal, id string) error
	Explain(ctx context.Context, by identity.Principal, q []egress.Question) ([]egress.Explanation, error)

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
	ruleInput struct {
		ID string `path:"id" maxLength:"64" doc:"the rule's id"`
	}

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
	add(a, route{method: http.MethodGet, path: "/v1/rules", id: "list-rules", summary: "List the rules of the way out"}, a.rulesOf)
	add(a, route{method: http.MethodPost, path: "/v1/rules", id: "add-rule", summary: "Make a rule",
		status: http.StatusCreated, body: reflect.TypeFor[RuleRequest]()}, a.addRule)
	add(a, route{method: http.MethodDelete, path: "/v1/rules/{id}", id: "remove-rule", summary: "Remove a rule",
		status: http.StatusNoContent}, a.removeRule)
	add(a, route{method: http.MethodPost, path: "/v1/rules/explain", id: "explain-rules", summary: "Decide requests without doing them",
		status: http.StatusOK, body: reflect.TypeFor[ExplainRequest]()}, a.explain)

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

func (a *API) whose(ctx context.Context, by identity.Principal, op identity.Operation, w Whose) (tenant, agent string, err error) {
	return w.Of(ctx, a.Identity, by, op)
}

// Of is whom an entry is for: the tenant, empty for all of them, and the id of the agent.
func (w Whose) Of(ctx context.Context, people Identity, by identity.Principal, right identity.Operation) (tenant, agent string, err error) {
	if err := errors.Join(op.CheckTenant(w.Tenant), checkText("agent", w.Agent)); err != nil {
		return "", "", err
	}
	if w.AllTenants {
		if w.Tenant != "" || w.Agent != "" {
			return "", "", problem.New(problem.BadRequest, "leave tenant and agent out, or all_tenants", "what is for all tenants is not one's alone")
		}
		return "", "", nil
	}
	tenant = by.TenantOr(w.Tenant)
	if w.Agent == "" {
		return tenant, "", nil
	}
	found, err := AgentNamed(ctx, people, by, right, tenant, w.Agent)
	return tenant, found.ID, err
}

func (a *API) agentNamed(ctx context.Context, by identity.Principal, op identity.Operation, tenant, name string) (identity.Agent, error) {
	return AgentNamed(ctx, a.Identity, by, op, tenant, name)
}

// AgentNamed finds an agent by its name, for somebody who may do the operation with what is its tenant's: others are told
// that they may not, before they are told whether it exists.
func AgentNamed(ctx context.Context, people Identity, by identity.Principal, op identity.Operation, tenant, name string) (identity.Agent, error) {
	if err := people.Authorize(ctx, by, op, tenant); err != nil {
		return identity.Agent{}, err
	}
	all, err := people.Agents(ctx, by, tenant)
	if err != nil {
		return identity.Agent{}, err
	}
	for _, g := range all {
		if g.Name == name {
			return g, nil
		}
	}
	return identity.Agent{}, problem.New(problem.NotFound, "list them: clawjail agent ls", "there is no agent %q", name)
}

// agentsByID are the names of agents, for an answer. One that has been removed has none.
func (a *API) agentsByID(ctx context.Context, by identity.Principal, tenant string) (map[string]string, error) {
	if by.Kind == identity.KindAgent {
		return map[string]string{by.ID: by.Name}, nil // there are no others for it
	}
	all, err := a.Identity.Agents(ctx, by, tenant)
	if err != nil {
		return nil, err
	}
	out := make(map[string]string, len(all))
	for _, g := range all {
		out[g.ID] = g.Name
	}
	return out, nil
}

func (a *API) rulesOf(ctx context.Context, by identity.Principal, in *ofTenantInput) (*answer[Rules], error) {
	tenant := by.Among(in.Tenant)
	all, err := a.Egress.Rules(ctx, by, tenant)
	if err != nil {
		return nil, err
	}
	names, err := a.agentsByID(ctx, by, tenant)
	if err != nil {
		return nil, err
	}
	out := Rules{Rules: make([]Rule, len(all))}
	for n, r := range all {
		out.Rules[n] = ruleAnswer(r, names[r.Agent])
	}
	return &answer[Rules]{out}, nil
}

func (a *API) addRule(ctx context.Context, by identity.Principal, in *jsonBody) (*answer[Rule], error) {
	body, err := decode[RuleRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	rule, err := body.Rule(a.Now())
	if err != nil {
		return nil, err
	}
	if rule.Tenant, rule.Agent, err = a.whose(ctx, by, identity.RuleChange, body.Whose); err != nil {
		return nil, err
	}
	made, err := a.Egress.AddRule(ctx, by, rule)
	if err != nil {
		return nil, err
	}
	return &answer[Rule]{ruleAnswer(made, body.Agent)}, nil
}

func (a *API) removeRule(ctx context.Context, by identity.Principal, in *ruleInput) (*nothing, error) {
	return nil, a.Egress.RemoveRule(ctx, by, in.ID)
}

// maxQuestions is how many requests are explained at once.
const maxQuestions = 10_000

func (a *API) explain(ctx context.Context, by identity.Principal, in *jsonBody) (*answer[Explanations], error) {
	body, err := decode[ExplainRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	if len(body.Questions) == 0 || len(body.Questions) > maxQuestions {
		return nil, problem.New(problem.BadRequest, "send 1 to 10000 questions", "there are %d questions", len(body.Questions))
	}
	for n := range body.Questions {
		q := &body.Questions[n]
		if err := errors.Join(op.CheckTenant(q.Tenant), checkText("agent", q.Agent)); err != nil {
			return nil, err
		}
		q.Tenant = by.TenantOr(q.Tenant)
		if by.Kind == identity.KindAgent && q.Agent == "" {
			q.Agent = by.Name
		}
	}
	all, err := a.Egress.Explain(ctx, by, body.Questions)
	if err != nil {
		return nil, err
	}
	return &answer[Explanations]{Explanations{Explanations: listed(all)}}, nil
}

func (a *API) services(ctx context.Context, by identity.Principal, in *ofTenantInput) (*answer[Services], error) {
	tenant := by.Among(in.Tenant)
	all, err := a.Egress.ListServices(ctx, by, tenant)
	if err != nil {
		return nil, err
	}
	names, err := a.agentsByID(ctx, by, tenant)
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
	if service.Tenant, service.Agent, err = a.whose(ctx, by, identity.ServiceChange, body.Whose); err != nil {
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
	names, err := a.agentsByID(ctx, by, tenant)
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
	if provider.Tenant, provider.Agent, err = a.whose(ctx, by, identity.ProviderChange, body.Whose); err != nil {
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
		found, err := a.agentNamed(ctx, by, identity.SettingsChange, tenant, in.Name)
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
	names, err := a.agentsByID(ctx, by, tenant)
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
