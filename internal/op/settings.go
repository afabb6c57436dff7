package op

import (
	"context"
	"net/http"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

// SettingsRequest is the body that replaces settings. Members that are left out follow the wider setting, but for mcp, which stays.
type SettingsRequest struct {
	Version int64               `json:"version,omitzero" doc:"version of the settings to replace; any other version is a conflict"`
	Mode    policy.Mode         `json:"mode,omitempty" enum:"enforce,report" doc:"report lets pass what the rules refuse, and only writes it down"`
	Tools   []egress.Tool       `json:"tools,omitzero" doc:"calls that execute may make; an empty list allows none; when it is left out, the wider setting counts"`
	MCP     []string            `json:"mcp,omitzero" doc:"MCP servers whose tools are offered; an empty list is none, and what is left out stays as it is"`
	Rates   egress.Rates        `json:"rates,omitzero" doc:"requests a minute"`
	Budget  egress.Budget       `json:"budget,omitzero" doc:"budget of models, for a day (UTC)"`
	Browser egress.BrowserReach `json:"browser,omitempty" enum:"rules,open" doc:"hosts that browsers of agents may reach: those of their rules, or the public web as well"`
	Hold    string              `json:"hold,omitempty" doc:"how long a request that no rule allows waits for an operator, such as 2m" example:"1m"`
	Note    string              `json:"note,omitempty" doc:"for people"`
}

// SettingsShown is what was set, and what is in effect with everything wider and every default.
type SettingsShown struct {
	Set       egress.Settings `json:"set"`
	Effective egress.Settings `json:"effective"`
}

type (
	// TenantsSettings are those of all agents of a tenant, or of all tenants.
	TenantsSettings struct {
		Tenant     string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own, or default, when it is left out"`
		AllTenants bool   `query:"all_tenants" doc:"the settings of all tenants, instead of one"`
	}

	// TenantsChange replaces those of a tenant.
	TenantsChange struct {
		TenantsSettings
		Body[SettingsRequest]
	}

	// AgentsChange replaces those of an agent.
	AgentsChange struct {
		OneAgent
		Body[SettingsRequest]
	}
)

// whose is the tenant whose settings they are: empty for those of all tenants.
func (w TenantsSettings) whose(by identity.Principal) (string, error) {
	switch {
	case w.AllTenants && w.Tenant != "":
		return "", problem.New(problem.BadRequest, "leave one of them out", "tenant and all_tenants exclude each other")
	case w.AllTenants:
		return "", nil
	}
	return by.TenantOr(w.Tenant), nil
}

func showSettings(ctx context.Context, s Backend, by identity.Principal, tenant, agent string) (out SettingsShown, err error) {
	out.Set, out.Effective, err = s.Egress.ShowSettings(ctx, by, tenant, agent)
	return out, err
}

func putSettings(ctx context.Context, s Backend, by identity.Principal, tenant, agent string, r SettingsRequest) (egress.Settings, error) {
	return s.Egress.PutSettings(ctx, by, egress.Settings{Meta: egress.Meta{Tenant: tenant, Agent: agent, Version: r.Version, Note: r.Note}, Mode: r.Mode, Tools: r.Tools,
		MCP: r.MCP, Rates: r.Rates, Budget: r.Budget, Hold: r.Hold, Browser: r.Browser})
}

// GetSettings shows what holds for all agents of a tenant.
func GetSettings() Op[TenantsSettings, SettingsShown] {
	return Op[TenantsSettings, SettingsShown]{Method: http.MethodGet, Path: "/v1/settings", ID: "get-settings", Summary: "Show the settings of all agents of a tenant",
		Right: identity.SettingsRead,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in TenantsSettings) (SettingsShown, error) {
			tenant, err := in.whose(by)
			if err != nil {
				return SettingsShown{}, err
			}
			return showSettings(ctx, s, by, tenant, "")
		}}
}

// PutSettings changes what holds for all agents of a tenant.
func PutSettings() Op[TenantsChange, egress.Settings] {
	return Op[TenantsChange, egress.Settings]{Method: http.MethodPut, Path: "/v1/settings", ID: "put-settings", Summary: "Change the settings of all agents of a tenant",
		Right: identity.SettingsChange,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in TenantsChange) (egress.Settings, error) {
			tenant, err := in.whose(by)
			if err != nil {
				return egress.Settings{}, err
			}
			return putSettings(ctx, s, by, tenant, "", in.Of)
		}}
}

// GetAgentSettings shows what holds for an agent.
func GetAgentSettings() Op[OneAgent, SettingsShown] {
	return Op[OneAgent, SettingsShown]{Method: http.MethodGet, Path: "/v1/agents/{name}/settings", ID: "get-agent-settings", Summary: "Show the settings of an agent",
		Right: identity.SettingsRead,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in OneAgent) (SettingsShown, error) {
			return showSettings(ctx, s, by, by.TenantOr(in.Tenant), in.Name)
		}}
}

// PutAgentSettings changes what holds for an agent.
func PutAgentSettings() Op[AgentsChange, egress.Settings] {
	return Op[AgentsChange, egress.Settings]{Method: http.MethodPut, Path: "/v1/agents/{name}/settings", ID: "put-agent-settings", Summary: "Change the settings of an agent",
		Right: identity.SettingsChange,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in AgentsChange) (egress.Settings, error) {
			tenant := by.TenantOr(in.Tenant)
			found, err := AgentNamed(ctx, s.People, by, identity.SettingsChange, tenant, in.Name)
			if err != nil {
				return egress.Settings{}, err
			}
			return putSettings(ctx, s, by, tenant, found.ID, in.Of)
		}}
}
