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
	Name     string           `json:"name" doc:"1 to 64 of a-z, 0-9, dots, - and _" arg:"1" example:"models"`
	Wire     egress.Wire      `json:"wire" enum:"openai,anthropic,ollama" example:"openai" flag:"wire" usage:"its language: openai, anthropic or ollama" need:"the language is missing: --wire openai, anthropic or ollama; or --preset"`
	BaseURL  string           `json:"base_url" doc:"where its requests go" example:"https://example.com" flag:"url" value:"URL" usage:"base URL, before /v1 or /api" need:"where the provider is, is missing: --url https://models.example.com"`
	Address  netip.Addr       `json:"address,omitzero" doc:"dialled instead of looking the name up; may be private" flag:"address" value:"address" usage:"private address to connect to; only an admin of the installation may"`
	Secret   string           `json:"secret,omitempty" doc:"the name of the secret in the vault; the provider's own name when it is left out" flag:"secret" value:"name" usage:"name of the secret in the vault (default the name of the provider)" complete:"secrets"`
	Models   []string         `json:"models" nullable:"false" doc:"patterns, in which * stands for any text" example:"[\"*\"]" flag:"model" value:"pattern" usage:"pattern of models that it has, such as 'gpt-*'" need:"which models it has is missing: --model 'gpt-*', or --model '*' for all"`
	Priority int              `json:"priority,omitzero" doc:"lower first; 100 when it is left out" flag:"priority" usage:"lower first (default 100)" is:"positive"`
	Inject   egress.Injection `json:"inject,omitzero" doc:"as the wire has it when it is left out" flag:"inject" usage:"how the key goes in: bearer, header, query or none (default as the language has it)" offer:"bearer,header,query,none"`
	Prices   []egress.Price   `json:"prices,omitempty" nullable:"false" doc:"per million tokens" flag:"price" value:"PATTERN=INPUT/OUTPUT" usage:"cost of models, as PATTERN=INPUT/OUTPUT per million tokens, and behind it what costs otherwise" read:"write models and two amounts, such as 'gpt-4o*=2.50/10', and behind them what costs otherwise: 'gpt-4o*=2.50/10 cache-read=1.25 audio-output=80 call=0.01 priority=2'"`
	Hosted   []string         `json:"hosted,omitempty" nullable:"false" doc:"acts that the provider may do by itself for agents: web_search, mcp, fetch, stored and others" flag:"allow-hosted" value:"names" usage:"names of what it may do by itself for agents: web_search, mcp, fetch, stored and others (default nothing)"`
	Note     string           `json:"note,omitempty" doc:"for people" flag:"note" value:"text" usage:"a text for people"`
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

	// ProviderNamed names a provider by its id. The command line finds that by the provider's name, and whose it is.
	ProviderNamed struct {
		ID    string `path:"id" maxLength:"64" doc:"the provider's id" arg:"1" complete:"providers"`
		Owner Whose
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
		Command: Command{Use: "add NAME",
			Long: "Makes a provider, or replaces the one of the same name, tenant and agent. A model is served by the first provider of its language that " +
				"has it: an agent's own come before its tenant's, then by --priority, then by age. --price counts the cost, per million tokens; " +
				"without one a model is not counted as money, and agents with a budget in money may not use it. Acts of a provider by itself, such as " +
				"searching the web or fetching an address, do not follow the rules of agents, and are refused unless --allow-hosted names them.",
			Example: "  clawjail secret set openai < key.txt\n  clawjail provider add openai --preset openai --price 'gpt-4o*=2.50/10'\n" +
				"  clawjail provider add local --preset ollama --url http://models.internal:11434 --address 192.168.1.30"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in NewProvider) (out Provider, err error) {
			one := in.Of.Provider()
			if one.Tenant, one.Agent, err = in.Of.Whose.Of(ctx, s.People, by, identity.ProviderChange); err != nil {
				return out, err
			}
			one, err = s.Egress.PutProvider(ctx, by, one)
			return Provider{one, in.Of.Agent}, err
		},
		View: func(p Provider) []Block {
			return []Block{line("provider %s: %s, %s", p.Name, p.BaseURL, strings.Join(p.Models, ", "))}
		}}
}

// RemoveProvider removes a provider. Its secret stays.
func RemoveProvider() Op[ProviderNamed, None] {
	return Op[ProviderNamed, None]{Method: http.MethodDelete, Path: "/v1/providers/{id}", ID: "remove-provider", Summary: "Remove a provider", Right: identity.ProviderChange,
		Command: removalByName("provider"),
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
