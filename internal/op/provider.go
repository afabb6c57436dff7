package op

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
)

// ProviderRequest is the body that makes or replaces a provider of models.
type ProviderRequest struct {
	Whose
	Name     string           `json:"name" doc:"1 to 64 of a-z, 0-9, dots, - and _" example:"models"`
	BaseURL  string           `json:"base_url" doc:"where its requests go" example:"https://example.com"`
	Address  netip.Addr       `json:"address,omitzero" doc:"dialled instead of looking the name up; may be private"`
	Secret   string           `json:"secret,omitempty" doc:"the name of the secret in the vault; the provider's own name when it is left out"`
	Wire     egress.Wire      `json:"wire" enum:"openai,anthropic,ollama" example:"openai"`
	Models   []string         `json:"models" nullable:"false" doc:"patterns, in which * stands for any text" example:"[\"*\"]"`
	Priority int              `json:"priority,omitzero" doc:"lower first; 100 when it is left out"`
	Inject   egress.Injection `json:"inject,omitzero" doc:"as the wire has it when it is left out"`
	Prices   []egress.Price   `json:"prices,omitempty" nullable:"false" doc:"per million tokens"`
	Hosted   []string         `json:"hosted,omitempty" nullable:"false" doc:"acts that the provider may do by itself for agents: web_search, mcp, fetch, stored and others"`
	Note     string           `json:"note,omitempty" doc:"for people"`
}

// Provider is the entry that the request is for, without whose it is.
func (r ProviderRequest) Provider() egress.Provider {
	return egress.Provider{
		Meta: egress.Meta{Note: r.Note}, Name: r.Name, Upstream: egress.Upstream{BaseURL: r.BaseURL, Address: r.Address, Secret: r.Secret},
		Wire: r.Wire, Models: r.Models, Priority: r.Priority, Inject: r.Inject, Prices: r.Prices, Hosted: r.Hosted,
	}
}

// Provider is a provider as it is answered. Its key is in the vault alone.
type Provider struct {
	egress.Provider
	AgentName string `json:"agent_name,omitempty"`
}

// Providers is the answer to a listing.
type Providers struct {
	Providers []Provider `json:"providers" nullable:"false"`
}

// ModelUsage is what an agent has used of a model on one day.
type ModelUsage struct {
	egress.Usage
	AgentName string `json:"agent_name,omitempty"`
}

// ModelUsages is the answer to a listing.
type ModelUsages struct {
	Usage []ModelUsage `json:"usage" nullable:"false"`
}

type (
	// NewProvider is a provider to be made.
	NewProvider struct{ Body[ProviderRequest] }

	// ProviderNamed names a provider.
	ProviderNamed struct {
		ID string `path:"id" maxLength:"64" doc:"the provider's id"`
	}
)

// ListProviders lists the providers.
func ListProviders() Op[OfTenant, Providers] {
	return Op[OfTenant, Providers]{Method: http.MethodGet, Path: "/v1/providers", ID: "list-providers", Summary: "List the providers of models", Right: identity.ProviderList,
		Command: Command{Use: "ls", Aliases: []string{"list"}, Short: "List providers", Long: "Lists providers in the order in which they are asked."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in OfTenant) (Providers, error) {
			all, err := named(ctx, s, by, in, s.Egress.ListProviders, func(one egress.Provider, names map[string]string) Provider { return Provider{one, names[one.Agent]} })
			return Providers{all}, err
		},
		View: func(all Providers) []Block {
			out := table(all.Providers, []any{"NAME", "WIRE", "URL", "TENANT", "AGENT", "PRIORITY", "SECRET", "MODELS", "PRICES"}, func(p Provider) []any {
				prices := listOf(p.Prices, egress.Price.String)
				return []any{p.Name, p.Wire, p.BaseURL, allWhenNone(p.Tenant), cmp.Or(p.AgentName, p.Agent), p.Priority, cmp.Or(p.Secret, p.Name),
					strings.Join(p.Models, ", "), strings.Join(prices, ", ")}
			})
			out.Folds = 4
			return []Block{out}
		}}
}

// PutProvider makes a provider, or replaces the one of the same tenant, agent and name.
func PutProvider() Op[NewProvider, Provider] {
	return Op[NewProvider, Provider]{Method: http.MethodPut, Path: "/v1/providers", ID: "put-provider", Summary: "Make a provider, or replace the one of the same name", Right: identity.ProviderChange,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in NewProvider) (out Provider, err error) {
			one := in.Of.Provider()
			if one.Tenant, one.Agent, err = in.Of.Whose.Of(ctx, s.People, by, identity.ProviderChange); err != nil {
				return out, err
			}
			one, err = s.Egress.PutProvider(ctx, by, one)
			return Provider{one, in.Of.Agent}, err
		}}
}

// RemoveProvider removes a provider. Its secret stays.
func RemoveProvider() Op[ProviderNamed, None] {
	return Op[ProviderNamed, None]{Method: http.MethodDelete, Path: "/v1/providers/{id}", ID: "remove-provider", Summary: "Remove a provider", Right: identity.ProviderChange,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in ProviderNamed) (None, error) {
			return None{}, s.Egress.RemoveProvider(ctx, by, in.ID)
		}}
}

// UsageSince is a request about what agents have used.
type UsageSince struct {
	OfTenant
	From string `query:"from" pattern:"^[0-9]{4}-[0-9]{2}-[0-9]{2}$" doc:"the first day (UTC), such as 2026-01-31; today when it is left out" flag:"from" value:"day" usage:"the first day, such as 2026-01-31 (default today)" is:"day"`
}

// ListUsage lists what agents have used of models.
func ListUsage() Op[UsageSince, ModelUsages] {
	return Op[UsageSince, ModelUsages]{Method: http.MethodGet, Path: "/v1/usage", ID: "list-usage", Summary: "Show what agents have used of models", Right: identity.UsageRead,
		Command: Command{Use: "usage", Short: "Show what agents have used of models", Example: "  clawjail usage --from 2026-01-01",
			Long: "Shows what agents have used of models, by day (UTC). Without --from it is today. A model without a price costs nothing here."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in UsageSince) (ModelUsages, error) {
			since := func(ctx context.Context, by identity.Principal, tenant string) ([]egress.Usage, error) {
				return s.Egress.Usage(ctx, by, tenant, cmp.Or(in.From, s.Now().UTC().Format(time.DateOnly)))
			}
			all, err := named(ctx, s, by, in.OfTenant, since, func(u egress.Usage, names map[string]string) ModelUsage { return ModelUsage{u, names[u.Agent]} })
			return ModelUsages{all}, err
		},
		View: func(all ModelUsages) []Block {
			out := table(all.Usage, []any{"DAY", "TENANT", "AGENT", "PROVIDER", "MODEL", "REQUESTS", "INPUT", "OUTPUT", "COST"}, func(u ModelUsage) []any {
				return []any{u.Day, u.Tenant, cmp.Or(u.AgentName, u.Agent), u.Provider, u.Model, u.Requests, u.InputTokens, u.OutputTokens, u.Cost}
			})
			out.Folds = 2
			return []Block{out}
		}}
}
