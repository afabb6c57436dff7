package api

import (
	"net/netip"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway/policy"
	"github.com/clawjail/clawjail/internal/op"
)

// ServiceRequest is the body that makes or replaces a service.
type ServiceRequest struct {
	op.Whose
	Name         string              `json:"name" doc:"1 to 64 of a-z, 0-9, dots, - and _"`
	BaseURL      string              `json:"base_url" doc:"where its requests go"`
	Address      netip.Addr          `json:"address,omitzero" doc:"dialled instead of looking the name up; may be private"`
	Secret       string              `json:"secret,omitempty" doc:"the name of the secret in the vault; the service's own name when it is left out"`
	Allow        []egress.Allowance  `json:"allow,omitempty" nullable:"false" doc:"what may be done; nothing when it is left out"`
	Inject       egress.Injection    `json:"inject"`
	Scrub        egress.Scrub        `json:"scrub,omitempty" enum:"redact,block,off" doc:"redact is the default"`
	Compressed   egress.Compressed   `json:"compressed,omitempty" enum:"decode,refuse" doc:"decode is the default"`
	EncodedSlash egress.EncodedSlash `json:"encoded_slash,omitempty" enum:"deny,allow" doc:"allow takes %2F in a path for a part of its segment; deny is the default"`
	Git          string              `json:"git,omitempty" doc:"the prefix of repository URLs that tools in jails are pointed away from"`
	Env          map[string]string   `json:"env,omitempty" doc:"variables that tools in jails get; {url} stands for the service's route"`
	Note         string              `json:"note,omitempty" doc:"for people"`
}

// Service is the entry that the request is for, without whose it is.
func (r ServiceRequest) Service() egress.Service {
	return egress.Service{
		Meta: egress.Meta{Note: r.Note}, Name: r.Name, Upstream: egress.Upstream{BaseURL: r.BaseURL, Address: r.Address, Secret: r.Secret},
		Allow: r.Allow, Inject: r.Inject, Scrub: r.Scrub, Compressed: r.Compressed, EncodedSlash: r.EncodedSlash, Git: r.Git, Env: r.Env,
	}
}

// Service is a service as it is answered. Its credential is in the vault alone.
type Service struct {
	egress.Service
	AgentName string `json:"agent_name,omitempty"`
}

// Services is the answer to a listing.
type Services struct {
	Services []Service `json:"services" nullable:"false"`
}

// ProviderRequest is the body that makes or replaces a provider of models.
type ProviderRequest struct {
	op.Whose
	Name     string           `json:"name" doc:"1 to 64 of a-z, 0-9, dots, - and _"`
	BaseURL  string           `json:"base_url" doc:"where its requests go"`
	Address  netip.Addr       `json:"address,omitzero" doc:"dialled instead of looking the name up; may be private"`
	Secret   string           `json:"secret,omitempty" doc:"the name of the secret in the vault; the provider's own name when it is left out"`
	Wire     egress.Wire      `json:"wire" enum:"openai,anthropic,ollama"`
	Models   []string         `json:"models" nullable:"false" doc:"patterns, in which * stands for any text"`
	Priority int              `json:"priority,omitzero" doc:"lower first; 100 when it is left out"`
	Inject   egress.Injection `json:"inject,omitzero" doc:"as the wire has it when it is left out"`
	Prices   []egress.Price   `json:"prices,omitempty" nullable:"false" doc:"per million tokens"`
	Hosted   []string         `json:"hosted,omitempty" nullable:"false" doc:"what it may do by itself for agents: web_search, mcp, fetch, stored and others"`
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

// SettingsRequest is the body that replaces settings. What is left out is the wider setting's.
type SettingsRequest struct {
	Version int64               `json:"version,omitzero" doc:"of the settings that are to be replaced: others are not"`
	Mode    policy.Mode         `json:"mode,omitempty" enum:"enforce,report" doc:"report only writes down what would be refused"`
	Tools   []egress.Tool       `json:"tools,omitzero" doc:"what execute may do; an empty list is nothing, none at all is the wider setting's"`
	MCP     []string            `json:"mcp,omitzero" doc:"MCP servers whose tools are offered; an empty list is none, and what is left out stays as it is"`
	Rates   egress.Rates        `json:"rates,omitzero" doc:"requests a minute"`
	Budget  egress.Budget       `json:"budget,omitzero" doc:"of models, a day (UTC)"`
	Browser egress.BrowserReach `json:"browser,omitempty" enum:"rules,open" doc:"what the browsers may reach that agents open: their rules, or the public web as well"`
	Hold    string              `json:"hold,omitempty" doc:"how long a request that no rule allows waits for an operator, such as 2m"`
	Note    string              `json:"note,omitempty" doc:"for people"`
}

func (r SettingsRequest) settings() egress.Settings {
	return egress.Settings{Meta: egress.Meta{Version: r.Version, Note: r.Note}, Mode: r.Mode, Tools: r.Tools, MCP: r.MCP, Rates: r.Rates, Budget: r.Budget, Hold: r.Hold, Browser: r.Browser}
}

// SettingsShown is what was set, and what is in effect with everything wider and every default.
type SettingsShown struct {
	Set       egress.Settings `json:"set"`
	Effective egress.Settings `json:"effective"`
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
